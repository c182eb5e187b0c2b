"""Verdict on a measured stage: the path that NCCL's logs show, and whether its speed is as promised."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workloads.nccl.definitions.bandwidth import format_size
from workloads.nccl.logs import verdict
from workloads.nccl.logs.verdict import Verdict
from workloads.nccl.results import thresholds
from workloads.nccl.results.measured import Measured
from workloads.nccl.results.thresholds import Judgement


@dataclass(frozen=True)
class JudgedStage:
    """One stage and its judgement."""

    measured: Measured
    verdict: Verdict
    judgement: Judgement

    def line(self) -> str:
        """For people, in one line."""
        row = self.measured.rows[-1]
        # One rank alone moves nothing over a bus.
        speed = f"{row.busbw(row.in_place):.4g} GB/s at {format_size(row.size)}, " if row.factor else ""
        return f"{self.measured.stage.name}: {speed}{self.verdict.line()}: {self.judgement.outcome}"


def judged(measured: Sequence[Measured]) -> list[JudgedStage]:
    """The stages on NCCL, judged; gloo promises nothing."""
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
    return JudgedStage(one, taken, thresholds.judge(one, taken))


def broken(findings: Sequence[JudgedStage]) -> str:
    """Faults, stage by stage; empty where there are none."""
    failed = [one for one in findings if one.judgement.outcome == "fail"]
    return " ".join(f"{one.measured.stage.name}: {' '.join(one.judgement.reasons)}" for one in failed)
