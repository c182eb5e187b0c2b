"""The stages of a benchmark: each node alone, every pair of nodes, then all; and the ranks that exchange data in pairs.

Pure: nothing here knows Ray or torch. Stages of one round share no node and run side by side, so that the pairs of k
nodes take k - 1 rounds rather than k(k-1)/2.
"""

from __future__ import annotations

from dataclasses import dataclass

RING = "RING"
"""NCCL_ALGO's word for the algorithm in which every byte crosses the wire. On two nodes NCCL's own choice, a tree,
sends only half of them, so that it prints more than the wire carries (NVIDIA/nccl-tests issues 160, 196, 309)."""

NVLS = "NVLS"
"""NCCL_ALGO's word for the reduction in the switches of one node."""

_SWITCHES = ("all_reduce", "all_gather", "reduce_scatter")
ALGORITHMS = {
    "ring": (*_SWITCHES, "broadcast"),
    "tree": ("all_reduce",),
    "nvls": _SWITCHES,
    "nvlstree": ("all_reduce",),
}
"""NCCL_ALGO's words (NCCL user guide, environment variables), in lower case, and the collectives that have the
algorithm (NCCL's source, src/graph/tuning.cc); point to point has none. Not `pat`: it has no all-reduce, by which the
ranks agree. Not `collnet`: it needs switches that reduce, and a plugin of NCCL's for them, which gIB is not."""

REACH = {"nvls": "within a node", "nvlstree": "between nodes"}
"""The only places where an algorithm works without such switches (the same source)."""

EXTENTS = ("all", "nodes", "pairs")
"""The extents of a benchmark: all nodes together; before that each node alone; between the two every pair of nodes."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One run of the benchmark on some of the nodes."""

    name: str
    """`node 0`, `nodes 0+1`, `nodes 0+1, ring`, `all`."""
    nodes: tuple[int, ...]
    """Nodes that take part, by their number in the placement group."""
    algorithm: str = ""
    """Algorithm that NCCL_ALGO forces; empty leaves the choice to NCCL."""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True)
class Link:
    """One exchange between two ranks, both ways at once, while the other ranks did the same in other pairs."""

    ranks: tuple[int, int]
    """The two ranks, by their number in their stage."""
    seconds: float
    """Time of one exchange."""


Round = tuple[Stage, ...]
"""Stages that share no node, have as many nodes each, and run at the same time."""


def plan_rounds(nodes: int, extent: str, ring: bool) -> list[Round]:
    """The stages, from the smallest to the largest.

    Args:
        nodes: number of nodes; with one node `all` is the only stage.
        extent: one of `EXTENTS`.
        ring: also force the ring if NCCL's own choice may hide the wire: for pairs of nodes and all of them.
    """
    everyone = tuple(range(nodes))
    last: list[Round] = [(Stage(name="all", nodes=everyone),)]
    if ring and nodes > 1:
        last.append((_forced((0, 1)) if nodes == 2 else Stage(name="all, ring", nodes=everyone, algorithm=RING),))
    if nodes == 1 or extent == "all":
        return last
    found: list[Round] = [tuple(Stage(name=f"node {node}", nodes=(node,)) for node in everyone)]
    if extent == "pairs" and nodes > 2:
        for pairs in tournament(nodes):
            found.append(tuple(_forced(pair) if ring else _pair(pair) for pair in pairs))
    return [*found, *last]


def tournament(players: int) -> list[list[tuple[int, int]]]:
    """Every pair once, in rounds in which nobody plays twice: the circle method of round-robin tournaments.

    Args:
        players: at least 1; with an odd number one sits out in each round.
    """
    seats = list(range(players + players % 2))  # the last one is nobody if the number is odd
    rounds = []
    for _ in range(len(seats) - 1):
        pairs = [
            (min(pair), max(pair))
            for pair in zip(seats[: len(seats) // 2], reversed(seats[len(seats) // 2 :]), strict=True)
        ]
        rounds.append(sorted(pair for pair in pairs if max(pair) < players))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return [pairs for pairs in rounds if pairs]


def exchanges(nodes: int, ranks_per_node: int, most: int) -> list[list[tuple[int, int]]]:
    """The pairs of ranks to time, in rounds: within each node all pairs, between nodes those on one rail.

    Args:
        nodes: number of nodes in the stage.
        ranks_per_node: rank r of a node is on rail r.
        most: maximum rounds between nodes, so that a large cluster does not take longer than a small one.
    """
    inside = [
        [(node * ranks_per_node + a, node * ranks_per_node + b) for node in range(nodes) for a, b in pairs]
        for pairs in tournament(ranks_per_node)
    ]
    between = [
        [(a * ranks_per_node + rail, b * ranks_per_node + rail) for a, b in pairs for rail in range(ranks_per_node)]
        for pairs in tournament(nodes)[:most]
    ]
    return [pairs for pairs in (*inside, *between) if pairs]


def _pair(nodes: tuple[int, int]) -> Stage:
    return Stage(name=f"nodes {nodes[0]}+{nodes[1]}", nodes=nodes)


def _forced(nodes: tuple[int, int]) -> Stage:
    return Stage(name=f"nodes {nodes[0]}+{nodes[1]}, ring", nodes=nodes, algorithm=RING)
