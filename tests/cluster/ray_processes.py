"""A Ray of several nodes on 127.0.0.1, each of them a process that a test starts and may end."""

from __future__ import annotations

import contextlib
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from emulator.machine import processes
from emulator.machine.state import CHECKOUT, State
from emulator.ray import start as ray_start
from tests.support.processes import python, usual_variables
from tests.support.waiting import eventually


@dataclass
class Nodes:
    """A head, and the workers that were started."""

    folder: Path
    """For what they write."""
    port: int
    """Of the head."""
    variables: dict[str, str]
    """Environment of every node, and of a command that is to use this Ray."""
    head: list[subprocess.Popen[bytes]] = field(default_factory=list)
    """`ray start --block` of the head, and of those before it that ended too early."""
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """By name; `ray start --block` of each."""
    options: dict[str, Sequence[str]] = field(default_factory=dict)
    """By name; with which each was started."""

    @property
    def address(self) -> str:
        """Where a command finds this Ray."""
        return f"127.0.0.1:{self.port}"

    def start(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """`ray start --block` of one more node."""
        self.options[name] = options
        command = [sys.executable, "-P", ray_start.__file__, "--block", "--object-store-memory=80000000"]
        command += ["--node-ip-address=127.0.0.1", f"--temp-dir={self.folder}/{name}", "--memory=2000000000"]
        # By default one port per machine: an agent that finds it taken starts no job, and does not say so.
        command += ["--dashboard-agent-listen-port=0"]
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen([*command, *options], env=self.variables, stdout=log, stderr=subprocess.STDOUT)

    def start_head(self, *options: str) -> None:
        """Start the head, and return once it listens."""
        self.head.append(self.start("head", *options))
        eventually(lambda: _listens(self.port))

    def command(self, *words: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        """`python` with these words, run to its end as a command that is to use this Ray."""
        return python(*words, env=self.variables, timeout=timeout)

    def run(self, script: str, *words: str, timeout: float = 400) -> subprocess.CompletedProcess[str]:
        """Runs a script that is connected to this Ray."""
        return self.command("-c", self._connected(script), *words, timeout=timeout)

    def begin(self, script: str) -> subprocess.Popen[str]:
        """Begins such a script, whose output can be read as it comes."""
        words = [sys.executable, "-c", self._connected(script)]
        return subprocess.Popen(words, cwd=CHECKOUT, env=self.variables, stdout=subprocess.PIPE, text=True)

    def _connected(self, script: str) -> str:
        return f"import ray; ray.init({self.address!r}, log_to_driver=False, logging_level='ERROR')\n{script}"

    def python(self, script: str, *words: str) -> str:
        """What such a script prints."""
        done = self.run(script, *words)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def wait_for(self, nodes: int) -> None:
        """Return once Ray has so many nodes, the head among them; one that has ended meanwhile is started anew."""

        def there() -> bool:
            # Ray gives a node 30 s to start (ray 2.60, _private/node.py), which a busy machine does not keep.
            if self.head[-1].poll() is not None:
                _end(self.workers.values())
                self.start_head(*self.options["head"])
            for name, process in self.workers.items():
                if process.poll() is not None:
                    self.workers[name] = self.start(name, *self.options[name])
            # The head listens long before it is a node that can be connected to.
            script = "print(sum(node['Alive'] for node in ray.nodes()))"
            try:
                return self.run(script, timeout=90).stdout.strip() == str(nodes)
            except subprocess.TimeoutExpired:  # a client whose head has ended waits for it without end
                return False

        eventually(there)


@contextlib.contextmanager
def headed(
    variables: Mapping[str, str], options: Callable[[Nodes], Sequence[str]] = lambda nodes: ()
) -> Iterator[Nodes]:
    """A head that other nodes may join for the length of the block, without CPUs unless `options` give it some.

    Args:
        variables: further ones of every node's environment.
        options: further ones of the head's `ray start`.
    """
    with tempfile.TemporaryDirectory(prefix="oasis-ray-", dir="/tmp") as folder:  # unix(7): 107 characters
        port = State(Path(folder, "ports")).port("gcs")
        everywhere = {
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every listener on 127.0.0.1; see emulator/ray/start.py
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(CHECKOUT),
        }
        found = Nodes(Path(folder), port, usual_variables(**everywhere) | dict(variables))
        try:
            found.start_head("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false", *options(found))
            yield found
        finally:
            _end((*found.workers.values(), *found.head))


def _end(nodes: Iterable[subprocess.Popen[bytes]]) -> None:
    """End nodes with all that they started."""
    nodes = list(nodes)
    running = [process.pid for process in nodes if process.poll() is None]
    processes.end(dict.fromkeys([*running, *processes.descendants(*running)]), 2)
    for process in nodes:
        process.wait()


def _listens(port: int) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
