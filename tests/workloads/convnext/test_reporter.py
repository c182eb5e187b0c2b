"""When the loop saves and what it waits for: a real training on made-up images, with the store it saves to."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.training import CPU, small
from workloads.checkpoints import manifest
from workloads.checkpoints.interval import DEADLINE_MARGIN
from workloads.checkpoints.store import CheckpointStore
from workloads.convnext.images.data import sources
from workloads.convnext.images.sampling import Batch, Slot, Source
from workloads.convnext.learning.loop import Position, Record, Training
from workloads.convnext.run import end_of_node, report, reporter
from workloads.convnext.run.reporter import Reporter
from workloads.errors import AuthError, BudgetError, PlaceError
from workloads.reporting import progress
from workloads.reporting.cost import Budget
from workloads.reporting.history import Segments, history
from workloads.storage.folders import Folder, locate

pytestmark = pytest.mark.thorough

NEVER = 3600.0


class Gone(Exception):
    """The node is taken, or there is no more to see."""


@dataclasses.dataclass
class Place:
    """One run on this process alone."""

    training: Training
    reporter: Reporter
    folder: Folder
    sent: list[Record]

    def committed(self) -> list[int]:
        """Steps of the committed checkpoints."""
        return [int(name.partition("-")[0]) for name in manifest.committed(self.folder.child("checkpoints").files())]

    def run(self, look: Callable[[Training], None]) -> None:
        """Train with this in the place of what the reporter does after each step."""
        self._look = look
        self.training.run(self)

    def record(self, record: Record) -> None:
        self.reporter.record(record)

    def after_step(self, training: Training) -> None:
        self._look(training)

    def reasons(self) -> list[tuple[int, str]]:
        """Step and reason of each checkpoint that was told of."""
        self.reporter.flush()
        return [(record["step"], record["reason"]) for record in self.sent if record["event"] == "checkpoint"]


def place(directory: Path, leads: bool = True, **changes: Any) -> Place:
    given = {"epochs": 1, "checkpoint_seconds": NEVER, "log_steps": 1, "augmentation": "none", **changes}
    config = small(**given)
    training = Training(config, *sources(config, None, CPU), CPU)
    folder = locate(directory / "run")
    store = CheckpointStore(folder.child("checkpoints"), config.keep_checkpoints)
    sent: list[Record] = []
    return Place(training, Reporter(config, store, folder, leads, sent.extend), folder, sent)


def test_a_run_ends_with_its_last_state_committed_and_its_whole_history_stored(tmp_path: Path) -> None:
    found = place(tmp_path)
    found.training.run(found.reporter)
    assert found.committed()[-1] == found.training.position.step == 4
    found.reporter.finish()
    records = history(found.folder)
    assert [record["step"] for record in records if record["event"] == "step"] == [1, 2, 3, 4]
    assert [record["reason"] for record in records if record["event"] == "checkpoint"][-1] == "end"
    assert {record["event"] for record in found.sent} >= {"step", "epoch", "checkpoint"}


def test_a_spent_budget_ends_the_run_after_a_checkpoint_of_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = place(tmp_path, epochs=9)
    stay = {"began": time.time() - 3600, "nodes": 2, "node_hour_usd": 40.0}
    # 80 of 100 were spent before, and two nodes have run for an hour: the rest is for 20 minutes more.
    budget = Budget.of(100 + 80 * 4 / 3, 100.0, stay)
    assert budget is not None and abs(budget.until - time.time() - 1200) < 60
    found.reporter.start(None, None, budget)

    def spent_in_step_6(training: Training) -> None:
        if training.position.step == 6:
            monkeypatch.setattr(time, "time", lambda: budget.until)
        found.reporter.after_step(training)

    with pytest.raises(BudgetError, match=r"has cost the 206\.67 USD of --max-usd, at step 6; its checkpoint is saved"):
        found.run(spent_in_step_6)
    assert found.committed()[-1] == 6
    records = history(found.folder)
    assert {record["step"] for record in records if record["event"] == "step"} == {*range(1, 7)}
    assert [(record["step"], record["usd"]) for record in records if record["event"] == "budget"] == [(6, budget.usd)]


def test_a_run_that_ends_as_its_budget_does_is_complete(tmp_path: Path) -> None:
    found = place(tmp_path)
    found.reporter.start(None, None, Budget(1.0, time.time() + 3600))

    def spent_at_the_end(training: Training) -> None:
        if training.position.epoch == 1:
            found.reporter.start(None, None, Budget(1.0, 0.0))
        found.reporter.after_step(training)

    found.run(spent_at_the_end)
    assert found.committed()[-1] == found.training.position.step


def test_results_that_this_machine_does_not_take_are_in_the_bucket(tmp_path: Path) -> None:
    found = place(tmp_path)
    found.training.run(found.reporter)
    found.reporter.finish()
    (tmp_path / "file").touch()
    with pytest.raises(PlaceError, match=r"cannot write results to .*file/a: Not a directory; they are in") as caught:
        report.publish(found.folder, tmp_path / "file" / "a", {"model": "nano", "data": "synthetic", "run": "a"})
    assert "--results" in caught.value.remedy
    assert found.folder.child("results").names() == ["curve.png", "metrics.jsonl", "summary.json", "table.txt"]


def test_what_is_committed_is_never_ahead_of_the_history_stored(tmp_path: Path) -> None:
    found = place(tmp_path, checkpoint_seconds=0.01, epochs=3)
    ahead: list[int] = []

    def what_a_kill_would_leave(training: Training) -> None:
        found.reporter.after_step(training)
        newest = max(found.committed(), default=0)
        stored = {record["step"] for record in history(found.folder) if record["event"] == "step"}
        ahead.extend({*range(1, newest + 1)} - stored)

    found.run(what_a_kill_would_leave)
    assert len(found.reasons()) >= 3
    assert ahead == []


def test_the_checkpoint_that_a_run_goes_on_from_is_not_saved_once_more(tmp_path: Path) -> None:
    found = place(tmp_path)
    found.reporter.start(None, None, saved=Position())
    found.reporter.save_if_due(found.training)
    assert found.committed() == []
    found.training.run(found.reporter)
    assert found.committed()[0] == 1  # the first new one is due at once


def test_only_rank_0_saves_and_keeps_records(tmp_path: Path) -> None:
    found = place(tmp_path, leads=False)
    found.training.run(found.reporter)
    found.reporter.finish()
    assert (found.committed(), found.sent, found.folder.files()) == ([], [], [])


@pytest.mark.parametrize("left", [3600.0, float("inf")])
def test_a_notice_is_answered_by_a_checkpoint_before_the_next_step(tmp_path: Path, left: float) -> None:
    found = place(tmp_path, epochs=2)
    watched: Any = SimpleNamespace(deadline=None)
    found.reporter.start(None, watched)
    seen: list[tuple[int, list[int]]] = []

    def noticed_in_step_3(training: Training) -> None:
        if training.position.step == 3:
            watched.deadline = watched.deadline or time.time() + left
        found.reporter.after_step(training)
        seen.append((training.position.step, found.committed()))

    found.run(noticed_in_step_3)
    assert 3 in dict(seen)[3]
    saves = [reason for reason in found.reasons() if reason[1] != "interval"]
    assert (saves[0], saves[-1]) == ((3, "notice"), (8, "end"))
    (told,) = [record for record in found.sent if record["event"] == "notice"]
    assert told["step"] == 3
    json.dumps(told, allow_nan=False)


class SlowlyEvaluated:
    """A validation split whose second batch brings a preemption notice, and is then seen to be slow."""

    def __init__(self, split: Source, end_of_node: Any, look: Callable[[], list[int]]) -> None:
        self.classes = split.classes
        self.seen: list[list[int]] = []
        self._split, self._notice, self._look = split, end_of_node, look

    def __len__(self) -> int:
        return len(self._split)

    def batches(self, slots: Sequence[Slot], epoch: int) -> Iterator[Batch]:
        for number, batch in enumerate(self._split.batches(slots, epoch)):
            if number == 1:
                self._notice.deadline = time.time() + NEVER
            self.seen.append(self._look())
            yield batch


def test_a_notice_in_an_evaluation_is_answered_after_its_next_batch_and_the_checkpoint_resumes_into_it(
    tmp_path: Path,
) -> None:
    found = place(tmp_path, epochs=2, batch_size=64, ema_decay=0.9)
    watched: Any = SimpleNamespace(deadline=None)
    found.reporter.start(None, watched)
    val = SlowlyEvaluated(found.training._val, watched, found.committed)
    found.training._val = val

    def evaluating(training: Training) -> None:
        found.reporter.save_if_due(training)
        if len(val.seen) == 3:
            raise Gone

    with pytest.raises(Gone):
        found.training.run(found.reporter, evaluating)
    last = found.training.position.step
    assert [last in steps for steps in val.seen] == [False, False, True]
    assert (last, "notice") in found.reasons()

    undisturbed, again = (
        place(tmp_path / "undisturbed", epochs=2, batch_size=64, ema_decay=0.9),
        place(tmp_path, epochs=2, batch_size=64, ema_decay=0.9),
    )
    checkpoint = CheckpointStore(found.folder.child("checkpoints"), 3).newest(again.training.identity, print)
    assert checkpoint is not None
    again.training.load(checkpoint.state)
    assert again.training.position == Position(step=last, epoch=0, consumed=again.training.identity["training_images"])
    for run in (undisturbed, again):
        run.training.run(run.reporter, run.reporter.save_if_due)
    steps = [record["step"] for record in again.sent if record["event"] == "step"]
    assert steps == list(range(last + 1, 2 * last + 1))  # none of the epoch whose evaluation was left
    whole, rest = ([record for record in run.sent if record["event"] == "epoch"] for run in (undisturbed, again))
    names = ("step", "train/loss", "train/accuracy", "val/loss", "val/accuracy", "val/images")
    assert [[record[name] for name in names] for record in rest] == [
        [record[name] for name in names] for record in whole
    ]


def test_before_the_node_goes_the_work_since_the_notice_is_saved_too(tmp_path: Path) -> None:
    found = place(tmp_path, epochs=400)
    watched: Any = SimpleNamespace(deadline=time.time() + 60)  # a save takes seconds on a busy disk
    found.reporter.start(None, watched)

    def until_it_goes(training: Training) -> None:
        if time.time() > watched.deadline or max(found.committed(), default=0) > 1:
            raise Gone
        found.reporter.after_step(training)

    with pytest.raises(Gone):
        found.run(until_it_goes)
    assert time.time() < watched.deadline
    assert found.reasons()[0] == (1, "notice")
    assert max(found.committed()) > 1


def test_the_controllers_request_is_answered_when_the_state_is_committed(tmp_path: Path) -> None:
    found = place(tmp_path)
    end_of_node.ask()
    assert (end_of_node.asked(), end_of_node.answered()) == (True, False)
    found.training.run(found.reporter)
    assert (end_of_node.asked(), end_of_node.answered()) == (False, True)
    assert found.reasons()[0] == (1, "resize")


def test_a_checkpoint_comes_before_the_end_of_the_run_duration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found, ahead, start = place(tmp_path, epochs=400), 0.0, time.time()
    clock = SimpleNamespace(time=lambda: time.time() + ahead, monotonic=time.monotonic, time_ns=time.time_ns)
    monkeypatch.setattr(reporter, "time", clock)
    found.reporter.start(start + 4 * DEADLINE_MARGIN, None)

    def until_saved(training: Training) -> None:
        nonlocal ahead
        found.reporter.after_step(training)
        if len(found.reasons()) == 1:  # the one that is due at once, whatever it took
            ahead = start + 2 * DEADLINE_MARGIN - time.time()  # a step of two margins, and three to be early by
        if len(found.reasons()) > 1:
            raise Gone

    with pytest.raises(Gone):
        found.run(until_saved)
    assert found.reasons()[1][1] == "deadline"


def test_a_notice_that_finds_storage_out_of_reach_costs_its_checkpoint_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = place(tmp_path, epochs=2)
    watched: Any = SimpleNamespace(deadline=time.time() + NEVER)
    found.reporter.start(None, watched)
    write = CheckpointStore.write

    def out_of_reach(store: CheckpointStore, state: Any, step: int, *rest: Any) -> Any:
        if step < 3:
            raise PlaceError("the mount does not answer.", "Wait.")
        return write(store, state, step, *rest)

    monkeypatch.setattr(CheckpointStore, "write", out_of_reach)
    found.training.run(found.reporter)
    assert found.committed()[-1] == found.training.position.step == 8
    assert any(
        "for a notice was not saved: the mount does not answer." in record.get("text", "") for record in found.sent
    )


def test_a_change_of_size_waits_in_vain_for_a_checkpoint_that_storage_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = place(tmp_path)

    def refuse(*_: Any) -> Any:
        raise AuthError("the token is refused.", "Wait.")

    monkeypatch.setattr(CheckpointStore, "write", refuse)
    end_of_node.ask()
    found.reporter.after_step(found.training)
    assert (end_of_node.asked(), end_of_node.answered()) == (False, False)


def test_an_urgent_segment_beside_a_slow_one_loses_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = locate(tmp_path / "run")
    segments = Segments(folder, 1)
    entered, gate = threading.Event(), threading.Event()
    write = Folder.write

    def slow(place: Folder, name: str, content: bytes) -> None:
        if not entered.is_set():
            entered.set()
            assert gate.wait(30)
        write(place, name, content)

    monkeypatch.setattr(Folder, "write", slow)
    segments.add({"event": "step", "step": 1})
    first = threading.Thread(target=segments.close())
    first.start()
    assert entered.wait(30)
    segments.add({"event": "step", "step": 2})
    segments.close()()
    segments.add({"event": "step", "step": 3})
    last = segments.close()
    gate.set()
    first.join()
    last()
    assert [record["step"] for record in history(folder)] == [1, 2, 3]


def test_the_time_left_is_told_from_the_second_record_on_and_never_from_none(tmp_path: Path) -> None:
    found = place(tmp_path, epochs=4)
    found.reporter.start(None, None)
    step = {"event": "step", "step": 1, "epochs": 4, "train/loss": 1.0, "train/accuracy": 0.5, "seconds": 1.0}
    for epoch in (1.5, 1.5, 2.0):  # the second is the epoch's end that a restart has repeated
        found.reporter.record({**step, "epoch": epoch, "train/images_per_second": 1.0})
    found.reporter.flush()
    first, again, later = [record for record in found.sent if record["event"] == "step"]
    assert first["eta_seconds"] is None and again["eta_seconds"] is None
    assert 0 < later["eta_seconds"] < 600
    assert "left" not in progress.text(first) and progress.text(later).endswith(" left")
