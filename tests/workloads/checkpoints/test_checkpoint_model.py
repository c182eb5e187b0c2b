"""The store on a mount with gcsfuse's rules, over random histories of saves, faults, crashes and damage."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from benchmarks.checkpoint_trials.faults import ERRORS, FaultyCalls, PlannedFailure
from tests.support.gcsfuse import Bucket, Mount, altered
from workloads.checkpoints import manifest
from workloads.checkpoints.store import Checkpoint, CheckpointStore
from workloads.errors import DataIntegrityError, WorkloadError
from workloads.storage import disk
from workloads.storage import folders as storage
from workloads.storage.folders import locate

IDENTITY = {"model": "nano"}
FOLDER = "/bucket/run/checkpoints"
KEEP = 3
CALLS = 60
"""A save makes about so many calls: a fault or a crash after more than these does not happen."""


class CrashError(Exception):
    """The process is gone: nothing catches this."""


class Crash(PlannedFailure):
    """From one call on, every call is the end of the process."""

    def exception(self) -> Exception:
        return CrashError()


class Store(RuleBasedStateMachine):
    """One run on one bucket; what must hold is reckoned from the bucket itself, by this test's own reading of it."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket = Bucket(folders={"", "/bucket"})
        self.step = 0
        self.acknowledged = ""
        self.damaged: set[str] = set()
        self.unnoticed = False
        self.reader = Mount(self.bucket, trusting=True)
        # One thread, so that a history repeats itself.
        self.patched = [mock.patch.object(storage, "STREAMS", 1), mock.patch.object(disk, "calls", None)]
        for patch in self.patched:
            patch.start()
        self.start_process()

    def teardown(self) -> None:
        for patch in self.patched:
            patch.stop()

    def start_process(self) -> None:
        self.unnoticed = False
        self.mount = Mount(self.bucket)
        self.store = CheckpointStore(locate(FOLDER), KEEP)
        disk.__dict__["calls"] = self.mount

    def save(self) -> None:
        self.step += 1
        saved = self.store.save({"weights": torch.full((50,), float(self.step))}, self.step, IDENTITY, {})
        self.acknowledged = saved.name

    def fail(self, fault: PlannedFailure) -> None:
        """A save over a fault; the process survives it unless it was a crash."""
        good = self.good()
        disk.__dict__["calls"] = FaultyCalls(fault, self.mount)
        try:
            self.save()
        except WorkloadError:
            disk.__dict__["calls"] = self.mount
        except (CrashError, RuntimeError):  # torch's own, on an archive that a crash cut short
            assert isinstance(fault, Crash)
            self.restart()
        disk.__dict__["calls"] = self.mount
        assert not good or self.good()

    @rule()
    def saves(self) -> None:
        before = len(self.good())
        self.save()
        assert self.good()[-1] == self.acknowledged
        # What was damaged after this process had read it counts as good until the next one.
        assert self.unnoticed or len(self.good()) == min(KEEP, before + 1)

    @rule(at=st.integers(1, CALLS), error=st.sampled_from(ERRORS), lasting=st.booleans())
    def saves_over_a_fault(self, at: int, error: int, lasting: bool) -> None:
        self.fail(PlannedFailure(at, error, lasting))

    @rule(at=st.integers(1, CALLS))
    def crashes_in_a_save(self, at: int) -> None:
        self.fail(Crash(at, 0, lasting=True))

    @rule()
    def saves_to_a_bucket_that_returns_other_bytes(self) -> None:
        good = self.good()
        self.bucket.lies = True
        with pytest.raises(DataIntegrityError, match="did not read back"):
            self.save()
        assert self.good() == good

    @rule()
    def restart(self) -> None:
        """As the trainer does: the newest is loaded, and what was never committed is removed."""
        self.start_process()
        self.look()
        self.store.collect()
        assert self.names() == self.committed()

    @rule()
    def a_fresh_reader_finds_the_newest_good_one(self) -> None:
        self.look()

    @rule()
    def a_stale_reader_is_never_given_a_mixture(self) -> None:
        disk.__dict__["calls"] = self.reader
        try:
            found = CheckpointStore(locate(FOLDER), KEEP).newest(IDENTITY, lambda _: None)
        except WorkloadError:
            found = None  # it sees what is gone, and says so
        finally:
            disk.__dict__["calls"] = self.mount
        if found:
            self.check(found)

    @precondition(lambda self: len(self.good()) > 1)
    @rule(older=st.integers(0, KEEP - 1), file=st.integers(0, 3), place=st.floats(0, 0.999))
    def damages_one_of_several(self, older: int, file: int, place: float) -> None:
        good = self.good()
        name = good[-1 - older % len(good)]
        inside = sorted(path for path in self.bucket.objects if f"/{name}/" in path)
        path = inside[file % len(inside)]
        generation, content = self.bucket.objects[path]
        self.bucket.objects[path] = (generation, altered(content, place))
        self.damaged.add(name)
        self.unnoticed = True

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        if self.acknowledged and self.acknowledged not in self.damaged:
            assert self.acknowledged in self.good()

    @invariant()
    def what_is_committed_is_whole_unless_it_was_damaged(self) -> None:
        assert set(self.committed()) - set(self.good()) <= self.damaged

    def look(self) -> Checkpoint | None:
        good, committed = self.good(), self.committed()
        disk.__dict__["calls"] = Mount(self.bucket)
        try:
            found = CheckpointStore(locate(FOLDER), KEEP).newest(IDENTITY, lambda _: None)
        except DataIntegrityError:
            assert committed
            assert not good
            return None
        finally:
            disk.__dict__["calls"] = self.mount
        assert (found.name if found else None) == (good[-1] if good else None)
        if found:
            self.check(found)
        return found

    def check(self, found: Checkpoint) -> None:
        step = manifest.step_of(found.name)
        assert found.state["weights"].tolist() == [float(step)] * 50

    def names(self) -> list[str]:
        """Every attempt of which anything is there."""
        paths = [*self.bucket.objects, *self.bucket.folders]
        return sorted(
            {path.removeprefix(f"{FOLDER}/").partition("/")[0] for path in paths if path.startswith(FOLDER + "/")}
        )

    def committed(self) -> list[str]:
        return [name for name in self.names() if f"{FOLDER}/{name}/COMMIT" in self.bucket.objects]

    def good(self) -> list[str]:
        """Names of the committed checkpoints whose every byte is as the manifest says."""
        return [name for name in self.committed() if self.is_good(name)]

    def is_good(self, name: str) -> bool:
        def content(file: str) -> bytes:
            return self.bucket.objects.get(f"{FOLDER}/{name}/{file}", (0, b""))[1]

        text = content("MANIFEST.json")
        if hashlib.sha256(text).hexdigest().encode() != content("COMMIT"):
            return False
        files: dict[str, Any] = json.loads(text)["files"]
        return all(hashlib.sha256(content(file)).hexdigest() == facts["sha256"] for file, facts in files.items())


TestStore = pytest.mark.thorough(Store.TestCase)
TestStore.settings = settings(
    max_examples=60,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
