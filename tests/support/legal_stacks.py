"""Random stack files that the settings take, for property tests."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as some

from oasis_stack.facts import capacity_rules
from oasis_stack.facts.machine import MACHINES, Machine

RUNGS: tuple[dict[str, Any], ...] = (
    {"mode": "reservation", "reservation": "ours", "max_nodes": 2, "compact_placement": True},
    {"mode": "reservation", "reservation": "projects/owner-project/reservations/theirs", "max_nodes": 2},
    {"mode": "reservation", "reservation": "ours/reservationBlocks/b/reservationSubBlocks/s", "max_nodes": 2},
    {"mode": "flex-start", "max_nodes": 2},
    {"mode": "flex-start", "max_nodes": 2, "max_run_duration_hours": 6},
    {"mode": "spot", "max_nodes": 2},
    {"mode": "queued", "max_nodes": 2},
)
"""Ways to buy H200 nodes, of which each may stand beside each."""


def ladders_of_rungs() -> Iterator[tuple[dict[str, Any], ...]]:
    """Each choice of one to four of `RUNGS`: 98 ladders, which any order leaves legal."""
    for count in range(1, 5):
        yield from itertools.combinations(RUNGS, count)


@some.composite
def ladders(draw: some.DrawFn, machine: Machine) -> list[dict[str, Any]]:
    """Legal ladders of a machine."""
    modes = [mode for mode in capacity_rules.MODES if machine.on_demand or mode != "on-demand"]
    entries = []
    rungs = draw(some.lists(some.sampled_from(modes), min_size=1, unique=True))
    hours = some.lists(some.integers(1, capacity_rules.MAX_RUN_HOURS - 1), max_size=2, unique=True)
    shorter = draw(hours) if "flex-start" in rungs else []
    for mode, ends in [*((mode, None) for mode in rungs), *(("flex-start", hours) for hours in shorter)]:
        entry: dict[str, Any] = {"mode": mode, "max_nodes": draw(some.integers(1, 40))}
        if mode == "reservation":
            entry["reservation"] = draw(some.from_regex(r"[a-z][a-z0-9-]{0,60}[a-z0-9]", fullmatch=True))
        if ends is not None:
            entry["max_run_duration_hours"] = ends
        elif mode == "queued" and draw(some.booleans()):
            entry["max_run_duration_hours"] = draw(some.integers(1, capacity_rules.MAX_RUN_HOURS))
        if mode in ("spot", "on-demand") or (mode == "reservation" and machine.rdma_nics):
            entry["compact_placement"] = draw(some.booleans())
        entries.append(entry)
    return entries


@some.composite
def teams(draw: some.DrawFn, queue: dict[str, Any]) -> dict[str, Any]:
    """Sections of a stack whose queue is divided among teams, of which each node may have a head."""
    left = queue["max_nodes"] = draw(some.integers(1, 6))
    found: list[dict[str, Any]] = []
    while left and draw(some.booleans()):
        found.append({"name": f"team-{len(found)}", "gpu_nodes": draw(some.integers(1, left))})
        left -= found[-1]["gpu_nodes"]
    return {"oasis:teams": found, "oasis:cluster": {"system_pool": {"max_nodes": queue["max_nodes"] + 1}}}


@some.composite
def stacks(draw: some.DrawFn) -> dict[str, Any]:
    """Legal stack files."""
    # The one with RDMA as often as the others together: most that can go wrong is there.
    machine = draw(some.one_of(some.just(MACHINES["a3-ultragpu-8g"]), some.sampled_from(list(MACHINES.values()))))
    zone = draw(some.sampled_from(machine.zones))
    first = draw(some.integers(0, 63))
    config: dict[str, Any] = {
        "gcp:project": draw(some.from_regex(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", fullmatch=True)),
        "oasis:region": zone.rpartition("-")[0],
        "oasis:zone": zone,
        "oasis:name": draw(some.from_regex(r"[a-z]([a-z0-9-]{0,14}[a-z0-9])?", fullmatch=True)),
        "oasis:network": {
            "primary_block": f"10.{first}.0.0/{draw(some.integers(16, 19))}",
            "pods_block": f"10.{64 + first // 4 * 4}.0.0/14",
            "device_block": f"10.{128 + first * 2}.0.0/{draw(some.integers(15, 20))}",
            "proxy_only": draw(some.booleans()),
        },
    }
    optional: dict[str, Any] = {
        "oasis:gpu": {"machine_type": machine.name, "capacity": draw(ladders(machine))},
        "oasis:build": {"peered": draw(some.booleans())},
        "oasis:wandb": {"keep": draw(some.booleans())},
        "oasis:data": {"keep": draw(some.booleans()), "soft_delete_days": draw(some.sampled_from([0, 7, 90]))},
        "oasis:cost": {
            "billing_account": draw(some.from_regex(r"[0-9A-F]{6}(-[0-9A-F]{6}){2}", fullmatch=True)),
            "monthly_usd": draw(some.integers(1, 100_000_000)),
        },
        "oasis:labels": draw(some.dictionaries(some.sampled_from(["team", "cost-centre"]), some.just("vision"))),
        "oasis:ray": {"namespace": draw(some.from_regex(r"[a-z][a-z0-9]{0,62}", fullmatch=True))},
        "oasis:cluster": draw(
            some.sampled_from(
                [
                    {"endpoint": "dns"},
                    {"endpoint": "ip", "authorized_networks": [{"name": "office", "cidr": "203.0.113.0/24"}]},
                ]
            )
        ),
    }
    left_out = draw(some.sets(some.sampled_from(sorted(optional)), max_size=3))
    config |= {key: value for key, value in optional.items() if key not in left_out}
    ladder = config.get("oasis:gpu", {}).get("capacity", ())
    for queue in (entry for entry in ladder if entry["mode"] == "queued" and draw(some.booleans())):
        config |= draw(teams(queue))
    return config
