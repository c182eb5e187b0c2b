"""The driver of a run where its end has to survive what comes after it; Ray itself is in tests/cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pickle
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.train.v2._internal.exceptions import WorkerGroupStartupTimeoutError
from ray.train.v2.api.exceptions import ControllerError

from tests.support.command_line import LAPTOP, parsed
from workloads.cluster import autoscaler, capacity, run_lock, worker_count
from workloads.convnext.run import driver, stall, train, trainer
from workloads.convnext.run.run import Run
from workloads.errors import BudgetError, CapacityError, DataIntegrityError, WorkloadError


@pytest.fixture
def run(tmp_path: Path) -> Run:
    words = ["--run", "a", "--storage", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    return train.plan(parsed(train.add_train_arguments, *words), LAPTOP)


def test_a_collective_waits_ten_minutes_at_most_by_default(run: Run) -> None:
    assert run.collective_timeout <= 600
    group: Any = driver._trainer(run, driver.work).backend_config
    assert (group.timeout_seconds, group.data) == (run.collective_timeout, run.config.data)


@pytest.mark.parametrize("end", [{"val/accuracy": 1.0}, KeyboardInterrupt(), DataIntegrityError("torn.png.", "")])
def test_files_of_ray_train_that_cannot_be_removed_change_no_run_s_end(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], end: Any
) -> None:
    def fit() -> SimpleNamespace:
        if isinstance(end, BaseException):
            raise end
        return SimpleNamespace(return_value=end)

    monkeypatch.setattr(run_lock, "hold", lambda uri, name: contextlib.nullcontext())
    monkeypatch.setattr(driver, "_await_capacity", lambda run: None)
    monkeypatch.setattr(driver, "_trainer", lambda *_: SimpleNamespace(fit=fit))
    run.folder.write("ray", b"a file, which is no folder that could be removed")
    if isinstance(end, BaseException):
        with pytest.raises(type(end)):
            driver.fit(run)
    else:
        assert driver.fit(run) == end
    assert "Ray Train's own files could not be removed: cannot delete" in capsys.readouterr().out
    good = dataclasses.replace(run, folder=run.folder.child("good"))
    good.folder.child("ray").write("snapshot", b"{}")
    with contextlib.suppress(type(end) if isinstance(end, BaseException) else ValueError):
        driver.fit(good)
    assert good.folder.names() == []


@pytest.mark.parametrize(
    ("changes", "limit", "end"),
    [
        ({"own_nodes": True, "max_usd": 25.0}, 900, BudgetError),  # two nodes for an hour and a quarter
        ({"own_nodes": True, "max_usd": 5.0}, 0, BudgetError),
        ({"own_nodes": True, "max_usd": 1000.0}, 1800, CapacityError),
        ({"own_nodes": True}, 1800, CapacityError),
        ({"max_usd": 25.0}, 1800, CapacityError),  # its nodes go back while it waits
    ],
)
def test_places_are_waited_for_until_what_stands_meanwhile_has_cost_the_run_s_budget(
    run: Run, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], limit: float, end: type[WorkloadError]
) -> None:
    there = [{"NodeID": name, "Alive": name != "gone", "Resources": {"CPU": 1.0}} for name in ("a", "b", "gone")]
    head = {"NodeID": "head", "Alive": True, "Resources": {"driver": 1.0}}
    began = {("a", "b"): time.time() - 3600}
    waited: list[float] = []

    def gather(bundle: object, least: int, most: int, timeout: float, *_: object) -> int:
        waited.append(timeout)
        raise CapacityError("not there.", "wait longer with --timeout")

    monkeypatch.setattr("ray.nodes", lambda: [*there, head])
    monkeypatch.setattr(autoscaler, "joined", lambda nodes: began[tuple(sorted(nodes))])
    monkeypatch.setattr(worker_count, "gather", gather)
    monkeypatch.setattr(trainer.Scaling, "_maybe_send_resource_request", lambda self: None)  # to Ray, which is not up
    scaling = driver._trainer(dataclasses.replace(run, node_hour_usd=10.0, **changes), driver.work)._scaling
    with pytest.raises(end, match="not there"):
        scaling.make_decision_for_non_running_worker_group()
    assert waited == [pytest.approx(limit, abs=60)]


def test_places_that_were_taken_at_each_start_are_no_failure_of_the_run_but_missing_capacity(run: Run) -> None:
    taken = ControllerError(WorkerGroupStartupTimeoutError(num_workers=2))
    assert isinstance(driver._explained(run, pickle.loads(pickle.dumps(taken))), CapacityError)


@pytest.mark.parametrize(("least", "gpus"), [(8, [8]), (12, [8, 4]), (16, [8, 8]), (3, [3])])
def test_places_for_the_first_start_are_as_many_as_its_workers(
    run: Run, monkeypatch: pytest.MonkeyPatch, least: int, gpus: list[int]
) -> None:
    held: list[dict[str, float]] = []

    def hold(bundles: list[dict[str, float]], *_: object) -> contextlib.AbstractContextManager[None]:
        held.extend(bundles)
        return contextlib.nullcontext()

    monkeypatch.setattr(capacity, "hold", hold)
    driver._await_capacity(dataclasses.replace(run, least_workers=least, workers=16, gpus_per_node=8, gpu_max_nodes=2))
    assert held == [{"GPU": count, "CPU": count} for count in gpus]


def test_of_ranks_that_do_not_get_on_the_few_are_named_and_the_many_counted() -> None:
    line = "wait of torch, called by step (loop.py:7)"
    waiting = [stall.Whereabouts(rank, "b", 40 + rank, 5, line) for rank in (0, 1, 3)]
    reading = stall.Whereabouts(4, "c", 44, 5, "read of fsspec, called by fetch (x.py:3)")

    assert stall.told(61.2, [*waiting, reading, stall.Whereabouts(2, "a", 42)]) == (
        "no progress for 61 s: rank 4 (c, process 44) is in read of fsspec, called by fetch (x.py:3); "
        "rank 2 (a, process 42) gives no answer; 3 ranks are in wait of torch, called by step (loop.py:7)"
    )
    assert stall.told(120, waiting) == f"no progress for 120 s: all 3 ranks are in {line}"


def test_a_run_is_told_of_once_its_ranks_stand_still_and_not_while_they_move_without_a_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, moves = 0.0, 0
    monkeypatch.setattr(stall.time, "monotonic", lambda: now)
    monkeypatch.setattr("ray.wait", lambda questions, **_: (questions, []))
    monkeypatch.setattr("ray.get", lambda answer: answer)
    rank = SimpleNamespace(
        distributed_context=SimpleNamespace(world_rank=0),
        metadata=SimpleNamespace(hostname="a", pid=7),
        execute_async=lambda _: (moves, "here"),
    )
    times: list[float] = []
    watch = stall.StallWatch([rank], 60, lambda text: times.append(now))
    while now < 1500:
        now += 0.25
        moves = int(min(now, 300))
        watch.look([SimpleNamespace(training_report=None, running=True)])
    assert 350 < times[0] < 400  # what was seen before it may be half a minute old
    assert 420 < times[1] < 460
    assert all(200 < later - earlier < 300 for earlier, later in itertools.pairwise(times[3:]))
    assert len(times) > 5
    watch.look([SimpleNamespace(training_report={}, running=False)])
    times.clear()
    now += 59
    watch.look([SimpleNamespace(training_report=None, running=True)])
    assert times == []
