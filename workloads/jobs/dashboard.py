"""The way to a stack's Jobs API: its URL where that answers, else a port-forward of our own on 127.0.0.1.

A port-forward ends when its pod or the connection does, so it is renewed on demand: whoever follows a job asks for the
address again after each failure.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from workloads.cluster.stack import DeployedStack, old_kubectl
from workloads.errors import AuthError, PlaceError

READY_SECONDS = 30.0
"""How long a new port-forward may take to answer."""


_MOST_NODES = 10_000  # of Ray's state API (ray 2.60, util/state/common.py, RAY_MAX_LIMIT_FROM_API_SERVER)


@dataclass(frozen=True)
class Node:
    """One node of a Ray cluster."""

    address: str
    resources: Mapping[str, float]
    """All it has, free or not, by Ray's names."""


class Dashboard:
    """A stack's Ray dashboard; `address` is where it answers now."""

    def __init__(self, stack: DeployedStack) -> None:
        self._stack = stack
        self._child: subprocess.Popen[str] | None = None
        self._address = ""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request. Said outright, as Ray's client would send a token it finds at home instead."""
        return {"Authorization": f"Bearer {self._stack.token}"}

    def address(self) -> str:
        """Address of the dashboard, with a port-forward started or renewed if it takes one.

        Raises:
            PlaceError: it does not answer.
            AuthError: what answers refuses the token.
        """
        environment = self._stack.environment
        if self._address and self._answers(self._address) == 200:
            return self._address
        self.close()
        status = self._answers(environment.ray_dashboard_url)
        if status == 200:
            self._address = environment.ray_dashboard_url
        elif environment.ray_dashboard_command:
            # Nothing there, or somebody else's Ray on the same port of this machine.
            self._address = self._forward(environment.ray_dashboard_command)
        elif status in (401, 403):
            raise _refused(environment.ray_dashboard_url)
        else:
            raise PlaceError(
                f"Ray's dashboard does not answer at {environment.ray_dashboard_url}.",
                "Check that this machine reaches the VPC, and that the head pod runs: "
                f"`kubectl --namespace {environment.ray_namespace} get pods`.",
            )
        return self._address

    def get(self, path: str) -> Any:
        """The JSON at a path of the dashboard."""
        request = urllib.request.Request(f"{self.address()}{path}", headers=self.headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)

    def nodes(self) -> list[Node]:
        """The nodes that are up."""
        found: list[dict[str, Any]] = self.get(f"/api/v0/nodes?limit={_MOST_NODES}")["data"]["result"]["result"]
        return [Node(it["node_ip"], it["resources_total"]) for it in found if it["state"] == "ALIVE"]

    def close(self) -> None:
        """End the port-forward, if one was started."""
        self._address = ""
        if self._child is not None and self._child.poll() is None:
            os.killpg(self._child.pid, signal.SIGTERM)
            try:
                self._child.wait(5)
            except subprocess.TimeoutExpired:
                os.killpg(self._child.pid, signal.SIGKILL)
                self._child.wait()
        self._child = None

    def _answers(self, address: str) -> int:
        """HTTP status of a request that needs the token; 0 where nothing answers."""
        if not address:
            return 0
        request = urllib.request.Request(f"{address}/api/version", headers=self.headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, ValueError):
            return 0

    def _forward(self, command: str) -> str:
        port = _free_port()
        arguments = _port_forward(command, self._stack.kubectl, port)
        # A session of its own: Ctrl-C is ours to handle, and stopping the job still needs the way to it.
        self._child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        complaints = _Collector(self._child)
        address = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + READY_SECONDS
        while (status := self._answers(address)) != 200:
            if status in (401, 403):
                self.close()
                raise _refused(address)
            if self._child.poll() is not None or time.monotonic() > deadline:
                reason = complaints.last or "no answer"
                self.close()
                old = old_kubectl()
                advice = f"kubectl is {old}: take 1.31 or later, or use the cluster's IP endpoint. " if old else ""
                raise PlaceError(
                    f"`{shlex.join(arguments)}` does not lead to Ray's dashboard: {reason}",
                    f"{advice}Check that the head pod runs: "
                    f"`kubectl --namespace {self._stack.environment.ray_namespace} get pods`.",
                )
            time.sleep(0.2)
        return address


@contextmanager
def reach(stack: DeployedStack, *, young: bool = False) -> Iterator[Dashboard]:
    """The way to a stack's dashboard for the length of the block.

    Args:
        stack: whose.
        young: it may have been made a moment ago and not answer yet, so whoever asks asks again.

    Raises:
        PlaceError: it does not answer, and is not young.
        AuthError: what answers refuses the token.
    """
    _never_through_a_proxy("127.0.0.1")
    dashboard = Dashboard(stack)
    try:
        if not young:
            dashboard.address()
        yield dashboard
    finally:
        dashboard.close()


def _never_through_a_proxy(host: str) -> None:
    """A proxy of the environment, which both urllib and Ray's client obey, cannot reach this machine's loopback."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, [os.environ.get(name), host]))


class _Collector:
    """Reads what a process complains about, so that it never blocks on a full pipe; keeps the last line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.last = ""
        self._stream = process.stderr
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self._stream or ():
            self.last = line.strip() or self.last


def _port_forward(command: str, kubectl: tuple[str, ...], port: int) -> list[str]:
    """The stack's own command with another local port, on loopback alone."""
    words = shlex.split(command)
    if words[:1] != ["kubectl"] or "port-forward" not in words or not words[-1].rpartition(":")[2].isdigit():
        raise PlaceError(
            f"The stack's ray_dashboard_command is {command!r}, which is no `kubectl port-forward`.",
            "Run it by hand in another terminal, then this command again.",
        )
    remote = words[-1].rpartition(":")[2]
    return [*kubectl, *words[1:-1], f"{port}:{remote}", "--address", "127.0.0.1"]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def _refused(address: str) -> AuthError:
    return AuthError(
        f"Ray at {address} refuses the stack's token.",
        "The RayCluster was made anew, or another Ray answers there: try again, or check --stack and --context.",
    )
