"""Programs that the command line calls, interrupted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.waiting import eventually

PROGRAM = """
import sys, time
from pathlib import Path
here = Path(sys.argv[1])
try:
    (here / "begun").touch()
    time.sleep(60)
except KeyboardInterrupt:
    time.sleep(1)
    (here / "saved").touch()
"""
"""Takes longer to end than Python gives a program that Ctrl-C has reached, as Pulumi does."""

CALLER = """
import sys
from oasis_stack.command_line import external_program
way, *words = sys.argv[1:]
try:
    getattr(external_program, way)([sys.executable, "-c", *words])
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["show", "read"])
@pytest.mark.parametrize(
    ("interrupt", "times"), [pytest.param(os.killpg, 1, id="both"), pytest.param(os.kill, 2, id="the caller alone")]
)
def test_what_was_interrupted_ends_in_order_before_its_caller_does(
    tmp_path: Path, way: str, interrupt: Callable[[int, int], None], times: int
) -> None:
    command = [sys.executable, "-c", CALLER, way, PROGRAM, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as caller:
        eventually((tmp_path / "begun").exists)
        assert caller.stderr
        interrupt(caller.pid, signal.SIGINT)
        said = caller.stderr.readline()
        if times > 1:
            interrupt(caller.pid, signal.SIGINT)
        printed, _ = caller.communicate(timeout=30)
    assert said == f"waiting for {sys.executable} to shut down; Ctrl-C again kills it\n"
    assert (tmp_path / "saved").exists()
    assert printed == "interrupted\n"
