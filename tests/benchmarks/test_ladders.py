"""What a job waits and pays in the simulated market, against hand-written spells."""

from __future__ import annotations

import math

import pytest

from benchmarks.ladders import Season, Supply, run
from oasis_stack.facts.capacity_rules import Mode


def _supply(mode: Mode, usd: float, *changes: float) -> Supply:
    season = Season(begins=0.0, share=0.5, spell_hours=1.0, node_hour_usd=usd)
    return Supply(mode, [season], [*changes, math.inf])


def test_the_first_rung_with_nodes_is_paid_for_from_the_first_step_to_the_last() -> None:
    market = {"reservation": _supply("reservation", 0.0, 0, 1), "flex-start": _supply("flex-start", 42.0, 0)}

    job = run(market, 2.0, ("reservation", "flex-start"))

    assert (job.waited, job.usd, job.losses) == pytest.approx((0.05, 24 * 42.0, 0))


def test_a_rung_without_nodes_is_passed_over_for_twice_as_long_each_time() -> None:
    market = {"flex-start": _supply("flex-start", 42.0, 0, 1, 1.9)}

    # Asked at 1.0, 1.1333, 1.35 and 1.7333, each attempt 0.05; after backoffs of 5, 10, 20 and 30 minutes at 2.2833.
    job = run(market, 1.0, ("flex-start",))

    assert job.waited == pytest.approx(4 * 0.05 + (5 + 10 + 20 + 30) / 60)


def test_taken_spot_nodes_are_paid_for_what_they_lost_is_done_again_and_the_next_rung_goes_on() -> None:
    market = {"spot": _supply("spot", 50.0, 0, 4), "flex-start": _supply("flex-start", 42.0, 0)}

    job = run(market, 1.0, ("spot", "flex-start"))

    # Three hours on Spot, of which half an hour is lost.
    assert (job.waited, job.losses) == (0.0, 1)
    assert job.usd == pytest.approx(3 * 50.0 + 21.5 * 42.0)
