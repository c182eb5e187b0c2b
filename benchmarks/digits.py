"""Times `train` as a new user gives it, the digits on this machine: `python -m benchmarks.digits [--runs N]`.

Each run is a command of its own in an empty folder: start of Python and of a Ray, the images, training, checkpoints,
results. Into benchmarks/digits.json: seconds from the command to its end, and the validation accuracy that it reached.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import command
from benchmarks.harness.figures import conditions, say, spread
from emulator.machine.state import CHECKOUT

RESULTS = Path(__file__).with_suffix(".json")

LEAST_ACCURACY = 0.98
LONGEST_SECONDS = 120.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print and keep; returns 1 if a run failed, was too slow or learned too little."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--runs", type=int, default=3, metavar="N", help="one after the other (%(default)s)")
    given = parser.parse_args(arguments)
    runs = [timed() for _ in range(given.runs)]
    figures = conditions() | {
        "seconds, start-up included": spread([seconds for seconds, _ in runs]),
        "validation accuracy": sorted(accuracy for _, accuracy in runs),
    }
    wrong = [
        f"{accuracy:.1%} accuracy after {seconds:.0f} s; at least {LEAST_ACCURACY:.0%} within {LONGEST_SECONDS:.0f} s"
        for seconds, accuracy in runs
        if seconds > LONGEST_SECONDS or accuracy < LEAST_ACCURACY
    ]
    return command.conclude(given.results, figures, wrong)


def timed() -> tuple[float, float]:
    """Wall seconds of one whole command, and its validation accuracy; 0 if it failed."""
    with tempfile.TemporaryDirectory(prefix="oasis-digits-") as folder:
        train = [sys.executable, "-m", "workloads", "train", "--run", "digits", "--wandb", "off"]
        variables = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        begun = time.monotonic()
        done = subprocess.run(train, cwd=folder, env=variables, stdout=subprocess.DEVNULL, check=False)
        seconds = time.monotonic() - begun
        say(f"{seconds:.1f} s, exit status {done.returncode}")
        summary = Path(folder) / ".oasis" / "results" / "digits" / "summary.json"
        return seconds, float(json.loads(summary.read_text())["val/accuracy"]) if done.returncode == 0 else 0.0


if __name__ == "__main__":
    command.run(main)
