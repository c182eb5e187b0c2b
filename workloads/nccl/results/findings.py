"""What each measured stage is taken for: which path NCCL took, and whether the speed is what the machine promises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workloads.nccl.definitions.bandwidth import format_size
from workloads.nccl.logs import verdict
from workloads.nccl.logs.verdict import Verdict
from workloads.nccl.results import report, suspects, thresholds
from workloads.nccl.results.measured import Measured
from workloads.nccl.results.remarks import Remarks
from workloads.nccl.results.thresholds import Judgement

if TYPE_CHECKING:
    from workloads.storage.folders import Folder


@dataclass(frozen=True)
class Finding:
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


def find(one: Measured, nics: int, promised: bool) -> Finding:
    """Read a stage's logs and judge its speed.

    Args:
        one: the stage.
        nics: RDMA NICs that each node must show; 0 does not count them.
        promised: whether gIB with GPUDirect RDMA must carry what goes between nodes.
    """
    taken = verdict.read(one.logs, nics, promised, dict(enumerate(one.conditions.hosts)))
    return Finding(one, taken, thresholds.judge(one.conditions.machine_type, one, taken))


def broken(findings: Sequence[Finding]) -> str:
    """What is bad, stage by stage; empty where nothing is."""
    failed = [one for one in findings if one.judgement.outcome == "fail"]
    return " ".join(f"{one.measured.stage.name}: {' '.join(one.judgement.reasons)}" for one in failed)


def write(
    folders: Sequence[Folder], measured: Sequence[Measured], findings: Sequence[Finding], stopped: str = ""
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
