"""The bandwidth that all-reduce must reach on each machine type, and the check. The one place for these numbers. Pure.

A machine type that is not here, or a case that nobody has published, gets no verdict rather than a wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from workloads.nccl.definitions.bandwidth import Row, format_size
from workloads.nccl.definitions.stages import NVLS, RING
from workloads.nccl.logs.remedies import KERNEL_LOG

if TYPE_CHECKING:
    from workloads.nccl.logs.verdict import Verdict
    from workloads.nccl.results.measured import Conditions, Measured

Outcome = Literal["pass", "fail", "no verdict"]


class Reference(NamedTuple):
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
    """A node alone, over NVLS."""
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
        # Eight NICs with 3,200 Gb/s in all (Compute Engine documentation, "Networking and GPU machines"). Nobody has
        # published an all-reduce of two such nodes. All-gather over gIB, in place: 332 at 4 and 8 GiB, in two runs
        # (skypilot-org/skypilot 088eebc, examples/gcp_gpu_direct_tcpx/README.md); 334 and 336 (cluster-toolkit 00fbae7,
        # examples/gke-a3-ultragpu, a sample that its guide to A4 prints, too). That a ring carries an all-reduce as
        # fast is a guess; 0.9 of 332 must be reached, as on one node. One NIC lost of those leaves seven eighths, 290.
        # Elsewhere eight such NICs carry 365 (four nodes, AWS p5en, ml-engineering) and 366 (NVIDIA/nccl-tests issue
        # 309) over the ring; NVIDIA's maintainers: 46 to 48 a NIC, hence the target.
        several=Expectation(
            limit=400, limit_label="400 GB/s: eight 400 Gb/s NICs", expected=332, target=380, failing=300,
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


def references(conditions: Conditions) -> list[Reference]:
    """The lines to compare an all-reduce curve with: limit, target, where failure begins; none where none is known."""
    machine = MACHINES.get(conditions.machine_type)
    if machine is None or conditions.backend != "nccl" or conditions.op != "all_reduce":
        return []
    case = _case(machine, conditions)
    found = [
        Reference(case.limit, case.limit_label),
        Reference(case.failing, f"{case.failing:g} GB/s: less is a fault, from {format_size(case.least_size)} on"),
    ]
    return [*found, Reference(case.target, f"{case.target:g} GB/s: the target")] if case.target else found


def judge(measured: Measured, verdict: Verdict | None) -> Judgement:
    """Judge whether a stage is as fast, as right and on the path as it must be.

    Args:
        measured: the stage.
        verdict: what NCCL's logs say of it; None where there is none to ask.
    """
    speed = _speed(measured, verdict)
    if not (broken := _broken(measured.rows, verdict)):
        return speed
    slow = speed.reasons if speed.outcome == "fail" else ()
    return Judgement(outcome="fail", reasons=(*broken, *slow), busbw=speed.busbw)


def _broken(rows: Sequence[Row], verdict: Verdict | None) -> list[str]:
    wrong = sum(row.wrong for row in rows)
    errors = [problem for problem in verdict.problems if problem.severity == "error"] if verdict else []
    return [*([f"{wrong} elements of the results are wrong."] if wrong else []), *map(str, errors)]


def _speed(measured: Measured, verdict: Verdict | None) -> Judgement:
    """The judgement by the bandwidth alone."""

    def found(outcome: Outcome, reason: str, busbw: float | None = None) -> Judgement:
        return Judgement(outcome=outcome, reasons=(reason,), busbw=busbw)

    conditions = measured.conditions
    on, machine = conditions.machine_type, MACHINES.get(conditions.machine_type)
    if machine is None:
        return found("no verdict", f"What {on or 'this machine'} must reach is not known.")
    if conditions.backend != "nccl" or conditions.op != "all_reduce":
        return found("no verdict", f"Nothing is published about {conditions.op} with {conditions.backend} on {on}.")
    if conditions.ranks != machine.gpus * conditions.nodes:
        return found("no verdict", f"The numbers hold for all {machine.gpus} GPUs of each node.")
    case = _case(machine, conditions)
    large = [row.busbw(row.in_place) for row in measured.rows if row.size >= case.least_size]
    if not large:
        least = format_size(case.least_size)
        return found("no verdict", f"The numbers hold from {least} on; no size that large was measured.")
    busbw = max(large)
    reached = f"{busbw:.0f} GB/s of bus bandwidth; {case.failing:g} must be reached"
    forced, about = measured.stage.algorithm, RING if conditions.nodes > 1 else NVLS
    if forced not in ("", about):
        return found("no verdict", f"{forced} was forced; the numbers hold for {about}.", busbw)
    algorithm = forced or (verdict.algorithm if verdict else "")
    if conditions.nodes > 2 and algorithm not in ("", RING):
        why = f"{algorithm} is slower than the ring on sound machines too; the forced ring is what counts."
        return found("no verdict", why, busbw)
    if busbw < case.failing:
        return found("fail", f"{reached}. {_hint(measured, verdict)}", busbw)
    if conditions.nodes == 2 and algorithm != RING:
        chosen = algorithm or "an algorithm that is not known"
        why = f"On two nodes {chosen} prints more than the wire carries; the forced ring is what counts."
        return found("no verdict", why, busbw)
    aim = f", {case.target:g} the target" if case.target else ""
    return found("pass", f"{reached}, {case.expected:g} is usual{aim}.", busbw)


def _hint(measured: Measured, verdict: Verdict | None) -> str:
    if measured.conditions.nodes == 1:
        without = verdict is not None and verdict.nvls is False
        return (
            "NVLS was not available: look at Fabric Manager and NCCL_NVLS_ENABLE."
            if without
            else f"Look for Xids on the node: {KERNEL_LOG}"
        )
    if measured.conditions.nodes == 2:
        return "Unless a rail or a rank is said to be slow, measure each of the two with a third node."
    return "The stages of two nodes, which `python -m workloads bench` has by default, show the slow node or NIC."


def _case(machine: MachineThresholds, conditions: Conditions) -> Expectation:
    return machine.several if conditions.nodes > 1 else machine.one
