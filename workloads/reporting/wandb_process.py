"""The process that talks to Weights & Biases: whatever its library or its server does, the driver continues.

It reads one JSON line with the job (including the key, so that the key is in no argv and no environment), then records
until its input ends, and prints sentences for the user. It ends by itself a set time after that, in any case.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.errors import first_line

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Longest waits for W&B, in seconds; training never waits."""

    init_seconds: float = 10.0
    """For the server to accept a run, before it is recorded offline. W&B's own default is 90."""
    finish_seconds: float = 12.0
    """For the upload of what is left at the end. W&B's own default is for ever."""
    leave_seconds: float = 25.0
    """From the last record to the end of its process, come what may."""


def main() -> int:
    """Record one run; returns the exit code."""
    job = json.loads(sys.stdin.readline())
    records: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(records, job), name="receive", daemon=True).start()
    run = _begin(job)
    for step, values in fresh(iter(records.get, None), run.starting_step):
        run.log(values, step=step)
    run.finish()
    return 0


def fresh(records: Iterator[Record], first: int) -> Iterator[tuple[int, Record]]:
    """The steps and values of records that a run does not have yet.

    Args:
        records: in order; those of a history may come again.
        first: step from which on the run has nothing.
    """
    newest = (first - 1, True)
    for record in records:
        place = (record["step"], record["event"] == "epoch")
        if place > newest:
            newest = place
            yield record["step"], record["values"]


def _receive(records: queue.SimpleQueue[Record | None], job: Record) -> None:
    for line in sys.stdin:
        records.put(json.loads(line))
    records.put(None)
    last_resort = threading.Timer(job["leave_seconds"], _leave, [job])
    last_resort.daemon = True
    last_resort.start()


def _leave(job: Record) -> None:
    _say(f"did not finish in time; {_later(job)}", job)
    os._exit(1)  # W&B's own service looks after this process, and ends with it


def _begin(job: Record) -> Any:
    import wandb

    refusal = ""
    if job["key"]:
        try:
            run = wandb.init(**_settings(wandb, job, "online"))
        except Exception as error:  # of many kinds: refused, unreachable, out of time
            refusal = first_line(error).rstrip(".")
            wandb.teardown()  # its service holds the run's id
        else:
            job["kept"] = str(Path(run.dir).parent)
            _say(f"is online{f': {run.url}' if run.url else ''}", job)
            return run
    run = wandb.init(**_settings(wandb, job, "offline"))
    job["kept"] = str(Path(run.dir).parent)
    if refusal:
        _say(f"is recorded offline, because the server cannot be used ({refusal}); {_later(job)}", job)
    return run


def _settings(wandb: Any, job: Record, mode: str) -> dict[str, Any]:
    settings = wandb.Settings(
        api_key=job["key"] if mode == "online" else None,
        mode=mode,
        init_timeout=job["init_seconds"],
        finish_timeout=job["finish_seconds"],
        console="off",
        silent=True,
        disable_git=True,
        save_code=False,
        # Of the head, which does no training: Ray's dashboard shows the workers'.
        x_disable_stats=True,
    )
    return {
        "project": "oasis",
        "id": job["run"],
        "name": job["run"],
        "resume": "allow" if mode == "online" else None,
        "config": job["config"],
        "dir": job["folder"],
        "settings": settings,
    }


def _later(job: Record) -> str:
    return f"`wandb sync {job.get('kept', job['folder'])}` sends it later"


def _say(sentence: str, job: Record) -> None:
    print(sentence.replace(job["key"], "[redacted]") if job["key"] else sentence, flush=True)


if __name__ == "__main__":
    sys.exit(main())
