"""The lock of a killed run is removed where it is certain that nobody holds it, in a folder and in a bucket."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from oasis_stack import live_state
from oasis_stack.command_line import external_program, stale_lock
from oasis_stack.command_line.pulumi_stack import Stack

FOLDER = ".pulumi/locks/organization/oasis/dev"
NOW = "2026-11-26T11:47:57Z"


@pytest.fixture
def stack(tmp_path: Path) -> Stack:
    (tmp_path / "Pulumi.yaml").write_text("name: oasis\nruntime: python\n")
    (tmp_path / "Pulumi.dev.yaml").write_text("config:\n  gcp:project: some-project\n")
    return Stack.named("dev", tmp_path)


@pytest.fixture
def cancelled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What was called to remove locks."""
    found: list[list[str]] = []

    def read(arguments: list[str], environment: Mapping[str, str] | None = None) -> str:
        found.append(arguments)
        return ""

    monkeypatch.setattr(external_program, "read", read)
    return found


def lock(**changes: Any) -> dict[str, Any]:
    """A lock of this user's process on this machine that is gone."""
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    own = {"pid": gone.pid, "username": getpass.getuser(), "hostname": socket.gethostname(), "timestamp": NOW}
    return {**own, **changes}


@pytest.mark.parametrize(
    ("locks", "removed"),
    [
        ([lock()], True),
        ([], False),
        ([lock(pid=os.getpid())], False),
        ([lock(hostname="another")], False),
        ([lock(username="another")], False),
        ([lock(), lock(hostname="another")], False),
        ([None], False),
        ([lock(), None], True),
    ],
    ids=["gone", "none", "at work", "of another machine", "of another user", "one of two", "ended", "beside an ended"],
)
def test_only_a_lock_that_nobody_holds_is_removed(
    stack: Stack,
    cancelled: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    locks: list[dict[str, Any] | None],
    removed: bool,
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/state?no_tmp_dir=true")
    folder = tmp_path / "state" / FOLDER
    folder.mkdir(parents=True)
    for number, content in enumerate(locks):
        if content:
            (folder / f"{number}.json").write_text(json.dumps(content))
        else:
            (folder / f"{number}.json").symlink_to("gone.json")  # listed, and not there when it is opened
    said: list[str] = []

    stale_lock.release(stack, said.append)

    assert cancelled == ([stack.bare_command("cancel", "--yes", "dev")] if removed else [])
    assert [f"process {lock['pid']} of {NOW}" in said[0] for lock in locks if lock and removed] == [True] * removed
    assert len(said) == removed


def test_a_lock_whose_number_is_another_users_process_by_now_is_left_to_pulumi(
    stack: Stack, cancelled: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}")
    monkeypatch.setattr(os, "kill", refuse)
    (tmp_path / FOLDER).mkdir(parents=True)
    (tmp_path / FOLDER / "1.json").write_text(json.dumps(lock()))

    stale_lock.release(stack, lambda _: None)

    assert cancelled == []


@pytest.mark.parametrize(("content", "left"), [("", False), ('{"user.content_type": "text/plain"}', True)])
def test_a_content_type_that_was_cut_off_no_longer_hides_the_state(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, left: bool
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/state")
    folder = tmp_path / "state" / ".pulumi" / "stacks" / "oasis"
    folder.mkdir(parents=True)
    for name in ("dev.json", "dev.json.attrs"):
        (folder / name).write_text(content)

    stale_lock.release(stack, lambda _: None)

    assert [path.name for path in sorted(folder.iterdir())] == ["dev.json", *["dev.json.attrs"] * left]


@pytest.mark.parametrize(
    ("answers", "failure", "removed"),
    [
        ([lock()], None, True),
        ([{}], None, False),  # its run ended before it was read
        ([{}, lock()], None, True),
        ([lock()], live_state.RequestRefused("no"), False),
        ([lock()], live_state.NotAnswering("no"), False),
    ],
    ids=["gone", "ended", "beside an ended", "refused", "not answering"],
)
def test_a_lock_in_a_bucket_is_found_and_a_bucket_that_cannot_be_read_is_left_to_pulumi(
    stack: Stack,
    cancelled: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    answers: list[dict[str, Any]],
    failure: Exception | None,
    removed: bool,
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", "gs://states/team")
    names = [f"team/{FOLDER}/{number}.json" for number in range(len(answers))]
    stored, asked = dict(zip(names, answers, strict=True)), list[str]()

    def get(project: str, url: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        asked.append(url)
        if failure:
            raise failure
        if parameters.get("alt") == "media":
            return stored[unquote(url.rpartition("/")[2])]
        return {"items": [{"name": name} for name in names]}

    monkeypatch.setattr(live_state, "google_get", get)

    stale_lock.release(stack, lambda _: None)

    assert len(cancelled) == removed
    objects = "https://storage.googleapis.com/storage/v1/b/states/o"
    listing = f"{objects}?prefix={quote(f'team/{FOLDER}/', safe='')}"
    read = [] if failure else [f"{objects}/{quote(name, safe='')}" for name in names]
    assert asked == [listing, *read]
