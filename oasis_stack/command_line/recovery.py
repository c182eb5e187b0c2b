"""Takes over what Google made for a run of Pulumi that does not know of it: it was killed, or an answer was lost.

Pulumi notes each creation before it begins: after a run that was killed the notes are in its state, of one that failed
they are among its events. What they name is put into the state, as `pulumi refresh --import-pending-creates` does, and
a refresh asks the provider: what exists is the stack's from then on, and the rest is forgotten. Nothing is made or
deleted.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oasis_stack.command_line.external_program import ProgramError
from oasis_stack.command_line.pulumi_stack import Stack

IDENTITIES: Mapping[str, str] = {
    "gcp:artifactregistry/repository:Repository": (
        "projects/{project}/locations/{location}/repositories/{repositoryId}"
    ),
    "gcp:cloudbuild/workerPool:WorkerPool": "projects/{project}/locations/{location}/workerPools/{name}",
    "gcp:compute/address:Address": "projects/{project}/regions/{region}/addresses/{name}",
    "gcp:compute/firewall:Firewall": "projects/{project}/global/firewalls/{name}",
    "gcp:compute/globalAddress:GlobalAddress": "projects/{project}/global/addresses/{name}",
    "gcp:compute/network:Network": "projects/{project}/global/networks/{name}",
    "gcp:compute/router:Router": "projects/{project}/regions/{region}/routers/{name}",
    "gcp:compute/routerNat:RouterNat": "{project}/{region}/{router}/{name}",
    "gcp:compute/subnetwork:Subnetwork": "projects/{project}/regions/{region}/subnetworks/{name}",
    "gcp:container/cluster:Cluster": "projects/{project}/locations/{location}/clusters/{name}",
    "gcp:container/nodePool:NodePool": ("projects/{project}/locations/{location}/clusters/{cluster}/nodePools/{name}"),
    "gcp:secretmanager/secret:Secret": "projects/{project}/secrets/{secretId}",
    "gcp:serviceaccount/account:Account": (
        "projects/{project}/serviceAccounts/{accountId}@{project}.iam.gserviceaccount.com"
    ),
    "gcp:storage/bucket:Bucket": "{name}",
    "kubernetes:helm.sh/v3:Release": "{namespace}/{name}",
}
"""Ids of objects, by their inputs, of those types that cannot be made twice (the importers of
hashicorp/terraform-provider-google-beta v7.45.0; pulumi-kubernetes, "Release", "Import"). Making another again does
nothing: a grant, an enabled API, an object of Kubernetes, which is applied by name. But for a budget, whose id is
Google's: a second one is made, and tells too."""

_NAMES = frozenset({"accountId", "name", "repositoryId", "secretId"})
"""Inputs that name an object."""

Entry = tuple[str, str | None]
"""URN and id of a resource in the state, where what is replaced has its successor's URN."""


def identity(resource: Mapping[str, Any]) -> str | None:
    """The id of a resource that is given as Pulumi's state holds it; None for a type that can be made again."""
    template = IDENTITIES.get(resource["type"])
    return template and template.format_map(resource["inputs"])


def settle(stack: Stack, say: Callable[[str], None]) -> None:
    """Bring the state to what an interrupted run left behind.

    Raises:
        ProgramError: Pulumi could not, as while another run holds the stack.
    """
    try:
        pending = _deployment(stack.state()).get("pending_operations") or []
    except ProgramError:
        return  # there is no such stack yet, or Pulumi is about to say what else is wrong
    if pending:
        say(f"The last run was cut off while it worked on {_counted(len(pending))}: asking what exists")
        _take_over(stack, [one["resource"] for one in pending if one["type"] == "creating"])


def up(stack: Stack, say: Callable[[str], None], *, yes: bool) -> int:
    """`pulumi up`, and again as long as it fails and something that it failed to make is there; its exit status.

    A name that Pulumi made up is in no other stack. What has a name that the stack file fixes another may have made:
    it is taken over if Google says that it was made since this run began; where Google does not say when, the terminal
    is asked, and without one it stays as it is.
    """
    while True:
        begun = datetime.now(UTC)
        status, lost = _up(stack, yes)
        if not lost:
            return status
        say(f"Google may have made {_counted(len(lost))} that failed: asking what exists")
        found, replaced = _take_over(stack, lost)
        others = [one for one in found if not _is_ours(one, begun)]
        if others:
            _let_go(stack, {one["urn"] for one in others}, replaced)
            named = ", ".join(str(one["id"]) for one in others)
            say(f"Left alone, as another may have made it: {named}. `pulumi import` takes over what is this stack's.")
        names = [one["urn"].rpartition("::")[2] for one in found if one not in others]
        if not names:
            say("Nothing is taken over.")
            return status
        say(f"Taken over: {', '.join(names)}. Going on with `pulumi up`")


def _up(stack: Stack, yes: bool) -> tuple[int, list[dict[str, Any]]]:
    """(exit status, what may have been made all the same)"""
    with tempfile.TemporaryDirectory(prefix="oasis-up-") as folder:
        log = Path(folder) / "events"
        # The variable lets the command line take the option, as in Pulumi's own Automation API.
        extra = [*(["--yes"] if yes else []), "--event-log", str(log)]
        status = stack.run("up", extra=extra, PULUMI_DEBUG_COMMANDS="true")
        failed = _failed_creates(log) if status else []
    return status, [one for one in failed if identity(one)]


def _take_over(stack: Stack, created: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], set[Entry]]:
    """Those that exist, with the inputs as they were given and the outputs as they are; and what they replace, which
    the next `up` deletes, as Pulumi itself has it.

    Raises:
        ProgramError: the refresh failed.
    """
    state = stack.state()
    before = _deployment(state).get("resources") or []
    known = {_entry(one) for one in before}
    named = [{**one, "id": identity(one)} for one in created if identity(one)]
    maybe = [one for one in named if _entry(one) not in known]
    urns = {one["urn"] for one in maybe}
    replaced = {_entry(one) for one in before if one["urn"] in urns and not one.get("delete")}
    before = [{**one, "delete": True} if _entry(one) in replaced else one for one in before]
    stack.put_state({**state, "deployment": {**_deployment(state), "resources": [*before, *maybe]}})
    if stack.run("refresh", extra=["--yes", "--skip-preview"]):
        raise ProgramError(
            f"`pulumi refresh -s {stack.name}` failed, see above; at Google nothing was changed. Run this again."
        )
    now = _deployment(stack.state()).get("resources") or []
    there = {one["urn"]: one for one in now if not one.get("delete")}
    if stays := {urn for urn, _ in replaced} - there.keys():
        _let_go(stack, stays, replaced)
    return [{**there[one["urn"]], "inputs": one["inputs"]} for one in maybe if one["urn"] in there], replaced


def _let_go(stack: Stack, urns: Collection[str], replaced: Collection[Entry]) -> None:
    """Have Pulumi forget what it took over of these, and keep what that was to replace; at Google nothing is changed.

    Raises:
        ProgramError: Pulumi refuses the state.
    """
    state = stack.state()
    left: list[dict[str, Any]] = []
    for one in _deployment(state)["resources"]:
        if one["urn"] in urns and _entry(one) in replaced:
            left.append({key: value for key, value in one.items() if key != "delete"})
        elif one["urn"] not in urns or one.get("delete"):
            left.append(one)
    stack.put_state({**state, "deployment": {**_deployment(state), "resources": left}})


def _entry(resource: Mapping[str, Any]) -> Entry:
    return resource["urn"], resource.get("id")


def _deployment(state: Mapping[str, Any]) -> Mapping[str, Any]:
    return state.get("deployment") or {}  # null in a stack that never ran


def _failed_creates(log: Path) -> list[dict[str, Any]]:
    """The resources whose creation failed, as Pulumi's state would hold them, by the events of a run."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        failed = json.loads(line).get("resOpFailedEvent", {}).get("metadata", {})
        if failed.get("op") in ("create", "create-replacement"):
            found.append({key: value for key, value in failed["new"].items() if key != "outputs"})
    return found


def _is_ours(resource: Mapping[str, Any], begun: datetime) -> bool:
    """False for a resource that another may have made."""
    filled_in = resource["inputs"].get("__defaults", [])  # the key of Pulumi's providers for what they have filled in
    if _NAMES.intersection(filled_in):
        return True
    made = resource["outputs"].get("createTime") or resource["outputs"].get("timeCreated")
    if made:
        return datetime.fromisoformat(made) >= begun
    if not sys.stdin.isatty():
        return False
    kind = resource["type"].rpartition(":")[2]
    answer = input(f"{kind} {resource['id']} exists: is it this stack's? [y/N] ")
    return answer.strip().lower() in ("y", "yes")


def _counted(count: int) -> str:
    return f"{count} resource{'' if count == 1 else 's'}"
