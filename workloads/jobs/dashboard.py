"""The connection to a stack's Jobs API: its URL if that answers, otherwise a port-forward of our own on 127.0.0.1.

A port-forward ends with its pod or its connection, so it is renewed on demand: code that follows a job asks for the
address again after each failure.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import requests

from workloads.cluster.stack import DeployedStack, old_kubectl
from workloads.errors import AuthError, PlaceError, first_line
from workloads.jobs.entry_point import Supply

READY_SECONDS = 30.0
"""How long a new port-forward may take to answer."""

_ANSWER_SECONDS = 30

MOST_ROWS = 10_000
"""Maximum rows in an answer of Ray's state API (ray 2.60, util/state/common.py, RAY_MAX_LIMIT_FROM_API_SERVER)."""


class Dashboard:
    """A stack's Ray dashboard; `address` is its current address."""

    def __init__(self, stack: DeployedStack) -> None:
        self.stack = stack
        self._child: subprocess.Popen[bytes] | None = None
        self._address = ""

    @property
    def headers(self) -> dict[str, str]:
        """Headers of every request. Explicit, because Ray's client would otherwise send a token it finds at home."""
        return {"Authorization": f"Bearer {self.stack.token}"}

    def address(self) -> str:
        """Address of the dashboard; starts or renews a port-forward if one is needed.

        Raises:
            PlaceError: it does not answer.
            AuthError: what answers refuses the token.
        """
        environment = self.stack.environment
        if self._address and self._answers(self._address) == 200:
            return self._address
        self.close()
        status = self._answers(environment.ray_dashboard_url)
        if status == 200:
            self._address = environment.ray_dashboard_url
        elif environment.ray_dashboard_command:
            # Nothing answers, or somebody else's Ray does on the same port of this machine.
            self._address = self._forward(environment.ray_dashboard_command)
        elif status in (401, 403):
            raise _refused(environment.ray_dashboard_url)
        else:
            raise PlaceError(
                f"Ray's dashboard does not answer at {environment.ray_dashboard_url}.",
                "Check that this machine reaches the VPC, and that the head pod runs: "
                f"`{self.stack.command('get', 'pods')}`.",
            )
        return self._address

    def get(self, path: str) -> Any:
        """The JSON at a path of the dashboard.

        Raises:
            PlaceError: it does not answer, or not with that.
            AuthError: what answers refuses the token.
        """
        address = self.address()
        try:
            response = requests.get(f"{address}{path}", headers=self.headers, timeout=_ANSWER_SECONDS)
            response.raise_for_status()
            return response.json()
        except requests.RequestException as error:
            raise PlaceError(
                f"Ray's dashboard does not answer {path.partition('?')[0]}: {first_line(error)}",
                "The head may be busy: ask again in a minute, or see whether its pod runs: "
                f"`{self.stack.command('get', 'pods')}`.",
            ) from error

    def nodes(self) -> list[Supply]:
        """The nodes that are up, with all their resources, free or not."""
        found = self.get(f"/api/v0/nodes?limit={MOST_ROWS}")["data"]["result"]["result"]
        alive = [node for node in found if node["state"] == "ALIVE"]
        return [Supply(name=f"node {one['node_ip']}", resources=one["resources_total"], count=1) for one in alive]

    def close(self) -> None:
        """End the port-forward, if one was started."""
        self._address = ""
        if self._child is not None and self._child.poll() is None:
            _signal_group(self._child.pid, signal.SIGTERM)
            try:
                self._child.wait(5)
            except subprocess.TimeoutExpired:
                _signal_group(self._child.pid, signal.SIGKILL)
                self._child.wait()
        self._child = None

    def hang_up(self, number: int, frame: FrameType | None) -> None:
        """End the port-forward on SIGHUP, which a closed terminal sends, and then die of it as without a handler."""
        if self._child is not None and self._child.returncode is None:
            _signal_group(self._child.pid, signal.SIGTERM)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    def _answers(self, address: str) -> int:
        """HTTP status of a request that needs the token; 0 if nothing answers."""
        try:
            return requests.get(f"{address}/api/version", headers=self.headers, timeout=10).status_code
        except requests.RequestException:
            return 0

    def _forward(self, command: str) -> str:
        port = _free_port()
        arguments, address = _port_forward(command, self.stack.kubectl, port), f"http://127.0.0.1:{port}"
        # Not a pipe, which somebody would have to read for as long as the port-forward is used.
        with tempfile.TemporaryFile("w+") as complaints:
            # In a session of its own: we handle Ctrl-C, and still need the port-forward to stop the job. A closed
            # terminal does not end it either: `hang_up` does.
            self._child = child = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                start_new_session=True,
            )
            deadline = time.monotonic() + READY_SECONDS
            while (status := self._answers(address)) != 200:
                if status in (401, 403):
                    self.close()
                    raise _refused(address)
                if child.poll() is not None or time.monotonic() > deadline:
                    self.close()
                    complaints.seek(0)
                    raise self._no_way(arguments, complaints.read())
                time.sleep(0.2)
        return address

    def _no_way(self, arguments: list[str], complaints: str) -> PlaceError:
        reason = (complaints.strip().splitlines() or ["no answer"])[-1]
        old = old_kubectl()
        advice = f"kubectl is {old}: take 1.31 or later, or use the cluster's IP endpoint. " if old else ""
        return PlaceError(
            f"`{shlex.join(arguments)}` does not reach Ray's dashboard: {reason}",
            f"{advice}Check that the head pod runs: `{self.stack.command('get', 'pods')}`.",
        )


@contextmanager
def reach(stack: DeployedStack, *, young: bool = False) -> Iterator[Dashboard]:
    """The connection to a stack's dashboard for the duration of the block.

    Args:
        stack: the stack.
        young: the cluster may be new and not answer yet, so that the caller asks again.

    Raises:
        PlaceError: it does not answer, and is not young.
        AuthError: what answers refuses the token.
    """
    _never_through_a_proxy()
    dashboard = Dashboard(stack)
    # Under `nohup` SIGHUP is ignored, and only the main thread may change that.
    ends_us = (
        threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
    )
    try:
        if ends_us:
            signal.signal(signal.SIGHUP, dashboard.hang_up)
        if not young:
            dashboard.address()
        yield dashboard
    finally:
        dashboard.close()
        if ends_us:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)


def _signal_group(group: int, number: int) -> None:
    # It may have ended just now; macOS then reports "not permitted" (killpg1 in XNU's bsd/kern/kern_sig.c).
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _never_through_a_proxy() -> None:
    """Bypass the environment's proxy, which requests obeys: it cannot reach this machine's loopback."""
    for name in ("NO_PROXY", "no_proxy"):
        exempt = os.environ.get(name, "")
        if exempt != "*" and "127.0.0.1" not in exempt.split(","):
            os.environ[name] = ",".join(filter(None, [exempt, "127.0.0.1"]))


def _port_forward(command: str, kubectl: tuple[str, ...], port: int) -> list[str]:
    """The stack's own command with another local port, only on loopback."""
    words = shlex.split(command)
    if words[:1] != ["kubectl"] or "port-forward" not in words or not words[-1].rpartition(":")[2].isdigit():
        raise PlaceError(
            f"The stack's ray_dashboard_command is {command!r}, which is not a `kubectl port-forward`.",
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
        "The RayCluster was recreated, or another Ray answers there: try again, or check --stack and --context.",
    )
