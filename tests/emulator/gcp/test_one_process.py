"""The program's whole life on Google's REST APIs, many times over, in one process."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings

from emulator.google import operations
from oasis_stack.command_line import recovery
from tests.emulator.one_process import OneProcess
from tests.emulator.provider_client import Failed
from tests.support.legal_stacks import stacks
from tests.support.stacks import FULL, changed

PROJECT = "//cloudresourcemanager.googleapis.com/projects/some-project"
SOME = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def without_waiting() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "SECONDS", 0.0)
        patch.setattr(operations, "LATE_SECONDS", 900.0)
        yield


def test_what_up_makes_reads_back_without_a_difference_and_goes_by_one_destroy(tmp_path: Path) -> None:
    google = OneProcess(tmp_path, FULL)
    deployment = google.up()
    assert len(google.held) > 60
    assert google.again(deployment) == {}
    google.destroy(deployment)
    assert [(one.kind, one.name) for one in google.cloud.inventory().other] == []


def test_what_an_interrupted_run_made_can_be_made_again_or_is_found_by_its_inputs(tmp_path: Path) -> None:
    config = changed("oasis:build.peered", True, changed("oasis:wandb_api_key", "0" * 40))
    google = OneProcess(tmp_path, config)
    google.up()
    found = set[str]()
    for (token, name), held in google.held.items():
        identity = recovery.identity({"type": token, "inputs": held.inputs})
        if identity:
            found.add(token)
            taken_over = google.provider.read(token, identity, held)
            assert taken_over is not None and taken_over.id == held.id
            with pytest.raises(Failed, match="409"):
                google.provider.create(token, name, held.inputs)
        elif token != "gcp:secretmanager/secretVersion:SecretVersion":  # a second one is as good
            assert google.provider.create(token, name, held.inputs).id == held.id
    assert recovery.IDENTITIES.keys() - found == {
        "gcp:compute/address:Address",
        "kubernetes:helm.sh/v3:Release",
    }


@pytest.mark.thorough
@SOME
@given(stacks())
def test_no_legal_stack_is_refused_and_every_one_goes_by_one_destroy(
    tmp_path_factory: pytest.TempPathFactory, config: dict[str, Any]
) -> None:
    note(json.dumps(config, indent=1))
    google = OneProcess(tmp_path_factory.mktemp("google"), config)
    deployment = google.up()
    assert google.again(deployment) == {}
    google.destroy(deployment)
    assert [(one.kind, one.name) for one in google.cloud.inventory().other] == []


@pytest.mark.thorough
def test_the_documented_roles_are_enough_for_up_and_destroy_and_each_of_them_is_needed(tmp_path: Path) -> None:
    table = (Path(__file__).parents[3] / "docs" / "cloud.md").read_text()
    (row,) = re.findall(r"^\| \*\*deployer\*\* .*$", table, re.MULTILINE)
    roles = set(re.findall(r"`(roles/[\w.]+)`", row))
    for name, config in {"default": FULL, "peered": changed("oasis:build.peered", True)}.items():
        google = OneProcess(tmp_path / name, config, roles)
        google.destroy(google.up())
        assert [one.name for one in google.cloud.inventory().other if PROJECT not in one.name] == []
    for role in sorted(roles):
        with pytest.raises(Failed, match=f"Error 403.*{re.escape(role)}"):
            OneProcess(tmp_path / role.rpartition("/")[2], FULL, roles - {role}).up()
