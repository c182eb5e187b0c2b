"""Checkpoints: what is committed loads, what is not or no longer whole is passed over, on disk and on Cloud Storage."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pyarrow import fs

from tests.emulator.google import served
from workloads.checkpoint import COMMIT, MANIFEST, STATE, CheckpointStore
from workloads.errors import DataIntegrityError, PlaceError, UsageError
from workloads.storage import EMULATOR_VARIABLE, Folder, locate

IDENTITY = {"model": "nano", "classes": ["a", "b"]}


def state(step: int, size: int = 1000) -> dict[str, Any]:
    return {"weights": torch.full((size,), float(step)), "position": {"step": step}}


@pytest.fixture(params=["local", "gs"])
def runs(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    """A folder for runs on either kind of storage."""
    if request.param == "local":
        yield locate(tmp_path / "runs")
        return
    with served(tmp_path) as google:
        google.make_bucket("runs")
        monkeypatch.setenv(EMULATOR_VARIABLE, f"http://{google.host}")
        yield locate("gs://runs/team")


def newest(store: CheckpointStore) -> tuple[int, list[str]]:
    said: list[str] = []
    found = store.newest(IDENTITY, said.append)
    assert found is not None
    assert float(found.state["weights"][0]) == found.manifest["step"]
    return found.manifest["step"], said


def test_the_newest_comes_back_as_it_was_saved_and_older_ones_go(runs: Folder) -> None:
    store = CheckpointStore(runs.child("a", "checkpoints"), keep=2)
    assert store.newest(IDENTITY, print) is None
    for step in (5, 90, 100):
        store.save(state(step), step, IDENTITY, {"world_size": 2})
    assert newest(store) == (100, [])
    assert [name[:9] for name in store.committed()] == ["000000090", "000000100"]
    assert [name.rsplit("/")[-1] for name in runs.files()] == [COMMIT, MANIFEST, STATE] * 2


@pytest.mark.parametrize("damage", ["flipped", "short", "missing", "manifest", "no-commit"])
def test_a_damaged_newest_is_passed_over_said_and_removed_on_resuming(runs: Folder, damage: str) -> None:
    folder = runs.child("checkpoints")
    store = CheckpointStore(folder, keep=3)
    for step in (1, 2):
        store.save(state(step), step, IDENTITY, {})
    torn = folder.child(store.committed()[-1])
    content = torn.read(STATE)
    match damage:
        case "flipped":
            torn.write(STATE, content[:900] + bytes([content[900] ^ 1]) + content[901:])
        case "short":
            torn.write(STATE, content[:-1])
        case "manifest":
            torn.write(MANIFEST, torn.read(MANIFEST).replace(b'"step": 2', b'"step": 3'))
        case "missing":
            torn.filesystem.delete_file(f"{torn.path}/{STATE}")
        case _:
            torn.filesystem.delete_file(f"{torn.path}/{COMMIT}")
    step, said = newest(store)
    assert step == 1
    assert len(said) == (0 if damage == "no-commit" else 1)
    store.collect(resumed=store.committed()[0])
    assert [name[:9] for name in folder.names()] == ["000000001"]


def test_a_run_with_nothing_that_verifies_is_not_started_again_from_nothing(runs: Folder) -> None:
    store = CheckpointStore(runs.child("checkpoints"), keep=2)
    store.save(state(1), 1, IDENTITY, {})
    runs.child("checkpoints", store.committed()[0]).write(STATE, b"")
    with pytest.raises(DataIntegrityError, match="none of the 1 checkpoints") as caught:
        store.newest(IDENTITY, lambda _: None)
    assert caught.value.exit_code == 6
    assert len(store.committed()) == 1


def test_a_checkpoint_of_another_model_is_refused_and_kept(tmp_path: Path) -> None:
    store = CheckpointStore(locate(tmp_path), keep=2)
    store.save(state(1), 1, IDENTITY, {})
    with pytest.raises(UsageError, match="model is 'tiny', the checkpoint's is 'nano'"):
        store.newest({**IDENTITY, "model": "tiny"}, print)
    assert len(store.committed()) == 1


def test_a_checkpoint_runs_no_code_when_it_is_loaded(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "trapped"),))

    store = CheckpointStore(locate(tmp_path / "runs"), keep=2)
    store.save({"weights": Trap()}, 1, IDENTITY, {})
    with pytest.raises(DataIntegrityError):
        store.newest(IDENTITY, lambda _: None)
    assert not (tmp_path / "trapped").exists()


def _save_for_ever(folder: str) -> None:
    store = CheckpointStore(locate(folder), keep=2)
    for step in range(1, 1_000_000):
        store.save(state(step, size=200_000), step, IDENTITY, {})


def test_a_kill_at_any_instant_leaves_a_newest_that_loads(tmp_path: Path) -> None:
    # Forked from a server without threads: this process has torch's and pyarrow's, whose locks a fork would copy held.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["workloads.checkpoint"])
    store = CheckpointStore(locate(tmp_path), keep=2)
    kills = torn = 0
    # A dozen kills, and on until one has fallen into a save: otherwise nothing was tried.
    while kills < 12 or not torn:
        kills += 1
        assert kills < 100
        before = set(store.committed())
        writer = context.Process(target=_save_for_ever, args=(str(tmp_path),))
        writer.start()
        deadline = time.monotonic() + 60
        while set(store.committed()) <= before:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(0.003 * (kills % 12))
        assert writer.pid is not None
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
        torn += len({entry.name for entry in tmp_path.iterdir()} - set(store.committed()))
        step, said = newest(store)
        assert said == []
        assert step > 0
        store.collect(resumed=store.committed()[-1])
        assert set(store.committed()) == {entry.name for entry in tmp_path.iterdir()}


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PlaceError, match=r"cannot write state\.pt to"):
        CheckpointStore(locate(tmp_path / "file" / "runs"), keep=2).save(state(1), 1, IDENTITY, {})
    with served(tmp_path / "google") as google:
        monkeypatch.setenv(EMULATOR_VARIABLE, f"http://{google.host}")
        with pytest.raises(PlaceError, match="gs://none/run"):
            CheckpointStore(locate("gs://none/run"), keep=2).save(state(1), 1, IDENTITY, {})
    for address in ("s3://bucket/x", "gs:///x"):
        with pytest.raises(UsageError):
            locate(address)


def test_a_local_folder_is_the_same_from_any_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate("runs").uri == str(tmp_path / "runs")


def test_a_folder_pickles_so_that_a_worker_can_be_handed_it(runs: Folder) -> None:
    runs.write("name", b"content")
    assert locate(runs.uri) == runs
    again = pickle.loads(pickle.dumps(runs))
    assert again.read("name") == b"content"
    assert isinstance(again.filesystem, fs.FileSystem)
    again.remove()
    assert runs.files() == []
    runs.remove()
