"""When a wait for nodes goes on, and with which verdict it ends."""

from dataclasses import replace

import pytest

from workloads.cluster import capacity
from workloads.cluster.capacity import Observation, Verdict
from workloads.errors import InfeasibleError

NOTHING = Observation(granted=False, autoscaler=True, settled=3600, refusals=0, fitting=0)


@pytest.mark.parametrize(
    ("seen", "waited", "verdict"),
    [
        (replace(NOTHING, granted=True), 0, "go"),
        (replace(NOTHING, granted=True, refusals=9), 9999, "go"),
        (NOTHING, 0, "wait"),
        (replace(NOTHING, launching=2), 599, "wait"),
        (replace(NOTHING, refusals=1), 1, "wait"),
        (replace(NOTHING, refusals=2), 1, "infeasible"),
        (replace(NOTHING, failed=40), 599, "wait"),
        (NOTHING, 600, "late"),
        # Without an autoscaler it is certain at once, unless a node has just joined or left: others may follow.
        (replace(NOTHING, autoscaler=False, fitting=1), 0, "infeasible"),
        (replace(NOTHING, autoscaler=False, fitting=1, settled=9), 9, "wait"),
        (replace(NOTHING, autoscaler=False, fitting=1, settled=10), 10, "infeasible"),
        (replace(NOTHING, autoscaler=False, fitting=2), 10, "wait"),
        (replace(NOTHING, autoscaler=False, fitting=2), 600, "late"),
        # Where KubeRay makes a lost pod anew, too few are none that will never come.
        (replace(NOTHING, autoscaler=False, fitting=1, replaced=True), 599, "wait"),
        (replace(NOTHING, autoscaler=False, fitting=1, replaced=True), 600, "late"),
    ],
)
def test_each_observation_has_one_verdict(seen: Observation, waited: float, verdict: Verdict) -> None:
    assert capacity.judge(seen, bundles=2, waited=waited, limit=600) == verdict


def test_a_short_limit_does_not_turn_what_can_never_come_into_no_capacity() -> None:
    joining = replace(NOTHING, autoscaler=False, settled=3)
    assert capacity.judge(joining, bundles=2, waited=3, limit=3) == "infeasible"


@pytest.mark.parametrize(
    ("strategy", "bundles", "fitting", "text"),
    [
        ("STRICT_SPREAD", 3, 2, "3 nodes with 1 CPU"),
        ("SPREAD", 3, 3, "3 workers with 1 CPU"),
        ("SPREAD", 9, 5, "9 workers with 1 CPU"),
    ],
)
def test_bundles_share_a_node_unless_each_must_have_its_own(
    strategy: capacity.Strategy, bundles: int, fitting: int, text: str
) -> None:
    request = capacity.CapacityRequest(({"CPU": 1},) * bundles, strategy)
    assert request.fitting([{"CPU": 4, "GPU": 1}, {"driver": 1}, {"CPU": 1.5}]) == fitting
    assert str(request) == text


def test_more_nodes_than_the_stack_can_have_are_refused_before_asking() -> None:
    capacity.check_maximum(4, 4)
    with pytest.raises(InfeasibleError, match="5 GPU nodes") as refusal:
        capacity.check_maximum(5, 4)
    assert "oasis:gpu.capacity" in refusal.value.remedy
    assert refusal.value.exit_code == 3
