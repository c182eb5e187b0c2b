"""Which ladders Google accepts, against the whole matrix of modes, machines and options."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from emulator.google import machines
from oasis_stack.facts.capacity_rules import CapacityEntry, Mode, pool_rules, problems
from oasis_stack.facts.machine import MACHINES, Machine

H200, L4 = MACHINES["a3-ultragpu-8g"], MACHINES["g2-standard-4"]


def entry(mode: Mode, hours: int | None = None, reservation: str | None = None) -> CapacityEntry:
    return CapacityEntry(
        mode=mode, max_nodes=2, max_run_duration_hours=hours, reservation=reservation, compact_placement=False
    )


# The least that each mode needs to be legal.
LEGAL: dict[Mode, CapacityEntry] = {
    "reservation": entry("reservation", reservation="ours"),
    "flex-start": entry("flex-start", hours=168),
    "spot": entry("spot"),
    "on-demand": entry("on-demand"),
    "queued": entry("queued", hours=168),
}


def accepted_by_google(machine: Machine, tried: CapacityEntry) -> bool:
    """The preconditions of Google's Cluster Toolkit (v1.95.0, gke-node-pool), as a table rather than as our code, and
    what is published of placement beside them."""
    queued, spot, reserved = tried.mode == "queued", tried.mode == "spot", tried.reservation is not None
    flex = tried.mode == "flex-start" or queued
    return all(
        (
            not (flex and reserved),
            not (spot and reserved),
            not (flex and tried.compact_placement),
            not (reserved and tried.compact_placement) or (machine is H200 and tried.reservation == "ours"),
            (tried.mode == "reservation") == reserved,
            flex == (tried.max_run_duration_hours is not None),
            tried.max_run_duration_hours is None or 600 <= tried.max_run_duration_hours * 3600 <= 604800,
            tried.mode != "on-demand" or "h200" not in machine.accelerator,
            tried.max_nodes >= 1,
        )
    )


def test_the_emulated_google_sells_every_machine_in_every_zone_that_settings_accept() -> None:
    """It keeps its own truth, by the same sources: a row that is missing there is refused by `up` on the emulator."""
    sold = {(name, zone): row for name, row in machines.GPU_MACHINES.items() for zone in row.zones}
    offered = {(machine.name, zone): machine for machine in MACHINES.values() for zone in machine.zones}

    missing = [f"{name} in {zone}" for name, zone in offered if (name, zone) not in sold]
    roce = {zone for (_, zone), machine in offered.items() if machine.rdma_nics}
    missing += [f"the RoCE profile of {zone}" for zone in roce - machines.ROCE_ZONES]
    assert not missing, f"emulator/google/machines.py lacks {', '.join(missing)}"
    for (name, zone), machine in offered.items():
        row = sold[name, zone]
        assert (row.accelerator, row.gpus, row.rdma_nics) == (machine.accelerator, machine.gpus, machine.rdma_nics), (
            name
        )


def test_what_is_refused_is_exactly_what_google_refuses() -> None:
    legal = 0
    options = itertools.product(
        MACHINES.values(),
        LEGAL,
        (None, "ours", "projects/other-one/reservations/theirs"),
        (None, 0, 1, 168, 169),
        (False, True),
        (0, 1, 1000),
    )
    for machine, mode, reservation, hours, compact, nodes in options:
        tried = replace(entry(mode, hours, reservation), max_nodes=nodes, compact_placement=compact)
        found = problems(machine, machine.zones[0], [tried])
        assert (not found) == accepted_by_google(machine, tried), (machine.name, tried, found)
        legal += not found
        assert all(problem.key.startswith("gpu.capacity[0].") and problem.remedy for problem in found)
    assert legal > 40


def test_every_order_of_a_legal_ladder_is_legal() -> None:
    for machine in (H200, L4):
        entries = [legal for mode, legal in LEGAL.items() if machine.on_demand or mode != "on-demand"]
        for order in itertools.permutations(entries):
            assert problems(machine, machine.zones[0], order) == []


@pytest.mark.parametrize("machine", MACHINES.values(), ids=lambda machine: machine.name)
def test_a_zone_without_the_machine_is_refused_with_those_that_have_it(machine: Machine) -> None:
    (problem,) = problems(machine, "us-central1-f", [LEGAL["spot"]])

    assert problem.key == "zone"
    assert all(zone in problem.allowed for zone in machine.zones)


@pytest.mark.parametrize(
    "name",
    ["", "Ours", "ours ", "ours, theirs", "ours/reservationBlocks/1", "ours/reservationSubBlocks/s", "projects/p/ours"],
)
def test_a_reservation_is_named_by_all_of_the_text_and_not_by_its_beginning(name: str) -> None:
    (problem,) = problems(H200, H200.zones[0], [entry("reservation", reservation=name)])

    assert (problem.key, problem.value) == ("gpu.capacity[0].reservation", name)


def test_a_queued_pool_is_a_flex_start_pool_whose_nodes_come_together() -> None:
    flex, queued = (pool_rules(H200, LEGAL[mode]) for mode in ("flex-start", "queued"))

    assert queued == replace(flex, queued=True)
    assert not flex.queued and queued.flex_start and not queued.auto_repair
    assert (queued.max_run_duration, queued.consume_reservation_type) == ("604800s", "NO_RESERVATION")


def test_blocks_and_sub_blocks_of_a_reservation_are_pools_of_their_own() -> None:
    parts = ("", "/reservationBlocks/block-1", "/reservationBlocks/block-1/reservationSubBlocks/sub-1")
    names = [whole + part for whole in ("ours", "projects/owner-project/reservations/theirs") for part in parts]
    ladder = [entry("reservation", reservation=name) for name in names]

    assert problems(H200, H200.zones[0], ladder) == []
    assert [pool_rules(H200, one).reservation for one in ladder] == names
    assert len({one.pool_name for one in ladder}) == len(ladder)


def test_flex_start_stands_once_for_each_of_its_durations_and_no_order_renames_a_pool() -> None:
    ladder = [entry("flex-start", hours) for hours in (168, 24, 6)]

    assert problems(H200, H200.zones[0], ladder) == []
    assert [pool_rules(H200, one).max_run_duration for one in ladder] == ["604800s", "86400s", "21600s"]
    assert [one.pool_name for one in ladder] == ["gpu-flex-start", "gpu-flex-start-24h", "gpu-flex-start-6h"]
    (twice,) = problems(H200, H200.zones[0], [*ladder, ladder[1]])
    assert (twice.key, twice.remedy) == (
        "gpu.capacity[3].mode",
        "merge it with gpu.capacity[1] by raising that entry's max_nodes, or give it another max_run_duration_hours",
    )


def test_no_region_offers_h200_nodes_in_two_zones() -> None:
    regions = [zone.rpartition("-")[0] for zone in H200.zones]

    assert len(set(regions)) == len(regions), "docs/capacity.md says why a stack has one zone"


def test_a_mode_stands_once_in_a_ladder_and_each_reservation_once() -> None:
    other = replace(LEGAL["reservation"], reservation="projects/owner-project/reservations/theirs")

    assert problems(H200, H200.zones[0], [LEGAL["reservation"], other]) == []
    for legal in LEGAL.values():
        twice = problems(L4, L4.zones[0], [legal, LEGAL["spot"], legal])
        assert {problem.key for problem in twice} >= {"gpu.capacity[2].mode"}
