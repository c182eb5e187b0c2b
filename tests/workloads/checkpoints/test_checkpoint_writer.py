"""Saving in the background: one at a time, slow, failing or in flight when the process ends, the run is not harmed."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.checkpoint_trials.faults import FaultyCalls, PlannedFailure
from workloads.checkpoints import manifest
from workloads.checkpoints import state as checkpoint_state
from workloads.checkpoints import writer as checkpoint_writer
from workloads.checkpoints.store import CheckpointStore
from workloads.checkpoints.writer import PATIENCE, Snapshot, Writer
from workloads.errors import PlaceError
from workloads.storage import disk
from workloads.storage.folders import Folder, locate

IDENTITY = {"model": "nano"}


def state(step: int) -> dict[str, Any]:
    return {"weights": torch.full((1000,), float(step))}


def until(gate: threading.Event) -> None:
    assert gate.wait(30)


class Place:
    """A store on a disk that can be made to fail, its writer, and what the writer said."""

    def __init__(self, folder: Path) -> None:
        self.fault = PlannedFailure(0, errno.EIO, lasting=False)
        self.folder = locate(folder)
        self.store = CheckpointStore(self.folder, keep=2)
        self.said: list[str] = []
        self.writer = Writer(self.store, self.said.append)

    def fail(self, failing: bool) -> None:
        self.fault.calls, self.fault.at, self.fault.lasting = 0, int(failing), failing

    def save(self, step: int) -> str | None:
        assert self.writer.start(Snapshot(state(step), step, IDENTITY, {}, lambda: None))
        saved = self.writer.wait()
        return saved.name if saved else None

    def newest(self) -> int:
        found = CheckpointStore(self.folder, keep=2).newest(IDENTITY, print)
        assert found is not None
        assert float(found.state["weights"][0]) == found.manifest["step"]
        return found.manifest["step"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    here = Place(tmp_path / "run")
    with mock.patch.object(disk, "calls", FaultyCalls(here.fault)):
        yield here


def test_while_a_save_is_in_flight_none_is_begun_and_none_is_queued(place: Place) -> None:
    assert place.writer.wait() is None
    gate = threading.Event()
    assert place.writer.start(Snapshot(state(1), 1, IDENTITY, {}, lambda: until(gate)))
    assert place.writer.busy
    assert not place.writer.start(Snapshot(state(2), 2, IDENTITY, {}, lambda: None))
    assert place.writer.wait(0.01) is None
    assert place.store.committed() == []
    gate.set()
    saved = place.writer.wait()
    assert saved is not None
    assert place.store.committed() == [saved.name]
    assert place.writer.wait() is None
    assert not place.writer.busy
    assert place.newest() == 1


def test_what_must_come_before_a_checkpoint_comes_before_it_or_the_save_fails(place: Place) -> None:
    seen: list[list[str]] = []
    place.writer.start(Snapshot(state(1), 1, IDENTITY, {}, lambda: seen.append(place.folder.files())))
    assert place.writer.wait() is not None
    assert seen == [[]]

    def refuse() -> None:
        raise PlaceError("the journal is full.", "Free some space.")

    place.writer.start(Snapshot(state(2), 2, IDENTITY, {}, refuse))
    assert place.writer.wait() is None
    assert place.newest() == 1
    assert "the journal is full" in place.said[0]


@pytest.mark.thorough
def test_a_failed_save_is_said_and_the_next_one_tries_again_until_patience_ends(place: Place) -> None:
    place.save(1)
    for _ in range(2):
        place.fail(True)
        for failures in range(1, PATIENCE):
            assert place.save(2) is None
            assert f"({failures} of {PATIENCE} in a row)" in place.said[-1]
        place.fail(False)
        assert place.save(3) is not None
    place.fail(True)
    with pytest.raises(PlaceError, match=os.strerror(errno.EIO)):
        for _ in range(PATIENCE):
            place.save(4)
    place.fail(False)
    assert place.newest() == 3
    # What the failed saves left is gone at the next start.
    place.store.collect()
    assert place.folder.names() == place.store.committed()


def test_an_error_that_no_retry_can_mend_is_raised_at_once(place: Place) -> None:
    place.writer.start(Snapshot({"odd": lambda: None}, 1, IDENTITY, {}, lambda: None))
    with pytest.raises((AttributeError, pickle.PicklingError), match="local object"):
        place.writer.wait()
    assert place.save(2) is not None


@pytest.mark.thorough
def test_a_save_that_does_not_read_back_counts_as_failed_and_older_ones_stay(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = [place.save(step) for step in (1, 2)]
    real = disk.Stream.write

    def forget_the_end(stream: disk.Stream, content: bytes | memoryview) -> int:
        real(stream, bytes(content)[:-1] + b"?")
        return len(content)

    with monkeypatch.context() as broken:
        broken.setattr(disk.Stream, "write", forget_the_end)
        assert [place.save(step) for step in (3, 4, 5)] == [None] * 3
    assert "did not read back as it was written" in place.said[-1]
    assert place.store.committed() == good
    assert place.newest() == 2
    place.save(6)
    assert [manifest.step_of(name) for name in place.store.committed()] == [2, 6]


def test_older_checkpoints_that_cannot_be_removed_make_no_save_fail(place: Place) -> None:
    for step in (1, 2):
        place.save(step)
    with mock.patch.object(disk, "remove", side_effect=PermissionError("no right to delete")):
        assert place.save(3) is not None
    assert place.said[-1].endswith("no right to delete.")
    assert "older checkpoints were not removed" in place.said[-1]
    assert place.newest() == 3


def test_an_urgent_save_has_the_one_in_flight_given_up_which_leaves_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, gate, save = threading.Event(), threading.Event(), torch.save

    def slow(*arguments: Any) -> None:
        if not reached.is_set():
            reached.set()
            until(gate)
        save(*arguments)

    monkeypatch.setattr(torch, "save", slow)
    assert place.writer.start(Snapshot(state(1), 1, IDENTITY, {}, lambda: None))
    until(reached)
    urgent = place.writer.save_now(lambda: Snapshot(state(2), 2, IDENTITY, {}, lambda: None))
    assert place.store.committed() == [urgent.name]
    assert len(place.folder.names()) == 2  # of the other one there is a part
    gate.set()
    assert place.writer.wait() is None
    assert place.folder.names() == [urgent.name]
    assert place.said == []


def test_a_save_in_flight_that_is_written_whole_is_committed_beside_an_urgent_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, gate, tidied = threading.Event(), threading.Event(), []
    tidy, commit = place.store.tidy, manifest.commit

    def slow(folder: Folder, content: dict[str, Any]) -> None:
        if content["step"] == 1:
            reached.set()
            until(gate)
        commit(folder, content)

    monkeypatch.setattr(place.store, "tidy", lambda name: (tidied.append(name), tidy(name)))
    monkeypatch.setattr(manifest, "commit", slow)
    place.writer.start(Snapshot(state(1), 1, IDENTITY, {}, lambda: None))
    until(reached)
    threading.Timer(0.05, gate.set).start()
    *_, flight = [thread for thread in threading.enumerate() if thread.name == "checkpoint"]
    urgent = place.writer.save_now(lambda: Snapshot(state(2), 2, IDENTITY, {}, lambda: flight.join(30)))
    earlier = place.writer.wait()
    assert earlier is not None
    assert [earlier.name, urgent.name] == place.store.committed()
    assert tidied == [urgent.name]  # no reading back of the first beside the writing of the second
    for step in (3, 4):
        place.writer.save_now(lambda step=step: Snapshot(state(step), step, IDENTITY, {}, lambda: None))
    assert place.writer.wait() is None
    assert [manifest.step_of(name) for name in place.store.committed()] == [3, 4]


@pytest.mark.thorough
@pytest.mark.parametrize("ends", ["whole", "failed", "cut"])
def test_a_save_that_ended_in_any_way_keeps_no_copy_of_the_state(
    place: Place, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    save, many = torch.save, {str(number): torch.full((20,), float(number)) for number in range(20)}
    monkeypatch.setattr(checkpoint_state, "SHARD_BYTES", 80)
    held = [weakref.ref(tensor) for tensor in many.values()]
    place.fail(ends == "failed")
    gate = threading.Event()
    monkeypatch.setattr(torch, "save", lambda *arguments: (until(gate), save(*arguments)))
    gc.disable()
    try:
        assert place.writer.start(Snapshot(many, 1, IDENTITY, {}, lambda: None))
        del many
        if ends == "cut":
            place.writer.save_now(lambda: (gate.set(), Snapshot(state(2), 2, IDENTITY, {}, lambda: None))[1])
        gate.set()
        saved = place.writer.wait()
        place.fail(False)
        assert (saved is not None) == (ends == "whole")
        assert len(place.said) == (ends == "failed")
        assert [tensor for tensor in held if tensor() is not None] == []
    finally:
        gc.enable()


def test_an_urgent_save_tries_again_at_once_and_in_the_end_says_why_not(place: Place) -> None:
    place.fault.at, place.fault.calls = 1, 0
    assert manifest.step_of(place.writer.save_now(lambda: Snapshot(state(1), 1, IDENTITY, {}, lambda: None)).name) == 1
    assert "tried again at once" in place.said[0]
    place.writer.wait()
    place.fail(True)
    with pytest.raises(PlaceError):
        place.writer.save_now(lambda: Snapshot(state(2), 2, IDENTITY, {}, lambda: None))
    place.fail(False)
    assert place.newest() == 1


IN_FLIGHT = """
import sys, time, torch
from workloads.checkpoints.store import CheckpointStore
from workloads.checkpoints.writer import Snapshot, Writer
from workloads.storage.folders import locate
store = CheckpointStore(locate(sys.argv[1]), keep=2)
store.save({"weights": torch.full((1000,), 1.0)}, 1, {"model": "nano"}, {})
Writer(store, print).start(Snapshot({"weights": torch.zeros(1000)}, 2, {"model": "nano"}, {}, lambda: time.sleep(600)))
"""


@pytest.mark.thorough
def test_a_process_that_ends_with_a_save_in_flight_ends_at_once_and_leaves_the_one_before(tmp_path: Path) -> None:
    # The save would take ten minutes, as one in a dead mount does, and the process must not wait for it.
    subprocess.run([sys.executable, "-c", IN_FLIGHT, str(tmp_path)], check=True, timeout=60)
    found = CheckpointStore(locate(tmp_path), keep=2).newest(IDENTITY, print)
    assert found is not None
    assert found.manifest["step"] == 1


@pytest.mark.thorough
def test_a_save_that_hangs_counts_as_failed_and_holds_up_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    try:
        with monkeypatch.context() as short:
            short.setattr(checkpoint_writer, "HANG_SECONDS", 0.2)
            assert place.writer.start(Snapshot(state(1), 1, IDENTITY, {}, lambda: until(gate)))
            assert place.writer.wait() is None
        assert any("has not ended within" in line for line in place.said)
        assert place.save(2) is not None
        assert place.newest() == 2
    finally:
        gate.set()
