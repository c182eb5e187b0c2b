"""The heartbeat by which drivers on different clusters or machines see each other: a run's driver keeps writing to the
run's folder that it is there, because the locks of `run_lock` reach no further than one Ray or one machine.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from workloads.cluster import run_lock
from workloads.errors import UsageError, WorkloadError
from workloads.storage.folders import Folder

BEAT = "driver.json"
BEAT_SECONDS = 15.0
SILENCE_SECONDS = 3 * BEAT_SECONDS
"""A driver that has been silent for so long is gone. A new one waits no longer for one that was killed."""

QUIET_SECONDS = 2.0
"""A wait for the storage at a run's end that takes longer is told of."""


@contextmanager
def alone(folder: Folder, run: str, attempt: str, note: Callable[[str], None], *, embedded: bool) -> Iterator[None]:
    """Be the only driver of a run, on this machine and on all that share its folder, for the length of the block.

    In a local folder an embedded driver on Linux leaves no mark: one that was killed is known to be gone, and not
    waited for.

    Args:
        folder: of the run.
        run: its name, for the message.
        attempt: this driver's own name.
        note: told of a wait for another driver's silence.
        embedded: whether Ray is this machine's own.

    Raises:
        UsageError: another driver is there.
    """
    with ExitStack() as held:
        if embedded:
            held.enter_context(run_lock.hold_here(folder.uri, run))
        if not embedded or folder.uri.startswith("gs:") or sys.platform != "linux":
            held.enter_context(keep(folder, run, attempt, note))
        yield


@contextmanager
def keep(folder: Folder, run: str, attempt: str, note: Callable[[str], None]) -> Iterator[None]:
    """Be the only driver of a run, on whichever cluster, for the length of the block. Two that start within the same
    seconds do not see each other.

    Args:
        folder: of the run.
        run: its name, for the message.
        attempt: this driver's own name.
        note: told of a wait for another driver's silence.

    Raises:
        UsageError: another driver is there.
    """
    _refuse_another(folder, run, note)
    ended = threading.Event()

    def beat() -> None:
        while not ended.is_set():
            with suppress(WorkloadError):  # storage that is out of reach for a while ends no run
                folder.write(BEAT, json.dumps({"attempt": attempt, "time": time.time()}).encode())
            ended.wait(BEAT_SECONDS)

    beating = threading.Thread(target=beat, name="beat", daemon=True)
    beating.start()
    try:
        yield
    finally:
        ended.set()
        beating.join(QUIET_SECONDS)
        if beating.is_alive():
            note(f"{folder.uri} does not answer; waiting for it for up to {SILENCE_SECONDS:.0f} s")
            beating.join(SILENCE_SECONDS)
        if not beating.is_alive():  # else a write under way would put back what is deleted
            with suppress(WorkloadError):
                folder.delete(BEAT)


def _refuse_another(folder: Folder, run: str, note: Callable[[str], None]) -> None:
    """Go on once no driver is there; one that is, beats within the wait."""
    first = last = _beat(folder)
    if not first or (left := min(SILENCE_SECONDS, first["time"] + SILENCE_SECONDS - time.time())) <= 0:
        return
    note(
        f"attempt {first['attempt']} of run {run} was there a moment ago; "
        f"waiting up to {left:.0f} s to see whether it still is"
    )
    deadline = time.monotonic() + left
    while last == first and time.monotonic() < deadline:
        time.sleep(1)
        last = _beat(folder)
    if last and last != first:
        raise UsageError(
            f"run {run} is being trained elsewhere, by attempt {last['attempt']}, which last wrote into {folder.uri} "
            f"at {time.strftime('%H:%M:%S', time.gmtime(last['time']))} UTC.",
            "Wait for it, end it (a job by `python -m workloads jobs stop`), or choose another --run name.",
        )


def _beat(folder: Folder) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(folder.read(BEAT))
    except (FileNotFoundError, ValueError):
        return {}
    return found
