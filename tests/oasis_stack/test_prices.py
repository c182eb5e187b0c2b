"""What `make plan` says that a stack costs, against sums by hand from the page's list."""

from __future__ import annotations

import re
from datetime import date
from typing import Any, get_args

import pytest

from oasis_stack.command_line import plan
from oasis_stack.command_line.stack_file import ROOT
from oasis_stack.facts import prices
from oasis_stack.facts.capacity_rules import Mode
from oasis_stack.facts.machine import MACHINES
from oasis_stack.settings.settings import from_config, parse
from tests.support.stacks import FULL, changed

PAGE = (ROOT / "docs" / "cloud.md").read_text()
REST = 0.10 + 0.01 + 0.268
"""Control plane, NAT and one e2-standard-8."""
RESERVED = 2 * 84.81
POOLS = 2 * 0.268 + 4 * 0.268
"""Two more system nodes, and four of the CPU pool."""
ELSEWHERE = {"oasis:region": "us-east5", "oasis:zone": "us-east5-a"}
NO_CPU_WORKERS = {"oasis:ray": {"cpu_workers_max": 0}}
L4 = {"machine_type": "g2-standard-12", "capacity": [{"mode": "on-demand", "max_nodes": 3}]}


def lines(config: dict[str, Any]) -> dict[str, str]:
    """Of the section on prices, what each line begins with, and the rest of it."""
    text = plan.report(parse(from_config(config)), from_config(config), date(2026, 11, 28))
    section = text.partition("Prices in USD")[2].splitlines()[1:]
    rows = (re.split(r" {2,}", line.strip(), maxsplit=1) for line in section)
    return {row[0]: row[-1] for row in rows}


@pytest.mark.parametrize(
    ("config", "rest", "most"),
    [
        (FULL, REST + RESERVED, REST + POOLS + 2 * 84.81 + 4 * 42.40 + 2 * 51.40),
        (changed("oasis:gpu", None), REST, REST + POOLS),
        (changed("oasis:gpu.capacity", [{"mode": "queued", "max_nodes": 1}]), REST, REST + POOLS + 42.40),
        (changed("oasis:gpu", L4), REST, REST + POOLS + 3 * 1.0),
        (
            changed("oasis:cluster.system_pool.min_nodes", 3),
            *(0.11 + 3 * 0.268 + RESERVED, 0.11 + 7 * 0.268 + 442.02),
        ),
        (
            changed("oasis:ray.dashboard_access", "internal-load-balancer"),
            *(REST + 0.025 + RESERVED, REST + 0.025 + POOLS + 2 * 84.81 + 4 * 42.40 + 2 * 51.40),
        ),
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


def test_what_has_no_known_price_is_named_and_in_no_sum() -> None:
    found = lines({**FULL, **ELSEWHERE})
    assert found["Not in these sums, as no price was found: gpu-spot"]
    assert "gpu-spot, a node" not in found
    no_such_pool = {"oasis:cluster": {"cpu_pool": {"machine_type": "n2d-standard-8", "max_nodes": 0}}}
    assert not [line for line in lines({**FULL, **no_such_pool, **NO_CPU_WORKERS}) if line.startswith("Not in")]
    assert "of us-east4" in lines({**FULL, "oasis:region": "us-east4", "oasis:zone": "us-east4-b"})["gpu-spot, a node"]


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
