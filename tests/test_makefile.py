"""What a person sees of `make`, by a real one in a checkout of its own with stand-ins for pulumi and kubectl."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from emulator.machine.belongings import content
from emulator.machine.state import CHECKOUT, State
from tests.oasis_stack.test_command_line import OUTPUTS
from tests.support.processes import write_program
from tests.support.waiting import eventually, read_rest, read_until
from workloads.runs import catalog as run_catalog
from workloads.storage.folders import locate

SOURCES = ("Makefile", "requirements.txt", "Pulumi.yaml", "Pulumi.local.yaml", "oasis_stack", "workloads", "emulator")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose environment is there, as far as make can tell."""
    made = tmp_path / "checkout"
    made.mkdir()
    for name in SOURCES:
        if (CHECKOUT / name).is_dir():
            shutil.copytree(CHECKOUT / name, made / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(CHECKOUT / name, made / name)
    write_program(made / ".venv" / "bin" / "python", f'exec {sys.executable} "$@"')
    for stamp in (".installed", ".installed-for-the-cloud"):
        (made / ".venv" / stamp).touch()
    return made


def environment(**more: str) -> dict[str, str]:
    """Without what the `make` that runs these tests passes on."""
    users = {name: value for name, value in os.environ.items() if name not in ("MAKELEVEL", "MAKEFLAGS", "MFLAGS")}
    return {**users, "PYTHON": sys.executable, **more}


def start(checkout: Path, *arguments: str, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["make", *arguments],
        cwd=checkout,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(checkout: Path, *arguments: str) -> tuple[int, str]:
    """The exit status of `make`, and all that it says."""
    made = start(checkout, *arguments, variables=environment())
    said, _ = made.communicate(timeout=60)
    return made.returncode, said


def test_an_empty_stack_is_answered_with_what_to_write(checkout: Path) -> None:
    _, said = run(checkout, "plan", "STACK=")
    assert said == "Makefile:7: *** STACK is empty: leave it out for dev, or name a stack, as in STACK=mine.  Stop.\n"


def test_ctrl_c_ends_the_dashboard_without_an_error_of_makes_and_with_its_port_forward(
    checkout: Path, tmp_path: Path
) -> None:
    programs, pid = tmp_path / "programs", tmp_path / "pid"
    (tmp_path / "outputs").write_text(json.dumps(OUTPUTS))
    write_program(programs / "pulumi", f"cat {tmp_path / 'outputs'}")
    version = json.dumps({"clientVersion": {"gitVersion": "v1.36.3"}})
    write_program(
        programs / "kubectl",
        f"test \"$1\" = version && echo '{version}' && exit; "
        f"echo $$ > {pid}; echo Forwarding from 127.0.0.1:8265; exec sleep 600",
    )
    write_program(programs / "gke-gcloud-auth-plugin", "true")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    running = start(checkout, "dashboard", "STACK=local", variables=environment(PATH=path))

    said = read_until(running, "Forwarding from")
    os.killpg(running.pid, signal.SIGINT)  # what a terminal does
    rest = read_rest(running)

    assert "answers until Ctrl-C" in said
    assert rest == ""
    eventually(lambda: not Path("/proc", pid.read_text().strip()).exists())


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["help", "plan", "down"])
def test_a_reader_that_leaves_is_no_error_of_makes_and_down_ends_everything_all_the_same(
    checkout: Path, target: str
) -> None:
    state = State.of_checkout(checkout)
    state.spawn("part", ["sleep", "600"])
    reader, writer = os.pipe()
    os.close(reader)
    command = ["make", "--no-print-directory", target, "STACK=local"]
    try:
        left = subprocess.run(
            command, cwd=checkout, env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True
        )
        running = state.processes()
    finally:
        os.close(writer)
        state.stop_all()

    assert (left.returncode, left.stderr) == (0, "")
    assert (running == []) is (target == "down")


def test_a_plan_of_no_stack_is_an_error_of_makes(checkout: Path) -> None:
    ended, said = run(checkout, "plan", "STACK=none")
    assert ended == 2
    assert "Error 2" in said


PIP = """\
Collecting nvidia-nccl-cu13==2.30.7 (from -r requirements.txt (line 2))
  Downloading nvidia_nccl_cu13-2.30.7-py3-none-manylinux_2_18_x86_64.whl (216.0 MB)
Collecting numpy==2.4.6 (from -r requirements.txt (line 1))
  Using cached numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl (16.9 MB)
Installing collected packages: nvidia-nccl-cu13, numpy
"""
"""What pip 23.2 says where its output is no terminal."""


@pytest.mark.parametrize("status", [0, 3])
def test_an_installation_says_what_it_is_at_and_ends_with_pips_status(checkout: Path, status: int) -> None:
    environments = checkout / ".venv"
    (checkout / "said").write_text(PIP)
    (environments / "pyvenv.cfg").touch()
    write_program(environments / "bin" / "python", f'case "$*" in *"pip install"*) cat said; exit {status};; esac')
    (environments / ".installed-for-the-cloud").unlink()
    os.utime(environments / ".installed", (0, 0))

    ended, said = run(checkout, ".venv/.installed-for-the-cloud", "--no-print-directory")

    assert (ended == 0) is (status == 0), said
    assert (environments / ".installed-for-the-cloud").exists() is (status == 0)
    first, large, unpacking, last = said.splitlines()[:4]
    assert first == "installing the locked Python packages into .venv (once: 0.4 GB)"
    assert large == "  nvidia_nccl_cu13 2.30.7, 216.0 MB"
    assert unpacking == "  all packages are here; unpacking them takes most of the time"
    assert last.startswith("installed in ") is (status == 0)


def test_nothing_is_installed_into_the_python_that_a_partly_deleted_environment_leads_to(checkout: Path) -> None:
    """Without pyvenv.cfg an environment's Python is the one that it was made of."""
    environments, called = checkout / ".venv", checkout / "called"
    write_program(environments / "bin" / "python", f'echo base "$*" >> {called}')
    for stamp in environments.glob(".installed*"):
        os.utime(stamp, (0, 0))
    python = write_program(
        checkout / "python3.11",
        f'case "$*" in *venv*) mkdir -p .venv/bin; touch .venv/pyvenv.cfg; cp {checkout}/made .venv/bin/python;; esac',
    )
    write_program(checkout / "made", f'echo made "$*" >> {called}')

    ended, said = run(checkout, ".venv/.installed-for-the-cloud", "--no-print-directory", f"PYTHON={python}")

    assert ended == 0, said
    installed = [line for line in called.read_text().splitlines() if "pip install" in line]
    assert [line.split()[0] for line in installed] == ["made"]
    assert "--require-virtualenv" in installed[0]


def test_a_python_that_does_not_run_is_passed_over_for_the_next(checkout: Path) -> None:
    """As pyenv's python3.12 says where another version is chosen. A Mac's python3 runs, and is too old."""
    programs = checkout / "programs"
    for name in ("python3.12", "python3.11", "python3.13"):
        write_program(programs / name, "echo not this one; exit 127")
    for name in ("python3.14", "python3"):
        write_program(programs / name, f'test "$1" = -c || echo "{name} $*"')
    variables = environment(PATH=f"{programs}:{os.environ['PATH']}")
    del variables["PYTHON"]

    made = start(checkout, "clean", variables=variables)
    said, _ = made.communicate(timeout=60)

    assert said == "python3.14 -m emulator.machine.clean\n"


@pytest.mark.parametrize("target", ["demo", "test", "test-fast"])
def test_what_takes_linux_is_refused_elsewhere_before_anything_is_installed(checkout: Path, target: str) -> None:
    (checkout / ".venv" / ".installed").unlink()
    write_program(checkout / "programs" / "uname", "echo Darwin")
    variables = environment(PATH=f"{checkout / 'programs'}:{os.environ['PATH']}")

    made = start(checkout, target, variables=variables)
    said, _ = made.communicate(timeout=60)

    assert made.returncode == 2
    refused, stopped = said.splitlines()
    assert "needs Linux, and this machine runs Darwin" in refused and "docs/cloud.md" in refused
    assert stopped.startswith("make: *** ")


def test_packages_that_a_pull_brought_are_installed_where_all_of_the_older_ones_are(checkout: Path) -> None:
    environments, called = checkout / ".venv", checkout / "called"
    (environments / "pyvenv.cfg").touch()
    write_program(environments / "bin" / "python", f'echo "$*" >> {called}')
    for stamp in environments.glob(".installed*"):
        os.utime(stamp, (0, 0))

    ended, said = run(checkout, ".venv/.installed-for-the-cloud")

    assert ended == 0, said
    installed = [line for line in called.read_text().splitlines() if "pip install" in line]
    assert [line.split()[-1] for line in installed] == ["requirements.txt"]


@pytest.mark.parametrize("cfg", [True, False])
def test_an_environment_that_make_did_not_make_stays_as_it_is(checkout: Path, cfg: bool) -> None:
    environments = checkout / ".venv"
    write_program(environments / "bin" / "python", "exit 1")  # without pip, as one of `uv venv`
    for stamp in environments.glob(".installed*"):
        stamp.unlink()
    if cfg:
        (environments / "pyvenv.cfg").touch()
    before = sorted(environments.rglob("*"))

    ended, said = run(checkout, ".venv/.installed-for-the-cloud")

    assert ended == 2
    assert ".venv was not made by make, which changes no other one: move it away or delete it, then run" in said
    assert sorted(environments.rglob("*")) == before


@pytest.fixture
def belongings(checkout: Path) -> list[Path]:
    """What a person has made in the checkout."""
    names = [
        *("runs/one/checkpoints/1-a/shard", "runs/one/journal/1", "runs/trials/two/journal/1", "data/digits/train/0/a"),
        *("buckets/p-oasis-runs/three/results/table.txt", "buckets/p-oasis-data/digits/train/0/a"),
        *("results/one/table.txt", "logs/engine.log"),
    ]
    files = [checkout / ".oasis" / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"x" * 1500)
    return files


def test_down_keeps_what_people_made_where_nothing_runs(checkout: Path, belongings: list[Path]) -> None:
    ended, said = run(checkout, "down")

    assert ended == 0, said
    assert "nothing was running" in said
    assert "kept .oasis/buckets/p-oasis-data, .oasis/buckets/p-oasis-runs, .oasis/data, .oasis/logs, " in said
    assert all(file.exists() for file in belongings)


def test_clean_without_a_terminal_deletes_nothing_unless_it_is_told_yes(checkout: Path, belongings: list[Path]) -> None:
    policies = write_program(checkout / "policies" / ".venv" / "bin" / "python", "true").parents[1]
    ended, said = run(checkout, "clean")

    assert ended != 0
    for line in (
        *(r".venv +\d+ bytes", r".oasis/runs +4.5 kB, 2 runs", r".oasis/buckets/p-oasis-runs +1.5 kB, 1 run"),
        *(r".oasis/data +1.5 kB", r".oasis/results +1.5 kB", r"It holds 3 runs\.", r"make clean YES=1"),
        r"policies/.venv +\d+ bytes",
    ):
        assert re.search(line, said), (line, said)
    assert all(file.exists() for file in belongings)

    ended, said = run(checkout, "clean", "YES=1")

    assert ended == 0, said
    assert not (checkout / ".oasis").exists()
    assert not (checkout / ".venv").exists() and not policies.exists()
    assert (checkout / "Makefile").exists()


@pytest.mark.parametrize(("answer", "deleted"), [("n", False), ("", False), ("y", True)])
def test_clean_asks_on_a_terminal(checkout: Path, belongings: list[Path], answer: str, deleted: bool) -> None:
    ours, theirs = pty.openpty()
    variables = environment()
    with subprocess.Popen(
        ["make", "clean"], cwd=checkout, env=variables, stdin=theirs, stdout=subprocess.PIPE, text=True
    ) as asked:
        os.write(ours, f"{answer}\n".encode())
        said, _ = asked.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)

    assert asked.returncode == 0
    assert "Delete all of it? [y/N]" in said
    assert ("nothing was deleted" in said) is not deleted
    assert [file.exists() for file in belongings] == [not deleted] * len(belongings)


def test_as_many_runs_are_counted_as_the_workloads_find(belongings: list[Path], checkout: Path) -> None:
    for folder in ("runs", "data", "buckets/p-oasis-runs", "buckets/p-oasis-data", "results"):
        place = checkout / ".oasis" / folder
        assert content(place).runs == len(run_catalog.runs(locate(place)))
