"""What a stack costs, against sums by hand from the page's list, and the limit that it may be given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any, get_args

import pulumi
import pytest

from oasis_stack.command_line import offline, plan
from oasis_stack.command_line.stack_file import ROOT
from oasis_stack.facts import prices
from oasis_stack.facts.capacity_rules import Mode
from oasis_stack.facts.machine import MACHINES
from oasis_stack.facts.problem import SettingsError
from oasis_stack.settings.settings import from_config, parse
from tests.support.stacks import FULL, changed

PAGE = (ROOT / "docs" / "cost.md").read_text()
REST = 0.10 + 0.01 + 0.268
"""Control plane, NAT and one e2-standard-8."""
RESERVED = 2 * 84.81
POOLS = 2 * 0.268 + 4 * 0.268
"""Two more system nodes, and four of the CPU pool."""
FULL_AT_MOST = REST + POOLS + 2 * 84.81 + 4 * 42.40 + 2 * 51.40
TODAY = date(2026, 11, 28)
ELSEWHERE = {"oasis:region": "us-east5", "oasis:zone": "us-east5-a"}
US_EAST4 = {"oasis:region": "us-east4", "oasis:zone": "us-east4-b"}
NO_CPU_WORKERS = {"oasis:ray": {"cpu_workers_max": 0}}
L4_NODE = 1.00 + 0.04
"""And its local SSD."""
L4 = {"machine_type": "g2-standard-12", "capacity": [{"mode": "on-demand", "max_nodes": 3}]}
L4_SPOT = {"machine_type": "g2-standard-4", "capacity": [{"mode": "spot", "max_nodes": 2}]}
FLEX = {"mode": "flex-start", "max_nodes": 1}
SYSTEM = "oasis:cluster.system_pool"


def ladder(*rungs: dict[str, Any]) -> dict[str, Any]:
    """A stack with other rungs."""
    return changed("oasis:gpu.capacity", [*rungs])


@pytest.fixture(autouse=True)
def _prices_as_they_were(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Those of the first table, whatever `make prices` has read since."""
    monkeypatch.setattr(prices, "FILE", ROOT / "tests" / "support" / "prices.csv")
    prices.known.cache_clear()
    yield
    prices.known.cache_clear()


def lines(config: dict[str, Any]) -> dict[str, str]:
    """Of the section on prices, what each line begins with, and the rest of it."""
    text = plan.report(parse(from_config(config)), from_config(config), TODAY)
    section = text.partition("Prices in USD")[2].splitlines()[1:]
    rows = (re.split(r" {2,}", line.strip(), maxsplit=1) for line in section)
    return {row[0]: row[-1] for row in rows}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("config", "rest", "most"),
    [
        (FULL, REST + RESERVED, FULL_AT_MOST),
        (changed("oasis:gpu", None), REST, REST + POOLS),
        (ladder({"mode": "queued", "max_nodes": 1}), REST, REST + POOLS + 42.40),
        (changed("oasis:gpu", L4), REST, REST + POOLS + 3 * L4_NODE),
        (changed(f"{SYSTEM}.min_nodes", 3), 0.11 + 3 * 0.268 + RESERVED, 0.11 + 7 * 0.268 + 442.02),
        (
            changed("oasis:ray.dashboard_access", "internal-load-balancer"),
            REST + 0.025 + RESERVED,
            0.025 + FULL_AT_MOST,
        ),
        # 16 vCPUs and 64 GiB of e2; 8 and 32 of n2.
        (changed(f"{SYSTEM}.machine_type", "e2-standard-16"), 0.646 + RESERVED, 444.810),
        (changed(f"{SYSTEM}.machine_type", "n2-standard-8"), 0.498 + RESERVED, 444.367),
        # Nodes that end after a day cost no less an hour than those that end after seven.
        (ladder(FLEX, {**FLEX, "max_nodes": 3, "max_run_duration_hours": 24}), REST, REST + POOLS + 4 * 42.40),
        # A block of a reservation is paid for as the rest of it.
        (changed("oasis:gpu.capacity[0].reservation", "ours/reservationBlocks/b"), REST + RESERVED, FULL_AT_MOST),
        # With its local SSD, which has no discount.
        (changed("oasis:gpu", L4_SPOT), REST, REST + POOLS + 2 * (0.361 + 0.041)),
        # Near prices for the rest.
        ({**ladder({"mode": "spot", "max_nodes": 1}), **US_EAST4}, REST, REST + POOLS + 45.09 + 1.315),
    ],
)
def test_a_stack_costs_what_the_list_adds_up_to(config: dict[str, Any], rest: float, most: float) -> None:
    if config.get("oasis:ray"):
        config = changed("oasis:ray.dashboard_client_ranges", ["10.0.0.0/8"], config)
    found = lines(config)
    for words, usd in (("at rest", rest), ("at most", most)):
        hour, day = (float(amount.replace(",", "")) for amount in found[words].split()[:2])
        assert hour == pytest.approx(usd, abs=0.02)
        assert day == pytest.approx(24 * usd, abs=0.5)
    exports = offline.deploy_stack(config).exports
    if config["oasis:region"] != "us-central1":
        assert exports["hourly_cost_usd"] == ""  # only near prices are known of its other nodes
        return
    for output, usd in (("hourly_cost_usd", rest), ("max_hourly_cost_usd", most)):
        assert float(exports[output]) == pytest.approx(usd, abs=0.02)


@pytest.mark.parametrize(
    ("config", "ladder", "queue"),
    [
        (FULL, "84.81", ""),
        (ladder({"mode": "queued", "max_nodes": 1}, {"mode": "spot", "max_nodes": 1}), "51.40", "42.40"),
        (changed("oasis:gpu", None), "", ""),
        ({**FULL, **ELSEWHERE}, "", ""),  # of some of its ways the price there is not known
    ],
)
def test_jobs_are_told_the_price_of_the_dearest_node_that_they_may_get(
    config: dict[str, Any], ladder: str, queue: str
) -> None:
    told = offline.deploy_stack(config).exports
    assert (told["gpu_node_hour_usd"], told["gpu_queue_node_hour_usd"]) == (ladder, queue)


def test_what_has_no_known_price_is_named_and_in_no_sum() -> None:
    found = lines({**FULL, **ELSEWHERE})
    assert found["Not in these sums, as no price was found: gpu-spot"]
    assert "gpu-spot, a node" not in found
    no_such_pool = {"oasis:cluster": {"cpu_pool": {"machine_type": "n2d-standard-8", "max_nodes": 0}}}
    assert not [line for line in lines({**FULL, **no_such_pool, **NO_CPU_WORKERS}) if line.startswith("Not in")]
    near = lines({**FULL, **US_EAST4})
    assert near["gpu-spot, a node"].split()[0] == "46.40"
    assert near["gpu-flex-start, a node"].endswith("of us-central1")
    assert any(line.startswith("Some are those of us-central1") for line in near)


def limited(usd: object, more: dict[str, Any] | None = None) -> dict[str, Any]:
    return {**FULL, "oasis:cost": {"max_hourly_usd": usd}, **(more or {})}


def refused(config: dict[str, Any], today: date = TODAY) -> str:
    """Why a stack may not be made on a day."""
    with pytest.raises(SettingsError) as found:
        parse(from_config(config), today)
    assert {problem.key for problem in found.value.problems} == {"cost.max_hourly_usd"}
    return str(found.value)


def test_a_stack_that_could_cost_more_than_its_limit_is_refused_with_the_sum_and_its_largest_part() -> None:
    enough = int(FULL_AT_MOST) + 1
    words = refused(limited(enough - 1))

    assert f"at least {enough}: " in words and "169.62 of it for gpu-reservation" in words
    parse(from_config(limited(enough)), TODAY)
    with pytest.raises(pulumi.RunError, match="max_hourly_usd"):
        offline.deploy_stack(limited(1))
    assert parse(from_config(limited(1))).cost.max_hourly_usd == 1  # as for `pulumi destroy`, which costs nothing


def test_no_limit_is_judged_by_a_price_that_is_unknown_old_of_the_future_or_of_another_region() -> None:
    assert "none was found for system pool, e2-standard-8, CPU pool" in refused(limited(100_000, ELSEWHERE))
    oldest = date(2026, 9, 17)  # the reservation's
    newest = date(2026, 10, 13)  # Spot's
    parse(from_config(limited(100_000)), oldest + timedelta(days=90))
    assert f"unlike gpu-reservation-ours ({oldest})" in refused(limited(100_000), oldest + timedelta(days=91))
    assert f"gpu-spot ({newest})" in refused(limited(100_000), newest - timedelta(days=1))
    parse(from_config(FULL), oldest + timedelta(days=1000))
    elsewhere = offline.deploy_stack({**FULL, **ELSEWHERE}).exports
    assert (elsewhere["hourly_cost_usd"], elsewhere["max_hourly_cost_usd"]) == ("", "")


def test_fees_of_cents_never_grow_old() -> None:
    days = {prices.fee(name).read for name in (prices.CONTROL_PLANE, prices.NAT, prices.LOAD_BALANCER)}
    cpus = {"oasis:cost": {"max_hourly_usd": 100}, **changed("oasis:gpu", None)}
    parse(from_config(cpus), date(2026, 9, 27) + timedelta(days=90))
    assert max(days) < date(2026, 10, 2)
    with pytest.raises(SettingsError) as found:
        parse(from_config(cpus), date(2027, 9, 27))
    assert "system pool" in str(found.value) and "control plane" not in str(found.value)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("2026-10-13", "2026-10", "line 5, is not a price"),
        (",84.81,", ",nan,", "line 4: nan is not a price"),
        (",84.81,", ',"1,000",', "line 4, is not a price"),
        (",0.1,", ",-0.1,", "-0.1 is not a price"),
        ("control plane", "control plain", "lacks control plane"),
    ],
)
def test_a_table_that_does_not_read_stops_what_needs_it_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, words: str
) -> None:
    text = prices.FILE.read_text()
    monkeypatch.setattr(prices, "FILE", tmp_path / "prices.csv")
    prices.FILE.write_text(text.replace(before, after, 1))

    with pytest.raises(pulumi.RunError, match=f"{words}.*git checkout oasis_stack/facts/prices.csv"):
        offline.deploy_stack(FULL)
    parse(from_config(FULL))  # as for `pulumi destroy`


@pytest.mark.parametrize("usd", [0, -1, 1.5, "450"])
def test_a_limit_that_is_no_positive_whole_number_is_refused(usd: object) -> None:
    assert "a whole number from 1 to 1000000" in refused(limited(usd))


def test_the_age_of_the_prices_is_always_said() -> None:
    assert any(line.startswith("Read from 2026-09-17 to 2026-10-13, the oldest 72 days ago") for line in lines(FULL))


def test_the_page_lists_each_price_that_is_known_of_an_h200_node() -> None:
    machine = MACHINES["a3-ultragpu-8g"]
    known = {mode: prices.gpu_node(machine, mode, prices.REGION) for mode in get_args(Mode)}
    assert [mode for mode, price in known.items() if price is None] == ["on-demand"]  # which Google does not sell
    for mode, price in known.items():
        rows = re.findall(rf"^\| one `a3-ultragpu-8g` node, {mode} \|.*?\|(.*?)\|", PAGE, re.MULTILINE | re.IGNORECASE)
        if price and mode != "queued":
            assert sum(map(float, re.findall(r"\d+\.\d+", rows[0]))) == pytest.approx(price.usd, abs=0.02)
