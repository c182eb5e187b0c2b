"""The part of Ray's dashboard that a submission uses, in place of a stack's, over a connection that may break."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import loopback, stub_kubectl
from tests.support.loopback import Reply, Request
from tests.support.stub_kubectl import OUTPUTS
from workloads.environment import ClusterEnvironment
from workloads.jobs import follow

TOKEN = "a-token-of-this-test-alone"

NODES = [
    {"node_ip": "10.0.0.1", "state": "ALIVE", "resources_total": {"driver": 1000.0, "memory": 1e9}},
    {"node_ip": "10.0.0.2", "state": "DEAD", "resources_total": {"CPU": 1000.0}},
]
"""What the fake Ray has: a head; the other one has died."""


class FakeRay:
    """The part of Ray's Jobs API that a submission uses, with a job whose log grows, over a connection that breaks."""

    def __init__(self) -> None:
        self.token = TOKEN
        self.lines = [f"line {number}" for number in range(8)]
        self.exit_code = 0
        self.minutes = 60.0
        """How long ago its job was submitted, in its list of jobs."""
        self.broken = 0.0
        self.chance = random.Random(0)
        self.submitted: dict[str, Any] = {}
        self.stopped = False
        self.deaf = False
        self.pending = 0
        self.message = ""
        self.failing: dict[str, int] = {}
        """HTTP status of the answers to paths that begin or end so."""
        self.refusals = 0
        """How often the log of its ended job is refused."""
        self.gone = ""
        """Address of the node that had the log, once it is gone."""
        self.packages: list[bytes] = []
        self.state: dict[str, list[dict[str, Any]]] = {"nodes": NODES}
        """What its state API knows, by kind."""
        self.folder = Path()
        """Of the `kubectl` that leads here, once it is standing."""
        self.unshown = 0
        """How many rows of each kind its state API knows and does not show."""
        self._polls = 0
        self._serving = ExitStack()
        self.url = self._serving.enter_context(loopback.answering(self._reply))

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def close(self) -> None:
        self._serving.close()

    def kubectl_knows(self, outputs: ClusterEnvironment = OUTPUTS, token: str = TOKEN, **known: Any) -> None:
        """Have kubectl say this of the stack whose dashboard this is; `known` as of `stub_kubectl.install`."""
        at = replace(outputs, ray_dashboard_url=self.url)
        stub_kubectl.install(self.folder, at, token, self.port, **known)

    def kubectl_refuses(self, words: str, answer: str) -> None:
        """Have kubectl refuse every command with these words, and do the others as before."""
        stub = (self.folder / "kubectl").read_text()
        refusal = f'case "$*" in {words}) echo "{answer}" >&2; exit 1;; esac'
        (self.folder / "kubectl").write_text(stub.replace("#!/bin/sh\n", f"#!/bin/sh\n{refusal}\n"))

    def ray_jobs(self) -> list[dict[str, Any]]:
        """The RayJobs that are there."""
        return [json.loads(file.read_text()) for file in sorted((self.folder / "rayjobs").glob("*"))]

    def replace_ray_job(self, job: dict[str, Any]) -> None:
        """Have KubeRay's object be this one."""
        (self.folder / "rayjobs" / f"{job['metadata']['name']}.json").write_text(json.dumps(job))

    def forwards(self) -> list[int]:
        """Processes of the port-forwards that were started."""
        log = self.folder / "forwards"
        return [int(line) for line in log.read_text().split()] if log.exists() else []

    def answer(self, method: str, path: str, body: bytes) -> Reply:
        if path == "/api/version":
            return 200, {"version": "4", "ray_version": "2.60.0", "ray_commit": "x", "session_name": "x"}
        for part, status in self.failing.items():
            if path.startswith(part) or path.endswith(part):
                return status, f"{path} is out of order"
        if path.startswith("/api/packages/"):
            self.packages += [body] if method == "PUT" else []
            return (404, "") if method == "GET" else (200, {})
        if path.startswith("/api/v0/"):
            found = self.state.get(path.removeprefix("/api/v0/").partition("?")[0], [])
            counts = {"num_filtered": len(found) + self.unshown, "partial_failure_warning": ""}
            return 200, {"data": {"result": {"result": found, **counts}}}
        if path.startswith("/nodes"):
            return 200, {"data": {"summary": []}}
        if path == "/api/jobs/" and method == "GET":
            return 200, [
                {
                    **self._details(),
                    "start_time": int(time.time() - 60 * self.minutes) * 1000,
                    "entrypoint": "on the stack's cluster",
                }
            ]
        if path == "/api/jobs/" and method == "POST":
            if self.submitted:
                return 500, f"Job with submission_id {self.submitted['submission_id']} already exists."
            self.submitted = json.loads(body)
            return 200, {"job_id": "x", "submission_id": self.submitted["submission_id"]}
        if path.endswith("/stop"):
            if path.split("/")[-2] not in (self.submitted.get("submission_id"), "x"):
                return 404, "Job does not exist"
            self.stopped = True
            return 200, {"stopped": True}
        if path.endswith("/logs") and self.gone:
            return 500, f"no agent at {self.gone}"
        if path.endswith("/logs") and self._ended and self.refusals:
            self.refusals -= 1
            return 500, "busy"
        if path.endswith("/logs"):
            shown = self.lines[: 2 * self._polls] if not self._ended else self.lines
            return 200, {"logs": "".join(f"{line}\n" for line in shown) + ("" if self._ended else "half a li")}
        if path.startswith("/api/jobs/"):
            self._polls += 1
            return 200, self._details()
        return 404, "no such path"

    @property
    def _ended(self) -> bool:
        return (self.stopped or self._polls > 4) and not self.deaf

    def _details(self) -> dict[str, Any]:
        status = "PENDING" if self._polls <= self.pending else "RUNNING"
        if self._ended:
            status = "STOPPED" if self.stopped else "FAILED" if self.exit_code else "SUCCEEDED"
        return {
            "type": "SUBMISSION",
            "job_id": "01000000",
            "submission_id": self.submitted.get("submission_id", "x"),
            "status": status,
            "entrypoint": self.submitted.get("entrypoint", "x"),
            "message": self.message,
            "runtime_env": self.submitted.get("runtime_env"),
            "driver_agent_http_address": f"http://{self.gone or '10.0.0.1'}:52365",
            "driver_exit_code": self.exit_code if self._ended and self.exit_code >= 0 else None,
        }

    def _reply(self, request: Request) -> Reply:
        if self.chance.random() < self.broken:
            return None
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            return 403, "Forbidden"
        return self.answer(request.method, request.path, request.body)


@contextmanager
def standing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    """A stack whose dashboard answers at its URL, and a kubectl that knows it and leads port-forwards to it.

    Fails where a port-forward is left when the block ends.
    """
    fake = FakeRay()
    fake.folder = folder
    fake.kubectl_knows()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(follow, "_LEAST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(follow, "_PAUSE_PER_FETCH", 1.0)  # on a busy machine ten times as long takes seconds
    try:
        yield fake
    finally:
        fake.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in fake.forwards()), "a port-forward was left"


def press_ctrl_c(*_: object) -> None:
    """Ctrl-C, where a function is called whose place this takes."""
    raise KeyboardInterrupt


def lines_of_job(printed: str) -> list[str]:
    """Of what a command printed, what the job wrote."""
    return [line for line in printed.splitlines() if line.startswith("line")]


def press_ctrl_c_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, at the first lines of the job that are shown."""
    pressed: list[bool] = []
    show = follow.Follower._show

    def press_once(follower: follow.Follower, log: str, whole: bool) -> None:
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        show(follower, log, whole)

    monkeypatch.setattr(follow.Follower, "_show", press_once)
