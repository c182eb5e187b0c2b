"""Starting and ending the emulator: what is looked at first, what is said, and what a second Ctrl-C cannot do."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from emulator import demo, lifecycle
from emulator.machine import processes
from emulator.machine.processes import OWNER_VARIABLE
from emulator.machine.state import CHECKOUT, EmulatorError, State
from emulator.programs import free_space
from emulator.ray import dashboard as ray_dashboard
from emulator.ray import job_clusters
from emulator.ray import nodes as ray_nodes
from emulator.ray.deployed_ray import DeployedRay
from tests.emulator import programs
from tests.emulator.conftest import ControlPlane
from tests.emulator.test_interruption import copied
from tests.support import stub_kubectl
from tests.support.processes import python
from tests.support.waiting import eventually

SLEEP = ["sleep", "600"]
NODES = [*ray_nodes.NODES]


def stand_in_for_ray(
    state: State,
    monkeypatch: pytest.MonkeyPatch,
    nodes_alive: Callable[..., int],
    command: Callable[[str], list[str]] = lambda _: SLEEP,
) -> DeployedRay:
    """Have Ray's nodes be other commands, and `nodes_alive` say how many are up. Returns what to start."""
    monkeypatch.setattr(ray_nodes, "_head_command", lambda *_: command(ray_nodes.HEAD))
    monkeypatch.setattr(ray_nodes, "_worker_command", lambda _state, name, *_: command(name))
    monkeypatch.setattr(ray_dashboard, "nodes_alive", nodes_alive)
    return programs.deployed_ray(f"http://127.0.0.1:{state.port('ray-dashboard')}")


def test_a_second_ctrl_c_does_not_disturb_the_end(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def interrupted(_state: State) -> list[str]:
        for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), name)
        ended.append("all")
        return []

    lines: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(free_space, "require", lambda *_room, **_limits: os.kill(os.getpid(), signal.SIGINT))
    # The first call clears what an earlier emulator left, before there is anything to interrupt.
    monkeypatch.setattr(lifecycle, "take_down", lambda found: interrupted(found) if lines else lines.append("clear"))

    with pytest.raises(KeyboardInterrupt), lifecycle.started(state, lines.append):
        pass

    assert ended == ["all"]
    assert lines[-1] == "ending everything"
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.thorough
@pytest.mark.parametrize("variable", ["HOME", "XDG_CACHE_HOME"])
def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, variable: str) -> None:
    checkout = copied(tmp_path / "checkout")
    environment = {name: value for name, value in os.environ.items() if name != "XDG_CACHE_HOME"}
    environment |= {variable: "/proc/nowhere", "PATH": "/usr/bin:/bin"}

    done = python("-m", "emulator", "up", cwd=checkout, env=environment)

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("\n") == 1
    assert "/proc/nowhere" in done.stderr
    assert "No such file or directory" in done.stderr
    assert "XDG_CACHE_HOME" in done.stderr
    assert processes.owned_by(checkout / ".oasis") == []


@pytest.mark.thorough
def test_a_command_of_the_demo_hears_ctrl_c_and_is_ended_with_all_it_started(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, heard = tmp_path / "ready", tmp_path / "heard"
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(60)"
    command = f"""
import pathlib, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {deaf!r}])
print("started", flush=True)
try:
    pathlib.Path({str(ready)!r}).touch()
    time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path({str(heard)!r}).touch()
    time.sleep(60)
"""
    monkeypatch.setattr(demo, "STOP_SECONDS", 1.0)

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    def interrupt_once_ready() -> None:
        eventually(ready.exists, 30)
        os.kill(os.getpid(), signal.SIGALRM)  # this process alone, as `make down` does

    before = signal.signal(signal.SIGALRM, interrupt)
    waiting = threading.Thread(target=interrupt_once_ready, daemon=True)
    waiting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            demo.run([sys.executable, "-c", command], {OWNER_VARIABLE: str(state.directory)})
    finally:
        waiting.join()
        signal.signal(signal.SIGALRM, before)

    assert heard.exists()
    assert processes.owned_by(state.directory) == []


def test_a_demo_fails_without_its_results_or_with_a_model_that_did_not_learn(tmp_path: Path) -> None:
    for name in demo.RESULTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"val/accuracy": 0.99}')
    demo.check(tmp_path)

    (tmp_path / demo.SUMMARY).write_text('{"val/accuracy": 0.97}')
    with pytest.raises(EmulatorError, match=r"97\.0% validation accuracy.*98%.*table\.txt"):
        demo.check(tmp_path)
    (tmp_path / demo.MEASUREMENT / "all_reduce.png").unlink()
    with pytest.raises(EmulatorError, match=r"demo-bench/all_reduce\.png did not arrive"):
        demo.check(tmp_path)


def test_a_demo_forgets_its_own_earlier_run_and_measurement_and_no_other(state: State) -> None:
    own = [
        "buckets/b/demo-train/journal/1",
        "buckets/b/bench/demo-bench/r",
        "results/demo-train/r",
        "results/demo-bench/r",
    ]
    others = [
        "buckets/b/demo-train-2/journal/1",
        "buckets/b/bench/mine/r",
        "buckets/c/demo-train/x",
        "runs/demo-train/x",
    ]
    for name in (*own, *others, "results/mine/r"):
        state.path(*name.split("/")).write_text("x")

    said: list[str] = []
    demo.forget(state, "gs://b", said.append)

    left = {path.relative_to(state.directory).as_posix() for path in state.directory.rglob("*") if path.is_file()}
    assert left == {*others, "results/mine/r"}
    assert len(said) == len(own) and all("of an earlier demo (1 bytes" in line for line in said)


def test_what_is_taken_down_is_named_rays_nodes_and_those_of_jobs_too(state: State) -> None:
    parts = ["kube-apiserver", *NODES]
    for name in parts:
        state.spawn(name, SLEEP)
    job = State(state.path(job_clusters.FOLDER, "a-job"))
    job.spawn(ray_nodes.HEAD, SLEEP)

    names = lifecycle.take_down(state)

    assert sorted(names) == sorted([*parts, "the Ray of a-job"])
    assert [*state.processes(), *job.processes()] == []


def test_the_documented_overrides_are_those_that_ray_gets(tmp_path: Path) -> None:
    documented: dict[str, str] = {}
    for line in (CHECKOUT / "docs" / "emulator.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0].startswith("`OASIS_"):
            documented[cells[0].strip("`")] = "" if cells[1] == "empty" else cells[1].strip("`")
    environment = {"data_uri": "gs://<data bucket>", "runs_uri": "gs://<runs bucket>"}

    made = ray_nodes.overrides(tmp_path / ".oasis", environment)

    assert {name: value.removeprefix(f"{tmp_path}/") for name, value in made.items()} == documented
    promised = {f"OASIS_{name.upper()}" for name in vars(stub_kubectl.OUTPUTS)}
    assert {name for name in made if not name.endswith("_MOUNT")} <= promised


def test_a_dashboard_port_that_somebody_took_meanwhile_is_one_message_and_starts_nothing(state: State) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        remedy = rf"cannot have {url}: Address already in use\. End what listens.*oasis:ray\.dashboard_port"
        with pytest.raises(EmulatorError, match=remedy):
            ray_nodes.start(state, programs.deployed_ray(url), {}, print)

    assert state.processes() == []
    assert not state.log(ray_nodes.HEAD).exists()


@pytest.mark.parametrize(
    ("node", "failures", "again"),
    [(ray_nodes.HEAD, 1, NODES), (ray_nodes.HEAD, 9, NODES), (ray_nodes.WORKERS[0], 1, [ray_nodes.WORKERS[0]])],
)
def test_what_ends_while_ray_starts_is_started_again_a_few_times_and_with_the_head_every_node(
    state: State, monkeypatch: pytest.MonkeyPatch, node: str, failures: int, again: list[str]
) -> None:
    starts: list[str] = []

    def command(name: str) -> list[str]:
        starts.append(name)
        return ["false"] if name == node and starts.count(node) <= failures else SLEEP

    deployed = stand_in_for_ray(state, monkeypatch, lambda *_: 3 if starts.count(node) > failures else 0, command)
    said: list[str] = []
    try:
        if failures == 1:
            ray_nodes.start(state, deployed, {}, said.append)
            assert starts == [*NODES, *again]
            assert {process.name for process in state.processes()} == {*NODES}
            what = "Ray" if again == NODES else "it"
            assert said[1:] == [f"{node} ended while it started; starting {what} once more"]
        else:
            with pytest.raises(EmulatorError, match=r"ray-head ended\. Its log is"):
                ray_nodes.start(state, deployed, {}, said.append)
            assert starts == [*NODES, *again, *again]
            assert state.processes() == []
    finally:
        ray_nodes.stop(state)


def test_ctrl_c_while_ray_starts_leaves_none_of_its_nodes(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    def press(*_: object) -> int:
        started.extend(process.pid for process in state.processes())
        raise KeyboardInterrupt

    deployed = stand_in_for_ray(state, monkeypatch, press)
    with pytest.raises(KeyboardInterrupt):
        ray_nodes.start(state, deployed, {}, print)
    assert len(started) == 3
    assert state.processes() == [] and not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_no_two_nodes_of_an_emulators_rays_share_a_worker_port_and_one_ray_too_many_is_refused(tmp_path: Path) -> None:
    rays = [State(tmp_path / str(number)) for number in range(12)]
    for number, ray in enumerate(rays[:11]):
        ray_nodes.take_part(ray, rays[: number + 1])

    ranges = [ray_nodes.worker_ports(ray, name) for ray in rays[:11] for name in NODES]
    ports = {port for of_a_node in ranges for port in of_a_node}
    assert all(ranges) and len(ports) == sum(map(len, ranges))
    assert min(ports) >= 10002 and max(ports) <= 19999
    with pytest.raises(EmulatorError, match="no part of Ray's port range is free"):
        ray_nodes.take_part(rays[11], rays)


@pytest.mark.emulated
def test_an_up_fails_soon_when_a_part_of_the_cloud_has_died_and_shows_its_last_words(
    bare_cluster: ControlPlane, tmp_path: Path
) -> None:
    state = bare_cluster.state
    end = tmp_path / "end"
    program = f"import pathlib, time\ntime.sleep(120)\npathlib.Path({str(end)!r}).touch()\n"
    endless = programs.engine(state, tmp_path / "endless", program, lifecycle.trouble)
    state.spawn("gke", ["sh", "-c", "echo its last words; exit 1"])
    try:
        with pytest.raises(EmulatorError, match=r"(?s)gke, a part of the emulated cloud, ended.*its last words"):
            endless.up()
    finally:
        state.stop("gke")

    assert not end.exists()


@pytest.mark.emulated
def test_a_lost_passphrase_is_not_replaced_and_the_users_own_is_not_used(
    bare_cluster: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "the user's")
    engine = programs.engine(bare_cluster.state, tmp_path / "secretive", "")
    engine.up()
    file = bare_cluster.state.path("pulumi", "passphrase")
    kept = file.read_text()
    monkeypatch.delenv("PULUMI_CONFIG_PASSPHRASE")
    engine.preview()  # by the file alone

    file.unlink()
    try:
        with pytest.raises(EmulatorError, match=r"passphrase is gone.*emulator down"):
            engine.preview()
    finally:
        file.write_text(kept)
