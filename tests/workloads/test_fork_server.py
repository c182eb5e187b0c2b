"""Forked workers, up to Ray's part: what a fork is given, who forks, and when a worker is started without."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from emulator.machine import processes
from emulator.machine.state import CHECKOUT
from tests.support import stub_kubectl
from tests.support.command_line import LAPTOP
from tests.support.processes import python
from tests.support.waiting import eventually
from workloads.cluster import fork_client, fork_server, session
from workloads.convnext.run.train import IMPORTS as TRAIN_IMPORTS
from workloads.environment import FORK_VARIABLE
from workloads.nccl.command import IMPORTS as BENCH_IMPORTS

WORKER = """
import json, os, random, sys
imported = "colorsys" in sys.modules
import numpy
from ray import UniqueID

drawn = [UniqueID.from_random().hex(), float(numpy.random.random()), random.random()]
print(json.dumps({
    "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0), "arguments": sys.argv, "path": sys.path,
    "directory": os.getcwd(), "variables": dict(os.environ), "imported": imported, "drawn": drawn,
    "main": sys.modules["__main__"].__file__,
}), flush=True)
print("a last word", file=sys.stderr)
"""


@dataclass(frozen=True)
class Started:
    """The process that was started for a worker."""

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def pid(self) -> int:
        """Of that process, which need not be the worker."""
        return self.process.pid

    def facts(self) -> dict[str, Any]:
        """What the worker says of itself."""
        eventually(lambda: "a last word" in self.output.read_text())
        lines = self.output.read_text().splitlines()
        (said,) = (line for line in lines if line.startswith("{"))
        return {**json.loads(said), "started": self.pid}


@dataclass(frozen=True)
class Node:
    """Where workers are started as Ray does it; this process is their raylet."""

    folder: Path
    driver: str = fork_server.process(os.getpid())
    started: list[Started] = field(default_factory=list)

    def command(self, modules: str = "colorsys") -> list[str]:
        """Of a worker."""
        worker = self.folder / "default_worker.py"
        client = [sys.executable, "-I", "-S", fork_client.__file__, modules, self.driver]
        return [*client, str(worker), f"--raylet-name={self.folder}/raylet", "--worker-id=1"]

    def start(self, command: list[str], **variables: str) -> Started:
        """Start one."""
        unset = ("OMP_NUM_THREADS", "PYTHONPATH", "PYTEST_CURRENT_TEST")
        own = {name: value for name, value in os.environ.items() if name not in unset}
        output = self.folder / f"output-{len(list(self.folder.glob('output-*')))}"
        # No pipe: the server has what was the first worker's, and would keep it open.
        with output.open("wb") as stream:
            process = subprocess.Popen(
                command, cwd=self.folder, env=own | variables, stdout=stream, stderr=subprocess.STDOUT, process_group=0
            )
        self.started.append(Started(process, output))
        return self.started[-1]

    def facts(self, modules: str = "colorsys", **variables: str) -> dict[str, Any]:
        """What a worker says of itself."""
        return self.start(self.command(modules), **variables).facts()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """One whose servers, of which each is a process that was started for a worker, end with the test."""
    found = Node(tmp_path)
    (tmp_path / "default_worker.py").write_text(WORKER)
    yield found
    for started in found.started:
        started.process.kill()
        started.process.wait()


def runs(pid: int) -> bool:
    return processes.start_time(pid) is not None


@pytest.mark.thorough
def test_a_fork_is_what_python_would_have_been_and_shares_nothing_that_is_its_own(node: Node) -> None:
    one = node.start(node.command(), MARK="a")
    two = node.start(node.command(), MARK="a")
    found = [one.facts(), two.facts()]
    plain = node.start([sys.executable, *node.command()[6:]], MARK="a").facts()
    server = found[0]["parent"]
    assert found[1]["parent"] == server and {one.pid, two.pid} & {server}  # the first process became the server
    for fact in found:
        assert fact["pid"] == fact["group"] and fact["pid"] not in (one.pid, two.pid)
        assert fact["arguments"] == node.command()[6:]
        assert (fact["directory"], fact["main"]) == (str(node.folder), fact["arguments"][0])
        assert fact["path"] == plain["path"]
        assert fact["imported"] and fact["variables"]["MARK"] == "a"
        assert not fork_server.SINGLE_THREADED.keys() & fact["variables"].keys()  # Ray sets what an actor is to have
    for drawn in zip(found[0]["drawn"], found[1]["drawn"], strict=True):
        assert drawn[0] != drawn[1]
    other = node.facts(MARK="b")
    assert other["parent"] == other["started"] != server  # what was imported may have read the environment
    os.killpg(server, signal.SIGKILL)
    third = node.facts(MARK="a")
    assert third["parent"] == third["started"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("import threading, time; threading.Thread(target=time.sleep, args=[3600], daemon=True).start()", "1 threads"),
        ("from ray import UniqueID; UniqueID.from_random()", "Ray's random numbers"),
        ("raise RuntimeError('a library is missing')", "RuntimeError: a library is missing"),
        ("raise SystemExit('not here')", "SystemExit: not here"),
    ],
)
def test_what_cannot_be_forked_is_started_as_without_a_server(node: Node, module: str, reason: str) -> None:
    (node.folder / "unfit.py").write_text(f"import colorsys\n{module}")
    variables = {"PYTHONPATH": str(node.folder)}
    clients = [node.start(node.command("unfit"), **variables) for _ in range(2)]
    assert [client.facts()["imported"] for client in clients] == [False, False]
    (told,) = (file.read_text() for file in node.folder.glob(f"*{fork_client.REFUSED}"))
    assert reason in told
    later = node.facts("unfit", **variables)  # told by the file, it does not try again
    assert later["pid"] == later["started"]


@pytest.mark.thorough
def test_a_server_that_dies_in_its_imports_is_not_made_again_by_each_worker_that_waits_for_it(node: Node) -> None:
    (node.folder / "deadly.py").write_text(
        "import os, pathlib, time\n"
        "folder = pathlib.Path(__file__).parent\n"
        "(folder / f'died-{os.getpid()}').touch()\n"
        "while len(list(folder.glob('came-*'))) < 4: time.sleep(0.05)\n"
        "time.sleep(2); os._exit(1)"  # they have all come: a moment later they wait
    )
    came = (
        "import os, pathlib, sys; from workloads.cluster import fork_client; "
        "pathlib.Path(f'came-{os.getpid()}').touch(); fork_client.main(*sys.argv[1:])"
    )
    words = node.command("deadly")
    command = [sys.executable, "-c", came, *words[words.index("deadly") :]]
    places = f"{CHECKOUT}{os.pathsep}{node.folder}"
    started = [node.start(command, PYTHONPATH=places) for _ in range(4)]
    for one in started:
        facts = one.facts()
        assert facts["group"] == facts["pid"] or facts["pid"] == one.pid
    assert len(list(node.folder.glob("died-*"))) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("missing", ["python", "client", "directory", "raylet"])
def test_a_node_without_what_the_driver_has_starts_workers_as_without_a_server(node: Node, missing: str) -> None:
    words = shlex.split(fork_server.executable(["colorsys"]))
    if missing in ("python", "client"):
        words[3 + (missing == "client")] += "-elsewhere"
    places = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    worker = node.command()[6:]
    if missing == "directory":
        worker[1] = f"--raylet-name={node.folder}/none/raylet"
    if missing == "raylet":
        del worker[1]
    facts = node.start([*words, *worker], **places).facts()
    assert facts["pid"] == facts["started"] and not facts["imported"] and facts["arguments"] == worker
    assert not list(node.folder.glob("f*"))


def test_a_stranger_is_given_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with socket.socket(socket.AF_UNIX, fork_client.KIND) as listener:
        assert fork_server._listen(listener, str(tmp_path / "socket")) == ""
        assert fork_client._made(str(tmp_path / "socket"), ["worker.py"], time.time() + 10) is False
        assert fork_server._accept(listener) is None
        with socket.socket(socket.AF_UNIX, fork_client.KIND) as client:
            client.connect(str(tmp_path / "socket"))
            assert fork_server._accept(listener) is None
            assert client.recv(1) == b""


@pytest.mark.thorough
def test_a_worker_whose_server_imports_for_too_long_starts_by_itself(node: Node) -> None:
    (node.folder / "slow.py").write_text("import time; time.sleep(3600)")
    hurried = (
        "import sys; from workloads.cluster import fork_client as client; client.WAIT_SECONDS = 1.0; "
        "client.main(*sys.argv[1:])"
    )
    places = f"{CHECKOUT}{os.pathsep}{node.folder}"
    words = node.command("slow")
    started = node.start([sys.executable, "-c", hurried, *words[words.index("slow") :]], PYTHONPATH=places)
    facts = started.facts()
    assert facts["parent"] == started.pid and not facts["imported"] and runs(started.pid)


def test_a_process_is_told_from_another_with_its_number() -> None:
    here = fork_server.process(os.getpid())
    assert fork_server._runs(here) and not fork_server._runs(f"{here}0") and not fork_server._runs("")
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        assert fork_server.process(ended.pid) == ""


def test_a_client_that_has_given_up_gets_no_worker(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, fork_client.KIND) as listener:
        assert fork_server._listen(listener, str(tmp_path / "socket")) == ""
        before = set(processes.descendants(os.getpid()))
        with pytest.raises(TimeoutError):
            fork_client._made(str(tmp_path / "socket"), ["worker.py"], time.time() + 0.1)
        assert fork_server._accept(listener) is None
        assert set(processes.descendants(os.getpid())) <= before


GONE = """
import os, socket, sys, time
from workloads.cluster import fork_client, fork_server
fork = os.fork
with socket.socket(socket.AF_UNIX, fork_client.KIND) as listener:
    fork_server._listen(listener, sys.argv[1])
    client = fork()
    if not client:
        socket.send_fds = lambda *given, send=socket.send_fds: (send(*given), os._exit(0))
        fork_client._made(sys.argv[1], ["worker.py"], time.time() + 30)
    os.fork = lambda: (os.waitpid(client, 0), fork())[1]
    print(os.getpid(), fork_server._accept(listener), flush=True)
    os.waitpid(-1, 0)
"""


def test_a_fork_whose_client_is_gone_ends_and_is_no_second_server(tmp_path: Path) -> None:
    done = python("-c", GONE, str(tmp_path / "socket"), timeout=60)
    (line,) = done.stdout.splitlines()
    assert line.endswith(" None") and done.returncode == 0, done.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("other", ["raylet", "driver"])
def test_a_server_ends_with_its_raylet_and_its_driver(node: Node, other: str) -> None:
    (node.folder / "default_worker.py").write_text(WORKER + "import time; time.sleep(3600)\n")
    if other == "raylet":
        command = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *node.command()]
        ends = node.start(command)
        facts = ends.facts()
    else:
        ends = node.start(["sleep", "3600"])
        facts = dataclasses.replace(node, driver=fork_server.process(ends.pid)).facts()
    time.sleep(2 * fork_server.LOOK_SECONDS)
    assert runs(facts["parent"])
    ends.process.kill()
    ends.process.wait()
    try:
        eventually(lambda: not runs(facts["parent"]), fork_server.END_SECONDS + 20)
        assert runs(facts["pid"])  # a worker that nobody ends is not the server's to end
    finally:
        os.kill(facts["pid"], signal.SIGKILL)
    assert [file.suffix for file in node.folder.glob("f*")] == [fork_client.LOCK]


LINGERING = """
import os, socket, sys
from workloads.cluster import fork_client, fork_server
fork_server.LINGER_SECONDS, fork_server.LOOK_SECONDS = 0.3, 0.05
with socket.socket(socket.AF_UNIX, fork_client.KIND) as listener:
    print(repr(fork_server._listen(listener, sys.argv[1])), fork_server._serve(listener, set()))
"""


def test_a_server_without_workers_ends_after_a_while(tmp_path: Path) -> None:
    done = python("-c", LINGERING, str(tmp_path / "socket"), timeout=60)
    assert done.stdout == "'' None\n", done.stderr


def test_a_place_where_no_server_can_listen_is_told_of(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, fork_client.KIND) as listener:
        assert "too long" in fork_server._listen(listener, str(tmp_path / ("long" * 30)))


PREPARED = """
import sys
import torch
from workloads.cluster import fork_server
def refuse(*_): raise SystemExit("CUDA was asked for its devices, which Ray has not given out yet")
torch._C._cuda_getDeviceCount = torch._C._cuda_init = torch.cuda._lazy_init = refuse
print(repr(fork_server._prepare(sys.argv[1:])), set(sys.argv[1:]) <= sys.modules.keys())
"""


@pytest.mark.thorough
@pytest.mark.parametrize("modules", [TRAIN_IMPORTS, BENCH_IMPORTS])
def test_after_what_a_node_imports_there_can_be_forks_and_no_gpu_was_touched(modules: tuple[str, ...]) -> None:
    variables = {name: value for name, value in os.environ.items() if name not in fork_server.SINGLE_THREADED}
    done = python("-c", PREPARED, *modules, env=variables | fork_server.SINGLE_THREADED, timeout=120)
    assert done.stdout == "'' True\n", done.stderr


ON_GPUS = session.Place(address="10.0.0.1:6379", environment=stub_kubectl.OUTPUTS)


@pytest.mark.parametrize(
    ("place", "imports", "variable", "job", "forked"),
    [
        (LAPTOP, ("colorsys",), "", {}, True),
        (LAPTOP, ("colorsys",), "1", {"working_dir": "gcs://code.zip", "env_vars": {"A": "1"}}, True),
        (LAPTOP, ("colorsys",), "0", {}, False),
        (LAPTOP, (), "", {}, False),
        (LAPTOP, ("colorsys",), "", {"pip": ["timm"]}, False),  # whose Python is another one
        (LAPTOP, ("colorsys",), "1", {"py_executable": "uv run"}, False),
        (ON_GPUS, ("colorsys",), "", {}, False),
        (ON_GPUS, ("colorsys",), "0", {}, False),
        (ON_GPUS, ("colorsys",), "1", {}, True),
        (replace(ON_GPUS, environment=replace(stub_kubectl.OUTPUTS, gpus_per_node=0)), ("colorsys",), "", {}, True),
    ],
)
def test_workers_are_forked_unless_they_have_gpus_or_another_python_or_somebody_says_so(
    monkeypatch: pytest.MonkeyPatch,
    place: session.Place,
    imports: tuple[str, ...],
    variable: str,
    job: dict[str, Any],
    forked: bool,
) -> None:
    monkeypatch.setenv(FORK_VARIABLE, variable)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps({"runtime_env": job}))
    assert bool(session._runtime_environment(place, imports)) == forked
