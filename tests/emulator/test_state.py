"""The `.oasis` folder: locks, ports, and processes that are ended surely and never by a mere number."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from emulator.google.cloud import Cloud
from emulator.machine import processes
from emulator.machine.loopback import answers
from emulator.machine.state import CHECKOUT, EmulatorError, State
from emulator.ray.dashboard import nodes_alive
from tests.support.waiting import eventually

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)",
]
PARENT = [sys.executable, "-c", f"import subprocess; subprocess.Popen({SLEEP!r}, start_new_session=True).wait()"]


def test_a_stopped_process_takes_along_what_it_started_even_in_another_session(state: State) -> None:
    process = state.spawn("parent", PARENT)
    eventually(lambda: processes.descendants(process.pid))
    children = processes.descendants(process.pid)

    assert state.stop_all() == ["parent"]

    assert not process.is_running()
    assert [processes.start_time(child) for child in children] == [None]


def test_a_process_that_ignores_the_request_to_end_is_killed(state: State) -> None:
    process = state.spawn("deaf", DEAF)
    eventually(lambda: state.log("deaf").read_text())

    state.stop("deaf", grace_seconds=0.2)

    assert not process.is_running()


@pytest.mark.parametrize("earlier", [{"started": 1}, {"boot": "an earlier one"}], ids=["process", "boot"])
def test_a_recorded_pid_that_now_belongs_to_another_process_is_left_alone(
    state: State, earlier: dict[str, Any]
) -> None:
    bystander = subprocess.Popen(SLEEP, start_new_session=True)
    try:
        record = {"name": "old", "pid": bystander.pid, "started": processes.start_time(bystander.pid)}
        text = json.dumps({**record, "boot": processes.boot(), **earlier})
        file = state.path("processes", "old.json")
        file.write_text(text)

        assert state.process("old") is None
        state.stop("old")
        file.write_text(text)
        assert state.stop_all() == []

        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_process_whose_record_was_lost_is_ended_all_the_same(state: State) -> None:
    process = state.spawn("lost", SLEEP)
    state.path("processes", "lost.json").unlink()

    state.stop_all()

    assert not process.is_running()


def test_two_emulators_do_not_end_each_others_processes(tmp_path: Path) -> None:
    one, other = State(tmp_path / "one"), State(tmp_path / "one-more")
    mine, theirs = one.spawn("p", SLEEP), other.spawn("p", SLEEP)
    try:
        one.stop_all()
        assert not mine.is_running()
        assert theirs.is_running()
    finally:
        other.stop_all()


def test_a_process_that_outlives_the_one_that_started_it_is_ended_with_its_session(state: State) -> None:
    orphan = f"import subprocess; print(subprocess.Popen({SLEEP!r}, env={{}}).pid, flush=True)"
    leader = state.spawn("leader", [sys.executable, "-c", orphan])
    eventually(lambda: not leader.is_running() and state.log("leader").read_text())
    child = int(state.log("leader").read_text())
    assert processes.start_time(child) is not None
    assert state.ended() == ["leader"]

    state.stop("leader")

    assert processes.start_time(child) is None
    assert state.ended() == []


def test_a_port_stays_the_same_also_of_one_that_starts_anew_and_no_two_share_one(state: State, tmp_path: Path) -> None:
    ports = {name: state.port(name) for name in "abcdef"}

    assert len(set(ports.values())) == 6
    assert state.port("g", preferred=ports["a"]) not in ports.values()
    assert {name: State(state.directory).port(name) for name in "abcdef"} == ports
    state.clear()
    assert {name: State(state.directory).port(name) for name in "abcdef"} == ports
    assert [State(tmp_path / "another").port(name) for name in "abcdef"] != [*ports.values()]


def test_a_preferred_port_that_is_taken_is_not_handed_out(state: State, tmp_path: Path) -> None:
    # None that the kernel gives: it may be a connection's of another test the next moment.
    wanted = State(tmp_path / "first").port("dashboard")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", wanted))
        taken.listen()
        assert state.port("dashboard", preferred=wanted) != wanted
    assert State(tmp_path / "second").port("dashboard", preferred=wanted) == wanted


def test_a_port_that_another_command_has_chosen_and_not_yet_taken_is_not_handed_out(
    state: State, tmp_path: Path
) -> None:
    chosen = f"State(Path({str(tmp_path / 'other')!r})).port('dashboard')"
    script = f"from pathlib import Path\nfrom emulator.machine.state import State\nprint({chosen}, flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        wanted = int(other.stdout.readline())

        mine = state.port("dashboard", preferred=wanted)
        other.communicate("\n")

    assert mine != wanted
    assert State(tmp_path / "third").port("dashboard", preferred=wanted) == wanted


def test_a_preferred_port_among_those_of_rays_workers_is_not_taken(state: State) -> None:
    assert state.port("dashboard", preferred=12000) >= 20000


def test_whoever_asks_at_once_whether_it_is_locked_gets_the_same_answer_and_hinders_nobody(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    with state.path("lock").open("a+") as another:
        fcntl.flock(another, fcntl.LOCK_SH)  # one who asks, at this moment
        assert not state.is_locked()
        monkeypatch.setattr("emulator.machine.state.time.sleep", lambda _: fcntl.flock(another, fcntl.LOCK_UN))
        with state.lock("up"):
            assert state.is_locked()


def test_an_empty_lock_file_that_is_held_gets_nobody_interrupted(state: State) -> None:
    with state.path("lock").open("a+") as another:
        fcntl.flock(another, fcntl.LOCK_EX)
        assert state.interrupt_holder(pytest.fail) is None


def test_nobody_else_can_look_into_the_folder_or_the_cloud(state: State) -> None:
    state.directory.chmod(0o755)
    Cloud(State(state.directory).directory)

    assert state.directory.stat().st_mode & 0o777 == 0o700
    assert state.path("cloud.sqlite").stat().st_mode & 0o777 == 0o600


def test_what_is_no_http_server_does_not_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            for _ in range(2):
                connection, _address = server.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"no HTTP\r\n")

        threading.Thread(target=greet, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert not answers(url)
        assert nodes_alive(url, "token") == 0


def test_a_second_command_is_refused_with_the_first_ones_name_and_what_to_do(state: State) -> None:
    holder = (
        "import sys; from emulator.machine.state import State; from pathlib import Path; s = State(Path(sys.argv[1]))\n"
    )
    holder += "with s.lock('make demo'):\n print('held', flush=True)\n sys.stdin.read()"
    first = subprocess.Popen(
        [sys.executable, "-c", holder, str(state.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=CHECKOUT,
    )
    assert first.stdout is not None
    try:
        first.stdout.readline()
        with (
            pytest.raises(EmulatorError, match=rf"`make demo` \(process {first.pid}\) is at work.*make down"),
            state.lock("up"),
        ):
            pass
        told: list[str] = []
        assert state.interrupt_holder(told.append) == "make demo"
        assert told == ["make demo"]
        assert first.wait() != 0
        with state.lock("up"):
            assert state.is_locked()
    finally:
        first.kill()
        first.communicate()


def test_clearing_forgets_the_emulated_cloud_and_nothing_that_people_have_made(state: State) -> None:
    made = [
        *("logs/a.log", "results/mine/r.json", "benchmarks/kills.jsonl", "notes.txt"),
        *("runs/mine/checkpoints/1/shard", "data/digits/train/0/1.png"),
        *("buckets/some-runs/mine/journal/1", "storage.sqlite"),
    ]
    own = [
        *(
            "cloud.sqlite",
            "cloud.sqlite-journal",
            "cloud.sqlite-wal",
            "kubeconfig",
            "token-key",
            "pulumi/state/s.json",
            "scratch/copy",
        ),
        *("kubernetes/etcd/wal", "processes/old.json", "ports.json", ".ports.json.1.2", "bin/pulumi", "uploads/half"),
    ]
    for name in [*made, *own]:
        state.path(*name.split("/")).write_text("x")

    state.clear()

    left = {path.relative_to(state.directory).as_posix() for path in state.directory.rglob("*") if path.is_file()}
    assert left == set(made)


def test_a_command_that_is_interrupted_leaves_no_child(state: State) -> None:
    def give_up(_seconds: float) -> None:
        raise KeyboardInterrupt

    before = set(processes.descendants(os.getpid()))
    with pytest.raises(KeyboardInterrupt):
        processes.run(PARENT, state.log("c"), {**os.environ, **state.environment()}, state.directory, give_up, 0.5)

    state.stop_all()
    assert set(processes.descendants(os.getpid())) <= before
