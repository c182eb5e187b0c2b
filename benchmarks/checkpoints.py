"""What checkpoints survive and cost, into benchmarks/checkpoints.json: `python -m benchmarks.checkpoints WHAT`.

A command that was cut short continues where it stopped: the file holds what was measured. `--fresh` starts over.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import hashlib
import json
import math
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torchvision.models import convnext_base

from benchmarks.checkpoint_trials import faults as checkpoint_faults
from benchmarks.checkpoint_trials import kills as checkpoint_kills
from benchmarks.harness import command, figures
from benchmarks.harness.figures import conditions, say
from tests.emulator.google import served
from workloads.checkpoints.store import CheckpointStore
from workloads.checkpoints.writer import Snapshot, Writer
from workloads.convnext.learning.snapshot import copied
from workloads.storage.folders import EMULATOR_VARIABLE, Folder, locate

RESULTS = Path(__file__).with_suffix(".json")

KILLS = {"ours": 1000, "torch.save over one file": 300, "folder of shards without a marker": 300}
"""Kills per variant: no bad one in n means at most 3/n with 95 % confidence, the "rule of three"."""

AT_A_TIME = 20
"""Kills between two progress lines; the results are also kept at each line."""

SPEED, SPEED_BYTES = "md5 of one core after each, GB/s", 100_000_000

PHASES = ("nothing in flight", "a save in flight")


class CheckpointResults:
    """The file of results, rewritten after every piece of work."""

    def __init__(self, path: Path, section: str, again: bool) -> None:
        self._path, self._section = path, section
        self._all = figures.read(path)
        self.cases: dict[str, Any] = {} if again else self._all.get(section, {}).get("cases", {})
        """What was measured in this section, by name."""

    def keep(self, name: str, case: Any) -> None:
        """Replace one case."""
        self.cases[name] = case
        self._all[self._section] = {**conditions(), "torch": torch.__version__, "cases": self.cases}
        figures.write(self._path, self._all)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and keep; returns 1 if a figure shows that the store is broken."""
    parser = command.parser(RESULTS, __doc__)
    commands = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    kill = commands.add_parser("kill", help="kill -9 during saves: ours, and two common ways to save")
    kill.add_argument("--trials", type=int, metavar="N", help=f"kills of each (default {KILLS})")
    kill.add_argument("--lanes", type=int, default=2, metavar="N", help="writers at a time (%(default)s)")
    commands.add_parser("faults", help="each I/O call of a save fails in turn, on a disk and on an object store")
    told = "from notice to COMMIT, for ConvNeXt-Base with AdamW and averaged weights"
    notice = commands.add_parser("notice", help=told)
    notice.add_argument("--saves", type=int, default=50, metavar="N", help="saves of each case (%(default)s)")
    notice.add_argument("--place", choices=("disk", "gs"), action="append", help="only here (default: both)")
    for one in commands.choices.values():
        one.add_argument("--folder", type=Path, help="on the disk that is to be measured (default: a temporary one)")
        one.add_argument("--fresh", action="store_true", help="forget what was measured before")
        command.add_results(one, RESULTS)
    given = parser.parse_args(arguments)
    results = CheckpointResults(given.results, given.what, given.fresh)
    with tempfile.TemporaryDirectory(prefix="oasis-checkpoints-", dir=given.folder) as folder:
        sound = {"kill": kills, "faults": faults, "notice": notices}[given.what](given, results, Path(folder))
    print(json.dumps(results.cases, indent=2))
    return 0 if sound else 1


def kills(given: argparse.Namespace, results: CheckpointResults, folder: Path) -> bool:
    """Kill writers of each variant; returns whether ours lost nothing."""
    for number, variant in enumerate(checkpoint_kills.VARIANTS):
        wanted = given.trials or KILLS[variant]
        total = Counter(results.cases.get(variant, {}))
        while total["trials"] < wanted:
            trials = min(AT_A_TIME, wanted - total["trials"])
            place = folder / str(number) / str(total["trials"])
            for found in checkpoint_kills.run(variant, trials, place, given.lanes, seed=total["trials"]):
                total.update(found)
            results.keep(variant, dict(total))
            say(f"{variant}: {dict(total)}")
    ours = results.cases["ours"]
    return not any(ours[name] for name in ("unloadable", "wrong", "lost", "uncollected"))


def faults(given: argparse.Namespace, results: CheckpointResults, folder: Path) -> bool:
    """Make each call of a save fail; returns whether a valid newest checkpoint always remained and nothing hung."""
    for place in checkpoint_faults.PLACES:
        for error in checkpoint_faults.ERRORS:
            for lasting in (False, True):
                name = f"{place}, {errno.errorcode[error]}, {'from then on' if lasting else 'once'}"
                if name in results.cases:
                    continue
                outcomes = list(checkpoint_faults.sweep(place, error, lasting))
                case = {
                    "calls that failed": len(outcomes),
                    "saves that failed": sum(bool(outcome.raised) for outcome in outcomes),
                    "no valid newest": sum(not outcome.valid for outcome in outcomes),
                    "next save failed": sum(not outcome.saves_again for outcome in outcomes),
                    "hung": sum(outcome.seconds > checkpoint_faults.HANG_SECONDS for outcome in outcomes),
                    "longest, seconds": round(max(outcome.seconds for outcome in outcomes), 3),
                }
                results.keep(name, case)
                say(f"{name}: {case}")
    bad = ("no valid newest", "next save failed", "hung")
    return not any(case[name] for case in results.cases.values() for name in bad)


def notices(given: argparse.Namespace, results: CheckpointResults, folder: Path) -> bool:
    """Time urgent saves of 1.4 GB."""
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    places: dict[str, Callable[[Path], Any]] = {"disk": _disk, "gs": _emulated_bucket}
    state = base_state()
    for place in given.place or places:
        with places[place](folder) as runs:
            for phase in PHASES:
                name = f"{place}, {phase}"
                before = results.cases.get(name, {})
                seconds: list[float] = list(before.get("each", []))
                speeds: list[float] = list(before.get(SPEED, []))
                for took in urgent_saves(runs.child(name), state, phase, given.saves - len(seconds)):
                    seconds.append(round(took, 3))
                    speeds.append(round(speed(), 2))
                    results.keep(name, {**percentiles(seconds), "bytes": _bytes(state), "each": seconds, SPEED: speeds})
                    say(f"{name}: {took:.2f} s; one core hashes {speeds[-1]} GB/s")
    return True


def speed() -> float:
    """GB/s of MD5 on one core, a measure of the machine's load and speed at the time. Without it, a save's seconds
    cannot be compared with another day's."""
    content = bytes(SPEED_BYTES)
    began = time.monotonic()
    hashlib.md5(content, usedforsecurity=False)
    return SPEED_BYTES / 1e9 / (time.monotonic() - began)


def urgent_saves(folder: Folder, state: dict[str, Any], phase: str, saves: int) -> Iterator[float]:
    """Seconds from notice to COMMIT, including the copy of the state, as the driver makes it.

    Args:
        folder: the run's folder; its checkpoints are removed at the end.
        state: what is saved.
        phase: one of PHASES; a save in flight started at a random instant of the time that one takes.
        saves: number of saves.
    """
    cpu, chance = torch.device("cpu"), random.Random(saves)
    writer = Writer(CheckpointStore(folder, keep=2), say)
    usual = 1.0
    for step in range(saves):
        if phase == "a save in flight":
            writer.start(Snapshot(copied(state, cpu), 2 * step, {}, {}, lambda: None))
            time.sleep(chance.uniform(0, usual))
        began = time.monotonic()
        saved = writer.save_now(lambda step=step: Snapshot(copied(state, cpu), 2 * step + 1, {}, {}, lambda: None))
        took, usual = time.monotonic() - began, saved.seconds
        writer.wait()
        yield took
    folder.remove()


def base_state() -> dict[str, Any]:
    """Weights, AdamW's two moments and averaged weights of torchvision's ConvNeXt-Base: 88.6 million numbers each."""
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in convnext_base().named_parameters()}
    generator = torch.Generator().manual_seed(0)

    def weights() -> dict[str, torch.Tensor]:
        return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}

    moments = zip(weights().values(), weights().values(), strict=True)
    steps = {
        number: {"step": torch.tensor(1.0), "exp_avg": first, "exp_avg_sq": second}
        for number, (first, second) in enumerate(moments)
    }
    return {"model": weights(), "optimizer": {"state": steps}, "averaged": weights()}


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile (nearest rank: the maximum of fewer than 100 values) and maximum."""
    ordered = sorted(seconds)
    rank = {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in (("p50", 0.5), ("p99", 0.99))}
    return {"saves": len(ordered), **rank, "most": ordered[-1]}


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[Folder]:
    yield locate(folder / "runs")


@contextlib.contextmanager
def _emulated_bucket(folder: Path) -> Iterator[Folder]:
    with served(folder / "google") as google:
        google.make_bucket("runs")
        os.environ[EMULATOR_VARIABLE] = f"http://{google.host}"
        try:
            yield locate("gs://runs/team")
        finally:
            del os.environ[EMULATOR_VARIABLE]


def _bytes(state: Any) -> int:
    if isinstance(state, torch.Tensor):
        return state.nbytes
    return sum(map(_bytes, state.values()))


if __name__ == "__main__":
    command.run(main)
