"""The whole program on the emulated Google in one process: the emulator's own provider makes its resources through
Google's REST APIs, without an engine, a server or a Kubernetes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pulumi.runtime import mocks

from emulator.google import policies
from emulator.google.apis import serviceusage
from emulator.google.apis.cloudbuild import PRODUCER
from emulator.google.callers import Identity, set_identity
from emulator.google.cloud import Cloud
from emulator.google.collection import last
from emulator.google.scope import project_number
from emulator.protocol.wire import plain
from oasis_stack.command_line import resource_tree
from oasis_stack.command_line.offline import Deployment, OfflineCloud, Registered, deploy_stack
from tests.emulator.provider_client import Client, Failed, Held

CALLER = "user:deployer@example.com"
WAITS = "pulumi-python:dynamic/wait:"
NETWORK_FREE, CONNECTION_FREE = f"{WAITS}NetworkFree", f"{WAITS}ConnectionFree"
"""Waits that are about Google alone; the others ask the Kubernetes API server, which is not here."""

POLL_SECONDS = 10.0

LATE = ("compute/firewall", "compute/address", "compute/subnetwork")
"""Kinds of what GKE makes in a cluster's network."""


class OneProcess(mocks.Mocks):
    """Answers the program: Google's resources as the provider makes them, all others as offline."""

    def __init__(self, directory: Path, config: Mapping[str, Any], roles: Iterable[str] = ()) -> None:
        """Make an empty emulated Google in `directory`; with `roles`, the caller holds these on the project alone."""
        directory.mkdir(exist_ok=True)
        (directory / "control-plane.json").write_text(json.dumps({"endpoint": "127.0.0.1:6443", "ca": "Q0E="}))
        self.cloud = Cloud(directory)
        place = {key: str(config[f"oasis:{key}"]) for key in ("region", "zone")}
        project = str(config["gcp:project"])
        self.provider = Client(self.cloud, project=project, **place)
        if roles:
            self.cloud.put(
                "resourcemanager/project",
                f"projects/{project}",
                {"projectId": project, "number": project_number(project)},
            )
            bindings = [{"role": role, "members": [CALLER]} for role in sorted(roles)]
            name = policies.full_name("cloudresourcemanager.googleapis.com", f"projects/{project}")
            policies.put(self.cloud, name, {"bindings": bindings})
            set_identity(self.cloud, Identity(project=project, zone=place["zone"], principal=CALLER))
        self._config = config
        self._others = OfflineCloud(preview=False)
        self.held: dict[tuple[str, str], Held] = {}
        """What the provider has made, by type and name."""

    def up(self) -> Deployment:
        """Run the program. Raises what Google refuses (`Failed`)."""
        return deploy_stack(self._config, answers=self)

    def destroy(self, deployment: Deployment, *, waits: bool = True) -> None:
        """Delete in the order of `pulumi destroy`, what an earlier call has not.

        The program's waits let time go by until Google has cleaned up, or until they give up; without `waits` there
        are none, and a refused deletion is tried three times, ten seconds apart.

        Raises:
            Failed: a deletion was refused, or a wait gave up.
        """
        for step in resource_tree.destroy_order(deployment):
            for found in step:
                if waits and found.type in (NETWORK_FREE, CONNECTION_FREE):
                    self._await(found)
                elif held := self.held.get((found.type, found.name)):
                    self._delete(held, 1 if waits else 3)
                    del self.held[found.type, found.name]

    def again(self, deployment: Deployment) -> dict[str, list[str]]:
        """What a second `up` after a refresh would change: by resource, the inputs that differ and are not ignored."""
        found: dict[str, list[str]] = {}
        for (token, name), held in self.held.items():
            now = self.provider.read(token, held.id, held)
            if now is None:
                found[name] = ["it is gone"]
                continue
            ignored = deployment.get(token, name).ignore_changes
            paths = self.provider.diff(now, held.inputs).detailedDiff
            if differs := [path for path in paths if not any(_is_within(path, one) for one in ignored)]:
                found[name] = differs
        return found

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str, dict[str, Any]]:
        if args.typ == f"{WAITS}ApisAnswer":
            self.cloud.turn(serviceusage.API_SECONDS)
        if not args.typ.startswith("gcp:"):
            return self._others.new_resource(args)
        held = self.provider.create(args.typ, args.name, args.inputs)
        self.held[args.typ, args.name] = held
        return held.id, {**args.inputs, **plain(held.outputs)}

    def call(self, args: mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        return self.provider.invoke(args.token, **args.args), []

    def _delete(self, held: Held, tries: int) -> None:
        for left in reversed(range(tries)):
            try:
                self.provider.delete(held)
                return
            except Failed:
                if not left:
                    raise
                self.cloud.turn(POLL_SECONDS)

    def _await(self, found: Registered) -> None:
        """What the program's wait of that name does, as far as it is about Google."""
        ends = self.cloud.now() + 60 * float(found.inputs["timeout_minutes"])
        while left := self._leftovers(found.type):
            if self.cloud.now() > ends:
                raise Failed(f"{found.name}: {', '.join(left)} are still there")
            self.cloud.turn(POLL_SECONDS)

    def _leftovers(self, wait: str) -> list[str]:
        """What Google has made by itself, that a wait is for, and not removed yet."""
        if wait == CONNECTION_FREE:
            return [one.name for one in self.cloud.list(PRODUCER)]
        return [one.name for kind in LATE for one in self.cloud.list(kind) if last(one.name).startswith("gke-")]


def _is_within(path: str, whole: str) -> bool:
    return path == whole or path.startswith((f"{whole}.", f"{whole}["))
