"""The whole program on the emulated Google in one process: the emulator's own provider makes its resources through
Google's REST APIs, without a server or a Kubernetes; what Pulumi's engine does between them is modelled here."""

from __future__ import annotations

import copy
import json
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, TypeVar
from unittest import mock
from urllib.parse import urlsplit

from pulumi.runtime import mocks

from emulator.gke import records
from emulator.gke.node_shapes import Pool
from emulator.google import policies
from emulator.google.apis import serviceusage
from emulator.google.apis.kubernetes_engine import instance_groups
from emulator.google.apis.kubernetes_engine.pool_rules import reservation_of
from emulator.google.callers import Identity, set_identity
from emulator.google.cloud import Cloud
from emulator.google.errors import RefusedCall
from emulator.google.scope import project_number
from emulator.protocol.wire import plain
from oasis_stack import wait
from oasis_stack.command_line import recovery, resource_tree
from oasis_stack.command_line.offline import Deployment, OfflineCloud, Registered, deploy_stack
from oasis_stack.live_state import WaitError
from tests.emulator.google import directly, grant
from tests.emulator.provider_client import Client, Failed, Held

CALLER = "user:deployer@example.com"
_WAIT = "pulumi-python:dynamic/wait:"
WAITS: Mapping[str, type[wait.Waiter]] = {
    f"{_WAIT}{name}": getattr(wait, f"_{name}") for name in ("NetworkFree", "ConnectionFree")
}
"""The program's waits that are about Google alone; the others ask the Kubernetes API server, which is not here."""

LOOK_SECONDS = 30.0

RETRY_SECONDS = 10.0
"""How long a script waits until it deletes again what was refused."""

Cut = Literal["lost", "killed before", "killed after"]
"""What can happen at a call that changes something: its answer is lost, or the engine and its providers are killed
before Google has the call, or before they have the answer."""

Key = tuple[str, str]
"""Type and logical name."""


Answer = TypeVar("Answer")


class Killed(Exception):
    """The engine and its providers are gone."""


class Step(NamedTuple):
    """One thing that the engine did."""

    op: Literal["create", "update", "replace", "delete"]
    """`replace`: another was made in its place; it is deleted later."""
    type: str
    name: str


class OneProcess(mocks.Mocks):
    """A stack. Answers the program: Google's resources as the provider makes them, all others as offline."""

    def __init__(
        self, directory: Path, config: Mapping[str, Any], roles: Iterable[str] = (), account_roles: Iterable[str] = ()
    ) -> None:
        """A stack that was never up, and an emulated Google in `directory` that is empty but for the reservations which
        the stack names, unless there is one.

        Args:
            directory: the emulator's folder.
            config: the stack file's section of that name.
            roles: all that the caller holds on the project; none: an operator, who may do all.
            account_roles: all that such a caller holds on the billing account of the stack's budget.
        """
        directory.mkdir(exist_ok=True)
        (directory / "control-plane.json").write_text(json.dumps({"endpoint": "127.0.0.1:6443", "ca": "Q0E="}))
        self.cloud = Cloud(directory)
        place = {key: str(config[f"oasis:{key}"]) for key in ("region", "zone")}
        project = str(config["gcp:project"])
        for rung in config.get("oasis:gpu", {}).get("capacity", ()):
            if given := rung.get("reservation"):
                self.cloud.put(*reservation_of(given, project, place["zone"]), {})
        self._directly = directly(self.cloud)
        self.provider = Client(self.cloud, self._send, project=project, **place)
        """The provider that the stack file configures."""
        self._made_providers: dict[str, dict[str, str]] = {}
        """By type, the settings of the provider that the program made for its resources, if it did."""
        if roles:
            self.cloud.put(
                "resourcemanager/project",
                f"projects/{project}",
                {"projectId": project, "number": project_number(project)},
            )
            account = config.get("oasis:cost", {}).get("billing_account")
            grant(self.cloud, CALLER, "cloudresourcemanager", f"projects/{project}", sorted(roles))
            grant(self.cloud, CALLER, "cloudbilling", f"billingAccounts/{account}", sorted(account_roles))
            set_identity(self.cloud, Identity(project=project, zone=place["zone"], principal=CALLER))
        self._config = config
        self._declared = Deployment()
        """What the last run declared, and after one that did not end, what those before it did."""
        self._before = Deployment()
        """The same before the run that goes on."""
        self._others = OfflineCloud(preview=False)
        self.held: dict[Key, Held] = {}
        """What the engine knows of Google."""
        self.steps: list[Step] = []
        """What the last `up` did."""
        self.cuts: dict[int, Cut] = {}
        """What will happen at which call that changes something, counted from 1 over all runs."""
        self.calls = 0
        """How many there were."""
        self._pending: dict[Key, dict[str, Any]] = {}
        self._made: dict[Key, Mapping[str, Any]] = {}
        self._kept: set[Key] = set()
        self._replaced: list[Held] = []
        self._dead = False
        self._turn = threading.Lock()

    def configured(self, config: Mapping[str, Any], directory: Path | None = None) -> OneProcess:
        """The same stack with another stack file, as a copy in `directory` if that is given."""
        if directory:
            shutil.copytree(self.cloud.directory, directory)
        other = OneProcess(directory or self.cloud.directory, config)
        other.held, other._made, other._kept = copy.deepcopy(self.held), dict(self._made), set(self._kept)
        other._made_providers, other._declared = dict(self._made_providers), self._declared
        return other

    def up(self) -> Deployment:
        """`make up`: run the program, again as long as something that failed turns out to be there.

        Raises:
            Failed: Google refuses something.
            Killed: as `cuts` says; what was being made is taken over by the next run.
        """
        self._begin()
        while True:
            try:
                return self._up()
            except Failed:
                if self._dead:
                    raise Killed from None
                if not self._take_over():
                    raise

    def destroy(self, *, tries: int | None = None) -> None:
        """`make destroy`: delete in the order of `pulumi destroy`, what an earlier call has not.

        The program's waits let time go by until Google has cleaned up, or until they give up. With `tries` there are
        none, and a refused deletion is tried so often, ten seconds apart.

        Raises:
            Failed: a deletion was refused, or a wait gave up.
            Killed: as `cuts` says.
        """
        self._begin()
        for held in reversed(self._replaced):
            self._delete(held, 1)
        self._replaced.clear()
        for step in resource_tree.destroy_order(self._declared):
            self._let_go(step, tries)

    def destroy_by_name(self, tries: int) -> None:
        """Delete in the reverse of the order in which all was made, as a script of `delete` commands does: nothing is
        waited for, each deletion is tried so often, ten seconds apart, and what stays refused is passed over.

        Raises:
            Failed: something stayed.
        """
        self._begin()
        refused: list[str] = []
        for key in [key for key in reversed(self.held) if key not in self._kept]:
            try:
                self._delete(self.held[key], tries)
            except Failed as error:
                refused.append(f"{key[1]}: {error}")
            else:
                del self.held[key]
        if refused:
            raise Failed("\n".join(refused))

    def again(self, deployment: Deployment) -> dict[str, list[str]]:
        """What a second `up` after a refresh would change: by resource, the inputs that differ and are not ignored."""
        found: dict[str, list[str]] = {}
        for (token, name), held in self.held.items():
            now = self._provider(token).read(token, held.id, held)
            if now is None:
                found[name] = ["it is gone"]
                continue
            ignored = deployment.get(token, name).ignore_changes
            paths = self._provider(token).diff(now, held.inputs).detailedDiff
            if differs := [path for path in paths if not any(_is_within(path, one) for one in ignored)]:
                found[name] = differs
        return found

    def refresh(self) -> None:
        """`pulumi refresh`: know of Google what is there."""
        for key, held in list(self.held.items()):
            now = self._provider(held.token).read(held.token, held.id, held)
            if now is None:
                del self.held[key]
            else:
                self.held[key] = now

    # ---- what the engine does

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        key = (args.typ, args.name)
        if self._dead:
            raise Killed
        if args.typ == f"{_WAIT}ApisAnswer":
            self.cloud.turn(serviceusage.API_SECONDS)
        elif args.typ == f"{_WAIT}GrantInEffect":
            self.cloud.turn(policies.GRANT_SECONDS)
        if not args.typ.startswith("gcp:"):
            self._made.setdefault(key, args.inputs)
            return self._others.new_resource(args)
        declared = self._declared.get(*key)
        if declared.provider:
            self._made_providers[args.typ] = self._declared.by_urn(declared.provider.rpartition("::")[0]).inputs
        if declared.retain_on_delete:
            self._kept.add(key)
        else:
            self._kept.discard(key)
        with self._turn:  # one at a time: a replacement may take others with it
            held = self.held.get(key)
            if held is None:
                held = self._create(key, args.inputs)
                self.steps.append(Step("create", *key))
            else:
                held = self._changed(key, held, args.inputs)
        return held.id, {**args.inputs, **plain(held.outputs)}

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        return self.provider.invoke(args.token, **args.args), []

    def _up(self) -> Deployment:
        self.steps.clear()
        self._before, self._declared = self._declared, Deployment()
        try:
            deployment = deploy_stack(self._config, answers=self, registered=self._declared)
            for held in reversed(self._replaced):
                self._delete(held, 1)
                self._replaced.remove(held)
            now = {(found.type, found.name) for found in self._declared}
            gone = [found for found in self._before if (found.type, found.name) not in now]
            for step in resource_tree.deletion_steps(self._before, gone):
                self._let_go(step)
        except (Failed, Killed):
            reached = {(found.type, found.name) for found in self._declared}
            for found in self._before:
                if (found.type, found.name) not in reached:
                    self._declared.add(found)
            raise
        finally:
            self._gke_steps()
        return deployment

    def _let_go(self, step: Iterable[Registered], tries: int | None = None) -> None:
        """Delete all of a step, as the engine does also where one of it is refused; with `tries` as `destroy` does.

        Raises:
            Failed: the first refusal.
        """
        refused: list[Failed] = []
        for found in step:
            key = (found.type, found.name)
            try:
                if tries is None and key in self._made:
                    self._await(key)
                if held := self.held.get(key):
                    if key not in self._kept:
                        self._delete(held, tries or 1)
                    del self.held[key]
                    self.steps.append(Step("delete", *key))
                self._made.pop(key, None)
            except Failed as error:
                refused.append(error)
        if refused:
            raise refused[0]

    def _gke_steps(self) -> None:
        """Have GKE write into pools what it adds to them."""
        for pool in self.cloud.list(records.POOL_KIND):
            sizes = instance_groups.sizes(self.cloud, pool.name)
            records.record_pool(self.cloud, Pool(identity=pool.name, body=pool.body), sizes)

    def _provider(self, token: str) -> Client:
        made = self._made_providers.get(token)
        return Client(self.cloud, self._send, **made) if made else self.provider

    def _create(self, key: Key, inputs: Mapping[str, Any]) -> Held:
        provider = self._provider(key[0])
        self._pending[key] = provider.check(*key, inputs)
        held = provider.create_checked(*key, self._pending[key])
        del self._pending[key]
        self.held[key] = held
        self._made.pop(key, None)
        self._made[key] = held.inputs
        return held

    def _changed(self, key: Key, held: Held, inputs: Mapping[str, Any]) -> Held:
        options = self._declared.get(*key)
        wanted = dict(inputs)
        for path in options.ignore_changes:
            _restore(wanted, held.inputs, re.findall(r"[^.\[\]]+", path))
        provider = self._provider(key[0])
        found = provider.diff(held, wanted)
        if not found.detailedDiff:
            return held
        must = any(_is_within(path, one) for path in found.detailedDiff for one in options.replace_on_changes)
        if not (found.replaces or must):
            self.held[key] = provider.update(held, wanted)
            self.steps.append(Step("update", *key))
            return self.held[key]
        self.steps.append(Step("replace", *key))
        if found.deleteBeforeReplace or options.delete_before_replace:
            for user in reversed(self._dependents(options.urn)):
                self._delete(self.held.pop(user), 1)
            self._delete(self.held.pop(key), 1)
        elif not options.retain_on_delete:
            self._replaced.append(held)
        return self._create(key, inputs)

    def _dependents(self, urn: str) -> list[Key]:
        """What is held and has an input from a resource, or from one that does, oldest first."""
        urns = {urn}
        for found in self._before:  # which was registered after what it depends on
            if urns & {one for many in found.property_dependencies.values() for one in many}:
                urns.add(found.urn)
        named = {(one.type, one.name) for one in self._before if one.urn in urns - {urn}}
        return [key for key in self._made if key in named and key in self.held]

    def _begin(self) -> None:
        self._dead = False
        self._take_over()

    def _take_over(self) -> list[Key]:
        """What a run did not learn of although it is there, as `oasis_stack.command_line.recovery` does."""
        found: list[Key] = []
        for key, inputs in self._pending.items():
            identity = recovery.identity({"type": key[0], "inputs": inputs})
            now = identity and self.provider.read(key[0], identity, Held(key[0], identity, inputs, {}))
            if now:
                self.held[key] = now
                self._made[key] = now.inputs
                found.append(key)
        self._pending.clear()
        return found

    def _send(
        self, verb: str, path: str, query: Mapping[str, str], body: Mapping[str, Any] | None, quota_project: str
    ) -> dict[str, Any]:
        if self._dead:
            raise Killed
        cut = None
        if verb != "GET" and not path.endswith(":getIamPolicy"):
            self.calls += 1
            cut = self.cuts.get(self.calls)
        if cut == "killed before":
            self._dead = True
            raise Killed
        answer = self._directly(verb, path, query, body, quota_project)
        if cut == "killed after":
            self._dead = True
            raise Killed
        if cut == "lost":
            raise RefusedCall(503, "the answer was lost", "backendError")
        return answer

    def _delete(self, held: Held, tries: int) -> None:
        for left in reversed(range(tries)):
            try:
                self._provider(held.token).delete(held)
                return
            except Failed:
                if not left:
                    raise
                self.cloud.turn(RETRY_SECONDS)

    def _await(self, key: Key) -> None:
        """What deleting a wait of the program's does, if it is about Google, on the cloud's clock."""
        waiter = WAITS.get(key[0])
        if waiter is None:
            return
        # It looks every few seconds; that half a minute goes by between two looks changes nothing but this test's time.
        clock = SimpleNamespace(monotonic=self.cloud.now, sleep=lambda _: self.cloud.turn(LOOK_SECONDS))
        with (
            mock.patch("oasis_stack.live_state.time", clock),
            mock.patch("oasis_stack.live_state.say"),
            mock.patch("oasis_stack.live_state.google_get", self._get),
        ):
            try:
                waiter().await_departure(self._made[key])
            except WaitError as error:
                raise Failed(str(error)) from None

    def _get(self, project: str, url: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        return self._send("GET", urlsplit(url).path, parameters, None, project)


def resumed(run: Callable[[], Answer]) -> tuple[Answer, int]:
    """What a run comes to that is begun again each time it is killed, and how many runs that took."""
    runs = 1
    while True:
        try:
            return run(), runs
        except Killed:
            runs += 1


def _is_within(path: str, whole: str) -> bool:
    return path == whole or path.startswith((f"{whole}.", f"{whole}["))


def _restore(wanted: dict[str, Any], before: Mapping[str, Any], path: list[str]) -> None:
    """Put back, at a path, what was given before."""
    name, *rest = path
    if rest:
        below = before.get(name)
        if isinstance(below, Mapping):
            wanted[name] = dict(wanted.get(name) or {})
            _restore(wanted[name], below, rest)
        elif isinstance(below, list):
            wanted[name] = copy.deepcopy(wanted[name])
            if (index := int(rest[0])) < min(len(below), len(wanted[name])):
                _restore(wanted[name][index], below[index], rest[1:])
    elif name in before:
        wanted[name] = before[name]
    else:
        wanted.pop(name, None)
