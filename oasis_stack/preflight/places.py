"""What must be there before the stack: machine types in its zone, the RDMA profile, reservations, keys and secrets."""

from __future__ import annotations

from collections.abc import Iterator

from oasis_stack.facts.capacity_rules import CapacityEntry
from oasis_stack.preflight.finding import Finding, bad, good, unknown
from oasis_stack.preflight.google import Google
from oasis_stack.settings.schema import GpuSettings, Settings


def machine_types(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether the zone of the nodes offers what they are."""
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
    """Whether each reservation of the ladder is there, of this machine type, and large enough."""
    gpu = settings.gpu
    for number, entry in enumerate(gpu.capacity if gpu else ()):
        if gpu and entry.reservation:
            yield _reservation(settings, google, gpu, entry, f"oasis:gpu.capacity[{number}].reservation")


def _reservation(settings: Settings, google: Google, gpu: GpuSettings, entry: CapacityEntry, key: str) -> Finding:
    given = str(entry.reservation)
    parts = given.partition("/reservationBlocks/")[0].split("/")
    owner, name = (parts[1], parts[3]) if parts[0] == "projects" else (google.project, parts[0])
    found = google.get("compute", f"projects/{owner}/zones/{settings.zone}/reservations/{name}")
    where = f"{settings.zone} of project {owner}"
    if found is None:
        listed = f"`gcloud compute reservations list --project {owner}` lists them"
        return bad(f"{where} has no reservation {name}", f"Correct {key}: {listed}.")
    held = found.get("specificReservation", {})
    machine = held.get("instanceProperties", {}).get("machineType", "")
    count = int(held.get("count", 0))
    if found.get("status") not in ("READY", "", None):
        return bad(f"reservation {name} is {found['status']}", "Wait until it is READY.")
    if machine and machine != gpu.machine_type:
        return bad(f"reservation {name} is of {machine}", f"Name one of {gpu.machine_type} in {key}.")
    if count and count < entry.max_nodes:
        return bad(
            f"reservation {name} has {count} nodes, and max_nodes is {entry.max_nodes}",
            f"Lower max_nodes of that entry to {count}, or have the reservation raised.",
        )
    if not machine:  # aggregate reservations, and those of calendar mode before they begin
        return unknown(f"reservation {name} does not say what it holds", "Look at it with its owner.")
    return good(f"reservation {name} has {count} nodes, {held.get('inUseCount', 0)} of them in use")


def keys(settings: Settings, google: Google) -> Iterator[Finding]:
    """Whether a key and a secret that the stack file names are there."""
    if key := settings.cluster.secrets_encryption_key:
        found = google.get("cloudkms", f"v1/{key}")
        if found is None:
            yield bad(f"there is no key {key}", "Make it, or correct oasis:cluster.secrets_encryption_key.")
        elif (state := found.get("primary", {}).get("state", "ENABLED")) != "ENABLED":
            yield bad(f"the primary version of {key} is {state}", "Enable it, or name another key.")
        else:
            yield good(f"key {key} is there")
    if login := settings.registry.docker_hub:
        if google.get("secretmanager", f"v1/{login.password_secret}") is None:
            yield bad(
                f"there is no secret version {login.password_secret}",
                "Store the access token there, or correct oasis:registry.docker_hub.password_secret.",
            )
        else:
            yield good(f"secret version {login.password_secret} is there")
