"""The all-reduce of `bench`, with NCCL, on a machine with one GPU: by one rank, then by two that share it.

Needs only Python and torch. Each rank is a process on device cuda:0, without Ray. NCCL refuses two ranks on one GPU
unless each claims a host of its own, so each has a different NCCL_HOSTID, and they talk over sockets on
loopback. That shows that the code runs on NCCL, that its results are right, and that the path is read from real logs;
it says nothing about a fabric.

examples:
  python -m benchmarks.one_gpu                                    one rank, then two
  python -m benchmarks.one_gpu --ranks 2 --sizes 1M:64M:4         two alone, fewer sizes
  python -m benchmarks.one_gpu --backend gloo --sizes 1K:1M:4     without a GPU, to see that the command works

With nccl, figures go to benchmarks/one_gpu.json and NCCL's log of each rank to DIR/logs. To test the verdict on them:
  cat .oasis/benchmarks/one_gpu/logs/all_reduce-two-ranks-rank*.log \\
    > tests/workloads/nccl/nccl_logs/one_gpu_sockets.txt
and an entry of that name in tests/workloads/nccl/nccl_logs/index.json, with "path": "socket".
With gloo, figures are printed, and kept only where --results says.

Ends with 0 if all is well, 5 if a rank died or hung, 6 if a result was wrong, 8 if there is no GPU, 9 if NCCL's logs
show an error or another path. However it ends, no rank is left running.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks.harness import command, figures
from benchmarks.harness.figures import Record, conditions
from benchmarks.one_gpu_ranks import rank as one_gpu_rank
from benchmarks.one_gpu_ranks import start as one_gpu_ranks
from workloads.errors import EXIT_OK, DataIntegrityError, FabricError, PlaceError, UsageError, WorkloadError
from workloads.nccl.definitions import bandwidth
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.logs import debug_log, faults
from workloads.nccl.logs.debug_log import Keeper
from workloads.nccl.logs.verdict import WORDS
from workloads.nccl.ranks.rank import conditions_of, row_of
from workloads.nccl.results import findings, records, report
from workloads.nccl.results.findings import JudgedStage
from workloads.nccl.results.measured import Measured

RESULTS = Path(__file__).with_suffix(".json")
LOGS = Path(".oasis/benchmarks/one_gpu")

GPU_SIZES = "1K:64M:2"
"""Two processes take turns on a GPU, and loopback is slow: larger sizes would outlast --timeout and show no more."""

_NOTHING_CROSSES = "nothing crosses a link, so busbw is 0 by definition"
LABELS = {
    ("nccl", 1): f"one rank on one GPU: it shows that the code runs on NCCL; {_NOTHING_CROSSES}",
    ("nccl", 2): "two ranks on one GPU, over sockets on loopback: it shows that the code runs on NCCL; it says nothing "
    "of a fabric",
    ("gloo", 1): f"one rank on a CPU: it shows that this command runs; {_NOTHING_CROSSES}",
    (
        "gloo",
        2,
    ): "two ranks on a CPU, gloo on loopback: it shows that this command runs; it says nothing of NCCL nor of a fabric",
}
"""How far figures can be trusted, by backend and ranks: printed above them and kept with them."""


@dataclass(frozen=True)
class OneGpuRun:
    """Measurements with a given number of ranks."""

    measured: Measured
    variables: tuple[dict[str, str], ...]
    """NCCL_, GLOO_ and OMP_ variables of each rank."""

    @property
    def label(self) -> str:
        """Remark on how far its figures can be trusted."""
        return LABELS[self.measured.conditions.backend, self.measured.conditions.ranks]

    def as_record(self, found: Sequence[JudgedStage]) -> Record:
        """The run as plain data.

        Args:
            found: what NCCL's logs say about it; nothing on gloo.
        """
        return {
            "label": self.label,
            "ranks": self.measured.conditions.ranks,
            "environment": asdict(self.measured.conditions),
            "variables of each rank": self.variables,
            "samples": [records.row_record(row) for row in self.measured.rows],
            "verdict": found[0].verdict.as_record() if found else None,
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and keep; returns the exit code."""
    given = _parse(arguments)
    sizes = bandwidth.parse_sizes(given.sizes or (GPU_SIZES if given.backend == "nccl" else bandwidth.CPU_SIZES))
    _check(given)
    done: list[tuple[OneGpuRun, list[JudgedStage]]] = []
    try:
        for ranks in dict.fromkeys(given.ranks):
            run = _measure(ranks, given, sizes)
            done.append((run, report.show_findings([run.measured])))
            _keep_logs(given.logs, run.measured.stage.name, run.measured.logs)
    finally:
        if done:
            _keep(given, done)
    return _conclude(done)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser(RESULTS, __doc__)
    parser.set_defaults(results=None)
    add = parser.add_argument
    add("--ranks", type=int, nargs="+", choices=(1, 2), default=[1, 2], help="one after the other (1 2)")
    add("--backend", choices=("nccl", "gloo"), default="nccl", help="gloo needs no GPU (%(default)s)")
    sizes = f"bytes of a rank, as of `bench` ({GPU_SIZES}, as memory allows; on CPU {bandwidth.CPU_SIZES})"
    add("--sizes", metavar="FIRST:LAST:FACTOR", help=sizes)
    add("--logs", type=Path, default=LOGS, metavar="DIR", help="NCCL's logs (%(default)s)")
    add("--timeout", type=float, default=40.0, metavar="S", help="longest wait for a size (%(default)g)")
    given = parser.parse_args(arguments)
    if not given.results and given.backend == "nccl":
        given.results = RESULTS
    return given


def _check(given: argparse.Namespace) -> None:
    results: Path | None = given.results
    if given.timeout < 1:
        raise UsageError(f"--timeout is {given.timeout:g}.", "Give at least 1.")
    if given.backend == "nccl" and not torch.cuda.is_available():
        raise PlaceError(
            "--backend nccl needs a GPU; torch sees none on this machine.",
            "Run it where there is one, or see that the command works with --backend gloo.",
        )
    if given.backend == "gloo" and results and results.exists() and '"backend": "nccl"' in results.read_text():
        raise UsageError(f"{results} holds what a GPU has measured.", "Give --results another file for gloo's figures.")


def _measure(ranks: int, given: argparse.Namespace, sizes: Sequence[int]) -> OneGpuRun:
    """Measure every size with so many ranks; each row is printed once measured."""
    layout = one_gpu_rank.layout(ranks, given.backend)
    plan = one_gpu_rank.plan(given.timeout)
    stage = Stage(name="one rank" if ranks == 1 else "two ranks", nodes=(0,))
    keeper, printer = Keeper(), report.Printer()
    nccl = given.backend == "nccl"
    logs = keeper.open(ranks, debug_log.PATH) if nccl else [{}] * ranks
    timed, measured = [""] * (ranks * nccl), []
    print(f"# {LABELS[given.backend, ranks]}", flush=True)
    try:
        with one_gpu_ranks.started(given.backend, given.timeout, logs) as team:
            facts = team.join()
            conditions = conditions_of(layout, plan, stage, facts, None)
            printer.begin(stage, conditions)
            room = min(own["room"] for own in facts) // (ranks if nccl else 1)
            for size in plan.fitting(sizes, ranks, room, shorten=given.sizes is None):
                both = [team.ask("measure", size, in_place) for in_place in (False, True)]
                measured.append(row_of(plan, size, *both))
                printer.show(stage, measured[-1])
            team.ask("leave")
        printer.end()
        if nccl:
            timed = keeper.read()
            print(f"# {stage} again, untimed, for what NCCL chooses at each size", flush=True)
            logs = keeper.open(ranks, debug_log.CHOICES)
            with one_gpu_ranks.started(given.backend, given.timeout, logs) as team:
                team.join()
                for row in measured:
                    team.ask("call", row.size)
                team.ask("leave")
    except WorkloadError:
        texts = _texts(timed, keeper)
        for rank, found in faults.origins(texts).items():
            print(f"# in NCCL's log of rank {rank}: {' '.join(map(str, found))}", file=sys.stderr)
        _keep_logs(given.logs, stage.name, texts)
        raise
    whole = Measured(stage=stage, conditions=conditions, rows=tuple(measured), links=(), logs=_texts(timed, keeper))
    return OneGpuRun(whole, tuple(own["variables"] for own in facts))


def _texts(timed: Sequence[str], keeper: Keeper) -> dict[int, str]:
    """NCCL's log of each rank: first that of an earlier timed run, if there is one, then that of the current run."""
    return {rank: "".join(both) for rank, both in enumerate(zip(timed, keeper.read(), strict=True))}


def _keep(given: argparse.Namespace, done: Sequence[tuple[OneGpuRun, Sequence[JudgedStage]]]) -> None:
    """Keep the figures, or print them if there is no file for them."""
    on = done[0][0].measured.conditions
    found = {**conditions(), "backend": given.backend, "versions": on.versions}
    found["machine"]["gpu"] = on.accelerator
    found["runs"] = [run.as_record(judged) for run, judged in done]
    if given.results:
        figures.write(given.results, found)
        print(f"# figures written to {given.results}")
    else:
        print(json.dumps(found, indent=2))


def _keep_logs(folder: Path, stage: str, logs: Mapping[int, str]) -> None:
    if logs:
        (folder / report.LOGS).mkdir(parents=True, exist_ok=True)
        for name, content in report.log_files("all_reduce", stage, logs).items():
            (folder / name).write_bytes(content)
        print(f"# NCCL's logs written to {folder / report.LOGS}", flush=True)


def _conclude(done: Sequence[tuple[OneGpuRun, Sequence[JudgedStage]]]) -> int:
    """The exit code, now that everything is kept.

    Raises:
        DataIntegrityError: a result was wrong.
        FabricError: NCCL's logs show an error, or that two ranks did not talk over sockets, as the label says.
    """
    if wrong := sum(row.wrong for run, _ in done for row in run.measured.rows):
        raise DataIntegrityError(
            f"{wrong} elements of the results were wrong; the #wrong columns say at which sizes.",
            "Do not train on this machine before it is known why: `python -m workloads doctor`.",
        )
    for run, found in done:
        if bad := findings.broken(found):
            raise FabricError(f"NCCL's logs show an error: {bad}", "The logs themselves say more.")
        for one in found:
            if run.measured.conditions.ranks == 2 and one.verdict.path != "socket":
                raise FabricError(
                    f"NCCL's logs show {WORDS[one.verdict.path]}, not the sockets that the figures are labelled with.",
                    "Do not quote the figures; the logs themselves say more.",
                )
    return EXIT_OK


if __name__ == "__main__":
    command.run(main)
