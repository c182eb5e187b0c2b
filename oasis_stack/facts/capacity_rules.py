"""The ways of getting GPUs that Google accepts, and the demands of each on its node pool. Pure.

This is the one place that knows legal combinations: settings refuse by `problems`, `pool_rules` builds node pools.
Rules: GoogleCloudPlatform/cluster-toolkit v1.95.0, modules/compute/gke-node-pool/main.tf (preconditions), and
Google Cloud documentation, "About flex-start provisioning mode" (2026).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from oasis_stack.facts import names
from oasis_stack.facts.machine import Machine
from oasis_stack.facts.problem import Problem

Mode = Literal["reservation", "flex-start", "spot", "on-demand", "queued"]
MODES: tuple[str, ...] = get_args(Mode)

MODES_WITH_END = ("flex-start", "queued")
"""Those whose nodes GKE takes away after a time. Queued is flex-start by the job: all of its nodes, or none yet."""

MAX_RUN_HOURS = 168
"""Flex-start nodes, queued ones among them, live at most 7 days."""

MAX_POOL_NODES = 1000
"""Most nodes of one node pool (Google Kubernetes Engine documentation, "Quotas and limits")."""

# A reservation's own name, or a shared one's path in the project that owns it, and maybe a block or sub-block of it
# (GoogleCloudPlatform/cluster-autoscaler, 2026, package gceclient, ReservationRef).
_NAME = r"[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?"
_RESERVATION = re.compile(
    rf"(?:projects/[a-z][a-z0-9-]{{4,28}}[a-z0-9]/reservations/)?{_NAME}"
    rf"(?:/reservationBlocks/{_NAME}(?:/reservationSubBlocks/{_NAME})?)?"
)


@dataclass(frozen=True, kw_only=True)
class CapacityEntry:
    """One rung of the ladder: one way of getting GPU nodes, and how many of them."""

    mode: Mode
    """How the nodes are bought."""
    max_nodes: int
    """Most nodes this rung may ever have; the quota and the address plan must hold the sum of the rungs."""
    max_run_duration_hours: int | None
    """Flex-start and queued: after so many hours GKE takes the node away, whatever runs on it."""
    reservation: str | None
    """Reservation alone: its name, or `projects/<owner>/reservations/<name>` for a shared one. With
    `/reservationBlocks/<block>` behind it, and `/reservationSubBlocks/<sub-block>`, nodes that stand close together."""
    compact_placement: bool
    """Whether GKE must place the pool's nodes close together; fewer places fit, so capacity is found later."""

    @property
    def pool_name(self) -> str:
        """Logical name of this rung's node pool."""
        hours = self.max_run_duration_hours
        own_end = hours if self.mode == "flex-start" and hours != MAX_RUN_HOURS else None
        return names.pool(self.mode, self.reservation, own_end)

    @property
    def max_run_seconds(self) -> int | None:
        """Life of a node; None where it has no end."""
        return None if self.max_run_duration_hours is None else self.max_run_duration_hours * 3600


@dataclass(frozen=True, kw_only=True)
class PoolRules:
    """A rung's demands on its node pool, in the words of the GKE API."""

    flex_start: bool
    queued: bool
    """Whether nodes come by requests for all that a job needs at once; together with flex-start, as GKE documents it
    (Google Cloud documentation, "Run a large-scale workload with flex-start with queued provisioning")."""
    spot: bool
    max_run_duration: str | None
    """Seconds with the unit, as `604800s`; None where the node has no end."""
    auto_repair: bool
    """Off for flex-start and queued, where GKE refuses it."""
    auto_upgrade: bool
    consume_reservation_type: Literal["NO_RESERVATION", "SPECIFIC_RESERVATION"]
    reservation: str | None
    location_policy: Literal["ANY", "BALANCED"]
    """ANY takes capacity where there is some, which scarce capacity needs."""
    placement_type: Literal["COMPACT"] | None
    surge_upgrades: bool
    """Whether nodes are upgraded a few at a time. A flex-start pool has GKE's own strategy, SHORT_LIVED: new nodes come
    with the new version (GKE API, NodePoolUpdateStrategy; terraform-google-modules/terraform-google-kubernetes-engine
    pull request 2352), and one that asks for another gets an update at every `up`."""


def pool_rules(machine: Machine, entry: CapacityEntry) -> PoolRules:
    """The pool settings of a legal rung."""
    flex_start = entry.mode in MODES_WITH_END
    seconds = entry.max_run_seconds if flex_start else None
    return PoolRules(
        flex_start=flex_start,
        queued=entry.mode == "queued",
        spot=entry.mode == "spot",
        max_run_duration=None if seconds is None else f"{seconds}s",
        auto_repair=not flex_start,
        auto_upgrade=True,
        consume_reservation_type="SPECIFIC_RESERVATION" if entry.mode == "reservation" else "NO_RESERVATION",
        reservation=entry.reservation if entry.mode == "reservation" else None,
        location_policy="BALANCED" if machine.on_demand and entry.mode == "on-demand" else "ANY",
        placement_type="COMPACT" if entry.compact_placement else None,
        surge_upgrades=not flex_start,
    )


def problems(machine: Machine, zone: str, entries: Sequence[CapacityEntry]) -> list[Problem]:
    """Everything Google would refuse about a ladder of this machine in this zone; empty when it is legal."""
    found: list[Problem] = []
    if zone not in machine.zones:
        found.append(
            Problem(
                key="zone",
                value=zone,
                allowed=f"a zone that offers {machine.name}: {', '.join(machine.zones)}",
                remedy="choose one of them and its region, or another gpu.machine_type",
            )
        )
    if not entries:
        found.append(
            Problem(
                key="gpu.capacity",
                value=[],
                allowed="a list with at least one entry",
                remedy="add an entry such as {mode: flex-start, max_nodes: 2}, or remove gpu for a stack without GPUs",
            )
        )
    taken: dict[str, int] = {}
    for index, entry in enumerate(entries):
        key = f"gpu.capacity[{index}]"
        found += _mode_problems(machine, key, entry)
        found += _field_problems(machine, key, entry)
        first = taken.setdefault(entry.pool_name, index)
        if first != index:
            found.append(
                Problem(
                    key=f"{key}.mode",
                    value=entry.mode,
                    allowed="each mode once, but flex-start once for each max_run_duration_hours, and reservation "
                    "once for each reservation",
                    remedy=f"merge it with gpu.capacity[{first}] by raising that entry's max_nodes"
                    + (", or give it another max_run_duration_hours" if entry.mode == "flex-start" else ""),
                )
            )
    return found


def _mode_problems(machine: Machine, key: str, entry: CapacityEntry) -> Iterator[Problem]:
    sold = {
        "reservation": True,
        "flex-start": machine.flex_start,
        "spot": machine.spot,
        "on-demand": machine.on_demand,
        "queued": machine.flex_start,
    }
    if not sold[entry.mode]:
        yield Problem(
            key=f"{key}.mode",
            value=entry.mode,
            allowed=f"for {machine.name}: {', '.join(mode for mode in MODES if sold[mode])}",
            remedy=f"remove the entry or change its mode: Google does not sell {machine.name} this way",
        )


def _field_problems(machine: Machine, key: str, entry: CapacityEntry) -> Iterator[Problem]:
    if not 1 <= entry.max_nodes <= MAX_POOL_NODES:
        yield Problem(
            key=f"{key}.max_nodes",
            value=entry.max_nodes,
            allowed=f"a whole number from 1 to {MAX_POOL_NODES}",
            remedy="set how many nodes this entry may have, or remove the entry",
        )
    yield from _run_duration_problems(key, entry)
    yield from _reservation_problems(key, entry)
    yield from _placement_problems(machine, key, entry)


def _placement_problems(machine: Machine, key: str, entry: CapacityEntry) -> Iterator[Problem]:
    if not entry.compact_placement:
        return
    if entry.mode in MODES_WITH_END:
        # GoogleCloudPlatform/cluster-toolkit pull request 6348 and v1.95.0, gke-node-pool: of queued GPU nodes never.
        allowed = f"false with mode {entry.mode}"
        remedy = (
            "remove it: GKE refuses compact placement of such nodes without a workload policy of Compute Engine, which "
            "this program does not make; nodes that must stand close come from a reservation's block"
        )
    elif entry.mode == "reservation" and (entry.reservation or "").startswith("projects/"):
        # Compute Engine documentation, "Placement policies overview", restrictions of compact policies.
        allowed = "false for a reservation of another project"
        remedy = "remove it, or write a reservation of this project by its name alone"
    elif entry.mode == "reservation" and not machine.rdma_nics:
        # AI-Hypercomputer/xpk pull request 1130. Dense ones, as those of machines with RDMA are, take a policy of the
        # pool besides (GoogleCloudPlatform/cluster-toolkit pull request 3347).
        allowed = f"false for a reservation of {machine.name}"
        remedy = "remove it: the placement of a reservation's nodes was fixed when the reservation was made"
    else:
        return
    yield Problem(key=f"{key}.compact_placement", value=True, allowed=allowed, remedy=remedy)


def _run_duration_problems(key: str, entry: CapacityEntry) -> Iterator[Problem]:
    hours = entry.max_run_duration_hours
    if entry.mode not in MODES_WITH_END:
        if hours is not None:
            yield Problem(
                key=f"{key}.max_run_duration_hours",
                value=hours,
                allowed=f"only with mode {' or '.join(MODES_WITH_END)}",
                remedy=f"remove it: a {entry.mode} node has no end of its own",
            )
    elif hours is None or not 1 <= hours <= MAX_RUN_HOURS:
        yield Problem(
            key=f"{key}.max_run_duration_hours",
            value=hours,
            allowed=f"a whole number from 1 to {MAX_RUN_HOURS}, which is Google's limit of 7 days",
            remedy=f"set {MAX_RUN_HOURS} or less, and let the training resume from its checkpoint on the next node",
        )


def _reservation_problems(key: str, entry: CapacityEntry) -> Iterator[Problem]:
    if entry.mode != "reservation":
        if entry.reservation is not None:
            yield Problem(
                key=f"{key}.reservation",
                value=entry.reservation,
                allowed="only with mode reservation",
                remedy=f"remove it, or give the reservation its own entry: a {entry.mode} pool must not consume one",
            )
    elif entry.reservation is None or not _RESERVATION.fullmatch(entry.reservation):
        yield Problem(
            key=f"{key}.reservation",
            value=entry.reservation,
            allowed="a reservation's name, or projects/<owner>/reservations/<name>, a block of it by "
            "/reservationBlocks/<block>, a sub-block by /reservationSubBlocks/<sub-block> behind that",
            remedy="run `gcloud compute reservations list` and copy the name",
        )
