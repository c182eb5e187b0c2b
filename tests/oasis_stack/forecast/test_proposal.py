"""The proposed order of a ladder."""

from __future__ import annotations

from oasis_stack.forecast.proposal import Rung, cheapest_order


def _rung(name: str, usd: float, uptime_hours: float | None = None) -> Rung:
    return Rung(name=name, node_hour_usd=usd, uptime_hours=uptime_hours)


def test_spot_stands_before_flex_start_while_it_is_cheaper_by_the_hour_of_progress() -> None:
    flex_start, reservation = _rung("flex-start", 42.4), _rung("reservation", 0.0)

    # Of 3 hours half an hour is lost: 36 USD an hour are 43.2 an hour of progress; of 6 hours they are 39.3.
    for uptime_hours, places in ((3.0, (2, 0, 1)), (6.0, (2, 1, 0)), (None, (2, 1, 0))):
        rungs = (flex_start, _rung("spot", 36.0, uptime_hours), reservation)
        assert cheapest_order(rungs) == tuple(rungs[place] for place in places), uptime_hours


def test_nodes_that_go_before_they_are_of_use_come_last_and_equal_rungs_keep_their_places() -> None:
    useless, dear, as_dear = _rung("spot", 1.0, 0.5), _rung("a", 900.0), _rung("b", 900.0)

    assert cheapest_order((useless, as_dear, dear)) == (as_dear, dear, useless)
