"""Nodes for a workload: asks Ray for them, shows the wait, and says early when they can never come.

Ray itself waits for ever for what does not fit. The verdicts here rest on what its autoscaler last said about this very
request, and, where no autoscaler runs, on what the nodes have in all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from workloads import autoscaler
from workloads.autoscaler import AutoscalerReply
from workloads.errors import CapacityError, InfeasibleError

Bundle = Mapping[str, float]
"""What one node must have: resource -> amount, `{"GPU": 8, "CPU": 8}`."""

Verdict = Literal["go", "wait", "infeasible", "late"]

TICK_SECONDS = 1.0
PROGRESS_SECONDS = 10.0
"""How often an unchanged wait is reported; a changed one is reported at once."""

PATIENCE_SECONDS = 10.0
"""How long nodes that are just joining may be missing before a cluster without an autoscaler counts as too small."""

FRESH_REPLIES = 2
"""How many later replies of the autoscaler must repeat that a request cannot be met, since one may be half digested."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What is known about one request at one moment."""

    granted: bool
    """All bundles are placed."""
    autoscaler: bool
    """An autoscaler reports to this cluster; without one, no node will be added."""
    refusals: int
    """Consecutive fresh replies in which the autoscaler called this request infeasible."""
    fitting_nodes: int
    """Nodes whose total resources hold a bundle, busy or not."""
    launching: int = 0
    """Nodes asked for, or started and not yet part of Ray."""
    failed: int = 0
    """Attempts to add a node that failed; a stock-out shows here."""


def judge(seen: Observation, nodes: int, waited: float, limit: float) -> Verdict:
    """What an observation means.

    Args:
        seen: the newest observation.
        nodes: bundles asked for, each on its own node.
        waited: seconds since the request.
        limit: seconds the user is willing to wait.
    """
    if seen.granted:
        return "go"
    if seen.refusals >= FRESH_REPLIES:
        return "infeasible"
    if not seen.autoscaler and seen.fitting_nodes < nodes and waited >= min(PATIENCE_SECONDS, limit):
        return "infeasible"
    return "late" if waited >= limit else "wait"


@contextmanager
def hold(bundles: Sequence[Bundle], timeout_seconds: float, report: Callable[[str], None]) -> Iterator[PlacementGroup]:
    """Hold one node per bundle for the length of the block; given back however the block ends.

    Args:
        bundles: what each node must have.
        timeout_seconds: longest wait; adding A3 Ultra nodes takes minutes, a queue for them hours.
        report: told of each change, and every ten seconds.

    Raises:
        InfeasibleError: the cluster can never hold the bundles.
        CapacityError: it could, but did not in time.
    """
    group = placement_group([dict(bundle) for bundle in bundles], strategy="STRICT_SPREAD")
    try:
        _wait(group, bundles, timeout_seconds, report)
        yield group
    finally:
        remove_placement_group(group)


def check_maximum(nodes: int, maximum: int, kind: str, setting: str) -> None:
    """Refuse at once what the stack's own limits rule out.

    Raises:
        InfeasibleError: more nodes asked for than the stack can ever have.
    """
    if nodes > maximum:
        raise InfeasibleError(
            f"{nodes} {kind} nodes were asked for; this stack has at most {maximum}.",
            f"Ask for at most {maximum} with --nodes, or raise {setting} in the stack's settings and run `pulumi up`.",
        )


def _wait(
    group: PlacementGroup, bundles: Sequence[Bundle], timeout_seconds: float, report: Callable[[str], None]
) -> None:
    watch = _Watch(group, bundles)
    began = time.monotonic()
    said, said_at = "", began
    while True:
        seen = watch.look()
        waited = time.monotonic() - began
        verdict = judge(seen, len(bundles), waited, timeout_seconds)
        if verdict == "go":
            return
        if verdict != "wait":
            raise _refusal(verdict, seen, bundles, waited)
        if group.wait(TICK_SECONDS):
            return
        line = _describe(seen, bundles)
        if line != said or time.monotonic() - said_at >= PROGRESS_SECONDS:
            said, said_at = line, time.monotonic()
            report(f"{line}; waited {waited:.0f} of at most {timeout_seconds:.0f} s")


def _describe(seen: Observation, bundles: Sequence[Bundle]) -> str:
    text = f"waiting for {_request(bundles)}: {seen.fitting_nodes} of the kind up"
    if seen.launching:
        text += f", {seen.launching} being added"
    if seen.failed:
        text += f", {seen.failed} attempts to add one failed"
    return text


def _refusal(
    verdict: Verdict, seen: Observation, bundles: Sequence[Bundle], waited: float
) -> InfeasibleError | CapacityError:
    request = _request(bundles)
    if verdict == "infeasible":
        return InfeasibleError(
            f"This cluster can never give {request}: {seen.fitting_nodes} of the kind up, and no more can be added.",
            "Ask for fewer nodes with --nodes or less per node; `python -m workloads status` shows what there is.",
        )
    if seen.fitting_nodes >= len(bundles):
        return CapacityError(
            f"Not free within {waited:.0f} s: {request}; the nodes are there and busy.",
            "`python -m workloads jobs list` shows what runs; wait longer with --timeout.",
        )
    return CapacityError(
        f"Not there within {waited:.0f} s: {request}; {seen.fitting_nodes} of the kind up, "
        f"{seen.launching} being added, {seen.failed} attempts failed.",
        "`kubectl get pods,events --namespace NAMESPACE` names the reason (stock-out, quota); wait longer with "
        "--timeout, or add another way to get GPUs to oasis:gpu.capacity.",
    )


def _request(bundles: Sequence[Bundle]) -> str:
    kinds = Counter(", ".join(f"{amount:g} {name}" for name, amount in sorted(bundle.items())) for bundle in bundles)
    return " and ".join(f"{count} node{'s' if count > 1 else ''} with {kind}" for kind, count in kinds.items())


class _Watch:
    """Observes one request; remembers which replies of the autoscaler were already counted."""

    def __init__(self, group: PlacementGroup, bundles: Sequence[Bundle]) -> None:
        self._group = group
        self._bundles = bundles
        reply = autoscaler.read()
        # Only a reply that saw the cluster as it was after the request says anything about the request.
        self._counted_version = reply.resource_version if reply else 0
        self._refusals = 0

    def look(self) -> Observation:
        """The state of the request now."""
        granted = self._group.wait(0)
        reply = autoscaler.read()
        if reply is not None and (reply.seen_version or 0) > self._counted_version:
            self._count_refusal(reply, reply.seen_version or 0)
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        return Observation(
            granted=granted,
            autoscaler=reply is None or reply.seen_version is not None,
            refusals=self._refusals,
            fitting_nodes=sum(_fits(resources, self._bundles) for resources in alive),
            launching=reply.launching if reply else 0,
            failed=reply.failed if reply else 0,
        )

    def _count_refusal(self, reply: AutoscalerReply, version: int) -> None:
        self._counted_version = version
        mine = self._group.id.hex()
        refused = any(details.startswith(mine) for details in reply.infeasible_groups)
        self._refusals = self._refusals + 1 if refused else 0


def _fits(resources: Mapping[str, float], bundles: Sequence[Bundle]) -> bool:
    return any(all(resources.get(name, 0) >= amount for name, amount in bundle.items()) for bundle in bundles)
