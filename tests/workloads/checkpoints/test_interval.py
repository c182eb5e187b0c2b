"""When checkpoints are due: Young's formula, what a kill can cost, and the last one before a node's end."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.checkpoints.interval import (
    DEADLINE_MARGIN,
    FIRST_SECONDS,
    LONGEST,
    RETRY_SECONDS,
    SHORTEST,
    Schedule,
    young,
)


def simulate(
    schedule: Schedule, until: float, step: float, took: float, background: bool, began: float = 0.0
) -> list[tuple[float, float]]:
    """Train with a clock of its own; (time of the state, time of its COMMIT) of every checkpoint."""
    now, saves, flight = began, [], None
    while now < until:
        now += step
        if flight and now >= flight + took:
            saves.append((flight, flight + took))
            schedule.saved(flight + took, took)
            flight = None
        if flight is None and schedule.due(now):
            schedule.tried(now)
            if background:
                flight = now
            else:
                saves.append((now, now + took))
                now += took
                schedule.saved(now, took)
    return saves


def test_young_gives_the_published_examples() -> None:
    # a save of 10 s and 6 hours between failures give 11 minutes
    assert young(10, 6) == pytest.approx(657, abs=1)
    assert young(10, 24) == pytest.approx(2 * young(10, 6))


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(
    interval=st.floats(5, 600),
    step=st.floats(0.05, 3),
    share=st.floats(0.01, 0.45),
    background=st.booleans(),
)
def test_a_kill_costs_at_most_an_interval_and_a_step(
    interval: float, step: float, share: float, background: bool
) -> None:
    took = interval * share
    saves = simulate(Schedule(interval, 1.0, None), interval * 12, step, took, background)
    assert len(saves) >= 6
    # The first save shows what one takes; from then on the time from a state to the next COMMIT keeps the promise.
    redone = [commit - state for (state, _), (_, commit) in itertools.pairwise(saves[1:])]
    assert max(redone) <= interval + 2 * step + 1e-6


def test_the_interval_follows_what_saves_cost_and_one_slow_save_does_not_stretch_it() -> None:
    schedule = Schedule(0, 6, None)
    assert schedule.interval == FIRST_SECONDS
    for _ in range(5):
        schedule.saved(0, took=10)
    assert schedule.interval == pytest.approx(young(10, 6))
    schedule.saved(0, took=1000)
    assert schedule.interval == pytest.approx(young(10, 6))
    for _ in range(5):
        schedule.saved(0, took=10, stalled=0.1)
    assert schedule.interval == pytest.approx(young(0.1, 6))
    for failure_hours, bound in ((1e-6, SHORTEST), (1e6, LONGEST)):
        extreme = Schedule(0, failure_hours, None)
        extreme.saved(0, took=10)
        assert extreme.interval == bound


def test_a_save_that_fails_is_tried_again_after_a_pause_and_not_at_every_step() -> None:
    schedule = Schedule(600, 1, None)
    schedule.due(0)
    schedule.saved(0, took=1)
    tries = []
    for now in range(1200):
        if schedule.due(now):
            schedule.tried(now)
            tries.append(now)
    assert tries[0] == 598  # the state is of -1, and the next COMMIT takes 1 s again
    assert {later - earlier for earlier, later in itertools.pairwise(tries)} == {int(RETRY_SECONDS)}


def test_before_a_nodes_end_the_last_commit_comes_in_time() -> None:
    """200 nodes that end at a random instant, with random steps and saves."""
    chance = random.Random(0)
    for _ in range(200):
        began = chance.uniform(0, 1e9)
        deadline = began + chance.uniform(1200, 7200)
        step, took = chance.uniform(0.1, 10), chance.uniform(0.1, 60)
        schedule = Schedule(chance.choice((0, 300.0, 600.0)), chance.uniform(1, 100), deadline)
        saves = simulate(schedule, deadline, step, took, chance.random() < 0.5, began)
        in_time = [(state, commit) for state, commit in saves if commit <= deadline - DEADLINE_MARGIN]
        # and of a state that is not much older: two saves and two steps
        assert in_time[-1][0] >= deadline - DEADLINE_MARGIN - 4 * took - 3 * step


def test_a_run_that_begins_within_the_margin_saves_as_usual() -> None:
    saves = simulate(Schedule(30, 1, deadline=200), 200, 1, 2, background=False)
    assert 5 <= len(saves) <= 8
