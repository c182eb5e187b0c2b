"""One rank of `benchmarks.one_gpu`: a rank of `bench` in a process without Ray, which serves its parent's requests."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from workloads.cluster import process_group
from workloads.errors import WorkloadError
from workloads.interruption import end_with
from workloads.nccl.definitions.collectives import COLLECTIVES, Seat
from workloads.nccl.ranks import node_facts
from workloads.nccl.ranks.rank import Layout, Rank, RankPlan

ADDRESS = "127.0.0.1"
"""Where the ranks meet."""


def plan(timeout_seconds: float) -> RankPlan:
    """The default plan of `bench`, without the exchanges that find a slow rank among several.

    Args:
        timeout_seconds: as the plan has it.
    """
    return RankPlan(collective=COLLECTIVES["all_reduce"], links=False, timeout_seconds=timeout_seconds)


def layout(ranks: int, backend: str) -> Layout:
    """So many ranks on this machine, and on its first GPU if NCCL is requested."""
    return Layout(nodes=1, ranks_per_node=ranks, gpus_per_node=int(backend == "nccl"))


class LoneRank(Rank):
    """Provides by itself what an actor learns from Ray."""

    def arrive(self) -> dict[str, Any]:
        """Facts about this rank's surroundings; from rank 0 also the meeting point."""
        meeting = {} if self._seat.rank else {"meeting": self.open()}
        return {**node_facts.describe(self._layout.backend, socket.gethostname()), **meeting}

    def open(self) -> tuple[str, int]:
        """Open the meeting point; returns its address and port."""
        self._listener = process_group.listen(ADDRESS)
        return ADDRESS, self._listener.getsockname()[1]


def serve(rank: LoneRank, connection: Connection) -> None:
    """Answer requests, each a method's name and its arguments, until there are no more."""
    while True:
        try:
            method, *arguments = connection.recv()
        except EOFError:
            return
        try:
            answer = getattr(rank, method)(*arguments)
        except WorkloadError as error:
            answer = error
        except Exception:
            traceback.print_exc()
            sys.stderr.flush()
            # An orderly exit could wait for the other rank, in the destructor of what both share.
            os._exit(1)
        connection.send(answer)


def main(arguments: Sequence[str]) -> None:
    """Run the rank that the parent asks for.

    Args:
        arguments: the parent's process, without which this one ends; file descriptor of the connection; this rank; how
            many there are; backend; seconds that a collective may hang. NCCL's settings are in the environment.
    """
    parent, connection, rank, ranks = map(int, arguments[:4])
    backend, seconds = arguments[4:]
    end_with(parent)
    seat = Seat(rank=rank, ranks=ranks, stride=1)
    serve(LoneRank(seat, layout(ranks, backend), plan(float(seconds)), log={}), Connection(connection))


if __name__ == "__main__":
    main(sys.argv[1:])
