"""Ctrl-C in a test run: nothing that a test has started goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from emulator.machine.state import CHECKOUT
from tests.support.waiting import eventually

TEST = """
import subprocess, time
from pathlib import Path
from emulator.machine.state import State

def test_that_starts_servers(tmp_path):
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    server = State(tmp_path / ".oasis").spawn("server", ["sleep", "601"])
    Path("{pids}").write_text(f"{{child.pid}} {{server.pid}}")
    time.sleep(600)
"""


@pytest.mark.thorough
def test_what_tests_have_started_ends_with_a_test_process_that_is_killed(tmp_path: Path) -> None:
    pids, test = tmp_path / "pids", tmp_path / "test_servers.py"
    test.write_text(TEST.format(pids=pids))
    variables = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTEST_ADDOPTS": ""}
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "--basetemp", str(tmp_path / "base"), str(test)]
    run = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        started = [int(pid) for pid in pids.read_text().split()]
        assert all(map(psutil.pid_exists, started))
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    eventually(lambda: not any(map(psutil.pid_exists, started)))
