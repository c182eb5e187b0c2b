"""The doctor's look at the data bucket: quick however much is in it, and not content with a list."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.emulator.google import served
from tests.support.stub_kubectl import OUTPUTS
from tests.support.wandb_server import answering
from workloads.doctor import access
from workloads.doctor import command as doctor
from workloads.doctor.finding import Finding, Subject
from workloads.storage.folders import EMULATOR_VARIABLE, Folder, locate


def finding(uri: str) -> Finding:
    place = Subject(environment=replace(OUTPUTS, data_uri=uri), variables={}, gpus=8)
    return doctor.examine("data bucket", access.data_bucket, place)


def test_of_the_data_bucket_the_first_names_are_listed_and_an_object_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as google:
        for name in (EMULATOR_VARIABLE, "STORAGE_EMULATOR_HOST"):
            monkeypatch.setenv(name, f"http://{google.host}")
        google.make_bucket("data")
        assert finding("gs://data").found == "gs://data: listed; it is empty, so nothing was read"
        folder = locate("gs://data/train/cat")
        for number in range(2 * access.FIRST_NAMES):
            folder.write(f"{number:03d}.png", b"a picture")
        # All of a million names would take minutes.
        monkeypatch.setattr(Folder, "entries", lambda _: pytest.fail("the whole bucket was listed"))
        assert finding("gs://data").found == "gs://data: listed, and train/cat/000.png was read"

        locate("gs://data/set#2?").write("1.png", b"another")  # an object's name may have what a URL's path may not
        assert finding("gs://data/set#2?").found == "gs://data/set#2?: listed, and set#2?/1.png was read"


def test_a_bucket_that_is_busy_for_too_long_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_get_bucket", lambda uri: None)
    monkeypatch.setattr(access, "ANSWER_SECONDS", 0.2)
    with answering(503, {"error": {"code": 503, "message": "try again"}}) as (url, _):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        found = finding("gs://data")
    assert (found.outcome, found.authentication, "try again" in found.found) == ("fail", False, True), found


def test_objects_that_may_not_be_read_make_the_data_bucket_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_get_bucket", lambda uri: None)
    with answering(403, {"error": {"code": 403, "message": "ray lacks storage.objects.list access"}}) as (url, _):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        found = finding("gs://data")
    assert (found.outcome, found.authentication) == ("fail", True)
    assert "storage.objects.list" in found.found and "roles/storage.objectUser" in found.remedy
