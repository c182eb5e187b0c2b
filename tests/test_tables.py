"""Tables as a person sees them: on a terminal of 80 columns, and in a file."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from emulator.machine.state import CHECKOUT
from tests.support import fake_ray
from workloads import __main__ as command_line

COLUMNS = 80
STYLE = re.compile(r"\x1b\[[\d;]*m")


def shown(command: str) -> list[str]:
    """The lines that a command prints on a terminal, without their style."""
    arguments = [sys.executable, "-m", "workloads", *command.split()]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, COLUMNS))
    with subprocess.Popen(arguments, cwd=CHECKOUT, env={**environment, "TERM": "xterm"}, stdout=theirs):
        os.close(theirs)
        text = b""
        while chunk := _read(ours):
            text += chunk
    os.close(ours)
    return STYLE.sub("", text.decode()).splitlines()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # its other end is closed (pty(7))
        return b""


@pytest.mark.thorough
def test_no_line_ends_in_spaces_and_a_terminal_s_width_is_kept_without_cutting_what_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "kern.log"
    log.write_text("NVRM: Xid (PCI:0000:c6:00): 79, pid=1101234, GPU has fallen off the bus.\n")
    runs = tmp_path / "runs"
    for name in ("a-run-with-a-name-that-is-rather-long/" + "and-a-trial-" * 6, "short"):
        (runs / name / "journal").mkdir(parents=True)
        (runs / name / "journal" / "1").write_text("{}")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # another test of this process may have imported ray
    with fake_ray.standing(tmp_path, monkeypatch):
        words = ["python3", "a_program.py", "--with", "a-[long]-argument" * 9]
        assert command_line.main(["submit", "--ray-job", "--detach", "--", *words]) == 0
        job = capsys.readouterr().out.strip()
        commands = ("jobs list", "status", f"runs list --storage {runs}", f"explain {log}", "train --dry-run")
        for command in commands:
            assert command_line.main(command.split()) == 0
            for terminal, lines in ((True, shown(command)), (False, capsys.readouterr().out.splitlines())):
                assert [line for line in lines if line != line.rstrip()] == [], command
                table = [line for line in lines if not line.startswith(("Ray cluster", "[", "    "))]
                assert not terminal or max(map(len, table)) <= COLUMNS, command
                if command in ("jobs list", "status"):
                    assert any(re.match(rf"{job} +RUNNING .* py", line) for line in lines), lines
                    assert terminal or any("a-[long]-argument" in line for line in lines), lines
