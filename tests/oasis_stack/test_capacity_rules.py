"""Which ladders Google accepts, against the whole matrix of modes, machines and options."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from emulator.gcp import machines as gcp_machines
from oasis_stack.facts.capacity_rules import CapacityEntry, Mode, pool_rules, problems
from oasis_stack.facts.machine import MACHINES, Machine

H200, L4 = MACHINES["a3-ultragpu-8g"], MACHINES["g2-standard-4"]

# The least that each mode needs to be legal.
LEGAL: dict[Mode, CapacityEntry] = {
    "reservation": CapacityEntry(
        mode="reservation", max_nodes=2, max_run_duration_hours=None, reservation="ours", compact_placement=False
    ),
    "flex-start": CapacityEntry(
        mode="flex-start", max_nodes=2, max_run_duration_hours=168, reservation=None, compact_placement=False
    ),
    "spot": CapacityEntry(
        mode="spot", max_nodes=2, max_run_duration_hours=None, reservation=None, compact_placement=False
    ),
    "on-demand": CapacityEntry(
        mode="on-demand", max_nodes=2, max_run_duration_hours=None, reservation=None, compact_placement=False
    ),
}


def accepted_by_google(machine: Machine, entry: CapacityEntry) -> bool:
    """The preconditions of Google's Cluster Toolkit (v1.95.0, gke-node-pool), as a table rather than as our code."""
    flex, spot, reserved = entry.mode == "flex-start", entry.mode == "spot", entry.reservation is not None
    return all(
        (
            not (flex and reserved),
            not (spot and reserved),
            not (flex and entry.compact_placement) or machine.name.startswith(("a3-ultragpu", "a4", "h4d")),
            (entry.mode == "reservation") == reserved,
            flex == (entry.max_run_duration_hours is not None),
            entry.max_run_duration_hours is None or 600 <= entry.max_run_duration_hours * 3600 <= 604800,
            entry.mode != "on-demand" or "h200" not in machine.accelerator,
            entry.max_nodes >= 1,
        )
    )


def test_the_emulated_google_sells_every_machine_in_every_zone_that_settings_accept() -> None:
    """It keeps its own truth, by the same sources: a row that is missing there is refused by `up` on the emulator."""
    sold = {(name, zone): row for name, row in gcp_machines.GPU_MACHINES.items() for zone in row.zones}
    offered = {(machine.name, zone): machine for machine in MACHINES.values() for zone in machine.zones}

    missing = [f"{name} in {zone}" for name, zone in offered if (name, zone) not in sold]
    roce = {zone for (_, zone), machine in offered.items() if machine.rdma_nics}
    missing += [f"the RoCE profile of {zone}" for zone in roce - gcp_machines.ROCE_ZONES]
    assert not missing, f"emulator/gcp/machines.py lacks {', '.join(missing)}"
    for (name, zone), machine in offered.items():
        row = sold[name, zone]
        assert (row.accelerator, row.gpus, row.rdma_nics) == (machine.accelerator, machine.gpus, machine.rdma_nics), (
            name
        )


def test_what_is_refused_is_exactly_what_google_refuses() -> None:
    legal = 0
    options = itertools.product(
        MACHINES.values(), LEGAL, (None, "ours"), (None, 0, 1, 168, 169), (False, True), (0, 1, 1000)
    )
    for machine, mode, reservation, hours, compact, nodes in options:
        entry = CapacityEntry(
            mode=mode,
            max_nodes=nodes,
            max_run_duration_hours=hours,
            reservation=reservation,
            compact_placement=compact,
        )
        found = problems(machine, machine.zones[0], [entry])
        assert (not found) == accepted_by_google(machine, entry), (machine.name, entry, found)
        legal += not found
        assert all(problem.key.startswith("gpu.capacity[0].") and problem.remedy for problem in found)
    assert legal > 40


def test_every_order_of_a_legal_ladder_is_legal() -> None:
    for machine in (H200, L4):
        entries = [entry for mode, entry in LEGAL.items() if machine.on_demand or mode != "on-demand"]
        for order in itertools.permutations(entries):
            assert problems(machine, machine.zones[0], order) == []


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
def test_a_zone_without_the_machine_is_refused_with_those_that_have_it(machine: Machine) -> None:
    (problem,) = problems(machine, "us-central1-f", [LEGAL["spot"]])

    assert problem.key == "zone"
    assert all(zone in problem.allowed for zone in machine.zones)


def test_a_mode_stands_once_in_a_ladder_and_each_reservation_once() -> None:
    other = replace(LEGAL["reservation"], reservation="projects/owner-project/reservations/theirs")

    assert problems(H200, H200.zones[0], [LEGAL["reservation"], other]) == []
    for entry in LEGAL.values():
        twice = problems(L4, L4.zones[0], [entry, LEGAL["spot"] if entry is not LEGAL["spot"] else entry, entry])
        assert {problem.key for problem in twice} >= {"gpu.capacity[2].mode"}


def test_flex_start_demands_what_the_gke_api_asks_of_it() -> None:
    rules = pool_rules(H200, LEGAL["flex-start"])

    assert (rules.flex_start, rules.spot, rules.auto_repair, rules.auto_upgrade) == (True, False, False, True)
    assert rules.consume_reservation_type == "NO_RESERVATION"
    assert rules.max_run_duration == "604800s"
    assert rules.location_policy == "ANY"


def test_auto_repair_is_off_for_flex_start_alone_and_a_reservation_is_consumed_by_its_own_pool_alone() -> None:
    rules = {mode: pool_rules(L4, entry) for mode, entry in LEGAL.items()}

    assert [mode for mode in LEGAL if not rules[mode].auto_repair] == ["flex-start"]
    assert [mode for mode in LEGAL if rules[mode].spot] == ["spot"]
    assert {mode: rules[mode].reservation for mode in LEGAL if rules[mode].reservation} == {"reservation": "ours"}
    assert [mode for mode in LEGAL if rules[mode].max_run_duration] == ["flex-start"]
    assert [mode for mode in LEGAL if not rules[mode].surge_upgrades] == ["flex-start"]
    assert all(rule.auto_upgrade for rule in rules.values())


def test_compact_placement_is_passed_on() -> None:
    assert pool_rules(H200, replace(LEGAL["flex-start"], compact_placement=True)).placement_type == "COMPACT"
    assert pool_rules(H200, LEGAL["flex-start"]).placement_type is None
