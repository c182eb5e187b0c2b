"""What a run goes on from, and which failures it goes on after."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train.v2._internal.execution.scaling_policy import NoopDecision

from tests.support import gloo
from tests.support.training import Few
from workloads.checkpoints import manifest
from workloads.checkpoints import state as checkpoint_state
from workloads.checkpoints.store import Checkpoint, CheckpointStore
from workloads.convnext.run import trainer, worker
from workloads.errors import AuthError, DataIntegrityError, PlaceError, UsageError, WorkloadError
from workloads.nccl.definitions.collectives import Seat
from workloads.reporting.history import Journal, parse
from workloads.storage.folders import locate


class Damaged(CheckpointStore):
    """A store that does not get the bytes of step 2."""

    def load(self, name: str, identity: Mapping[str, Any]) -> Checkpoint:
        if manifest.step_of(name) == 2:
            raise DataIntegrityError("a shard has another hash.", "")
        return super().load(name, identity)


def agreed(folder: str, seat: Seat) -> tuple[str | None, list[str]]:
    """What this rank of two goes on from; to rank 1, the newest checkpoint is damaged."""
    said: list[str] = []
    kind = Damaged if seat.rank == 1 else CheckpointStore
    found = worker.agree(kind(locate(folder), keep=2), {}, seat.rank, seat.ranks, said.append)
    return found.name if found else None, said


def test_what_one_rank_or_another_could_not_read_is_kept(tmp_path: Path) -> None:
    store = CheckpointStore(locate(tmp_path), keep=1)
    first = store.save({"step": 1}, 1, {}, {}).name
    second, third = (store.write({"step": step}, step, {}, {}, threading.Event()).name for step in (2, 3))
    (tmp_path / third / checkpoint_state.STRUCTURE).write_bytes(b"other bytes")
    assert (found := store.newest({}, lambda _: None, {second})) and found.name == first
    assert store.collect() == []
    assert store.committed() == [first, second, third]
    # Neither does the next save remove itself, though it is older than the one that is kept.
    earlier = store.save({"step": 1}, 1, {}, {}).name
    assert set(store.committed()) == {earlier, second, third}


@pytest.mark.thorough
def test_a_checkpoint_that_one_rank_cannot_read_is_passed_over_by_all(tmp_path: Path) -> None:
    store = CheckpointStore(locate(tmp_path), keep=2)
    names = [store.save({"step": step}, step, {}, {}).name for step in (1, 2)]
    (first, said), (second, _) = gloo.together(2, partial(agreed, str(tmp_path)))
    assert first == second == names[0]
    assert said == [f"checkpoint {names[1]} is passed over: rank 1 cannot read it: a shard has another hash."]


ALIKE = (8, 8), (4, 4)
"""How many images each rank of two sees for training, and how many for validation."""

UNLIKE = ((8, 12), (4, 4)), ((8, 8), (4, 5))


def compared(seat: Seat) -> list[str]:
    """What this rank of two says where they see the same and where they do not."""
    said = []
    for training, validation in (ALIKE, *UNLIKE):
        try:
            worker.check_same_data(Few(training[seat.rank]), Few(validation[seat.rank]))
            said.append("")
        except DataIntegrityError as error:
            said.append(error.problem)
    return said


@pytest.mark.thorough
def test_ranks_that_do_not_see_the_same_data_say_so_before_they_wait_for_each_other() -> None:
    first, second = gloo.together(2, compared)
    assert first == second and first[0] == ""
    for (training, validation), said in zip(UNLIKE, first[1:], strict=True):
        for images, held_out in zip(training, validation, strict=True):
            assert f"{images} training images of 4 classes (['a', 'b', 'c', 'd']) and {held_out} validation" in said


def test_where_no_checkpoint_is_good_for_every_rank_the_run_does_not_begin_anew(tmp_path: Path) -> None:
    store = CheckpointStore(locate(tmp_path), keep=2)
    name = store.save({"step": 1}, 1, {}, {}).name
    with pytest.raises(DataIntegrityError, match="verifies for every reader"):
        store.newest({}, print, {name})


@pytest.mark.parametrize("error", [PlaceError("no mount.", "Wait."), AuthError("no token.", "Wait.")])
def test_what_may_pass_ends_a_run_that_has_trained_nothing_and_no_other(tmp_path: Path, error: WorkloadError) -> None:
    callback = trainer.RunCallback(tmp_path / "journal.jsonl")
    with pytest.raises(type(error)):
        callback.after_exception(None, {1: error})
    callback.after_report(None, [{"records": [{"event": "step", "step": 1}]}], None)
    callback.after_exception(None, {1: error})
    told = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert told[-1]["text"].startswith(f"lost rank 1 ({error.problem.rstrip('.')}); going on from the newest")
    with pytest.raises(UsageError):
        callback.after_exception(None, {1: UsageError("no such model.", "Name another.")})


def test_why_a_rank_was_lost_is_told_in_whole_words(tmp_path: Path) -> None:
    callback = trainer.RunCallback(tmp_path / "journal.jsonl")
    words = [f"word-{number}" for number in range(99)]
    callback.after_exception(None, {1: RuntimeError("Traceback\n" + " ".join(words))})
    told = json.loads((tmp_path / "journal.jsonl").read_text())["text"]
    shown = told.removeprefix("lost rank 1 (").removesuffix(" ...); going on from the newest checkpoint").split()
    assert shown == words[: len(shown)] and len(shown) > 20


def test_a_rank_is_lost_once_however_often_it_is_told_of_and_again_in_another_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = trainer.RunCallback(tmp_path / "journal.jsonl")
    for now in (0.0, 0.5, 1.0, 60.0, 60.5):
        monkeypatch.setattr(trainer.time, "monotonic", lambda now=now: now)
        callback.after_exception(None, {1: RuntimeError("its node was preempted")})
    callback.after_exception(None, {0: RuntimeError("timed out"), 1: RuntimeError("its node was preempted")})
    told = parse((tmp_path / "journal.jsonl").read_text())
    assert ["lost rank 0" in record["text"] for record in told] == [False, False, True]


def test_a_journal_that_cannot_be_written_ends_no_run(tmp_path: Path) -> None:
    place = tmp_path / "results"
    place.write_text("a file, where a folder should be")
    callback = trainer.RunCallback(place / "journal.jsonl")
    callback.after_report(None, [{"records": [{"event": "step", "step": 1}]}], None)
    callback.after_exception(None, {1: RuntimeError("killed")})
    place.unlink()
    callback.after_report(None, [{"records": [{"event": "step", "step": 2}]}], None)
    told = parse((place / "journal.jsonl").read_text())
    assert [record["step"] for record in told if record["event"] == "step"] == [1, 2]


def test_a_run_does_not_grow_without_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = tmp_path / "journal.jsonl"
    policy: Any = object.__new__(trainer.Scaling)
    policy._journal = Journal(journal)
    monkeypatch.setattr(trainer.ray, "wait", lambda *_, **__: ([], []))
    worker_asked: Any = SimpleNamespace()
    policy._growth = trainer._Growth(worker_asked, worker_asked, worker_asked, until=time.monotonic() - 1)
    assert isinstance(policy._grown(policy._growth), NoopDecision)
    assert policy._growth is None
    assert "growing is left for later" in journal.read_text()
