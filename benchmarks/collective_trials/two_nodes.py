"""The trials of `benchmarks.collectives` on two nodes, Ray nodes of this machine: one of them slow, one rail, or none.

The kernel limits the rate of the TCP connection between two ranks: to one rate within a node, standing for NVLink's,
and a lower one along a rail. A slow node or rail has half the rate. Both are far below what a core can do, as ranks
that wait for one of few cores would be slow by chance.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from benchmarks.collective_trials.trials import measured
from emulator.machine.state import State
from emulator.ray import nodes as ray_nodes
from emulator.ray.deployed_ray import DeployedRay
from tests.support import stub_kubectl
from workloads.cluster import session
from workloads.convnext.ranks import gathered
from workloads.doctor import listeners
from workloads.errors import FabricError
from workloads.nccl import gate
from workloads.nccl.definitions.stages import plan_rounds
from workloads.nccl.gate import Question
from workloads.nccl.ranks.rank import Layout, Rank
from workloads.nccl.results import suspects
from workloads.nccl.results.measured import Measured

LAYOUT = Layout(nodes=2, ranks_per_node=2, gpus_per_node=0)
NODE_BYTES_PER_SECOND, RAIL_BYTES_PER_SECOND = 200_000_000, 100_000_000
"""Rates of a connection within a node and along a rail: so low that two cores keep up with four ranks."""

STAGE_BYTES, STAGE_CALLS = 8 << 20, 40
"""Work for timing one node alone: half a second, as the machine's other load comes and goes faster than that."""

_SO_MAX_PACING_RATE = 47  # socket(7), include/uapi/asm-generic/socket.h; bytes per second


@contextlib.contextmanager
def connected(place: session.Place, folder: Path) -> Iterator[None]:
    """Connect to a Ray of two nodes, with nothing on any address but 127.0.0.1.

    Args:
        place: what `session.prepare` returned.
        folder: folder for what these nodes write.
    """
    state = State(folder / ".oasis")
    url = f"http://127.0.0.1:{state.port('ray-dashboard')}"
    stack = {"ray_dashboard_url": url, "data_uri": "gs://data", "runs_uri": "gs://runs"}
    deployed = DeployedRay(environment=stack, token=os.environ["RAY_AUTH_TOKEN"])
    try:
        ray_nodes.start(state, deployed, {}, print, worker_cpus=LAYOUT.ranks_per_node)
        with session.connect(replace(place, address=f"127.0.0.1:{state.port('ray-gcs')}")):
            yield
    finally:
        ray_nodes.stop(state)


def slowed(kind: str, chance: random.Random) -> dict[str, Any]:
    """A run on both nodes in which a node or a rail is slow, and what it reports as slow.

    Args:
        kind: `node`, `rail`, or anything else, which slows nobody.
        chance: which one.
    """
    workers = sorted(node["NodeID"] for node in ray.nodes() if node["Resources"].get("CPU"))
    slow_node = chance.choice(workers) if kind == "node" else ""
    slow_rail = chance.randrange(LAYOUT.ranks_per_node) if kind == "rail" else None
    rounds, rank = plan_rounds(LAYOUT.nodes, "nodes", ring=False), _ranks(slow_node, slow_rail)
    found = measured(LAYOUT, rounds, rank, STAGE_BYTES, STAGE_CALLS)
    together = found[-1]
    blamed = suspects.suspects(found)
    return {
        "slow": _node(slow_node, together) if slow_node else None if slow_rail is None else ("rail", slow_rail),
        "named": sorted({(one.kind, one.number) for one in blamed}),
        "ratios": [round(one.ratio, 2) for one in blamed],
        "link_milliseconds": {"-".join(map(str, link.ranks)): round(1000 * link.seconds, 1) for link in together.links},
    }


def gated() -> dict[str, Any]:
    """Seconds until the gate refuses these nodes, which have no RDMA; on a fabric, NCCL's start comes on top."""
    began = time.monotonic()
    question = Question(
        promise=stub_kubectl.OUTPUTS,
        least_nodes=LAYOUT.nodes,
        most_nodes=LAYOUT.nodes,
        ranks_per_node=LAYOUT.ranks_per_node,
        gpus_per_node=0,
        timeout=60,
        folders=(),
    )
    try:
        gate.admit(question, lambda line: None)
        refused = False
    except FabricError:
        refused = True
    return {"seconds": round(time.monotonic() - began, 1), "refused": refused}


def _node(slow: str, together: Measured) -> tuple[str, int]:
    """The benchmark's name for the node with this Ray id: its place in the placement group."""
    known = zip(together.conditions.node_of_rank, together.conditions.hosts, strict=True)
    return "node", next(node for node, host in known if slow[:8] in host)


def _ranks(slow_node: str, slow_rail: int | None) -> type[Rank]:
    class OnRails(Rank):
        """A rank whose connections have a rate."""

        def join(self, address: str, port: int, gpu: int) -> dict[str, Any]:
            before = set(listeners.of([os.getpid()]))
            joined = super().join(address, port, gpu)
            self._pace({place for place, _ in set(listeners.of([os.getpid()])) - before})
            return joined

        def _pace(self, own: set[str]) -> None:
            """Give each connection its rate: one of two ranks connects to where the other listens.

            This limits only one direction; an exchange, which uses both, takes as long as the slower one.
            """
            places = gathered(own)
            files = [int(file.name) for file in Path("/proc/self/fd").iterdir()]
            rates = {rank: rate for rank in range(self._seat.ranks) if (rate := self._rate(rank))}
            paced = [rank for rank, rate in rates.items() for file in files if _pace(file, rate, places[rank])]
            everywhere = gathered(paced)
            for rank in rates:
                connections = paced.count(rank) + everywhere[rank].count(self._seat.rank)
                if connections != 1:
                    raise RuntimeError(f"{connections} connections between ranks {self._seat.rank} and {rank}, not one")

        def _rate(self, other: int) -> int:
            """Bytes per second; 0 for no limit."""
            each, rank = self._layout.ranks_per_node, self._seat.rank
            if other == rank:
                return 0
            if other // each == rank // each:
                here = ray.get_runtime_context().get_node_id()
                return NODE_BYTES_PER_SECOND // (2 if here == slow_node else 1)
            return RAIL_BYTES_PER_SECOND // (2 if rank % each == slow_rail else 1) if other % each == rank % each else 0

    return OnRails


def _pace(number: int, rate: int, places: set[str]) -> bool:
    """Set this rate if the descriptor is a connection to one of these places; returns whether it is."""
    try:
        with socket.socket(fileno=os.dup(number)) as connection:
            host, port = connection.getpeername()[:2]
            if f"{host}:{port}" not in places:
                return False
            connection.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, rate)
            return True
    except (OSError, ValueError):  # no socket, not connected, a socket of a file system, or closed meanwhile
        return False
