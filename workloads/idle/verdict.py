"""Decides whether a holder's GPUs were idle; missing samples, and pods that it has held for less than the period in
question, never count."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from workloads.cluster.stack import DeployedStack
from workloads.idle import holders, stack_jobs, utilisation
from workloads.idle.holders import GpuPod, Holder
from workloads.idle.utilisation import SAMPLE_SECONDS, Gpu
from workloads.reporting.progress import counted

LEAST_SAMPLED = 0.5
"""Share of its samples that must be there before a GPU is judged: newest ones arrive late, and some may be lost."""

Verdict = Literal["idle", "busy", "young", "not seen"]
_STRONGEST: tuple[Verdict, ...] = ("busy", "young", "not seen", "idle")
"""What one pod is, the whole holder is, the first of these first."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which GPUs count as idle."""

    under: float
    """Percent that none of its samples reaches."""
    seconds: float
    """Over how long, until now."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """How it stands with one holder."""

    holder: Holder
    verdict: Verdict
    busiest: int | None
    """Percent, of the busiest sample of all its GPUs; None where there is none."""
    reason: str
    """What was not seen, where that decides."""


def look(stack: DeployedStack, question: Question, now: float) -> list[Finding]:
    """Every holder of GPUs, in a stack's cluster or a team's namespace.

    Args:
        stack: the stack, or the team's part of it.
        question: which GPUs are idle.
        now: Unix time.

    Raises:
        WorkloadError: Kubernetes or Cloud Monitoring does not answer, or not to this user.
    """
    found = holders.look(stack)
    if not found:
        return []
    gpus = utilisation.look(stack.environment, now - question.seconds, now)
    split: list[Holder] = []
    for holder in found:
        own = (holders.RAY_CLUSTER, stack.environment.ray_namespace, stack.environment.ray_cluster_name)
        split += stack_jobs.split(holder, stack) if (holder.kind, holder.namespace, holder.name) == own else [holder]
    return [judge(holder, gpus, question, now) for holder in split]


def judge(holder: Holder, gpus: Mapping[tuple[str, str], list[Gpu]], question: Question, now: float) -> Finding:
    """How it stands with a holder.

    Args:
        holder: with its pods.
        gpus: what was seen of each pod's GPUs, by its namespace and name.
        question: which GPUs are idle.
        now: Unix time.
    """
    by_pod = {pod: gpus.get((holder.namespace, pod.name), []) for pod in holder.pods}
    reasons: defaultdict[Verdict, list[str]] = defaultdict(list)
    for pod, seen in by_pod.items():
        verdict, reason = _pod(pod, seen, question, now)
        reasons[verdict].append(reason)
    verdict: Verdict = next(one for one in _STRONGEST if one in reasons)
    return Finding(
        holder=holder,
        verdict=verdict,
        busiest=max((gpu.busiest for seen in by_pod.values() for gpu in seen), default=None),
        reason=reasons[verdict][0],
    )


def _pod(pod: GpuPod, seen: Iterable[Gpu], question: Question, now: float) -> tuple[Verdict, str]:
    if any(gpu.busiest >= question.under for gpu in seen):
        return "busy", ""
    if pod.began is None or now - pod.began < question.seconds:
        return "young", f"it has not had pod {pod.name} for that long yet"
    needed = LEAST_SAMPLED * question.seconds / SAMPLE_SECONDS
    known = sum(gpu.samples >= needed for gpu in seen)
    if known < pod.gpus:
        return "not seen", f"Cloud Monitoring has no metric, or too little, of {counted(pod.gpus - known, 'GPU')}"
    return "idle", ""
