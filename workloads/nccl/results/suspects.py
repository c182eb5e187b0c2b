"""The slow node, rail or rank that the stages and the exchanges between pairs of ranks point at.

Pure. A pair shows the slower of the two. A slow one is slow with every partner, so each is judged by its best partner.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from workloads.nccl.results.measured import Measured

SLOW_RATIO = 1.5
"""A part is slow that takes this many times the median of the others. A NIC at half its speed takes 2.0; healthy ones
of one machine type differ by some percent."""


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A part that is slower than its like."""

    kind: str
    """`node`, `rail` or `rank`."""
    number: int
    """Which one."""
    ratio: float
    """Its time over the median of the others'."""
    text: str
    """A sentence that names it."""


def suspects(measured: Sequence[Measured]) -> list[Suspect]:
    """Every part that is slow, by what was measured.

    Args:
        measured: the stages of one run, in any order; stages without a row say nothing.
    """
    hosts = _hosts(measured)
    everywhere = len(hosts)
    alone = {one.stage.nodes[0]: _seconds(one) for one in measured if len(one.stage.nodes) == 1 and everywhere > 1}
    pairs = [
        ((one.stage.nodes[0], one.stage.nodes[1]), _seconds(one))
        for one in measured
        if len(one.stage.nodes) == 2 and everywhere > 2
    ]
    found = [
        *_nodes(alone, "alone", hosts),
        *_nodes(best(pairs), "with every other node", hosts),
    ]
    if linked := [one for one in measured if one.links]:
        found += _of_links(max(linked, key=lambda one: one.conditions.ranks))
    return found


def slow(seconds: Mapping[int, float]) -> dict[int, float]:
    """Members that take more than `SLOW_RATIO` times the median of the others, and how many times; slowest first.

    Args:
        seconds: of each; of one alone nothing can be said.
    """
    ratios = {}
    for one, own in seconds.items():
        if others := [value for other, value in seconds.items() if other != one]:
            ratios[one] = own / median(others)
    found = sorted((one for one, ratio in ratios.items() if ratio > SLOW_RATIO), key=lambda one: -ratios[one])
    return {one: ratios[one] for one in found}


def best(pairs: Iterable[tuple[tuple[int, int], float]]) -> dict[int, float]:
    """The best time of each with any partner.

    Args:
        pairs: both partners, and their time together.
    """
    found: dict[int, float] = {}
    for partners, seconds in pairs:
        for one in partners:
            found[one] = min(seconds, found.get(one, seconds))
    return found


def _of_links(one: Measured) -> Iterator[Suspect]:
    node, hosts = one.conditions.node_of_rank, one.conditions.hosts
    each = one.conditions.ranks // one.conditions.nodes
    inside = [(link.ranks, link.seconds) for link in one.links if node[link.ranks[0]] == node[link.ranks[1]]]
    between = [(link.ranks, link.seconds) for link in one.links if node[link.ranks[0]] != node[link.ranks[1]]]
    rails: dict[int, float] = {}
    for (rank, _), seconds in between:
        rails[rank % each] = min(seconds, rails.get(rank % each, seconds))
    slow_rails = slow(rails)
    for rail, ratio in slow_rails.items():
        where = f"rail {rail} is slow on every node"
        if one.conditions.nodes == 2:  # one exchange, which either end may hold up
            ends = (f"node {node[rank]} ({hosts[rank]})" for rank in (rail, rail + each))
            where = f"rail {rail} is slow between {' and '.join(ends)}, on either or both"
        text = f"{where}: an exchange takes {ratio:.1f} times the other rails'"
        yield Suspect(kind="rail", number=rail, ratio=ratio, text=text)
    for where, links in (("its own node", inside), ("other nodes, on its rail", between)):
        # Of two partners alone either may be slow.
        found = slow(best(links)) if len(links) > 1 else {}
        ranks = {rank: ratio for rank, ratio in found.items() if links is inside or rank % each not in slow_rails}
        whole = _whole_nodes(ranks, node, each)
        for slow_node, ratio in whole.items():
            text = (
                f"node {slow_node} ({hosts[node.index(slow_node)]}) is slow: each of its ranks is, with every partner "
                f"on {where}, {ratio:.1f} times the other ranks' time"
            )
            yield Suspect(kind="node", number=slow_node, ratio=ratio, text=text)
        for rank, ratio in ranks.items():
            if node[rank] not in whole:
                text = (
                    f"rank {rank} on node {node[rank]} ({hosts[rank]}) is slow with every partner on {where}: "
                    f"{ratio:.1f} times the other ranks' time"
                )
                yield Suspect(kind="rank", number=rank, ratio=ratio, text=text)


def _whole_nodes(ranks: Mapping[int, float], node: Sequence[int], each: int) -> dict[int, float]:
    """Nodes of which every rank is slow, and how slow: the node is to blame, or one of two ranks that are all it has.

    Args:
        ranks: the slow ones, and how slow.
        node: of each rank.
        each: ranks per node; of a node with one rank nothing else can be said than of the rank.
    """
    ratios: dict[int, list[float]] = {}
    for rank, ratio in ranks.items():
        ratios.setdefault(node[rank], []).append(ratio)
    return {number: median(own) for number, own in ratios.items() if len(own) == each > 1}


def _nodes(seconds: Mapping[int, float], how: str, hosts: Mapping[int, str]) -> Iterator[Suspect]:
    for node, ratio in slow(seconds).items():
        text = f"node {node} ({hosts[node]}) is slow {how}: {ratio:.1f} times the time of the others"
        yield Suspect(kind="node", number=node, ratio=ratio, text=text)


def _seconds(one: Measured) -> float:
    """Time of the largest size, where bandwidth counts and latency does not."""
    return one.rows[-1].in_place.seconds


def _hosts(measured: Sequence[Measured]) -> dict[int, str]:
    """A host of each node."""
    return {
        node: host
        for one in measured
        for node, host in zip(one.conditions.node_of_rank, one.conditions.hosts, strict=True)
    }
