"""What is shown, judged and kept of a measurement: its tables while they grow, what each stage is taken for, the files.

A stage is taken for the path that NCCL's logs show, and for whether its speed is what the machine promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads.nccl.definitions import bandwidth
from workloads.nccl.definitions.bandwidth import Row, format_size
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.logs import verdict
from workloads.nccl.logs.verdict import Verdict
from workloads.nccl.results import records, report, suspects, thresholds
from workloads.nccl.results.measured import Conditions, Measured
from workloads.nccl.results.remarks import Remarks
from workloads.nccl.results.thresholds import Judgement
from workloads.reporting import progress

if TYPE_CHECKING:
    from workloads.storage.folders import Folder


class Printer:
    """Prints the tables while they grow."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def begin(self, stage: Stage, conditions: Conditions) -> None:
        """A stage's table begins."""
        self.end()
        for line in [f"# stage: {stage.name}", *conditions.lines(), *bandwidth.table_header().splitlines()]:
            progress.note(line)

    def show(self, stage: Stage, row: Row) -> None:
        """It has one more row."""
        self._rows.append(row)
        text = bandwidth.table_row(row)
        progress.emit({"event": "note", "text": text, "stage": stage.name, **records.row_record(row)})

    def end(self) -> None:
        """It ends, if one has begun."""
        if self._rows:
            for text in (bandwidth.table_footer(self._rows), bandwidth.jitter(self._rows)):
                for line in text.splitlines():
                    progress.note(line)
        self._rows = []


@dataclass(frozen=True)
class JudgedStage:
    """One stage, and what it is taken for."""

    measured: Measured
    verdict: Verdict
    judgement: Judgement

    def line(self) -> str:
        """For people, in one line."""
        row = self.measured.rows[-1]
        # One rank alone moves nothing over a bus.
        speed = f"{row.busbw(row.in_place):.4g} GB/s at {format_size(row.size)}, " if row.factor else ""
        return f"{self.measured.stage.name}: {speed}{self.verdict.line()}: {self.judgement.outcome}"


def show_findings(measured: Sequence[Measured]) -> list[JudgedStage]:
    """Print each stage's judgement once, and the slow nodes, rails and ranks."""
    judged = _judged(measured)
    for one in judged:
        for line in report.verdict_lines(one.verdict.as_record(), one.judgement.as_record()):
            progress.note(f"# {one.measured.stage.name}: {line.removeprefix('# ')}")
    for suspect in suspects.suspects(measured):
        progress.note(f"# slow: {suspect.text}")
    return judged


def _judged(measured: Sequence[Measured]) -> list[JudgedStage]:
    """Judgements of the stages on NCCL; gloo promises nothing."""
    return [
        find(one, one.conditions.rdma_nics, one.conditions.promised_rdma and one.conditions.nodes > 1)
        for one in measured
        if one.conditions.backend == "nccl"
    ]


def find(one: Measured, nics: int, promised: bool) -> JudgedStage:
    """Read a stage's logs and judge its speed.

    Args:
        one: the stage.
        nics: RDMA NICs that each node must show; 0 does not count them.
        promised: whether gIB with GPUDirect RDMA must carry what goes between nodes.
    """
    taken = verdict.read(one.logs, nics, promised, dict(enumerate(one.conditions.hosts)))
    return JudgedStage(one, taken, thresholds.judge(one.conditions.machine_type, one, taken))


def broken(findings: Sequence[JudgedStage]) -> str:
    """Faults, stage by stage; empty where there are none."""
    failed = [one for one in findings if one.judgement.outcome == "fail"]
    return " ".join(f"{one.measured.stage.name}: {' '.join(one.judgement.reasons)}" for one in failed)


def write(
    folders: Sequence[Folder], measured: Sequence[Measured], findings: Sequence[JudgedStage], stopped: str = ""
) -> list[str]:
    """Write every file into each folder; returns their names.

    Args:
        folders: where to.
        measured: at least one stage, each with at least one row.
        findings: of those stages that were judged.
        stopped: why stages are missing; empty where none is.
    """
    remarks = Remarks(
        verdicts={one.measured.stage.name: one.verdict.as_record() for one in findings},
        judgements={one.measured.stage.name: one.judgement.as_record() for one in findings},
        suspects=tuple(suspects.suspects(measured)),
        stopped=stopped,
    )
    return report.write(folders, measured, remarks)
