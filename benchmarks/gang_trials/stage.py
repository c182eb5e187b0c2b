"""The platform that the trials share: the local stack with a larger queue, and a record of what happens on it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness.figures import say
from emulator import lifecycle
from emulator.kubernetes import control_plane
from emulator.kubernetes.api import Api, Body
from emulator.machine.state import State, write_atomically

KUEUE, REQUESTS = "kueue.x-k8s.io/v1beta2", "autoscaling.x-k8s.io/v1"
REQUEST_LABEL = "autoscaling.gke.io/provisioning-request"
"""Label of nodes that came by a request, also in the selector of the pods for which they came."""


QUIET_SECONDS = 2.0
"""Time without an event after which none is on its way."""


class Event(NamedTuple):
    """One change of one object."""

    revision: int
    """etcd's revision, so that events of all kinds have one order."""
    seconds: float
    """When it was reported, on this process's clock."""
    type: str
    """ADDED, MODIFIED or DELETED."""
    kind: str
    body: Body


@dataclass
class Record:
    """What happened to objects of some kinds."""

    _events: list[Event] = field(default_factory=list)
    _programs: list[subprocess.Popen[str]] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def watch(self, kind: str, environment: Mapping[str, str]) -> None:
        """Record what happens to a kind's objects from now on."""
        command = ["kubectl", "get", kind, "--all-namespaces", "--watch", "--output-watch-events", "--output=json"]
        program = subprocess.Popen(command, env=dict(environment), stdout=subprocess.PIPE, text=True)
        thread = threading.Thread(target=self._read, args=(program,), daemon=True)
        self._programs.append(program)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        """End watching."""
        for program in self._programs:
            program.terminate()
            program.wait()
        for thread in self._threads:
            thread.join()

    def events(self) -> list[Event]:
        """All events so far, in the order in which they happened, once nothing has happened for a moment.

        Raises:
            RuntimeError: the API server has ended a watch, as it does after half an hour or more, so some are missing.
        """
        known = -1
        while known != len(self._events):
            known = len(self._events)
            time.sleep(QUIET_SECONDS)
        if not all(thread.is_alive() for thread in self._threads):
            raise RuntimeError("a watch ended, and what happened since is not known: take fewer jobs")
        return sorted(self._events)

    def _read(self, program: subprocess.Popen[str]) -> None:
        for line in program.stdout or ():
            told = json.loads(line)
            body = told["object"]
            revision = int(body["metadata"]["resourceVersion"])
            self._events.append(Event(revision, time.monotonic(), told["type"], body["kind"], body))


@dataclass(frozen=True)
class Stage:
    """The running platform."""

    state: State
    api: Api
    pool: str
    """GKE node pool of the queue."""
    record: Record

    def queued_nodes(self) -> list[Body]:
        """Nodes of the queue's pool."""
        return self.api.list("v1", "Node", labelSelector=f"cloud.google.com/gke-nodepool={self.pool}")

    def hold(self, nodes: int | None) -> None:
        """Let the zone hold up to so many flex-start and queued nodes; None: any number."""
        file = self.state.path("limits.json")
        if nodes is None:
            file.unlink(missing_ok=True)
            return
        write_atomically(file, json.dumps({"capacity": {"us-central1-b/flex-start": nodes}}))

    def ask_again_at_once(self, times: int) -> None:
        """Retry a failed request for nodes so many times without the usual minute in between, which changes no
        order."""
        [asks] = self.api.list(KUEUE, "ProvisioningRequestConfig")
        quick = {"backoffLimitCount": times, "backoffBaseSeconds": 1, "backoffMaxSeconds": 1}
        self.api.merge(asks, {"spec": {"retryStrategy": quick}})

    def running_gangs(self, size: int) -> list[list[Body]]:
        """Pods of each job that has so many running."""
        gangs = defaultdict[str, list[Body]](list)
        for pod in self.api.list("v1", "Pod", "ray", labelSelector="job-name", fieldSelector="status.phase=Running"):
            gangs[pod["metadata"]["labels"]["job-name"]].append(pod)
        return [pods for pods in gangs.values() if len(pods) == size]

    def succeed(self, pod: Body) -> None:
        """End a pod as its containers would."""
        self.api.merge(pod, {"status": {"phase": "Succeeded", "conditions": []}}, subresource="status")


@contextlib.contextmanager
def running(settings: Mapping[str, Any], watched: Sequence[str]) -> Iterator[Stage]:
    """A platform whose local stack has these additional settings, and a record of some kinds; removed at the end.

    Args:
        settings: sections of the stack file.
        watched: kinds, as kubectl names them.
    """
    with tempfile.TemporaryDirectory(prefix="oasis-gangs-") as folder:
        state, record = State(Path(folder) / ".oasis"), Record()
        try:
            with lifecycle.started(state, lambda _line: None):
                say("deploying the local stack on an emulated cloud of its own, which takes a minute or two")
                lifecycle.deploy(state, lifecycle.engine(state, lambda _line: None, settings), lambda _line: None)
            api = control_plane.connect(state)
            [flavor] = [one for one in api.list(KUEUE, "ResourceFlavor") if "nodeTaints" in one["spec"]]
            for kind in watched:
                record.watch(kind, {**os.environ, **lifecycle.environment(state)})
            yield Stage(state, api, flavor["spec"]["nodeLabels"]["cloud.google.com/gke-nodepool"], record)
        finally:
            record.end()
            lifecycle.take_down(state)


def holds(body: Body, condition: str) -> bool:
    """True if a condition of an object is true."""
    return any(one["type"] == condition and one["status"] == "True" for one in conditions(body))


def conditions(body: Body) -> list[Body]:
    """Conditions of an object."""
    return body.get("status", {}).get("conditions") or []
