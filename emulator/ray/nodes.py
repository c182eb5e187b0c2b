"""The standing Ray behind the emulated RayCluster: a head and two workers as processes, with the stack's token.

All nodes share 127.0.0.1, because Ray binds a node with any other address, even 127.0.0.2, to every interface.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from emulator.machine import processes
from emulator.machine.processes import OWNER_VARIABLE
from emulator.machine.state import DIRECTORY_VARIABLE, EmulatorError, State, occupied
from emulator.ray import dashboard as ray_dashboard
from emulator.ray.deployed_ray import DeployedRay
from emulator.ray.folder import session_directory

WORKERS = ("ray-worker-1", "ray-worker-2")
"""The nodes that jobs run on: one CPU each, as two gloo ranks need them. The head has none, as in the cloud."""

HEAD = "ray-head"
NODES = (HEAD, *WORKERS)

_MIB = 1024 * 1024
_ANSWER_SECONDS = 30
"""How long a dashboard may take to count its nodes when all run; on a busy machine it misses single answers."""

_TELL_SECONDS = 10.0
"""How often the wait for nodes is reported while none arrives."""

_STARTS = 3
"""Some of Ray's internal timeouts cannot be set, and a machine that is busy with something else, such as another demo,
does not meet them; the next start finds files and compiled modules in memory."""

_GRACE_SECONDS = 5.0

_NODE_MEMORY = 2048 * _MIB  # what Ray hands out, not a limit; otherwise each node would offer the whole machine's
_OBJECT_STORE = 128 * _MIB
_WORKER_PORTS = range(10002, 20000)  # Ray's default; holds no other port of an emulator
_PORTS_PER_NODE = 300
_PARTS = len(_WORKER_PORTS) // (_PORTS_PER_NODE * len(NODES))
_GCS = "ray-gcs"
"""Name of the port that determines this Ray's part of Ray's range."""

_MARK = {"OASIS_EMULATOR_PART": "ray"}  # in the environment of every node, and so of every job's command
_WATCHER = "while kill -s 0 "  # Ray's own, beside each job: ends the job if Ray dies (ray 2.60, job_supervisor.py)
_DRIVERS = 1000
"""Amount of the head's custom resource `driver`, more than anyone uses up."""

_RAY_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every listener on 127.0.0.1; see ray_start.py
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # `make down` does not wait for jobs
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # the dashboard's Train page
    "RAY_DISABLE_DOCKER_CPU_WARNING": "1",
    "RAY_worker_maximum_startup_concurrency": "12",  # as in the stack, where the head has 4 CPUs
    "RAY_worker_niceness": "0",  # a pod's CPUs are its own; at Ray's 15, everything else here would come first
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",  # two ranks share two cores, so their threads would fight
}


class _EndedError(EmulatorError):
    """A node ended while Ray started."""

    def __init__(self, message: str, name: str) -> None:
        super().__init__(message)
        self.name = name


def overrides(directory: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Settings for a Ray on loopback, which has no GPUs, NICs, mounts or image. All others are as the stack promises.

    Args:
        directory: the emulator's folder.
        environment: the ConfigMap's data.
    """
    return {
        "OASIS_GPUS_PER_NODE": "0",
        "OASIS_RDMA_NICS": "0",
        "OASIS_ACCELERATOR": "",
        "OASIS_IMAGE": "",
        "OASIS_DATA_MOUNT": str(_bucket_directory(directory, environment["data_uri"])),
        "OASIS_RUNS_MOUNT": str(_bucket_directory(directory, environment["runs_uri"])),
        "OASIS_SCRATCH_MOUNT": str(directory / "scratch"),
    }


def start(
    state: State,
    deployed: DeployedRay,
    environ: Mapping[str, str],
    report: Callable[[str], None],
    *,
    url: str = "",
    mounts: Path | None = None,
    worker_cpus: int = 1,
    timeout_seconds: float = 360.0,
) -> None:
    """Start head and workers and return when the dashboard counts them all. Does nothing where they already run.

    Args:
        state: the emulator's folder; processes are recorded there.
        deployed: what `find` returned.
        environ: further variables for every Ray process: where the emulated Google endpoints are.
        report: called with each step.
        url: where the dashboard answers, if not where the stack's does.
        mounts: the emulator's folder, where the buckets are, if `state` is a folder within it.
        worker_cpus: what each worker offers, whatever the machine has.
        timeout_seconds: how long the whole start may take.

    Raises:
        EmulatorError: the dashboard's port is taken, a process ended, or not all nodes answered in time; nothing of
            it is left running.
    """
    url = url or deployed.environment["ray_dashboard_url"]
    if _is_up(state, url, deployed.token):
        return
    variables = _variables(mounts or state.directory, deployed, environ)
    deadline = time.monotonic() + timeout_seconds
    report(f"starting Ray's head on {url} and {len(WORKERS)} workers, which takes 10 to 30 s")
    stop(state)
    _refuse_taken(urlsplit(url).port or 80, url)
    gcs = state.port(_GCS)

    def spawn(name: str) -> None:
        is_head = name == HEAD
        command = _head_command(state, url, gcs) if is_head else _worker_command(state, name, gcs, worker_cpus)
        state.spawn(name, _without_users_ray(variables, command), env=variables)

    try:
        for name in NODES:  # all at once: each worker waits for the head by itself, once it has loaded Ray
            spawn(name)
        _until_up(state, spawn, lambda: _await_nodes(state, url, deployed.token, deadline, report), report)
    except BaseException:  # Ctrl-C too: a Ray that nobody was told about must not stay
        stop(state)
        raise


def _until_up(
    state: State, spawn: Callable[[str], None], wait: Callable[[], None], report: Callable[[str], None]
) -> None:
    """Wait for the nodes, and restart those that end meanwhile: a worker alone, or all of them if the head ended."""
    for _ in range(_STARTS - 1):
        try:
            return wait()
        except _EndedError as error:
            ended = error.name
        report(f"{ended} ended while it started; starting {'Ray' if ended == HEAD else 'it'} once more")
        if ended == HEAD:
            stop(state)
        else:
            _end(state, [ended], _GRACE_SECONDS)
        for name in NODES if ended == HEAD else [ended]:
            spawn(name)
    return wait()


def _is_up(state: State, url: str, token: str) -> bool:
    """True if all nodes run and the dashboard counts them; a late dashboard is asked again."""
    if not all(state.process(name) for name in NODES):
        return False
    try:
        _await_nodes(state, url, token, time.monotonic() + _ANSWER_SECONDS, lambda _line: None)
    except EmulatorError:
        return False
    return True


def running_jobs(state: State) -> list[str]:
    """Commands of the running jobs; Ray gives each to a shell in a session of its own."""
    leaders = (pid for pid in processes.owned_by(state.directory, **_MARK) if pid in processes.in_session(pid))
    commands = [words[2] for pid in leaders if (words := processes.words(pid))[1:2] == ["-c"]]
    return [command for command in commands if not command.startswith(_WATCHER)]


def stop(state: State, *, grace_seconds: float = _GRACE_SECONDS) -> None:
    """End every node and what runs on it, jobs included, and remove Ray's session folders."""
    # Ray's processes overwrite the mark in their environment with titles, so they are known by their session. A job's
    # command has a session of its own and keeps the mark, even when the node that started it has died.
    _end(state, (*WORKERS, HEAD), grace_seconds, processes.owned_by(state.directory, **_MARK))
    shutil.rmtree(session_directory(state.directory), ignore_errors=True)


def _end(state: State, names: Sequence[str], grace_seconds: float, others: Iterable[int] = ()) -> None:
    """End these nodes, everything in their sessions, and the `others`."""
    recorded = [process for name in names if (process := state.recorded(name))]
    pids = [pid for process in recorded for pid in processes.session_of(process)]
    processes.end(dict.fromkeys([*pids, *processes.descendants(*pids), *others]), grace_seconds)
    for name in names:
        state.stop(name)


def _variables(directory: Path, deployed: DeployedRay, environ: Mapping[str, str]) -> dict[str, str]:
    changed = overrides(directory, deployed.environment)
    for name, path in changed.items():
        if name.endswith("_MOUNT"):
            Path(path).mkdir(parents=True, exist_ok=True)
    promised = {f"OASIS_{name.upper()}": value for name, value in deployed.environment.items()}
    # A pod has neither the deployer's settings nor a kubeconfig.
    given = {name: value for name, value in environ.items() if not name.startswith(("PULUMI_", "KUBECONFIG"))}
    return {
        **given,
        **promised,
        **changed,
        **_RAY_ENVIRONMENT,
        **_MARK,
        "RAY_AUTH_TOKEN": deployed.token,
        **_path(environ),
    }


def _path(environ: Mapping[str, str]) -> dict[str, str]:
    """A PATH on which `python` is the one that has Ray, as in a container."""
    path = environ.get("PATH") or os.environ.get("PATH") or os.defpath
    return {"PATH": os.pathsep.join([str(Path(sys.executable).parent), path])}


def _without_users_ray(variables: Mapping[str, str], command: list[str]) -> list[str]:
    """The command without the user's variables for another Ray, another stack or the user's W&B account."""
    ours = {*variables, DIRECTORY_VARIABLE, OWNER_VARIABLE}
    foreign = [name for name in os.environ if name.startswith(("RAY_", "OASIS_", "WANDB_", "PYTHON"))]
    return ["env", *(f"--unset={name}" for name in foreign if name not in ours), *command]


def _head_command(state: State, url: str, gcs: int) -> list[str]:
    return [
        *_ray_start(state, HEAD),
        "--head",
        f"--port={gcs}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={urlsplit(url).port or 80}",
        f"--ray-client-server-port={state.port('ray-client')}",
        "--num-cpus=0",
        f"--resources={json.dumps({'driver': _DRIVERS})}",
    ]


def _worker_command(state: State, name: str, gcs: int, cpus: int) -> list[str]:
    return [*_ray_start(state, name), f"--address=127.0.0.1:{gcs}", f"--num-cpus={cpus}"]


def _ray_start(state: State, name: str) -> list[str]:
    directory = session_directory(state.directory) / name.removeprefix("ray-")
    directory.mkdir(parents=True, exist_ok=True)
    ports = worker_ports(state, name)
    # -P: this folder has modules named like the standard library's.
    return [
        *(sys.executable, "-P", str(Path(__file__).with_name("start.py"))),
        *("--block", "--disable-usage-stats", "--node-ip-address=127.0.0.1"),
        f"--temp-dir={directory}",
        f"--memory={_NODE_MEMORY}",
        f"--object-store-memory={_OBJECT_STORE}",
        f"--dashboard-agent-listen-port={state.port(f'{name}-agent')}",
        *(f"--min-worker-port={ports.start}", f"--max-worker-port={ports.stop - 1}"),
    ]


def worker_ports(state: State, name: str) -> range:
    """Ports of a node's workers: separate ones, as two nodes that share an address would hand out the same ports.

    The part of Ray's range depends on a port of this emulator, so that two emulators rarely collide.
    """
    place = _part(state) * len(NODES) + NODES.index(name)
    return _WORKER_PORTS[place * _PORTS_PER_NODE :][:_PORTS_PER_NODE]


def take_part(state: State, others: Iterable[State]) -> None:
    """Choose the part of Ray's range for a Ray's workers: one that no other Ray here uses.

    Raises:
        EmulatorError: every part is in use.
    """
    used = {_part(other) for other in others if other.directory != state.directory}
    if len(used) == _PARTS:
        raise EmulatorError("no part of Ray's port range is free for one more Ray; end other jobs first")
    state.port(_GCS, fits=lambda port: port % _PARTS not in used)


def _part(state: State) -> int:
    return state.port(_GCS) % _PARTS


def _bucket_directory(directory: Path, uri: str) -> Path:
    """Folder of a bucket, or of a folder in it."""
    place = urlsplit(uri)
    return directory / "buckets" / place.netloc / place.path.strip("/")


def _refuse_taken(port: int, url: str) -> None:
    if why := occupied(port):
        raise EmulatorError(
            f"Ray's dashboard cannot have {url}: {why}. End what listens on port {port}, or set "
            "oasis:ray.dashboard_port to a free one."
        )


def _await_nodes(state: State, url: str, token: str, deadline: float, report: Callable[[str], None]) -> None:
    said, said_at = 0, time.monotonic()
    while (alive := ray_dashboard.nodes_alive(url, token)) != len(NODES):
        if alive != said or time.monotonic() - said_at >= _TELL_SECONDS:
            said, said_at = alive, time.monotonic()
            report(f"{alive} of Ray's {len(NODES)} nodes are up; waiting for the others")
        ended = [name for name in NODES if not state.process(name)]
        if ended or time.monotonic() > deadline:
            name = ended[0] if ended else HEAD
            how = f"{name} ended" if ended else "not every Ray node answered in time"
            log = state.log(name)
            message = f"{how}. Its log is {log}; it ends with:\n  {processes.last_words(log)}"
            raise _EndedError(message, name) if ended else EmulatorError(message)
        time.sleep(0.25)
