"""The gate before training: a short all-reduce on the nodes that a run starts on, and a refusal of a bad fabric.

It measures each node alone, then all over the ring. An elastic run is checked on the nodes that it starts with; nodes
that join later are not checked. Ray may place the workers on other nodes than these if more are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workloads.cluster import worker_count
from workloads.environment import ClusterEnvironment
from workloads.errors import DataIntegrityError, FabricError, WorkloadError
from workloads.nccl.definitions import stages
from workloads.nccl.definitions.collectives import COLLECTIVES
from workloads.nccl.definitions.stages import Round
from workloads.nccl.logs import faults
from workloads.nccl.ranks import driver
from workloads.nccl.ranks.driver import StoppedError
from workloads.nccl.ranks.failures import HungError
from workloads.nccl.ranks.rank import Layout, RankPlan
from workloads.nccl.results import findings, report, suspects
from workloads.nccl.results.findings import JudgedStage
from workloads.nccl.results.measured import Measured
from workloads.storage.folders import Folder

GPU_SIZES = (64 * 1024**2, 1024**3, 4 * 1024**3)
"""Sizes up to the one from which thresholds apply; a call of the largest takes milliseconds on a sound fabric."""

CPU_SIZES = (1024**2,)

OP = "all_reduce"

PLAN = RankPlan(collective=COLLECTIVES[OP], warmup=5, blocking=False, timeout_seconds=60)

_TRAIN_ANYWAY = "Run again once that is done, or train all the same with --no-require-fabric."


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question to be answered before training."""

    promise: ClusterEnvironment
    """What the stack promises about its nodes."""
    least_nodes: int
    most_nodes: int
    """An elastic run starts with as many nodes as there are, between the two."""
    ranks_per_node: int
    gpus_per_node: int
    """GPUs taken from each node; 0 measures CPUs and gloo, which is not gIB."""
    timeout: float
    """Longest wait for the nodes, seconds."""
    folders: tuple[Folder, ...]
    """Folders that the result is kept in; with none, nothing is kept."""


def admit(question: Question, say: Callable[[str], None]) -> None:
    """Measure, keep and show the result, and return only if the fabric is good, or nothing shows that it is bad.

    Args:
        question: the question to answer.
        say: told of the progress and of each stage's result.

    Raises:
        FabricError: the fabric is bad; says which node and NIC, as far as known, and what to do.
        StoppedError: it could not be measured, for another reason.
        DataIntegrityError: a result was wrong.
        InfeasibleError, CapacityError: the nodes can never come, or did not.
    """
    say("fabric: measuring each node alone, then all together, before training")
    conclude(question, _measure(question, say), say)


def conclude(question: Question, measured: Sequence[Measured], say: Callable[[str], None]) -> None:
    """Judge the measurements of `admit`.

    Args:
        question: the question to answer.
        measured: measurements of each node alone, and of all.
        say: told each stage's result.

    Raises:
        FabricError, DataIntegrityError: as in `admit`.
    """
    found = [_found(one, question.promise) for one in measured]
    if question.folders:
        report.write(question.folders, measured, found)
    slow = _said(found, measured, say)
    where = _where(question, "Tables and NCCL's logs")
    bad = findings.broken(found)
    if any(row.wrong for one in measured for row in one.rows):
        raise DataIntegrityError(
            f"All-reduce gave wrong results before training: {bad}",
            f"{where}Do not train on these nodes: `bench --nodes 1` on each finds the bad one; have it replaced.",
        )
    if bad:
        raise FabricError(
            f"The fabric is not what the stack promised. {bad}{slow}",
            f"{where}{_TRAIN_ANYWAY}",
        )


def stopped(question: Question, error: StoppedError, say: Callable[[str], None]) -> WorkloadError:
    """Keep the measurements of an `admit` that was stopped early; returns the error to raise.

    That is a FabricError if something shows that the network or a GPU was at fault, or if a rank hung in a collective;
    a process that died of anything else says nothing about the fabric.

    Args:
        question: the question to answer.
        error: the error that stopped it.
        say: told of the finished stages.

    Raises:
        KeyboardInterrupt: if that is what stopped it.
    """
    found = [_found(one, question.promise) for one in error.measured]
    slow = _said(found, error.measured, say)
    where = ""
    try:
        files = report.write_logs(question.folders, OP, error.logs)
        if error.measured and question.folders:
            files += report.write(question.folders, error.measured, found, error.problem)
        where = _where(question, "What there is of tables and NCCL's logs") if files else ""
    except WorkloadError as unkept:  # the error that stopped it matters more
        say(f"fabric: nothing of it could be kept: {unkept}")
    if isinstance(error.__cause__, KeyboardInterrupt):
        raise error.__cause__
    bad = findings.broken(found)
    said = f"All-reduce failed before training: {error.problem}{f' {bad}' if bad else ''}{slow}"
    told = any(faults.origins(logs) for logs in error.logs.values()) or faults.advice(str(_origin(error)))
    if bad or told or isinstance(error.__cause__, HungError):
        return FabricError(said, f"{error.remedy} {where}{_TRAIN_ANYWAY}")
    error.problem, error.remedy = said, f"{error.remedy} {where}"
    return error


def _origin(error: BaseException) -> BaseException:
    """Ray's or torch's own error, with all its lines; the error raised from it quotes one of them."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _said(found: Sequence[JudgedStage], measured: Sequence[Measured], say: Callable[[str], None]) -> str:
    """Report each stage's result, and what is slow; returns the latter, for the end of a message."""
    for one in found:
        say(f"fabric, {one.line()}")
    slow = [suspect.text for suspect in suspects.suspects(measured)]
    for text in slow:
        say(f"fabric: {text}")
    return "".join(f" {text}." for text in slow)


def _measure(question: Question, say: Callable[[str], None]) -> list[Measured]:
    layout = Layout(nodes=1, ranks_per_node=question.ranks_per_node, gpus_per_node=question.gpus_per_node)
    least, most = question.least_nodes, question.most_nodes
    nodes = worker_count.gather(layout.bundle, least, most, question.timeout, say, "STRICT_SPREAD")
    try:
        return driver.run(
            Layout(nodes=nodes, ranks_per_node=layout.ranks_per_node, gpus_per_node=layout.gpus_per_node),
            PLAN,
            rounds(nodes, ring=layout.gpus_per_node > 0),
            GPU_SIZES if layout.gpus_per_node else CPU_SIZES,
            shorten=True,
            wait_seconds=question.timeout,
            promise=question.promise,
            say=say,
        )
    except StoppedError as error:
        raise stopped(question, error, say) from error.__cause__


def rounds(nodes: int, ring: bool) -> Sequence[Round]:
    """Each node alone, in parallel, then all; for a single node only the first.

    Args:
        nodes: number of nodes.
        ring: force NCCL's ring among all, so that the wire is measured.
    """
    first, *others = stages.plan_rounds(nodes, "nodes", ring)
    return [first, *others[-1:]]


def _found(one: Measured, promise: ClusterEnvironment) -> JudgedStage:
    """Judge one measurement. Unlike `bench`, which may be asked for gloo, the gate always demands gIB between nodes."""
    several = one.conditions.nodes > 1
    return findings.find(one, promise.rdma_nics if several else 0, several)


def _where(question: Question, what: str) -> str:
    places = " and ".join(folder.uri for folder in question.folders)
    return f"{what}: {places}. " if places else ""
