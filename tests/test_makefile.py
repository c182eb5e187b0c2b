"""What a person sees of `make`, by a real one in a checkout of its own with stand-ins for pulumi and kubectl."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from emulator.state import CHECKOUT
from tests.test_command_line import OUTPUTS
from tests.waiting import read_until

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


def write_program(file: Path, line: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(0o755)


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


def test_ctrl_c_ends_the_dashboard_without_an_error_of_makes_and_with_its_port_forward(
    checkout: Path, tmp_path: Path
) -> None:
    programs, pid = tmp_path / "programs", tmp_path / "pid"
    (tmp_path / "outputs").write_text(json.dumps(OUTPUTS))
    write_program(programs / "pulumi", f"cat {tmp_path / 'outputs'}")
    write_program(programs / "kubectl", f"echo $$ > {pid}; echo Forwarding from 127.0.0.1:8265; exec sleep 600")
    write_program(programs / "gke-gcloud-auth-plugin", "true")
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    running = start(checkout, "dashboard", "STACK=local", variables=environment(PATH=path))

    said = read_until(running, "Forwarding from", 60)
    os.killpg(running.pid, signal.SIGINT)  # what a terminal does
    rest, _ = running.communicate(timeout=60)

    assert "answers until Ctrl-C" in said
    assert rest == ""
    assert not Path("/proc", pid.read_text().strip()).exists()
