"""The all-reduce benchmark on Ray: one node per bundle, one actor per rank, every rank sees all GPUs of its node.

Ray would give each actor one visible GPU; NCCL then cannot see its neighbours' and is slower by orders of magnitude
(ray-project/ray issue 61073), so the masking is off and each rank takes, of all it sees, the GPU that Ray gave it.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from workloads import capacity, process_group
from workloads.errors import UsageError, WorkloadError, WorkloadFailedError
from workloads.nccl import host, measure
from workloads.nccl.bandwidth import Row, Timing, format_size
from workloads.nccl.measure import Participant, Plan, Sample
from workloads.nccl.report import Conditions

_ACTOR_ENVIRONMENT = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
_GRACE_SECONDS = 30.0
"""How much longer than the process group's own limit the driver waits, so that the clearer error comes first."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the ranks are."""

    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    """GPUs taken from each node; 0 runs gloo on CPUs."""

    @property
    def ranks(self) -> int:
        """All ranks."""
        return self.nodes * self.ranks_per_node

    @property
    def bundle(self) -> dict[str, float]:
        """What one node must have."""
        cpus = {"CPU": float(self.ranks_per_node)}
        return {**cpus, "GPU": float(self.gpus_per_node)} if self.gpus_per_node else cpus


class RankActor:
    """One rank; a process of its own on the node of its bundle."""

    def __init__(self, rank: int, layout: Layout, plan: Plan) -> None:
        self._device = host.device(layout.gpus_per_node)
        self._participant = Participant(rank, layout.ranks, self._device, plan)
        self._listener: socket.socket | None = None

    def open(self) -> tuple[str, int]:
        """On rank 0: open the meeting point; returns its address and port."""
        address = ray.util.get_node_ip_address()
        self._listener = process_group.listen(address)
        return address, self._listener.getsockname()[1]

    def join(self, address: str, port: int) -> dict[str, Any]:
        """Enter the process group; returns what this rank runs on."""
        self._participant.join(address, port, self._listener)
        return {**host.describe(self._device), "room": self._participant.room()}

    def measure(self, size: int, in_place: bool) -> Sample:
        """Time one size."""
        return self._participant.measure(size, in_place)

    def leave(self) -> None:
        """Leave the process group."""
        self._participant.leave()


def run(
    layout: Layout,
    plan: Plan,
    sizes: Sequence[int],
    shorten: bool,
    wait_seconds: float,
    say: Callable[[str], None],
    begin: Callable[[list[dict[str, Any]]], None],
    show: Callable[[Row], None],
) -> list[Row]:
    """Measure every size on the cluster that this process is connected to.

    Args:
        layout: where the ranks are.
        plan: what they do.
        sizes: bytes per rank, rising.
        shorten: leave out the sizes that do not fit a rank's memory, rather than refuse them.
        wait_seconds: longest wait for the nodes.
        say: told of the progress before measuring.
        begin: told what each rank runs on, once all have joined.
        show: given each row as it is finished.

    Raises:
        UsageError: a size does not fit a rank's memory, and `shorten` is false.
        InfeasibleError, CapacityError: the nodes cannot come, or did not.
        WorkloadFailedError: a rank died or hung; says which, and on which node.
    """
    with (
        capacity.hold([layout.bundle] * layout.nodes, wait_seconds, say) as group,
        _actors(group, layout, plan) as actors,
    ):
        limit = plan.timeout_seconds + _GRACE_SECONDS
        say(f"starting {layout.ranks} ranks on {layout.nodes} nodes")
        address, port = _all([actors[0].open.remote()], limit)[0]
        found = _all([actor.join.remote(address, port) for actor in actors], limit)
        within = fitting(sizes, min(rank["room"] for rank in found), shorten)
        begin(found)
        rows = []
        for size in within:
            timings = [_measure(actors, size, in_place, limit) for in_place in (False, True)]
            rows.append(_row(size, plan, layout.ranks, *timings))
            show(rows[-1])
        _all([actor.leave.remote() for actor in actors], limit)
        return rows


def fitting(sizes: Sequence[int], room: int, shorten: bool) -> Sequence[int]:
    """The sizes that fit.

    Args:
        sizes: bytes, rising.
        room: largest size that fits the rank with the least memory.
        shorten: leave out the others, rather than refuse them.

    Raises:
        UsageError: a size does not fit and may not be left out, or none fits.
    """
    within = [size for size in sizes if size <= room]
    if not within or (len(within) < len(sizes) and not shorten):
        raise UsageError(
            f"Two buffers of {format_size(sizes[-1])} do not fit the {2 * room / 1024**3:.1f} GiB of memory that the "
            "fullest rank has left.",
            "End --sizes earlier.",
        )
    return within


@contextmanager
def _actors(group: PlacementGroup, layout: Layout, plan: Plan) -> Iterator[list[ActorHandle]]:
    remote: Any = ray.remote(RankActor)
    actors = [
        remote.options(
            num_cpus=1,
            num_gpus=1 if layout.gpus_per_node else 0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank // layout.ranks_per_node),
            runtime_env={"env_vars": _ACTOR_ENVIRONMENT},
            max_restarts=0,
        ).remote(rank, layout, plan)
        for rank in range(layout.ranks)
    ]
    try:
        yield actors
    finally:
        for actor in actors:
            ray.kill(actor)


def _all(futures: list[ray.ObjectRef[Any]], limit: float) -> list[Any]:
    """The results of all ranks; the first failure of any ends the wait for the others, which would hang without it."""
    waiting = list(futures)
    while waiting:
        done, waiting = ray.wait(waiting, timeout=limit)
        rank = futures.index(done[0]) if done else futures.index(waiting[0])
        try:
            if not done:
                raise GetTimeoutError(f"no answer in {limit:.0f} s")
            ray.get(done[0])
        except RayTaskError as error:
            cause = error.cause
            if isinstance(cause, WorkloadError):
                raise cause from None
            raise _failed(rank, cause or error) from error
        except (RayActorError, GetTimeoutError) as error:
            raise _failed(rank, error) from error
    return ray.get(futures)


def _failed(rank: int, error: BaseException) -> WorkloadFailedError:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return WorkloadFailedError(
        f"Rank {rank} failed: {reason}",
        "The other ranks were ended. The node's log (`python -m workloads status`, the dashboard) has more; run again.",
    )


def _measure(actors: Sequence[ActorHandle], size: int, in_place: bool, limit: float) -> Timing:
    samples: list[Sample] = _all([actor.measure.remote(size, in_place) for actor in actors], limit)
    slowest = max(range(len(samples)), key=lambda rank: samples[rank].seconds)
    return Timing(
        seconds=samples[slowest].seconds,
        iterations=samples[slowest].iterations,
        slowest_rank=slowest,
        wrong=sum(sample.wrong for sample in samples),
        rank_seconds=tuple(sample.seconds for sample in samples),
    )


def _row(size: int, plan: Plan, ranks: int, out_of_place: Timing, in_place: Timing) -> Row:
    collective = plan.collective
    count = size // measure.element_size(plan.dtype)
    return Row(
        size=count * measure.element_size(plan.dtype),
        count=count,
        dtype=plan.dtype,
        redop=collective.redop,
        root=collective.root,
        factor=collective.factor(ranks),
        out_of_place=out_of_place,
        in_place=in_place,
    )


def conditions(layout: Layout, plan: Plan, ranks: list[dict[str, Any]], machine_type: str, image: str) -> Conditions:
    """What the figures were measured under.

    Args:
        layout: where the ranks are.
        plan: what they do.
        ranks: what `begin` was given.
        machine_type: Compute Engine machine type that the stack promises; empty where none is.
        image: container image; empty outside a stack.
    """
    return Conditions(
        op=plan.collective.name,
        backend=ranks[0]["backend"],
        nodes=layout.nodes,
        ranks=layout.ranks,
        hosts=tuple(rank["host"] for rank in ranks),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        machine_type=machine_type if layout.gpus_per_node else "",
        accelerator=ranks[0]["accelerator"],
        image=image,
        versions=ranks[0]["versions"],
        variables=ranks[0]["variables"],
    )
