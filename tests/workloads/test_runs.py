"""`python -m workloads runs`: what it says of a place, that damage is found, and that tidying harms no run."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from _pytest.capture import CaptureResult

from tests.emulator.google import served
from tests.support import loopback, stub_kubectl
from tests.support.command_line import CommandLine
from tests.support.storage_places import storage_place
from workloads.checkpoints import manifest
from workloads.checkpoints.store import CheckpointStore
from workloads.runs import catalog as run_catalog
from workloads.storage.folders import EMULATOR_VARIABLE, Folder, locate
from workloads.tune import ledger

IDENTITY = {"model": "nano"}


def train(place: Folder, run: str, epochs: int, of: int = 3, kept: int = 9) -> list[str]:
    """What a run of so many of its epochs leaves; names of its checkpoints."""
    config = {"epochs": of, "keep_checkpoints": 2}
    store = CheckpointStore(place.child(run, "checkpoints"), keep=kept)
    for epoch in range(1, epochs + 1):
        facts = {"epoch": epoch, "world_size": 2, "config": config}
        store.save({"weights": torch.full((1000,), float(epoch))}, epoch * 10, IDENTITY, facts)
        place.child(run, "journal").write(f"{epoch}.jsonl", b"{}\n")
    return store.committed()


def spoil(place: Folder, run: str, name: str) -> None:
    place.child(run, "checkpoints", name).write("shard-000.pt", b"rot")


def steps(place: Folder, run: str) -> list[int]:
    found = CheckpointStore(place.child(run, "checkpoints"), keep=2)
    return [int(name[:9]) for name in found.committed()]


class Command:
    """The command line on one place."""

    def __init__(self, place: Folder, cli: CommandLine) -> None:
        self._place, self._cli = place, cli

    def __call__(self, action: str, *words: str, code: int = 0) -> CaptureResult[str]:
        return self._cli("runs", action, "--storage", self._place.uri, *words, code=code)

    def rows(self, action: str, *words: str, code: int = 0) -> list[dict[str, Any]]:
        return json.loads(self(action, "--json", *words, code=code).out)


@pytest.fixture(params=["local"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    with storage_place(request.param, tmp_path, monkeypatch) as folder:
        yield folder


@pytest.fixture
def runs(place: Folder, cli: CommandLine) -> Command:
    return Command(place, cli)


ON_BOTH = pytest.mark.parametrize("place", ["local", "gs"], indirect=True)


@ON_BOTH
def test_a_folder_that_is_not_there_is_named_and_fails(place: Folder, cli: CommandLine) -> None:
    train(place, "a", 1)
    absent = Command(place.child("rnus"), cli)
    for words in (["list"], ["show", "a"], ["verify"], ["gc"]):
        said = absent(*words, code=2)
        assert f"there is no folder {place.child('rnus').uri}." in said.err and said.out == ""
        assert "which the first `train` makes." in said.err


@pytest.mark.parametrize("action", ["show", "verify", "repair", "gc"])
def test_a_run_that_is_not_there_is_answered_with_the_nearest_that_is(
    place: Folder, runs: Command, action: str
) -> None:
    for name in ("demo-train", "other"):
        train(place, name, 1)
    said = runs(action, "demo-trian", code=2).err
    assert "no run 'demo-trian'" in said
    assert "but demo-train, other; did you mean demo-train?\nName one of them, or another place" in said


def test_of_hundreds_of_trials_a_few_are_named_beside_the_nearest(place: Folder, runs: Command) -> None:
    for number in range(200):
        Path(place.path, f"sweep/{number:03d}/results").mkdir(parents=True)
    said = runs("show", "sweep/0123", code=2).err
    assert "sweep/019 and 180 more; did you mean sweep/" in said and "sweep/020," not in said


def test_a_place_with_nothing_in_it_says_so(place: Folder, runs: Command) -> None:
    Path(place.path).mkdir(exist_ok=True)
    said = runs("list")
    assert said.out == "" and "nothing" in said.err
    assert runs.rows("list") == []
    nearest = ", nor any other.\nName another place with --storage or --stack; runs on this machine are"
    assert nearest in runs("show", "a", code=2).err


@ON_BOTH
def test_list_tells_the_newest_step_the_size_the_age_and_what_is_complete(place: Folder, runs: Command) -> None:
    train(place, "whole", 3)
    train(place, "sweep/trial-1", 2)
    place.child("bench", "results").write("summary.json", b"{}")
    place.child("other").write("file", b"not a run")
    said = runs("list", "--json")
    assert said.err == ""
    rows = {row["run"]: row for row in json.loads(said.out)}
    assert {name: (row["status"], row["step"], row["checkpoints"]) for name, row in rows.items()} == {
        "whole": ("complete", 30, 3),
        "sweep/trial-1": ("unfinished", 20, 2),
        "bench": ("results only", None, 0),
    }
    listed = {name: entry for name in rows for entry in [place.child(name).entries()]}
    assert {name: row["bytes"] for name, row in rows.items()} == {
        name: sum(entry.size for entry in entries) for name, entries in listed.items()
    }
    assert all(abs(time.time() - row["modified"]) < 60 for row in rows.values())
    said = runs("list")
    assert "sweep/trial-1" in said.out and said.err == f"runs in {place.uri}\n"


def test_show_tells_of_checkpoints_journal_and_results(place: Folder, runs: Command) -> None:
    names = train(place, "a", 2)
    place.child("a", "results").write("summary.json", b"{}")
    place.child("a", "checkpoints", "000000099-0123456789abcde").write("shard-000.pt", b"x")
    rows = runs.rows("show", "a")
    assert [(row["checkpoint"], row["committed"]) for row in rows[:3]] == [
        (names[0], True),
        (names[1], True),
        ("000000099-0123456789abcde", False),
    ]
    assert (rows[1]["epoch"], rows[1]["workers"], rows[2]["verdict"]) == (2, 2, "no COMMIT")
    assert [row["object"] for row in rows[3:]] == ["journal/1.jsonl", "journal/2.jsonl", "results/summary.json"]
    assert "unfinished" in runs("show", "a").out


def test_show_counts_the_node_hours_of_each_start_and_prices_those_whose_price_was_known(
    place: Folder, runs: Command
) -> None:
    train(place, "a", 1)
    resumed = {"event": "resumed", "step": 0, "world_size": 16, "nodes": 2, "began": 1000.0, "time": 1010.0}
    journal = place.child("a", "journal")

    def start(name: str, **facts: object) -> None:
        lines = [{**resumed, **facts}, {"event": "step", "step": 9, "time": 2800.0}, {"event": "note", "text": "x"}]
        journal.write(f"{name}.jsonl", "".join(json.dumps(line) + "\n" for line in lines).encode())

    # Twice from the same step, as after a kill before the first checkpoint; then a second segment of that start.
    start("0000000000000000001-000000", node_hour_usd=42.4)
    start("0000000000000000002-000000", node_hour_usd=42.4)
    journal.write("0000000000000000002-000001.jsonl", b'{"event": "step", "step": 12, "time": 4600.0}\n')

    rows = [row for row in runs.rows("show", "a") if "nodes" in row]

    assert [(row["workers"], row["nodes"], row["node_hours"], row["usd"]) for row in rows] == [
        (16, 2, 1.0, 42.4),
        (16, 2, 2.0, 84.8),
    ]
    assert "; 3.00 node hours, 127.20 USD at list price" in runs("show", "a").out
    start("0000000000000000003-000000", node_hour_usd=None)
    assert "; 4.00 node hours\n" in runs("show", "a").out, "no sum of some"


@pytest.mark.thorough
@ON_BOTH
def test_verify_finds_one_flipped_byte_and_repair_lets_a_good_one_lead(place: Folder, runs: Command) -> None:
    names = train(place, "a", 3)
    train(place, "b", 1)
    runs("verify")
    spoil(place, "a", names[2])
    runs("verify", "b")
    said = runs("verify", code=6).err
    assert "1 of 4 checkpoints damaged" in said
    assert "reading 3 checkpoints of a, " in said
    assert [row["verdict"] == "good" for row in runs.rows("verify", "a", code=6)] == [True, True, False]
    # Without a terminal to ask on, nothing is changed.
    runs("repair", "a", code=2)
    assert steps(place, "a") == [10, 20, 30]
    assert f"{names[1]} leads" in runs("repair", "a", "--yes").err
    assert steps(place, "a") == [10, 20]
    assert place.child("a", "checkpoints", names[2]).read("shard-000.pt") == b"rot"
    runs("verify")
    runs("repair", "a", "--yes")


def test_a_checkpoint_that_its_trainer_removes_after_the_listing_is_no_damage(
    place: Folder, runs: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = train(place, "a", 3)
    read = manifest.read

    def overtaken(folder: Folder) -> dict[str, Any]:
        for name in gone:
            manifest.discard(place.child("a", "checkpoints", name))
        return read(folder)

    monkeypatch.setattr(manifest, "read", overtaken)
    gone = names[:1]
    assert [(row["checkpoint"], row["verdict"]) for row in runs.rows("verify")] == [
        (name, "good") for name in names[1:]
    ]
    gone = names[:2]
    assert [row["checkpoint"] for row in runs.rows("show", "a") if "checkpoint" in row] == names[2:]
    # The whole of the listing is gone, since newer ones were written.
    later = train(place, "b", 3)
    [known] = [run for run in run_catalog.runs(place) if run.name == "b"]
    train(place, "b", 3)
    for name in later:
        manifest.discard(place.child("b", "checkpoints", name))
    gone = []
    assert (known.problems(), known.status()) == ({}, "complete")
    # What is committed and not whole is damaged, as ever.
    place.child("a", "checkpoints", names[2]).delete(manifest.MANIFEST)
    assert [row["verdict"] for row in runs.rows("verify", "a", code=6) if "MANIFEST" in row["verdict"]]


def test_a_run_whose_newest_manifest_is_torn_is_called_damaged(place: Folder, runs: Command) -> None:
    place.child("whole", "checkpoints", train(place, "whole", epochs=3)[-1]).write(manifest.MANIFEST, b"{}")
    assert [row["status"] for row in runs.rows("list")] == ["damaged"]


def test_a_run_that_never_saved_has_no_age_and_can_be_shown(place: Folder, runs: Command) -> None:
    (Path(place.path) / "a" / "checkpoints").mkdir(parents=True)
    assert [(row["status"], row["modified"]) for row in runs.rows("list")] == [("no checkpoint", None)]
    assert "no checkpoint" in runs("show", "a").out


def test_repair_asks_where_it_can(place: Folder, runs: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    names = train(place, "a", 2)
    spoil(place, "a", names[1])
    for answer, left in (("n", [10, 20]), ("y", [10])):
        keyboard, stdin = os.openpty()
        os.write(keyboard, f"{answer}\n".encode())
        with os.fdopen(stdin) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            runs("repair", "a")
        os.close(keyboard)
        assert steps(place, "a") == left


def test_what_another_version_wrote_is_not_called_damaged_and_stays(place: Folder, runs: Command) -> None:
    names = train(place, "a", 2)
    newest = place.child("a", "checkpoints", names[1])
    other = json.dumps({**json.loads(newest.read(manifest.MANIFEST)), "schema": "another/1"}).encode()
    newest.write(manifest.MANIFEST, other)
    newest.write(manifest.COMMIT, hashlib.sha256(other).hexdigest().encode())
    assert [row["status"] for row in runs.rows("list")] == ["another version's"]
    (row,) = runs.rows("verify", "a")
    assert row["verdict"] == "good"
    runs("repair", "a", "--yes")
    assert steps(place, "a") == [10, 20]
    place.child("a", "checkpoints", names[0]).delete(manifest.COMMIT)
    assert f"there is no checkpoint of this version in {place.uri}" in runs("verify", "a").err


def test_repair_changes_nothing_where_no_checkpoint_is_good(place: Folder, runs: Command) -> None:
    for name in train(place, "a", 2):
        spoil(place, "a", name)
    assert "Nothing was changed" in runs("repair", "a", "--yes", code=6).err
    assert steps(place, "a") == [10, 20]


@pytest.mark.thorough
@ON_BOTH
def test_gc_removes_orphans_that_are_old_and_checkpoints_with_enough_good_newer_ones(
    place: Folder, runs: Command
) -> None:
    names = train(place, "a", 5)
    spoil(place, "a", names[4])
    orphan = "000000099-0123456789abcde"
    place.child("a", "checkpoints", orphan).write("shard-000.pt", b"half")
    # The orphan is young, so it may be a save in progress; the damaged newest counts for nothing.
    superfluous = [names[1], names[0]]
    said = runs("gc", "--json")
    assert [row["checkpoint"] for row in json.loads(said.out)] == superfluous
    assert "without --yes nothing was" in said.err
    assert "reading 2 checkpoints of a, " in said.err
    assert [row["checkpoint"] for row in runs.rows("gc", "--orphan-hours", "0")] == [orphan, *superfluous]
    assert steps(place, "a") == [10, 20, 30, 40, 50]
    runs("gc", "a", "--yes", "--orphan-hours", "0")
    assert place.child("a", "checkpoints").names() == names[2:]
    assert runs.rows("gc", "--orphan-hours", "0") == []
    assert f"there is nothing to remove in {place.uri}" in runs("gc").err
    assert [row["checkpoint"] for row in runs.rows("gc", "--keep", "1")] == [names[2]]
    runs("gc", "--keep", "0", code=2)
    for hours in ("-1", "nan"):
        assert f"--orphan-hours is {hours}" in runs("gc", "--orphan-hours", hours, code=2).err


def test_a_disk_s_own_folder_which_nobody_else_may_list_is_no_run(
    place: Folder, runs: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.listdir

    def listdir(path: str | Path) -> list[str]:
        if str(path).endswith("lost+found"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return whole(path)

    train(place, "a", 1)
    Path(place.path, "lost+found").mkdir()
    monkeypatch.setattr(os, "listdir", listdir)
    assert [row["run"] for row in runs.rows("list")] == ["a"]


def test_gc_removes_no_checkpoint_of_a_run_whose_others_are_all_damaged(place: Folder, runs: Command) -> None:
    names = train(place, "a", 4)
    for name in names[1:]:
        spoil(place, "a", name)
    runs("gc", "--yes")
    assert steps(place, "a") == [10, 20, 30, 40]
    runs("repair", "a", "--yes")
    assert steps(place, "a") == [10]


def test_the_place_is_the_stacks_runs_bucket_with_kubectl_or_in_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    with served(tmp_path / "google") as google:
        google.make_bucket("test-runs")
        monkeypatch.setenv(EMULATOR_VARIABLE, f"http://{google.host}")
        train(locate("gs://test-runs"), "a", 1)
        with monkeypatch.context() as laptop:
            laptop.setenv("PATH", stub_kubectl.install(tmp_path, stub_kubectl.OUTPUTS, "a-token"))
            assert [row["run"] for row in json.loads(cli("runs", "list", "--json").out)] == ["a"]
        for name, value in vars(stub_kubectl.OUTPUTS).items():
            monkeypatch.setenv(f"OASIS_{name.upper()}", str(value))
        assert [row["run"] for row in json.loads(cli("runs", "list", "--json").out)] == ["a"]


def test_without_kubectl_the_message_names_the_way_to_runs_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "--storage .oasis/runs" in cli("runs", "list", code=8).err
    cli("runs", "list", "--storage", "x", "--stack", "dev", code=2)


def test_a_login_that_has_expired_is_told_from_a_bucket_out_of_reach(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    error = {"error": {"code": 400, "message": "invalid_grant: Token has been expired or revoked."}}
    with loopback.answering(lambda _: (400, error)) as url:
        monkeypatch.setenv(EMULATOR_VARIABLE, url)
        assert "gcloud auth application-default login" in cli("runs", "list", "--storage", "gs://runs", code=7).err


def test_a_teams_folder_can_be_named_by_one_who_may_read_nothing_beside_it(
    monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    """A managed folder's grant covers the names that begin with `teams/vision/`; `teams/vision` is outside."""

    def answer(request: loopback.Request) -> loopback.Reply:
        if "/o?" in request.path:
            marker = {"kind": "storage#object", "name": "teams/vision/a/", "bucket": "runs", "size": "0"}
            return 200, {"kind": "storage#objects", "items": [marker]}
        return (404 if "/o/teams%2Fvision%2F" in request.path else 403), {"error": {"message": "denied or not there"}}

    with loopback.answering(answer) as url:
        monkeypatch.setenv(EMULATOR_VARIABLE, url)
        assert json.loads(cli("runs", "list", "--json", "--storage", "gs://runs/teams/vision").out) == []


def test_it_needs_neither_torch_nor_ray(tmp_path: Path) -> None:
    train(locate(tmp_path), "a", 1)
    program = (
        "import sys; sys.modules.update(torch=None, ray=None); from workloads.__main__ import main;"
        "sys.exit(sum(main(['runs', action, '--storage', sys.argv[1]]) for action in ('list', 'verify', 'gc')))"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)


def test_a_trial_that_its_search_stopped_is_not_unfinished(tmp_path: Path) -> None:
    place = locate(tmp_path)
    for run in ("s/s-000", "s/s-001"):
        train(place, run, epochs=1)
    place.child("s/s-000").write(ledger.OUTCOME, b'{"status": "stopped"}')
    found = {run.name: run.status() for run in run_catalog.runs(place)}
    assert found == {"s/s-000": "stopped early", "s/s-001": "unfinished"}
