"""Spare processes, up to Ray's part: which runs keep them, and what such a process does first."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import grpc
import pytest
from ray.train.v2._internal.constants import get_env_vars_to_propagate

from emulator.state import CHECKOUT
from tests.test_gate import CPUS, RDMA, TCP, run_of
from workloads.convnext import driver, spares
from workloads.convnext.spares import Kind
from workloads.environment import ClusterEnvironment


@pytest.mark.parametrize(
    ("environment", "words", "kept"),
    [
        (RDMA, (), True),
        (TCP, (), True),
        (CPUS, (), False),
        (None, (), False),
        (RDMA, ("--no-spares",), False),
        (None, ("--spares",), True),
    ],
)
def test_a_run_keeps_spares_where_an_idle_gpu_would_wait_for_a_start(
    environment: ClusterEnvironment | None, words: tuple[str, ...], kept: bool
) -> None:
    run, settings = run_of(environment, *words)
    (shown,) = [setting for setting in settings if setting.name == "spares"]
    origin = "flag --spares" if words else "variable OASIS_GPUS_PER_NODE" if environment else "default"
    assert (run.spares, shown.value, shown.origin) == (kept, kept, origin)


@pytest.mark.parametrize("kept", [True, False])
def test_workers_and_helpers_of_a_run_with_spares_run_their_own_imports_first(kept: bool) -> None:
    run, _ = run_of(None, "--spares" if kept else "--no-spares")
    configured: Any = driver._trainer(run, (), driver.work).run_config
    assert configured.worker_runtime_env == ({"env_vars": Kind.RANK.variables} if kept else {})
    before = dict(os.environ)
    with driver._settings(run):
        propagated = get_env_vars_to_propagate()
        assert (Kind.HELPER.variables.items() <= propagated.items()) == kept
    assert Kind.RANK.variables["PYTHONPATH"].split(os.pathsep)[0] == str(CHECKOUT)
    assert dict(os.environ) == before


PREPARED = """
import gc, importlib, os, sys, threading
import torch
def refuse(*_): raise SystemExit("CUDA was asked for its devices, which Ray has not given out yet")
torch._C._cuda_getDeviceCount = torch._C._cuda_init = torch.cuda._lazy_init = refuse
module, _, name = sys.argv[1].rpartition(".")
getattr(importlib.import_module(module), name)()
print(os.environ.get("OMP_NUM_THREADS"), gc.isenabled(), "workloads.convnext." + sys.argv[2] in sys.modules)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "3"}])
def test_a_spare_rank_has_everything_imported_and_no_gpu_touched(given: dict[str, str]) -> None:
    assert _prepared(Kind.RANK, "worker", given) == f"{given.get('OMP_NUM_THREADS', 1)} True True"


@pytest.mark.thorough
def test_a_spare_helper_has_no_torch() -> None:
    without = "import sys; sys.modules['torch'] = None\n" + PREPARED.replace("import torch\n", "").replace(
        "torch._C._cuda_getDeviceCount = torch._C._cuda_init = torch.cuda._lazy_init = refuse\n", ""
    )
    assert _prepared(Kind.HELPER, "trainer", {}, without) == "None True True"


@pytest.mark.thorough
def test_what_a_spare_cannot_import_is_left_to_the_rank_to_say() -> None:
    broken = "import sys; sys.modules['workloads.checkpoint'] = None\n" + PREPARED
    assert _prepared(Kind.RANK, "worker", {}, broken) == "1 True False"


def _prepared(kind: Kind, module: str, given: dict[str, str], script: str = PREPARED) -> str:
    variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | given
    command = [sys.executable, "-c", script, kind.value, module]
    done = subprocess.run(command, cwd=CHECKOUT, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class _RefusedError(grpc.RpcError):
    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNIMPLEMENTED


def test_a_raylet_that_starts_no_spares_is_told_of_and_nothing_else_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def refuse(kind: Kind, wanted: int) -> int:
        raise _RefusedError

    monkeypatch.setattr(spares, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(spares, "provide", refuse)
    standby = spares.Standby(Kind.RANK, 2, said.append)
    standby._thread.join(10)
    assert said == ["no spare processes, so a restart takes longer: this node's raylet answers UNIMPLEMENTED"]


def _mute(message: str) -> None:
    pass


@pytest.mark.parametrize(("missing", "asked"), [([0], 1), ([2, 1, 0], 3), ([2] * 99, spares.TRIES)])
def test_a_raylet_is_asked_until_none_is_missing_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, missing: list[int], asked: int
) -> None:
    answers = iter(missing)
    calls: list[int] = []

    def provide(kind: Kind, wanted: int) -> int:
        calls.append(wanted)
        return next(answers)

    monkeypatch.setattr(spares, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(spares, "TRY_SECONDS", 0.0)
    monkeypatch.setattr(spares, "provide", provide)
    spares.Standby(Kind.RANK, 2, _mute)._thread.join(10)
    assert calls == [2] * asked


def test_a_start_that_ends_early_asks_for_no_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def provide(kind: Kind, wanted: int) -> int:
        asked.append(wanted)
        return 0

    monkeypatch.setattr(spares, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(spares, "provide", provide)
    standby = spares.Standby(Kind.RANK, 2, _mute)
    standby.close()
    standby._thread.join(10)
    assert asked == []


def test_processes_of_other_jobs_kinds_and_raylets_are_no_spares_of_a_job() -> None:
    marks = Kind.RANK.variables | {"RAY_JOB_ID": "01000000"}
    others = [
        marks,
        marks | {"RAY_JOB_ID": "02000000"},
        marks | Kind.HELPER.variables,
        {"RAY_JOB_ID": "01000000"},
    ]
    started = [subprocess.Popen(["sleep", "60"], env={**os.environ, **variables}) for variables in others]
    try:
        assert spares.standing_by(os.getpid(), "01000000", Kind.RANK) == [started[0].pid]
        assert spares.standing_by(os.getppid(), "01000000", Kind.RANK) == []
    finally:
        for process in started:
            process.kill()
            process.wait()
