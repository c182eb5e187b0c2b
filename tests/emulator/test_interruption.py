"""Ctrl-C in every phase of `make demo`, `down` during one, two of them side by side, and machines with too little room.

Everything runs in checkouts beside this one; small disks and little memory are mounted in a namespace of the command's.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from emulator import demo
from emulator.machine import processes
from emulator.machine.state import CHECKOUT, State
from emulator.programs.go_modules import cache_directory
from emulator.ray import folder as ray_folder
from emulator.ray import nodes as ray_nodes
from tests.support.processes import begun, python, running, write_program
from tests.support.waiting import eventually, read_rest, read_until

pytestmark = pytest.mark.emulated

SOURCES = ("emulator", "oasis_stack", "workloads", "__main__.py", "Pulumi.yaml", "Pulumi.local.yaml")
PATIENCE_SECONDS = 400
RUNS_BUCKET = "oasis-local-oasis-runs"


@pytest.fixture
def checkout(tmp_path: Path) -> Iterator[Path]:
    """A checkout beside this one."""
    copy = copied(tmp_path / "checkout")
    yield copy
    _end(copy)


@pytest.fixture
def empty_cache(tmp_path: Path) -> Path:
    """A user's cache without built programs; Go's own caches are this user's, so that nothing is downloaded."""
    cache = tmp_path / "cache"
    (cache / "oasis").mkdir(parents=True)
    (cache / "oasis" / "go").symlink_to(cache_directory() / "go")
    return cache


def copied(checkout: Path) -> Path:
    for name in SOURCES:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            checkout.mkdir(exist_ok=True)
            shutil.copy2(source, checkout / name)
    return checkout


def _end(checkout: Path) -> None:
    state = State.of_checkout(checkout)
    ray_nodes.stop(state)
    state.stop_all()


@pytest.mark.parametrize(
    ("command", "phase"),
    [
        ("up", "starting the emulated cloud"),
        ("up", "created          Cluster"),
        ("demo", "uploaded to gs://"),  # and in the training, below
    ],
)
def test_an_interrupted_command_leaves_nothing_running_and_no_half_cloud(
    checkout: Path, command: str, phase: str
) -> None:
    status, said = _interrupted(checkout, command, phase, dict(os.environ))

    assert status == 130, said
    _assert_nothing_is_left(checkout)


@pytest.mark.parametrize("command", ["up", "demo"])
@pytest.mark.parametrize(
    ("line", "written", "words"),
    [
        (
            "oasis:zone: us-central1-b",
            "oasis:zone: us-central1-f",
            ["1 setting needs a change", "oasis:zone is 'us-central1-f'"],
        ),
        (
            "oasis:wandb: {}",
            "oasis:nmae: x\n  oasis:ray: {dashboard_port: eight}",
            ["2 settings need a change", "oasis:nmae is no setting", "oasis:ray.dashboard_port is 'eight'"],
        ),
        ("oasis:build: {}", "oasis:build: {", ["Pulumi.local.yaml is not valid YAML"]),
        (
            "config:\n",
            "encryptionsalt: v1:6x9=:v1:k\nconfig:\n",
            ["Pulumi.local.yaml has encryptionsalt, which a plain `pulumi` wrote.", "`git checkout Pulumi.local.yaml`"],
        ),
    ],
)
def test_a_bad_stack_file_is_refused_before_anything_is_built(
    checkout: Path, empty_cache: Path, command: str, line: str, written: str, words: list[str]
) -> None:
    stack = checkout / "Pulumi.local.yaml"
    stack.write_text(stack.read_text().replace(line, written))

    done = _emulator(checkout, command, XDG_CACHE_HOME=str(empty_cache))

    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    assert [done.stderr.count(part) for part in words] == [1] * len(words)
    assert done.stderr.startswith("error: stack local: ")
    assert not list((empty_cache / "oasis").glob("bin/*"))
    _assert_nothing_is_left(checkout)


def test_an_interrupted_build_ends_the_compiler_and_leaves_no_half_program(checkout: Path, empty_cache: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(empty_cache)}
    environment["PATH"] = os.pathsep.join(
        part for part in environment["PATH"].split(os.pathsep) if ".oasis" not in part
    )

    status, said = _interrupted(checkout, "up", "] etcd: building", environment)

    assert status == 130, said
    assert processes.owned_by(checkout / ".oasis") == []
    assert list((empty_cache / "oasis" / "bin").rglob("*")) == []


def test_a_second_command_in_the_same_checkout_is_refused_and_down_ends_the_first(checkout: Path) -> None:
    first = _start(checkout, "up", dict(os.environ))
    try:
        read_until(first, "starting the emulated cloud")
        second = _emulator(checkout, "up")
        assert second.returncode == 1
        assert f"`python -m emulator up` (process {first.pid}) is at work in this checkout" in second.stderr
        assert "make down" in second.stderr

        down = _emulator(checkout, "down")

        assert down.returncode == 0, down.stderr
        assert first.wait(PATIENCE_SECONDS) == 130
        assert processes.owned_by(checkout / ".oasis") == []
        assert _emulator(checkout, "status").returncode == 1
    finally:
        first.kill()
        first.communicate()


def test_a_second_demo_is_refused_while_the_first_is_up_to_be_looked_at(checkout: Path) -> None:
    state = State.of_checkout(checkout)
    up = state.spawn("kube-apiserver", ["sleep", "600"])

    again = _emulator(checkout, "demo")

    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.startswith("error: a demo is up in this checkout already.")
    assert "`make down` ends it" in again.stderr
    assert state.process("kube-apiserver") == up


@pytest.mark.long
@pytest.mark.alone
def test_two_demos_side_by_side_share_nothing_and_down_in_the_training_of_one_leaves_the_other(
    checkout: Path, tmp_path: Path
) -> None:
    other = copied(tmp_path / "other")
    folder = checkout / ".oasis"
    users = [folder / "runs" / "mine" / "journal" / "1", folder / "buckets" / RUNS_BUCKET / "mine" / "journal" / "1"]
    stale = folder / "buckets" / RUNS_BUCKET / demo.RUN / "checkpoints" / "of-an-earlier-demo"
    for file in (*users, stale):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    first = _start(checkout, "demo", dict(os.environ))
    started = [first]
    try:
        # Ray gives a node 30 seconds to join, which two cores do not manage for two clusters at once.
        begun = read_until(first, "submitted; Ctrl-C stops it")
        again = _emulator(checkout, "demo")
        assert again.returncode == 1
        assert f"`make demo` (process {first.pid}) is at work in this checkout" in again.stderr
        second = _start(other, "demo", dict(os.environ))
        started.append(second)
        with ThreadPoolExecutor() as reader:
            whole = reader.submit(first.communicate)
            read_until(second, "submitted; Ctrl-C stops it")
            ports, others = (_ports(folder) for folder in (checkout, other))
            assert set(ports.values()) & set(others.values()) == set()
            assert set(_pids(checkout)) & set(_pids(other)) == set()
            down = _emulator(other, "down")
            assert down.returncode == 0, down.stderr
            assert "interrupting `make demo`" in down.stdout
            said = read_rest(second)
            assert second.returncode == 130, said
            assert "ending everything" in said
            _assert_nothing_is_left(other)

            said, _ = whole.result(timeout=2 * PATIENCE_SECONDS)
        assert first.returncode == 0, said
        assert "== the platform is up" in said
        assert "USD an hour at rest" in said
        assert f"gs://{RUNS_BUCKET} has what it held before: " in begun
        assert not stale.exists()
        assert _ports(checkout) == {**_ports(checkout), **ports}
        assert _emulator(checkout, "status").returncode == 0
        down = _emulator(checkout, "down")
        assert down.returncode == 0
        assert all(name in down.stdout for name in (ray_nodes.HEAD, *ray_nodes.WORKERS))
        _assert_nothing_is_left(checkout, "runs")
        assert [file.read_text() for file in users] == ["{}", "{}"]
        assert (folder / "buckets" / RUNS_BUCKET / demo.RUN).is_dir()
    finally:
        for process in started:
            process.kill()
            process.wait()
        _end(other)


def _ports(checkout: Path) -> dict[str, int]:
    return dict(json.loads((checkout / ".oasis" / "ports.json").read_text()))


def _pids(checkout: Path) -> list[int]:
    return [process.pid for process in State.of_checkout(checkout).processes()]


def _assert_nothing_is_left(checkout: Path, *made: str) -> None:
    assert processes.owned_by(checkout / ".oasis") == []
    assert not running(f"{checkout}/", f"{checkout} ", str(ray_folder.session_directory(checkout / ".oasis")))
    left = {entry.name for entry in (checkout / ".oasis").iterdir()}
    index = {"storage.sqlite", "storage.sqlite-journal", "storage.sqlite-shm", "storage.sqlite-wal"}
    assert left <= {"lock", "logs", "results", "buckets", *index, *made}


def test_an_installation_that_was_cut_off_is_started_over_by_the_next_make(tmp_path: Path) -> None:
    checkout, files = tmp_path / "checkout", 12_000
    checkout.mkdir()
    shutil.copy2(CHECKOUT / "Makefile", checkout)
    shutil.copytree(CHECKOUT / "emulator", checkout / "emulator")
    digest = _wheel(tmp_path / "index" / "slow-1.0-py3-none-any.whl", files)
    (checkout / "requirements-dev.txt").write_text(f"slow==1.0 --hash=sha256:{digest}\n")
    write_program(tmp_path / "programs" / "flock", "true")  # a Mac has none that would wait
    path = f"{tmp_path / 'programs'}:{os.environ['PATH']}"
    more = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "index"), "PATH": path, "PYTHON": sys.executable}
    command, environment = ["make", ".venv/.installed"], {**_users_environment(), **more}

    def make() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=False)

    def installed() -> int:
        return len(list((checkout / ".venv").glob("lib/python*/site-packages/slow/*.py")))

    with subprocess.Popen(command, cwd=checkout, env=environment, start_new_session=True) as first:
        eventually(lambda: installed() > files // 10)
        os.killpg(first.pid, signal.SIGINT)
    assert first.returncode != 0
    assert installed() < files
    assert not (checkout / ".venv" / ".installed").exists()

    again = make()

    assert again.returncode == 0, again.stderr
    assert "was cut off: starting over" in again.stdout
    assert installed() == files
    assert "is up to date" in make().stdout

    # While another make installs, one waits, and then finds it done.
    (checkout / "requirements-dev.txt").touch()
    with (checkout / "Makefile").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        waiting = subprocess.Popen(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True)
        read_until(waiting, "another make installs into .venv: waiting for it")
        (checkout / ".venv" / ".installed").touch()
    said = read_rest(waiting)
    assert (waiting.returncode, said) == (0, "")


def _wheel(file: Path, files: int) -> str:
    """A wheel of so many small modules, which pip takes for installed from its first file on; its SHA-256."""
    metadata = {
        "METADATA": "Metadata-Version: 2.1\nName: slow\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    file.parent.mkdir()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in metadata.items():
            archive.writestr(f"slow-1.0.dist-info/{name}", text)
        for number in range(files):
            archive.writestr(f"slow/_{number}.py", "")
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("cache", "target", "words"),
    [
        ("/mnt/cache", "demo", "installing the Python packages and building the emulator's programs takes up to 21 GB"),
        ("/mnt/cache", "lint", "installing the Python packages takes up to 9 GB"),
        ("built", "test", "installing the Python packages takes up to 9 GB"),
    ],
)
def test_packages_are_not_begun_on_a_disk_that_cannot_hold_what_comes(
    tmp_path: Path, cache: str, target: str, words: str
) -> None:
    for name in ("Makefile", "requirements-dev.txt"):
        shutil.copy2(CHECKOUT / name, tmp_path / name)
    shutil.copytree(CHECKOUT / "emulator", tmp_path / "emulator", ignore=shutil.ignore_patterns("__pycache__"))
    script = f"mount -t tmpfs -o size=64m none /mnt && cp -r {tmp_path}/* /mnt && cd /mnt && make {target}; ls"
    place = {"XDG_CACHE_HOME": cache} if cache != "built" else {}

    done = _in_a_namespace(script, {"PYTHON": sys.executable, "PYTHONDONTWRITEBYTECODE": "1", **place})

    assert f"0.1 GB are free where /mnt is, and {words}. Free some, or clone to another disk." in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(done.stdout.split()) == ["Makefile", "emulator", "requirements-dev.txt"]


@pytest.mark.parametrize(
    ("given_gib", "cache", "words"),
    [
        (2.5, "built", "2.5 GB of memory are available, and running the emulator takes up to 3 GB. End other programs"),
        (4.0, "empty", "4.0 GB of memory are available, and building the emulator's programs takes up to 6 GB."),
    ],
)
def test_too_little_memory_is_said_before_anything_is_started(
    checkout: Path, empty_cache: Path, tmp_path: Path, given_gib: float, cache: str, words: str
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: 8388608 kB\nMemAvailable: {int(given_gib * 2**20)} kB\n")
    script = f"mount --bind {meminfo} /proc/meminfo && cd {checkout} && exec {sys.executable} -m emulator up"

    done = _in_a_namespace(script, {"XDG_CACHE_HOME": str(empty_cache)} if cache == "empty" else {})

    assert done.returncode == 1
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    _assert_nothing_is_left(checkout)


def test_a_disk_that_is_too_small_for_the_emulator_is_refused_and_stays_empty(checkout: Path) -> None:
    (checkout / ".oasis").mkdir()
    folder, command = checkout / ".oasis", f"cd {checkout} && {sys.executable} -m emulator up"

    done = _in_a_namespace(f"mount -t tmpfs -o size=512m none {folder} && {command}; ls {folder}", {})

    assert f"0.5 GB are free where {folder} is, and running the emulator takes up to 2 GB." in done.stderr
    assert done.stderr.count("\n") == 1
    assert set(done.stdout.split("\n")) <= {"lock", "logs", "results", "ending everything", ""}


def _in_a_namespace(script: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script of bash that may mount what it likes, and is alone in seeing it."""
    rights: Sequence[str] = [] if os.getuid() == 0 else ["--map-root-user"]
    return subprocess.run(
        ["unshare", "--mount", *rights, "bash", "-c", script],
        env={**_users_environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )


def _users_environment() -> dict[str, str]:
    """The environment without what the `make` that runs these tests passes on: a nested one prints more lines."""
    return {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}


def _interrupted(checkout: Path, command: str, phase: str, environment: dict[str, str]) -> tuple[int, str]:
    """Start a command, press Ctrl-C when it says `phase`; its exit status and what it said."""
    process = _start(checkout, command, environment)
    try:
        said = read_until(process, phase)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
        with ThreadPoolExecutor() as reader:
            rest = reader.submit(read_rest, process, 2 * PATIENCE_SECONDS)
            try:
                said += rest.result(PATIENCE_SECONDS)
            except TimeoutError:
                kernel = Path(f"/proc/{process.pid}/wchan").read_text()
                process.send_signal(signal.SIGABRT)  # it writes where each of its threads is
                said += rest.result()
                pytest.fail(f"it goes on {PATIENCE_SECONDS} s after Ctrl-C, in the kernel in {kernel!r}:\n{said}")
        return process.returncode, said
    finally:
        process.kill()
        process.communicate()


def _start(checkout: Path, command: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    words = ("-u", "-X", "faulthandler", "-m", "emulator", command)
    return begun(*words, cwd=checkout, env=environment, start_new_session=True)


def _emulator(checkout: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return python("-m", "emulator", *arguments, cwd=checkout, env=environment, timeout=PATIENCE_SECONDS)
