"""Nodes for a workload: asks Ray for them, shows the wait, and says early when they can never come.

Ray itself waits for ever for a request that does not fit. The verdicts here are based on the autoscaler's last reply
about this very request, or, if no autoscaler runs, on the total resources of the nodes.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from workloads.cluster import autoscaler
from workloads.cluster.autoscaler import AutoscalerReply
from workloads.environment import API_SERVER_VARIABLE
from workloads.errors import CapacityError, InfeasibleError
from workloads.reporting.progress import counted

Bundle = Mapping[str, float]
"""What one node must have: resource -> amount, `{"GPU": 8, "CPU": 8}`."""

Strategy = Literal["STRICT_SPREAD", "SPREAD", "PACK"]
"""Ray's names for where bundles go."""

Verdict = Literal["go", "wait", "infeasible", "late"]

WAITING = "waiting for "
"""How the report of a wait begins; whoever follows the job then asks Kubernetes why its pods have no nodes."""

TICK_SECONDS = 1.0
PROGRESS_SECONDS = 10.0
"""How often an unchanged wait is reported; a changed one is reported at once."""

PATIENCE_SECONDS = 10.0
"""How long after a node joined or left others may follow, before a Ray without an autoscaler counts as too small."""

FRESH_REPLIES = 2
"""How many later replies of the autoscaler must repeat that a request cannot be met, since one may be half digested."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Everything known about one request at one moment."""

    granted: bool
    """All bundles are placed."""
    autoscaler: bool
    """An autoscaler reports to this cluster; without one, no node will be added."""
    settled: float
    """Seconds since a node last joined or left; as long as the wait where that is not known."""
    refusals: int
    """Consecutive fresh replies in which the autoscaler called this request infeasible."""
    fitting: int
    """Bundles that the nodes which are up could hold together, were they free."""
    launching: int = 0
    """Nodes asked for, or started and not yet part of Ray, as far as the request needs them."""
    failed: int = 0
    """Attempts to add a node that failed; a stock-out shows here."""
    replaced: bool = False
    """A node was lost that comes again: KubeRay makes another pod for each of a cluster of fixed size (ray-operator
    v1.6.2, controllers/ray/raycluster_controller.go, `reconcilePods`)."""


def judge(seen: Observation, bundles: int, waited: float, limit: float) -> Verdict:
    """The verdict on an observation.

    Args:
        seen: the newest observation.
        bundles: how many were asked for.
        waited: seconds since the request.
        limit: seconds the user is willing to wait.
    """
    if seen.granted:
        return "go"
    if seen.refusals >= FRESH_REPLIES:
        return "infeasible"
    fixed = not seen.autoscaler and not seen.replaced
    if fixed and seen.fitting < bundles and (seen.settled >= PATIENCE_SECONDS or waited >= limit):
        return "infeasible"
    return "late" if waited >= limit else "wait"


@contextmanager
def hold(
    bundles: Sequence[Bundle],
    timeout_seconds: float,
    report: Callable[[str], None],
    strategy: Strategy = "STRICT_SPREAD",
) -> Iterator[PlacementGroup]:
    """Hold what the bundles name for the length of the block; given back however the block ends.

    Args:
        bundles: what is wanted, each on one node.
        timeout_seconds: longest wait; adding A3 Ultra nodes takes minutes, a queue for them hours.
        report: told of each change, and every ten seconds.
        strategy: STRICT_SPREAD gives each bundle a node of its own, SPREAD only where there are enough.

    Raises:
        InfeasibleError: the cluster can never hold the bundles.
        CapacityError: it could, but did not in time.
    """
    group = placement_group([dict(bundle) for bundle in bundles], strategy=strategy)
    try:
        _wait(group, CapacityRequest(tuple(bundles), strategy), timeout_seconds, report)
        yield group
    finally:
        remove_placement_group(group)


def check_maximum(nodes: int, maximum: int, queued: int = 0) -> None:
    """Refuse at once what the stack's own limits rule out.

    Args:
        nodes: asked for.
        maximum: that there can be here.
        queued: nodes that a job of the stack's queue may have.

    Raises:
        InfeasibleError: more nodes asked for than the stack can ever have.
    """
    if nodes > maximum:
        raise InfeasibleError(
            f"{counted(nodes, 'GPU node')} asked for; this stack has at most {maximum}.",
            f"Submit it with `--queue --nodes {nodes}`, where it may have up to {queued}."
            if nodes <= queued
            else f"Ask for at most {maximum} with --nodes, or raise oasis:gpu.capacity in the stack's settings and run "
            "`pulumi up`.",
        )


@dataclass(frozen=True)
class CapacityRequest:
    """A request for several bundles at once."""

    bundles: tuple[Bundle, ...]
    """Each on one node."""
    strategy: Strategy
    """Whether bundles may share a node."""

    def __str__(self) -> str:
        each = "node" if self.strategy == "STRICT_SPREAD" else "worker"
        kinds = Counter(
            ", ".join(f"{amount:g} {name}" for name, amount in sorted(bundle.items())) for bundle in self.bundles
        )
        return " and ".join(f"{counted(count, each)} with {kind}" for kind, count in kinds.items())

    def fitting(self, nodes: Iterable[Mapping[str, float]]) -> int:
        """Number of the bundles that fit on nodes with these total resources, placed first-fit."""
        free = [Counter(node) for node in nodes]
        held = 0
        for bundle in self.bundles:
            node = next((node for node in free if all(node[name] >= amount for name, amount in bundle.items())), None)
            if node is None:
                continue
            held += 1
            node.subtract(node if self.strategy == "STRICT_SPREAD" else bundle)
        return held


def _wait(
    group: PlacementGroup, request: CapacityRequest, timeout_seconds: float, report: Callable[[str], None]
) -> None:
    watch = _Watch(group, request)
    began = time.monotonic()
    said, said_at = "", began
    while True:
        waited = time.monotonic() - began
        seen = watch.look(waited)
        verdict = judge(seen, len(request.bundles), waited, timeout_seconds)
        if verdict == "go":
            return
        if verdict != "wait":
            raise _refusal(verdict, seen, request, waited)
        if group.wait(TICK_SECONDS):
            return
        line = _describe(seen, request)
        if line != said or time.monotonic() - said_at >= PROGRESS_SECONDS:
            said, said_at = line, time.monotonic()
            report(f"{line}; waited {waited:.0f} of at most {timeout_seconds:.0f} s")


def _describe(seen: Observation, request: CapacityRequest) -> str:
    text = f"{WAITING}{request}: {seen.fitting} of them up"
    if seen.launching:
        text += f", {seen.launching} being added"
    if seen.failed:
        text += f", {counted(seen.failed, 'attempt')} to add one failed"
    if seen.replaced and seen.fitting < len(request.bundles):
        text += ", and KubeRay makes another pod for one that was lost"
    return text


def _refusal(
    verdict: Verdict, seen: Observation, request: CapacityRequest, waited: float
) -> InfeasibleError | CapacityError:
    if verdict == "infeasible":
        return InfeasibleError(
            f"This cluster can never give {request}: {seen.fitting} of them up, and "
            + ("its autoscaler can add none." if seen.autoscaler else "it has no autoscaler that could add one."),
            "Ask for fewer with --nodes or --workers, or less per node; `python -m workloads status` shows "
            "what there is.",
        )
    if seen.fitting >= len(request.bundles):
        return CapacityError(
            f"Not free within {waited:.0f} s: {request}; the nodes are there and busy.",
            "`python -m workloads jobs list` shows what runs; wait longer with --timeout.",
        )
    return CapacityError(
        f"Not there within {waited:.0f} s: {request}; {seen.fitting} of them up, "
        f"{seen.launching} being added, {counted(seen.failed, 'attempt')} failed.",
        "`python -m workloads status` says of each pod whether no node could ever hold it or Google has none to give; "
        "wait longer with --timeout, or add another way to get GPUs to oasis:gpu.capacity.",
    )


class _Watch:
    """Observes one request; remembers which replies of the autoscaler were already counted."""

    def __init__(self, group: PlacementGroup, request: CapacityRequest) -> None:
        self._group = group
        self._request = request
        reply = autoscaler.read()
        # Only a reply that saw the cluster as it was after the request says anything about the request.
        self._counted_version = reply.resource_version if reply else 0
        self._refusals = 0

    def look(self, waited: float) -> Observation:
        """The state of the request now, so many seconds after it was made."""
        settled = autoscaler.settled_seconds()
        granted = self._group.wait(0)
        reply = autoscaler.read()
        if reply is not None and (reply.seen_version or 0) > self._counted_version:
            self._count_refusal(reply, reply.seen_version or 0)
        nodes = ray.nodes()
        alive = [node["Resources"] for node in nodes if node["Alive"]]
        fitting = self._request.fitting(alive)
        autoscaled = reply is None or reply.seen_version is not None
        return Observation(
            granted=granted,
            autoscaler=autoscaled,
            settled=waited if settled is None else settled,
            refusals=self._refusals,
            fitting=fitting,
            # A node that has joined is still being added in a reply that is older; others may be for another request.
            launching=min(reply.launching, len(self._request.bundles) - fitting) if reply else 0,
            failed=reply.failed if reply else 0,
            replaced=not autoscaled and API_SERVER_VARIABLE in os.environ and len(alive) < len(nodes),
        )

    def _count_refusal(self, reply: AutoscalerReply, version: int) -> None:
        self._counted_version = version
        mine = self._group.id.hex()
        refused = any(details.startswith(mine) for details in reply.infeasible_groups)
        self._refusals = self._refusals + 1 if refused else 0
