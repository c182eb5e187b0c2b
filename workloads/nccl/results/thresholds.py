"""What all-reduce must reach on each machine type, and whether it did. The one place where those numbers stand. Pure.

A machine type that is not here, or a case that nobody has published, gets no verdict rather than a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from workloads.nccl.definitions.bandwidth import Row, format_size
from workloads.nccl.definitions.stages import RING
from workloads.nccl.logs.remedies import KERNEL_LOG

if TYPE_CHECKING:
    from workloads.nccl.logs.verdict import Verdict
    from workloads.nccl.results.measured import Measured

Outcome = Literal["pass", "fail", "no verdict"]


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A bandwidth to compare with: a limit, or what a sound machine reaches."""

    gigabytes_per_second: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """Expected bus bandwidth of all-reduce with all GPUs of each node, in GB/s."""

    limit: float
    limit_label: str
    expected: float
    """What is published of sound machines at the largest sizes."""
    target: float | None
    """What we set out to reach; less is no fault. None where nothing more than `expected` is aimed at."""
    failing: float
    """Below this something is broken."""
    least_size: int
    """Bytes per rank from which on the numbers hold; smaller messages are slower on sound machines too."""


@dataclass(frozen=True, kw_only=True)
class MachineThresholds:
    """One machine type."""

    gpus: int
    one: Expectation
    """A node alone."""
    several: Expectation
    """Two nodes and more, over the ring: NCCL's trees on two nodes print more than the wire carries."""


MACHINES: dict[str, MachineThresholds] = {
    "a3-ultragpu-8g": MachineThresholds(
        gpus=8,
        # Eight H200 over NVSwitch with NVLS: 482 at 16 GiB (NCCL 2.27.7, stas00/ml-engineering network/README.md), 480
        # at 8 GB and 468 at 1 GB (NCCL 2.20.5, Azure/AI-benchmarking-guide ND_H200_v5_results.md), 480
        # (NVIDIA/nccl-tests issue 309). Without NVLS 368, which must fail: hence 0.9 of 480.
        one=Expectation(
            limit=480, limit_label="480 GB/s: eight H200 over NVSwitch, as published", expected=480,
            target=None, failing=432, least_size=4 * 1024**3,
        ),
        # Eight NICs with 3,200 Gb/s in all (Compute Engine documentation, "Networking and GPU machines"). Ring over
        # eight 400 Gb/s NICs: 366 (NVIDIA/nccl-tests issue 309), 365 on four nodes (AWS p5en, ml-engineering);
        # all-gather on GKE with gIB 377 (esaaren/verl-on-gke). NVIDIA's maintainers: 46 to 48 a NIC. One NIC lost
        # leaves seven eighths of 380, 333: hence 340.
        several=Expectation(
            limit=400, limit_label="400 GB/s: eight 400 Gb/s NICs", expected=365, target=380, failing=340,
            least_size=4 * 1024**3,
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The meaning of one stage's figures."""

    outcome: Outcome
    reasons: tuple[str, ...]
    """Sentences; of a pass, what it rests on."""
    busbw: float | None
    """Bus bandwidth in GB/s that was judged; None where none could be."""

    def as_record(self) -> dict[str, Any]:
        """The judgement as plain data."""
        return {"verdict": self.outcome, **{key: value for key, value in asdict(self).items() if key != "outcome"}}


def references(machine_type: str, several_nodes: bool) -> tuple[Reference, ...]:
    """The lines to compare an all-reduce curve with: limit, target, where failure begins; none for an unknown machine.

    Args:
        machine_type: Compute Engine machine type; empty where it is unknown.
        several_nodes: whether the ranks are on several nodes.
    """
    machine = MACHINES.get(machine_type)
    if machine is None:
        return ()
    case = machine.several if several_nodes else machine.one
    failing = f"{case.failing:g} GB/s: less is a fault, from {format_size(case.least_size)} on"
    target = f"{case.target:g} GB/s: the target" if case.target else ""
    return (
        Reference(gigabytes_per_second=case.limit, label=case.limit_label),
        *([Reference(gigabytes_per_second=case.target, label=target)] if case.target else []),
        Reference(gigabytes_per_second=case.failing, label=failing),
    )


def judge(machine_type: str, measured: Measured, verdict: Verdict | None) -> Judgement:
    """Judge whether a stage is as fast, as right and on the path as it must be.

    Args:
        machine_type: Compute Engine machine type; empty where it is unknown.
        measured: the stage.
        verdict: what NCCL's logs say of it; None where there is none to ask.
    """
    broken = _broken(measured.rows, verdict)
    busbw, slow, doubt = _speed(machine_type, measured, verdict)
    if broken or slow:
        return Judgement(outcome="fail", reasons=tuple(filter(None, [*broken, slow])), busbw=busbw)
    if doubt:
        return Judgement(outcome="no verdict", reasons=(doubt,), busbw=busbw)
    case = _case(MACHINES[machine_type], measured)
    aim = f", {case.target:g} the target" if case.target else ""
    reason = f"{busbw:.0f} GB/s of bus bandwidth; {case.failing:g} must be reached, {case.expected:g} is usual{aim}."
    return Judgement(outcome="pass", reasons=(reason,), busbw=busbw)


def _broken(rows: Sequence[Row], verdict: Verdict | None) -> list[str]:
    wrong = sum(row.wrong for row in rows)
    errors = [problem for problem in verdict.problems if problem.severity == "error"] if verdict else []
    return [*([f"{wrong} elements of the results are wrong."] if wrong else []), *map(str, errors)]


def _speed(machine_type: str, measured: Measured, verdict: Verdict | None) -> tuple[float | None, str, str]:
    """The bandwidth that counts; why it fails, or empty; why it cannot be judged, or empty."""
    machine, conditions = MACHINES.get(machine_type), measured.conditions
    if machine is None:
        return None, "", f"What {machine_type or 'this machine'} must reach is not known."
    if conditions.backend != "nccl" or conditions.op != "all_reduce":
        return None, "", f"Nothing is published of {conditions.op} with {conditions.backend} on {machine_type}."
    if conditions.ranks != machine.gpus * conditions.nodes:
        return None, "", f"The numbers hold for all {machine.gpus} GPUs of each node."
    case = _case(machine, measured)
    large = [row for row in measured.rows if row.size >= case.least_size]
    if not large:
        return None, "", f"The numbers hold from {format_size(case.least_size)} on; no size that large was measured."
    busbw = max(row.busbw(row.in_place) for row in large)
    algorithm = measured.stage.algorithm or (verdict.algorithm if verdict else "")
    if conditions.nodes > 2 and algorithm not in ("", RING):
        return busbw, "", f"{algorithm} is slower than the ring on sound machines too; the forced ring is what counts."
    if busbw < case.failing:
        slow = f"{busbw:.0f} GB/s of bus bandwidth; {case.failing:g} must be reached. {_hint(measured, verdict)}"
        return busbw, slow, ""
    if conditions.nodes == 2 and algorithm != RING:
        chosen = algorithm or "an algorithm that is not known"
        return busbw, "", f"On two nodes {chosen} prints more than the wire carries; the forced ring is what counts."
    return busbw, "", ""


def _hint(measured: Measured, verdict: Verdict | None) -> str:
    if measured.conditions.nodes == 1:
        without = verdict is not None and verdict.nvls is False
        return (
            "NVLS was not at hand: look at Fabric Manager and NCCL_NVLS_ENABLE."
            if without
            else f"Look for Xids on the node: {KERNEL_LOG}"
        )
    return "Compare the nodes in pairs with `python -m workloads bench` to find the slow node or NIC."


def _case(machine: MachineThresholds, measured: Measured) -> Expectation:
    return machine.several if measured.conditions.nodes > 1 else machine.one
