"""Takes over resources that Google made for a run of Pulumi that does not know of them: it was killed, or an answer was
lost.

Pulumi notes each creation before it begins: the notes of a killed run are in its state, those of a failed run among its
events. The resources that they name are put into the state, as `pulumi refresh --import-pending-creates` does, and a
refresh asks the provider: existing ones belong to the stack from then on, and the rest is forgotten. Nothing is made or
deleted.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from oasis_stack.command_line import stale_lock
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
    "gcp:storage/managedFolder:ManagedFolder": "{bucket}/{name}",
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
    """Make the state match what an interrupted run left behind.

    Raises:
        ProgramError: Pulumi could not, as while another run holds the stack.
    """
    try:
        state = stack.state()
    except ProgramError:
        return  # there is no such stack yet, or Pulumi is about to say what else is wrong
    pending = _deployment(state).get("pending_operations") or []
    # What an earlier look put there, and was cut off before it had read: an import leaves no pending operations.
    unread = [one for one in _resources(state) if one["type"] in IDENTITIES and "outputs" not in one]
    if pending or unread:
        say(f"The last run was cut off while it worked on {_counted(len(pending) + len(unread))}: asking what exists")
        created = [one["resource"] for one in pending if one["type"] == "creating"]
        _existing(stack, state, *_candidates(state, created))


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
        say(f"Google may have created {_counted(len(lost))} although that failed here: asking what exists")
        ours, others = _take_over(stack, lost, begun, say)
        if others:
            named = ", ".join(str(one["id"]) for one in others)
            say(f"Left alone, as another may have made it: {named}. Use `pulumi import` for what is this stack's.")
        if not ours:
            say("Nothing was taken over.")
            return status
        names = [one["urn"].rpartition("::")[2] for one in ours]
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


def _take_over(
    stack: Stack, lost: Iterable[Mapping[str, Any]], begun: datetime, say: Callable[[str], None]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What exists of those that failed in a run: the stack's, which is in the state from then on, and what another may
    have made, which is not. That is so too where the refresh fails or a person ends this.

    Raises:
        ProgramError: the refresh failed, or Pulumi refuses the state.
    """
    state = stack.state()
    maybe, replaced = _candidates(state, lost)
    undecided = {one["urn"] for one in maybe if not _has_made_up_name(one)}
    ours: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    try:
        found = _existing(stack, state, maybe, replaced)
        undecided.intersection_update(one["urn"] for one in found)
        for one in sorted(found, key=_needs_a_person):  # who may end this, and then the rest is decided
            if _is_ours(one, begun):
                undecided.discard(one["urn"])
                ours.append(one)
            else:
                others.append(one)
    except BaseException:
        stale_lock.release(stack, say)  # a refresh that Ctrl-C ended may have left its own
        raise
    finally:
        if undecided:
            _let_go_of_others(stack, undecided, replaced)
    return ours, others


def _candidates(
    state: Mapping[str, Any], created: Iterable[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], set[Entry]]:
    """What may have been made of those that were being created, and the state does not know of; and what that replaces,
    which the next `up` deletes, as Pulumi itself has it.
    """
    before = _resources(state)
    known = {_entry(one) for one in before}
    named = [{**one, "id": identity(one)} for one in created if identity(one)]
    maybe = [one for one in named if _entry(one) not in known]
    urns = {one["urn"] for one in maybe}
    return maybe, {_entry(one) for one in before if one["urn"] in urns and not one.get("delete")}


def _existing(
    stack: Stack, state: Mapping[str, Any], maybe: Sequence[Mapping[str, Any]], replaced: Collection[Entry]
) -> list[dict[str, Any]]:
    """Put the candidates into the state, and have a refresh remove those that do not exist; the others, with the inputs
    as they were given and the outputs as they are.

    Raises:
        ProgramError: the refresh failed; what it has not read is in the state without outputs.
    """
    before = [{**one, "delete": True} if _entry(one) in replaced else one for one in _resources(state)]
    stack.put_state({**state, "deployment": {**_deployment(state), "resources": [*before, *maybe]}})
    if stack.run("refresh", extra=["--yes", "--skip-preview"]):
        raise ProgramError(
            f"`pulumi refresh -s {stack.name}` failed, see above; nothing was changed at Google. Run this again."
        )
    there = {one["urn"]: one for one in _resources(stack.state()) if not one.get("delete")}
    if stays := {urn for urn, _ in replaced} - there.keys():
        _let_go(stack, stays, replaced)
    return [{**there[one["urn"]], "inputs": one["inputs"]} for one in maybe if one["urn"] in there]


def _let_go(stack: Stack, urns: Collection[str], replaced: Collection[Entry]) -> None:
    """Have Pulumi forget what it took over of these, and keep what that was to replace; at Google nothing is changed.

    Raises:
        ProgramError: Pulumi refuses the state.
    """
    state = stack.state()
    left: list[dict[str, Any]] = []
    for one in _resources(state):
        if one["urn"] in urns and _entry(one) in replaced:
            left.append({key: value for key, value in one.items() if key != "delete"})
        elif one["urn"] not in urns or one.get("delete"):
            left.append(one)
    stack.put_state({**state, "deployment": {**_deployment(state), "resources": left}})


def _let_go_of_others(stack: Stack, urns: Collection[str], replaced: Collection[Entry]) -> None:
    """As `_let_go`, of what another may have made; the error says what to do before the stack is destroyed."""
    try:
        _let_go(stack, urns, replaced)
    except ProgramError as error:
        commands = [f"\n  pulumi state delete -s {stack.name} '{urn}'" for urn in sorted(urns)]
        raise ProgramError(
            f"{error}\nThe state still names what someone else may have created, and a destroy would delete it. "
            f"If it is not this stack's, remove it from the state first:{''.join(commands)}"
        ) from error


def _entry(resource: Mapping[str, Any]) -> Entry:
    return resource["urn"], resource.get("id")


def _deployment(state: Mapping[str, Any]) -> Mapping[str, Any]:
    return state.get("deployment") or {}  # null in a stack that never ran


def _resources(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    return _deployment(state).get("resources") or []


def _failed_creates(log: Path) -> list[dict[str, Any]]:
    """The resources whose creation failed, as Pulumi's state would hold them, by the events of a run."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        failed = json.loads(line).get("resOpFailedEvent", {}).get("metadata", {})
        if failed.get("op") in ("create", "create-replacement"):
            found.append({key: value for key, value in failed["new"].items() if key != "outputs"})
    return found


def _has_made_up_name(resource: Mapping[str, Any]) -> bool:
    """True for a resource that no other stack can have made."""
    filled_in = resource["inputs"].get("__defaults", [])  # the key of Pulumi's providers for what they have filled in
    return not _NAMES.isdisjoint(filled_in)


def _made(resource: Mapping[str, Any]) -> str | None:
    """Time of creation, if Google says so."""
    return resource["outputs"].get("createTime") or resource["outputs"].get("timeCreated")


def _needs_a_person(resource: Mapping[str, Any]) -> bool:
    return not (_has_made_up_name(resource) or _made(resource))


def _is_ours(resource: Mapping[str, Any], begun: datetime) -> bool:
    """False for a resource that another may have made."""
    if _has_made_up_name(resource):
        return True
    if made := _made(resource):
        return datetime.fromisoformat(made) >= begun
    if not sys.stdin.isatty():
        return False
    kind = resource["type"].rpartition(":")[2]
    try:
        answer = input(f"{kind} {resource['id']} exists: is it this stack's? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _counted(count: int) -> str:
    return f"{count} resource{'' if count == 1 else 's'}"
