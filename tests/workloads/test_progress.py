"""What a wait says while nothing happens, and when it is over."""

from __future__ import annotations

import re
import threading

import pytest

from tests.support.waiting import eventually
from workloads.reporting import progress


def test_a_wait_is_said_again_with_the_time_waited_until_something_else_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "REPEAT_SECONDS", 0.02)
    said: list[str] = []

    def repeated(message: str) -> bool:
        said.extend(capsys.readouterr().out.splitlines())
        return len([line for line in said if re.fullmatch(rf"{re.escape(message)}; waited \d+ s", line)]) > 1

    others = set(threading.enumerate())  # another test's wait sleeps for half a minute

    def quiet() -> bool:
        return not [thread for thread in threading.enumerate() if thread.name == "wait" and thread not in others]

    progress.wait("starting Ray, which takes 5 to 20 s")
    eventually(lambda: repeated("starting Ray, which takes 5 to 20 s"))
    # As the journal of a run tells the driver.
    progress.Paced().emit({"event": "note", "text": "starting 2 workers", "waits": True})
    eventually(lambda: repeated("starting 2 workers"))
    assert not any(line.startswith("starting Ray") for line in said[said.index("starting 2 workers") :])
    progress.note("2 workers started")
    eventually(quiet)
    repeated("")
    assert said[-1] == "2 workers started"
    progress.wait("connecting")
    progress.wait_over()
    eventually(quiet)
    repeated("")
    assert said[-1] == "connecting"
