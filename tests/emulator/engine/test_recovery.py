"""What Google made for a run of Pulumi that was killed, or whose answers were lost, becomes part of the stack."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from emulator import lifecycle
from emulator.google import faults
from emulator.google.apis import serviceusage
from emulator.machine.state import write_atomically
from emulator.rest import cloud_server
from oasis_stack.command_line import recovery, stale_lock
from oasis_stack.command_line.external_program import ProgramError
from oasis_stack.command_line.pulumi_stack import Stack
from tests.emulator import programs
from tests.emulator.conftest import ControlPlane
from tests.emulator.provider_client import PROJECT, Client
from tests.support.processes import kill
from tests.support.waiting import eventually

pytestmark = pytest.mark.emulated

NETWORK = f"""
    import pulumi_gcp as gcp

    place = dict(project="{PROJECT}", region="us-central1")
    network = gcp.compute.Network("vpc", project="{PROJECT}", auto_create_subnetworks=False)
    for index in range(3):
        gcp.compute.Subnetwork(f"sub-{{index}}", network=network.id, ip_cidr_range=f"10.{{index}}.0.0/24", **place)
    router = gcp.compute.Router("router", network=network.id, **place)
    gcp.compute.RouterNat(
        "nat", router=router.name, source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
        nat_ip_allocate_option="AUTO_ONLY", **place,
    )
"""
BUCKET = f"""
    gcp.storage.Bucket("data", name="{PROJECT}-data", project="{PROJECT}", location="us-central1")
"""
MADE = {"compute/network": 1, "compute/subnetwork": 3, "compute/router": 1}


@pytest.fixture
def cloud_stack(
    bare_cluster: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ControlPlane, Stack]]:
    """A stack of the program above, of which nothing is made yet, in a shell of the emulated cloud."""
    state, cloud = bare_cluster.state, bare_cluster.cloud
    cloud_server.start(state)
    Client(cloud).enable("compute", "storage")
    cloud.turn(serviceusage.API_SECONDS)
    checkout = tmp_path / "recovered"
    programs.engine(state, checkout, NETWORK).preview()
    for name, value in lifecycle.environment(state).items():
        monkeypatch.setenv(name, value)
    stack = Stack.named("local", checkout)
    yield bare_cluster, stack
    (cloud.directory / faults.FILE).unlink(missing_ok=True)
    assert stack.run("destroy", extra=["--yes", "--skip-preview"]) == 0
    assert _made(bare_cluster) == {}


def test_what_was_made_while_the_answer_was_lost_is_taken_over_and_what_another_made_is_not(
    cloud_stack: tuple[ControlPlane, Stack],
) -> None:
    place, stack = cloud_stack
    calls = ("networks", "subnetworks", "routers")
    _plan(place, *({"call": f"compute.{call}.insert", "effect": "lose-answer", "times": 2} for call in calls))
    said: list[str] = []

    assert recovery.up(stack, said.append, yes=True) == 0

    assert [line for line in said if "Taken over: vpc." in line]
    assert _made(place) == MADE
    assert _changes(stack) == {"same"}

    theirs = Client(place.cloud).create(
        "gcp:storage/bucket:Bucket", "data", {"name": f"{PROJECT}-data", "location": "EU"}
    )
    programs.write(place.state, stack.file.parent, NETWORK + BUCKET)
    made = datetime.fromisoformat(theirs.outputs["timeCreated"])
    eventually(lambda: datetime.now(UTC) > made)  # the emulated clock is ahead

    assert recovery.up(stack, said.append, yes=True) != 0

    assert said[-2].startswith(f"Left alone, as another may have made it: {PROJECT}-data")
    assert "Bucket" not in json.dumps(stack.state())
    _plan(place, {"call": "storage.buckets.get", "effect": "fail", "code": 412})

    with pytest.raises(ProgramError, match="pulumi refresh"):
        recovery.up(stack, said.append, yes=True)

    assert "Bucket" not in json.dumps(stack.state())
    Client(place.cloud).delete(theirs)
    _plan(place, {"call": "storage.buckets.insert", "effect": "lose-answer", "times": 1})

    assert recovery.up(stack, said.append, yes=True) == 0

    assert said[-1].startswith("Taken over: data.")
    assert _changes(stack) == {"same"}


def test_a_killed_run_leaves_what_it_was_making_to_the_next_one(cloud_stack: tuple[ControlPlane, Stack]) -> None:
    place, stack = cloud_stack
    _kill_an_up(place, stack, subnetworks=3)
    assert [one["type"] for one in stack.state()["deployment"]["pending_operations"]].count("creating") >= 3
    said: list[str] = []

    stale_lock.release(stack, said.append)
    _plan(place, {"call": "compute.subnetworks.get", "effect": "fail", "code": 412})
    with pytest.raises(ProgramError, match="pulumi refresh"):
        recovery.settle(stack, said.append)
    _plan(place)
    recovery.settle(stack, said.append)

    assert len(said) == 3 and "left its lock on stack local" in said[0]
    assert all("cut off" in line for line in said[1:])
    assert "pending_operations" not in stack.state()["deployment"]
    assert recovery.up(stack, said.append, yes=True) == 0
    assert _made(place) == MADE
    assert _changes(stack) == {"same"}


def test_a_run_killed_while_it_replaced_something_leaves_neither_the_old_nor_a_second_one(
    cloud_stack: tuple[ControlPlane, Stack],
) -> None:
    place, stack = cloud_stack
    assert recovery.up(stack, print, yes=True) == 0
    programs.write(place.state, stack.file.parent, NETWORK.replace("10.{index}", "10.1{index}"))
    _kill_an_up(place, stack, subnetworks=6)

    stale_lock.release(stack, print)
    recovery.settle(stack, print)

    assert recovery.up(stack, print, yes=True) == 0
    assert _made(place) == MADE
    ranges = {one.body["ipCidrRange"] for one in place.cloud.list("compute/subnetwork")}
    assert ranges == {f"10.1{index}.0.0/24" for index in range(3)}
    assert _changes(stack) == {"same"}


def _kill_an_up(place: ControlPlane, stack: Stack, subnetworks: int) -> None:
    """Kill `pulumi up` once Google has so many subnetworks, and before it says so."""
    _plan(place, {"call": "compute.regionOperations.get", "effect": "delay", "seconds": 300})
    killed = subprocess.Popen(stack.command("up", "--yes", "--skip-preview"), start_new_session=True)
    try:
        eventually(lambda: _made(place).get("compute/subnetwork") == subnetworks, seconds=300)
    finally:
        kill(killed)
    _plan(place)


def _plan(place: ControlPlane, *planned: dict[str, object]) -> None:
    write_atomically(place.cloud.directory / faults.FILE, json.dumps(planned))


def _made(place: ControlPlane) -> dict[str, int]:
    kinds = [one.kind for one in place.cloud.list() if PROJECT in one.name and one.kind.startswith("compute/")]
    return {kind: kinds.count(kind) for kind in kinds}


def _changes(stack: Stack) -> set[str]:
    shown = subprocess.run(stack.command("preview", "--json"), capture_output=True, text=True, check=True).stdout
    return {step["op"] for step in json.loads(shown)["steps"]}
