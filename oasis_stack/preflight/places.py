"""Checks of what must exist before the stack: machine types in its zone, RDMA profile, reservations, keys, secrets."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from oasis_stack.preflight.finding import Finding, bad, good, unknown
from oasis_stack.preflight.google import Google, UnseenError
from oasis_stack.settings.schema import Settings

_KEY = "oasis:gpu.capacity[].reservation"


def machine_types(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether the zone of the nodes offers their machine types."""
    gpu, pools = settings.gpu, (settings.cluster.system_pool, settings.cluster.cpu_pool)
    wanted = {pool.machine_type for pool in pools if pool.max_nodes} | ({gpu.machine_type} if gpu else set())
    for name in sorted(wanted):
        path = f"projects/{google.project}/zones/{settings.zone}/machineTypes/{name}"
        if google.get("compute", path) is None:
            zones = f"`gcloud compute machine-types list --filter=name={name}` lists the zones that do."
            yield bad(f"{settings.zone} does not offer {name}", f"Set oasis:zone to one that does: {zones}")
        else:
            yield good(f"{settings.zone} offers {name}")


def rdma_network(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether the zone has a RoCE network profile, where the machine type has RDMA NICs."""
    if settings.gpu is None or not settings.gpu.machine.rdma_nics:
        return
    name = f"{settings.zone}-vpc-roce"
    if google.get("compute", f"projects/{google.project}/global/networkProfiles/{name}") is None:
        profiles = "`gcloud compute network-profiles list` lists them"
        yield bad(f"there is no network profile {name}", f"Set oasis:zone to a zone that has one: {profiles}.")
    else:
        yield good(f"the network profile {name} is there")


def reservations(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether each reservation of the ladder is there, of this machine type, for this project, and large enough; and
    each block and sub-block of them that it names."""
    gpu = settings.gpu
    wanted: dict[str, int] = {}
    for entry in gpu.capacity if gpu else ():
        if entry.reservation:
            name, *parts = re.split("(?=/reservation(?:Sub)?Blocks/)", entry.reservation)
            for part in itertools.accumulate([name, *parts]):
                wanted[part] = wanted.get(part, 0) + entry.max_nodes
    for name, nodes in wanted.items():
        try:
            if "/reservationBlocks/" in name:
                yield _block(settings, google, name, nodes)
            else:
                yield _reservation(settings, google, name, nodes)
        except UnseenError as unseen:
            yield unknown(
                unseen.problem, f"{unseen.remedy} A shared reservation is visible only in its owner's project."
            )


def _owner(google: Google, given: str) -> tuple[str, str]:
    """Project and name of a reservation, block or sub-block; the name begins with that of the reservation."""
    if not given.startswith("projects/"):
        return google.project, given
    _, owner, _, name = given.split("/", 3)
    return owner, name


def _block(settings: Settings, google: Google, given: str, nodes: int) -> Finding:
    """A block, or a sub-block, which Google's answer has in an envelope (discovery document,
    `ReservationBlocksGetResponse`)."""
    owner, name = _owner(google, given)
    answer = google.get("compute", f"projects/{owner}/zones/{settings.zone}/reservations/{name}")
    if answer is None:
        reservation, _, block, *sub_block = name.split("/")
        listing = f"sub-blocks list {reservation} --block-name {block}" if sub_block else f"blocks list {reservation}"
        listed = f"`gcloud compute reservations {listing} --zone {settings.zone} --project {owner}` lists them"
        return bad(f"{settings.zone} of project {owner} has no {name}", f"Correct {_KEY}: {listed}.")
    found = answer.get("resource", {})
    if (status := found.get("status", "READY")) != "READY":
        return bad(f"{name} is {status}", "Wait until it is READY, or name another.")
    if (count := int(found.get("count", 0))) < nodes:
        return bad(f"{name} has {count} nodes, but max_nodes asks for {nodes}", f"Lower max_nodes to {count}.")
    return good(f"{name} has {count} nodes, {found.get('inUseCount', 0)} of them in use")


def _reservation(settings: Settings, google: Google, given: str, nodes: int) -> Finding:
    machine_type = settings.gpu.machine_type if settings.gpu else ""
    owner, name = _owner(google, given)
    found = google.get("compute", f"projects/{owner}/zones/{settings.zone}/reservations/{name}")
    if found is None:
        listed = f"`gcloud compute reservations list --project {owner}` lists them"
        return bad(f"{settings.zone} of project {owner} has no reservation {name}", f"Correct {_KEY}: {listed}.")
    shared = found.get("shareSettings", {})
    if owner != google.project and shared.get("shareType", "LOCAL") == "LOCAL":
        return bad(
            f"reservation {name} is not shared with other projects by {owner}", f"Have it shared with {google.project}."
        )
    if (status := found.get("status", "READY")) not in ("READY", "UPDATING"):
        return bad(f"reservation {name} is {status}", "Wait until it is READY.")
    held = found.get("specificReservation")
    if held is None:  # aggregate ones, and those of calendar mode before they begin
        return unknown(f"reservation {name} does not say what it holds", "Look at it with its owner.")
    machine, count = held.get("instanceProperties", {}).get("machineType", machine_type), int(held.get("count", 0))
    if machine != machine_type:
        return bad(f"reservation {name} is for {machine}", f"Name one of {machine_type} in {_KEY}.")
    if count < nodes:
        return bad(
            f"reservation {name} has {count} nodes, but max_nodes asks for {nodes}",
            f"Lower max_nodes to {count}, or have the reservation raised.",
        )
    return good(f"reservation {name} has {count} nodes, {held.get('inUseCount', 0)} of them in use")


def keys(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether the key that the stack file names is there."""
    if key := settings.cluster.secrets_encryption_key:
        found = google.get("cloudkms", f"v1/{key}")
        if found is None:
            yield bad(f"there is no key {key}", "Make it, or correct oasis:cluster.secrets_encryption_key.")
        elif (state := found.get("primary", {}).get("state", "absent")) != "ENABLED":
            yield bad(f"the primary version of {key} is {state}", "Enable it, or name another key.")
        else:
            yield good(f"key {key} is there")


def secrets(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether the secret that the stack file names is there."""
    if login := settings.registry.docker_hub:
        name = login.password_secret
        found = google.get("secretmanager", f"v1/{name}")
        if found is None:
            yield bad(
                f"there is no secret version {name}",
                "Store the access token there, or correct oasis:registry.docker_hub.password_secret.",
            )
        elif (state := found.get("state")) != "ENABLED":
            yield bad(f"secret version {name} is {state}", "Enable it, or name another version.")
        else:
            yield good(f"secret version {name} is there")
