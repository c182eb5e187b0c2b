"""What W&B costs a training step while its server hangs: `python -m benchmarks.tracking [--pairs N] [--seconds S]`.

One process trains without pause beside W&B on a server that accepts and never answers. Its steps fall into short
blocks: in every other one W&B's processes are stopped (SIGSTOP), as if W&B were off. The order within a pair
alternates, so that a drift of the machine favours neither. The start of W&B, once a run, is reported separately, in
seconds of CPU.
"""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import psutil
import torch

from benchmarks.harness import command
from benchmarks.harness.figures import Record, conditions, quartiles, spread
from benchmarks.harness.training import EnoughError, observe
from tests.support.processes import descendants
from tests.support.wandb_server import silent
from workloads.convnext import config as configuration
from workloads.convnext.images.data import sources
from workloads.convnext.learning.loop import Training
from workloads.reporting.credentials import Key
from workloads.reporting.history import Journal, parse
from workloads.reporting.tracking import JournalFollower, Wandb

RESULTS = Path(__file__).with_suffix(".json")

START_SECONDS = 60.0
"""How long W&B may take to start, to give up on the server and to begin recording on disk."""

Condition = Literal["off", "hanging"]


class Blocks:
    """Watches the loop: times each step, and changes the condition at the end of a block."""

    def __init__(self, folder: Path, url: str, pairs: int, seconds: float) -> None:
        self.said: list[str] = []
        self.told = 0
        self.order: list[Condition] = []
        for pair in range(pairs):
            turns: list[Condition] = ["off", "hanging"] if pair % 2 else ["hanging", "off"]
            self.order += turns
        self.times: list[list[float]] = []
        """Seconds of each step, by block."""
        self.start_cpu = 0.0
        self.journal = Journal(folder / "journal.jsonl")
        self._seconds = seconds
        self._until = time.monotonic() + START_SECONDS
        self._last = time.perf_counter()
        os.environ["WANDB_BASE_URL"] = url
        key = Key(value="a" * 40, source="this benchmark")
        self._wandb = Wandb("hanging", {}, folder / "wandb", key, self.said.append)
        self._follower = JournalFollower(self.journal.path, self._wandb.read, self._wandb.finish, "W&B")

    def record(self, record: Record) -> None:
        """Write the journal, as the head does; here in the step path, where it costs the most."""
        self.told += 1
        self.journal.append([{**record, "time": time.time(), "eta_seconds": 0.0}])

    def after_step(self, training: Training) -> None:
        """Time the step; end the block if it is over.

        Raises:
            EnoughError: all blocks are done.
            RuntimeError: W&B does not start.
        """
        now = time.perf_counter()
        if self.times:
            self.times[-1].append(now - self._last)
        if not self.times and not self.said:
            if time.monotonic() >= self._until:
                raise RuntimeError(f"W&B did not start within {START_SECONDS:.0f} s")
        elif not self.times or time.monotonic() >= self._until:
            self._turn()
        self._last = time.perf_counter()

    def close(self) -> str:
        """End W&B; returns what went wrong with it, or nothing."""
        return self._follower.close()

    def _turn(self) -> None:
        if not (processes := _processes()):
            raise RuntimeError("W&B's process has ended before everything was measured")
        if not self.times:
            self.start_cpu = sum(map(_cpu_seconds, processes))
        if len(self.times) == len(self.order):
            raise EnoughError
        _signal(processes, signal.SIGSTOP if self.order[len(self.times)] == "off" else signal.SIGCONT)
        self.times.append([])
        self._until = time.monotonic() + self._seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and keep; returns 1 if a metric is missing from the journal."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--pairs", type=int, default=24, metavar="N", help="pairs of blocks (%(default)s)")
    parser.add_argument("--seconds", type=float, default=3, metavar="S", help="length of a block (%(default)g)")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="oasis-tracking-") as folder, silent() as url:
        blocks = train(Path(folder), url, given.pairs, given.seconds)
        problem = blocks.close()
        written = len(parse(blocks.journal.path.read_text()))
    measured_on = conditions()
    measured_on["machine"]["load_average"] = os.getloadavg()[1]
    figures = {
        **measured_on,
        "conditions": "ConvNeXt nano, synthetic images of 32 pixels, 16 a step, one thread, a record every 10 steps",
        "block_seconds": given.seconds,
        **measured(blocks),
        "records_told": blocks.told,
        "records_in_journal": written,
        "said": [sentence.partition("(")[0] for sentence in blocks.said],
        "problem": problem,
    }
    lost = blocks.told - written
    return command.conclude(given.results, figures, [f"{lost} records are not in the journal"] if lost else ())


def train(folder: Path, url: str, pairs: int, seconds: float) -> Blocks:
    """Train until all blocks are done.

    Args:
        folder: folder for the journal and W&B's files.
        url: URL of the server that hangs.
        pairs: number of pairs of both conditions.
        seconds: length of a block.
    """
    config = configuration.from_recipe("digits_laptop", data="synthetic", batch_size=16, epochs=10**6)
    device = torch.device("cpu")
    blocks = Blocks(folder, url, pairs, seconds)
    try:
        observe(Training(config, *sources(config, None, device), device), blocks)
    finally:
        _signal(_processes(), signal.SIGCONT)  # stopped, they would outlive this process
    return blocks


def measured(blocks: Blocks) -> Record:
    """The figures of a run: medians of each block's steps, and how they differ within each pair."""
    medians: dict[Condition, list[float]] = {"off": [], "hanging": []}
    for condition, times in zip(blocks.order, blocks.times, strict=True):
        medians[condition].append(statistics.median(times) * 1000)
    added = [100 * (hanging / off - 1) for hanging, off in zip(medians["hanging"], medians["off"], strict=True)]
    return {
        "step_milliseconds_off": spread(medians["off"]),
        "step_milliseconds_hanging": spread(medians["hanging"]),
        "added_percent": {**spread(added), "quartiles": quartiles(added)},
        "steps": sum(map(len, blocks.times)),
        "cpu_seconds_of_starting_wandb": round(blocks.start_cpu, 2),
    }


def _processes() -> list[psutil.Process]:
    """W&B's processes: the one that its first record starts, and all that this one has started."""
    children = descendants(os.getpid())
    first = [psutil.Process(pid) for pid, line in children.items() if "workloads.reporting.wandb_process" in line]
    return [process for found in first for process in (found, *found.children(recursive=True))]


def _signal(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        process.send_signal(number)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    command.run(main)
