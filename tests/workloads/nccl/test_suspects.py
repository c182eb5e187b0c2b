"""The stages, and who is slow by what they measured: found when slow, never when only the noise differs."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tests.support.bench_results import conditions
from tests.workloads.nccl.test_bandwidth import row
from workloads.nccl.definitions.stages import Link, Stage, exchanges, plan_rounds, tournament
from workloads.nccl.results.measured import Conditions, Measured
from workloads.nccl.results.suspects import suspects

SECONDS = 1e-3
NOISE = 0.05
"""Standard deviation of a measured time, as a share of it."""


class Made:
    """Measurements of a cluster that does not exist."""

    def __init__(self, nodes: int, ranks_per_node: int, seed: int = 0) -> None:
        self.nodes, self.each = nodes, ranks_per_node
        self.chance = random.Random(seed)
        self.slow_nodes: dict[int, float] = {}
        self.slow_ranks: dict[int, float] = {}
        self.slow_rails: dict[int, float] = {}

    def measured(self) -> list[Measured]:
        """Every stage that there is."""
        stages = [stage for stages in plan_rounds(self.nodes, "pairs", ring=True) for stage in stages]
        return [self._stage(stage) for stage in stages]

    def named(self) -> list[tuple[str, int]]:
        """Who is named."""
        return [(found.kind, found.number) for found in suspects(self.measured())]

    def _stage(self, stage: Stage) -> Measured:
        worst = max(self._slowness(node * self.each + rank) for node in stage.nodes for rank in range(self.each))
        return Measured(
            stage=stage,
            conditions=self._conditions(stage),
            rows=(row(size=1 << 10, seconds=self._noisy(1e-5)), row(seconds=self._noisy(SECONDS * worst))),
            links=tuple(self._links(stage)) if stage.name == "all" else (),
            logs={},
        )

    def _links(self, stage: Stage) -> list[Link]:
        found = []
        for a, b in itertools.chain(*exchanges(len(stage.nodes), self.each, 16)):
            worst = max(self._slowness(a), self._slowness(b))
            if a // self.each != b // self.each:
                worst = max(worst * 8, self.slow_rails.get(a % self.each, 1.0) * 8)  # the wire is slower than NVLink
            found.append(Link(ranks=(a, b), seconds=self._noisy(SECONDS * worst)))
        return found

    def _slowness(self, rank: int) -> float:
        return max(self.slow_nodes.get(rank // self.each, 1.0), self.slow_ranks.get(rank, 1.0))

    def _noisy(self, seconds: float) -> float:
        return seconds * abs(self.chance.gauss(1, NOISE))

    def _conditions(self, stage: Stage) -> Conditions:
        node_of_rank = tuple(node for node in stage.nodes for _ in range(self.each))
        hosts = tuple(f"host-{node}" for node in node_of_rank)
        return replace(conditions(len(stage.nodes), gpus=self.each), hosts=hosts, node_of_rank=node_of_rank)


CLUSTERS = [(1, 2), (1, 8), (2, 1), (2, 8), (3, 1), (4, 8), (16, 8)]


@pytest.mark.parametrize(("nodes", "each"), CLUSTERS)
def test_nobody_is_named_when_only_the_noise_differs(nodes: int, each: int) -> None:
    for seed in range(20):
        assert Made(nodes, each, seed).named() == []


@pytest.mark.thorough
@pytest.mark.parametrize(("nodes", "each"), [(2, 8), (3, 2), (4, 8), (16, 8)])
def test_a_node_at_half_speed_is_named_and_none_of_its_ranks_by_any_stage(nodes: int, each: int) -> None:
    for seed, node in itertools.product(range(2), range(nodes)):
        made = Made(nodes, each, seed)
        made.slow_nodes = {node: 2.0}
        stages = made.measured()
        for some in (stages, [one for one in stages if len(one.stage.nodes) > 1], stages[-2:]):
            found = suspects(some)
            assert {(one.kind, one.number) for one in found} == {("node", node)}
            assert all(f"node {node} (host-{node})" in one.text for one in found)


@pytest.mark.parametrize(("nodes", "each"), [(2, 8), (4, 8)])
def test_a_rail_at_half_speed_is_named_and_its_ranks_are_not_blamed_for_it(nodes: int, each: int) -> None:
    for seed, rail in itertools.product(range(5), range(each)):
        made = Made(nodes, each, seed)
        made.slow_rails = {rail: 2.0}
        assert made.named() == [("rail", rail)]
        text = suspects(made.measured())[0].text
        either = f"rail {rail} is slow between node 0 (host-0) and node 1 (host-1), on either or both"
        assert (either if nodes == 2 else f"rail {rail} is slow on every node") in text


@pytest.mark.parametrize(("nodes", "each"), [(1, 3), (1, 4), (1, 8), (4, 1), (4, 8)])
def test_a_rank_that_is_slow_with_every_partner_is_named(nodes: int, each: int) -> None:
    for seed, rank in itertools.product(range(5), range(nodes * each)):
        made = Made(nodes, each, seed)
        made.slow_ranks = {rank: 5.0}
        on_slow_node = {("node", rank // each)} if nodes > 1 else set()
        assert set(made.named()) == {("rank", rank)} | on_slow_node


def test_of_two_ranks_none_is_named_as_either_may_be_slow() -> None:
    for nodes, each in ((1, 2), (2, 1)):
        made = Made(nodes, each)
        made.slow_ranks = {1: 5.0}
        assert made.named() == ([("node", 1)] if nodes > 1 else [])  # each node alone tells them apart
        assert suspects(made.measured()[-2:]) == []  # and nothing else does


@pytest.mark.parametrize("players", range(1, 18))
def test_a_tournament_has_every_pair_once_and_nobody_twice_in_a_round(players: int) -> None:
    rounds = tournament(players)
    assert sorted(itertools.chain(*rounds)) == list(itertools.combinations(range(players), 2))
    assert all(len(set(itertools.chain(*pairs))) == 2 * len(pairs) for pairs in rounds)
    assert len(rounds) == (0 if players == 1 else players - 1 + players % 2)


def test_the_stages_are_each_node_every_pair_and_all_and_no_node_twice_in_a_round() -> None:
    rounds = plan_rounds(5, "pairs", ring=True)
    for stages in rounds:
        nodes = [node for stage in stages for node in stage.nodes]
        assert len(nodes) == len(set(nodes))
    stages = list(itertools.chain(*rounds))
    assert [stage.nodes for stage in stages if len(stage.nodes) == 1] == [(node,) for node in range(5)]
    pairs = [stage for stage in stages if len(stage.nodes) == 2]
    assert sorted(stage.nodes for stage in pairs) == list(itertools.combinations(range(5), 2))
    assert {stage.algorithm for stage in pairs} == {"RING"}
    last = [(stage.name, stage.nodes, stage.algorithm) for stage in stages[-2:]]
    assert last == [("all", (0, 1, 2, 3, 4), ""), ("all, ring", (0, 1, 2, 3, 4), "RING")]
    assert len({stage.name for stage in stages}) == len(stages)
    assert plan_rounds(5, "nodes", ring=True) == [rounds[0], *rounds[-2:]]


def test_exchanges_stay_on_a_node_or_on_a_rail_and_a_large_cluster_has_no_more_rounds_than_asked_for() -> None:
    rounds = exchanges(40, 8, 16)
    assert len(rounds) == 7 + 16
    for a, b in itertools.chain(*rounds):
        assert a // 8 == b // 8 or a % 8 == b % 8
    for pairs in rounds:
        assert len(set(itertools.chain(*pairs))) == 40 * 8 == 2 * len(pairs)


def test_a_stage_without_its_largest_size_says_nothing_it_does_not_know() -> None:
    one = Made(1, 8).measured()[0]
    assert suspects([replace(one, links=())]) == []
