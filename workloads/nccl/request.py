"""The request to `bench`: turns arguments and place into a layout, a plan and rounds, or refuses them at once."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from workloads import run_name
from workloads.cluster.capacity import check_maximum
from workloads.cluster.session import Place
from workloads.dry_run import DEFAULT, Settings, of_ray, of_stack
from workloads.errors import InfeasibleError, PlaceError, UsageError
from workloads.nccl.definitions import bandwidth, stages
from workloads.nccl.definitions.collectives import COLLECTIVES
from workloads.nccl.definitions.stages import Round
from workloads.nccl.ranks.rank import Layout, RankPlan

RANKS_EMBEDDED = 2
"""Ranks without a cluster: the fewest that have anything to measure between them."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkRequest:
    """One run of the benchmark."""

    layout: Layout
    plan: RankPlan
    rounds: tuple[Round, ...]
    sizes: tuple[int, ...]
    shorten: bool
    """Whether sizes that do not fit may be left out: true for sizes that nobody asked for."""
    name: str
    places: tuple[str, ...]
    """Where the results go: local folders and addresses in a bucket."""

    def settings(self, place: Place) -> Settings:
        """The arguments' meaning in this place, for `--dry-run`."""
        layout = self.layout
        return {
            **of_ray(place),
            "nodes": (layout.nodes, DEFAULT),
            "ranks-per-node": (layout.ranks_per_node, DEFAULT),
            "backend": (layout.backend, "the stack's GPUs" if layout.gpus_per_node else DEFAULT),
            "sizes": (", ".join(map(bandwidth.format_size, self.sizes)), DEFAULT),
            "stages": (", ".join(stage.name for round_ in self.rounds for stage in round_), DEFAULT),
            "rounds": (len(self.rounds), DEFAULT),
            "name": (self.name, "time"),
            "results": (", ".join(self.places), DEFAULT),
            **of_stack(place),
        }


def resolve(args: argparse.Namespace, place: Place) -> BenchmarkRequest:
    """The request that these arguments make in this place.

    Raises:
        UsageError: a value is out of its bounds, or two values conflict.
        InfeasibleError: more nodes than this place can ever have.
        PlaceError: NCCL is requested, but there is no GPU.
    """
    layout = _layout(args, place)
    _check_algorithm(args.algo, args.op, layout.backend)
    plan = RankPlan(
        collective=COLLECTIVES[args.op],
        dtype=args.dtype,
        warmup=args.warmup,
        iterations=args.iterations,
        average=args.average,
    )
    sizes = bandwidth.parse_sizes(args.sizes or (bandwidth.GPU_SIZES if layout.gpus_per_node else bandwidth.CPU_SIZES))
    if sizes[0] < plan.element_size:
        raise UsageError(
            f"Size {sizes[0]} B is less than one {plan.dtype}.", f"Start --sizes at {plan.element_size} or more."
        )
    plan.fitting(sizes, layout.ranks, sys.maxsize, shorten=args.sizes is None)
    name = args.name or run_name.unnamed("bench")
    return BenchmarkRequest(
        layout=layout,
        plan=plan,
        rounds=_rounds(args, layout),
        sizes=sizes,
        shorten=args.sizes is None,
        name=name,
        places=_places(args, place, name),
    )


def _check_algorithm(forced: str | None, op: str, backend: str) -> None:
    """Refuse an unsuitable algorithm: NCCL itself would refuse it only in the first call, after the wait for nodes."""
    if forced and backend != "nccl":
        raise UsageError(f"--algo {forced} forces an algorithm of NCCL; this is gloo.", "Leave it out.")
    if forced and op not in stages.ALGORITHMS[forced]:
        possible = ", ".join(name for name, collectives in stages.ALGORITHMS.items() if op in collectives)
        raise UsageError(
            f"--algo {forced}: NCCL has no {op} with it.",
            f"Leave it out, or give one of {possible}."
            if possible
            else "Leave it out: NCCL has only one algorithm for this collective.",
        )


def _rounds(args: argparse.Namespace, layout: Layout) -> tuple[Round, ...]:
    extent = args.stages or ("pairs" if layout.gpus_per_node else "all")
    ring = layout.backend == "nccl" and args.op == "all_reduce" and not args.algo
    found = stages.plan_rounds(layout.nodes, extent, ring)
    if not args.algo:
        return tuple(found)
    where = stages.REACH.get(args.algo)
    rounds = tuple(
        tuple(replace(stage, algorithm=args.algo.upper()) for stage in round_)
        for round_ in found
        if where in (None, "within a node" if len(round_[0].nodes) == 1 else "between nodes")
    )
    if not rounds:
        raise UsageError(
            f"--algo {args.algo}: NCCL has it {where} only, and no stage that was asked for is there.",
            "Leave it out, or choose others by --nodes and --stages.",
        )
    return rounds


def _layout(args: argparse.Namespace, place: Place) -> Layout:
    promised = place.environment.gpus_per_node if place.environment else 0
    nccl = args.backend == "nccl" or (args.backend == "auto" and promised > 0)
    gpus = (promised or _own_gpus(args, place)) if nccl else 0
    ranks = args.ranks_per_node or gpus or (RANKS_EMBEDDED if place.embedded and not nccl else 1)
    nodes = args.nodes or (1 if place.embedded else 2)
    if place.embedded and nodes > 1:
        raise InfeasibleError(
            f"{nodes} nodes were asked for; an embedded Ray is one node.",
            "Leave --nodes out, or submit to a cluster: `python -m workloads submit -- bench`.",
        )
    if gpus and ranks > gpus:
        raise UsageError(f"{ranks} ranks were asked for on nodes of {gpus} GPUs.", f"Give at most {gpus}.")
    if place.environment and gpus:
        limits = place.environment
        check_maximum(nodes, limits.gpu_max_nodes, limits.gpu_queue_nodes)
    return Layout(nodes=nodes, ranks_per_node=ranks, gpus_per_node=ranks if nccl else 0)


def _own_gpus(args: argparse.Namespace, place: Place) -> int:
    """GPUs of a node if no stack promises any: this machine's, or, for a Ray elsewhere, as many as its ranks."""
    if place.environment is not None:
        raise PlaceError(
            "--backend nccl needs GPUs; this stack has no GPU nodes.",
            "Set oasis:gpu.capacity and run `pulumi up`, or measure the CPUs with --backend gloo.",
        )
    if not place.embedded:
        if not args.ranks_per_node:
            raise UsageError(
                f"How many GPUs a node of the Ray at {place.address} has is not known: no stack tells.",
                "Give --ranks-per-node.",
            )
        return args.ranks_per_node
    import torch

    if not torch.cuda.is_available():
        raise PlaceError(
            "--backend nccl needs GPUs; torch sees none on this machine.",
            "Submit to a cluster (`python -m workloads submit -- bench`), or measure the CPUs with --backend gloo.",
        )
    return torch.cuda.device_count()


def _places(args: argparse.Namespace, place: Place, name: str) -> tuple[str, ...]:
    local = args.results or (None if place.environment else Path(".oasis/results"))
    bucket = [f"{place.environment.runs_uri}/bench/{name}"] if place.environment else []
    return (*([str(local / name)] if local else []), *bucket)
