"""A workload's output while it runs: one line per record, as text for people or as JSON for a program to render.

`OASIS_PROGRESS=json` chooses JSON; the reader of those lines (the submit client) renders them with `text`.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

FORM_VARIABLE = "OASIS_PROGRESS"
"""Set to `json` in the environment of a job whose lines a program reads."""

Record = Mapping[str, Any]
"""A record has `event`, which `text` renders, or another workload's own; what one event's record holds stands there."""

TRANSIENT = frozenset({"step", "saving"})
"""Events that say where the run is: on a terminal the next line takes their place, elsewhere only some are printed."""

STEP_SECONDS = 2.0
"""Least time between a step's line and the line before it."""

REPEAT_SECONDS = 30.0
"""How often a wait that is not over is said again."""

_lock = threading.RLock()  # entered anew by the handler of a signal that comes while a line is printed
_lines = 0
"""How many were printed, and waits that ended without one: a wait is over once there are more."""


def emit(record: Record, stream: TextIO | None = None) -> int:
    """Print one record as one line. On a terminal, a transient one is overwritten by what follows it.

    Returns:
        How many lines there are now.
    """
    global _lines
    output = sys.stdout if stream is None else stream
    if os.environ.get(FORM_VARIABLE) == "json":
        line = json.dumps(record, sort_keys=True) + "\n"
    else:
        line = _decorated(record, output.isatty())
    with _lock:
        output.write(line)
        output.flush()
        _lines += 1
        return _lines


class Paced:
    """Prints records, but of transient ones in quick succession only some: people read, and logs are kept."""

    def __init__(self) -> None:
        self._printed = 0.0

    def emit(self, record: Record) -> None:
        """Print one record, unless it is a transient one too close to the line before."""
        if record.get("waits"):
            wait(record["text"])
            return
        now = time.monotonic()
        if record["event"] in TRANSIENT and now - self._printed < STEP_SECONDS:
            return
        self._printed = now
        emit(record)


def note(message: str) -> None:
    """Print one sentence."""
    emit({"event": "note", "text": message})


def wait(message: str) -> None:
    """Print one sentence, and again every `REPEAT_SECONDS` with the time waited, until another line is printed."""
    began = time.monotonic()
    line = emit({"event": "note", "text": message})
    threading.Thread(target=_repeat, args=(message, began, line), name="wait", daemon=True).start()


def wait_over() -> None:
    """What was waited for is there, and nothing is to be said of that."""
    global _lines
    with _lock:
        _lines += 1


def _repeat(message: str, began: float, line: int) -> None:
    with suppress(BrokenPipeError):  # nobody reads on, which whoever waits will see too
        while not time.sleep(REPEAT_SECONDS):
            with _lock:
                if line != _lines:
                    return
                line = emit({"event": "note", "text": f"{message}; waited {time.monotonic() - began:.0f} s"})


def counted(number: float, noun: str) -> str:
    """A number and what it counts: `1 node`, `2 nodes`.

    Args:
        number: how many.
        noun: what, in the singular, of the words whose plural has an `s`.
    """
    return f"{number:,.12g} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float, _: object = None) -> str:
    """A duration in readable form: `20 µs`, `1.5 ms`."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def parse(line: str) -> dict[str, Any] | None:
    """The record in a line that `emit` wrote as JSON, or None for any other line."""
    if not line.startswith("{"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("event"), str) else None


def shown(line: str) -> str:
    """A line of a log that is read later, with the record in it, if there is one, in the form chosen here."""
    record = None if os.environ.get(FORM_VARIABLE) == "json" else parse(line)
    return line if record is None else text(record)


def text(record: Record) -> str:
    """One line for people, without colour or line end; a record that another program made, as JSON."""
    try:
        return _sentence(record)
    except (KeyError, TypeError, ValueError):  # its `event` has a name of ours, as a user's own `step` does
        return json.dumps(record, sort_keys=True)


def _sentence(record: Record) -> str:
    match record["event"]:
        case "note":
            return str(record["text"])
        case "step":
            return "  ".join([_where(record), *_learning(record), *_rate(record)])
        case "epoch":
            accuracy = f"val accuracy {record['val/accuracy']:6.2%}"
            return "  ".join(
                [_where(record), *_learning(record), f"val loss {record['val/loss']:.4f}", accuracy, *_rate(record)]
            )
        case "saving":
            return f"step {record['step']:6d}  saving a checkpoint in the background"
        case "checkpoint":
            return _checkpoint(record)
        case "notice":
            left = record["seconds_left"]
            when = "soon" if left is None else f"in {max(left, 0):.0f} s"
            return f"notice ({record['source']}) at step {record['step']}: a node goes {when}; saving at once"
        case "resumed":
            return _resumed(record)
        case "summary":
            return (
                f"run {record['run']} is complete: validation accuracy {record['val/accuracy']:.2%} on "
                f"{counted(record['val/images'], 'image')} after {counted(record['steps'], 'step')}; results in "
                f"{record['results_uri']}"
            )
        case _:
            return json.dumps(record, sort_keys=True)


def _checkpoint(record: Record) -> str:
    reason = record.get("reason", "interval")
    # An interval's is the rule and says nothing of itself.
    why = {
        "notice": ", before a node goes",
        "deadline": ", before a node's run duration ends",
        "resize": ", for another number of workers",
        "end": ", the last",
    }.get(reason, "")
    still = record.get("blocked_seconds")
    background = "" if still is None else f"; training stood still for {still:.2f} s of it"
    return (
        f"checkpoint {record['name']} committed in {record['seconds']:.2f} s ({record['bytes'] / 1e6:.1f} MB)"
        f"{why}{background}"
    )


def _resumed(record: Record) -> str:
    world = counted(record["world_size"], "worker")
    if record["name"] is None:
        return f"begun on {world}: there is no checkpoint yet"
    return f"resumed from {record['name']} on {world}: epoch {record['epoch']:.2f}, step {record['step']}"


def _where(record: Record) -> str:
    return f"epoch {record['epoch']:6.2f}/{record['epochs']}  step {record['step']:6d}"


def _learning(record: Record) -> list[str]:
    return [f"loss {record['train/loss']:.4f}", f"accuracy {record['train/accuracy']:6.2%}"]


def _rate(record: Record) -> list[str]:
    pace, left = f"{record['train/images_per_second']:,.0f} images/s", record["eta_seconds"]
    return [pace] if left is None else [pace, f"{_clock(left)} left"]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _decorated(record: Record, terminal: bool) -> str:
    line = text(record)
    if not terminal:
        return line + "\n"
    # Carriage return and "erase to end of line" (ECMA-48 EL): the next line takes the place of a step's.
    return f"\r\x1b[K{line}" + ("" if record["event"] in TRANSIENT else "\n")
