"""What can be known of `bench` without a GPU, into benchmarks/collectives.json: `python -m benchmarks.collectives`.

overhead: our time of a call over that of a bare torch.distributed loop, in turns on one gloo group. kills: a rank
killed at any moment. slow: a rank that runs a fifth of the time; control: none does. node: of two nodes one has half of
the other's rate; rail: one of two has; even: neither. gate: seconds of the check before training on two nodes. Each
trial is kept when it ends: the same command continues where it was cut short, `--fresh` starts over.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import command
from benchmarks.harness.figures import Record, conditions, quartiles, spread
from benchmarks.harness.trials import Trial, Trials, chance_of
from workloads.cluster import session

RESULTS = Path(__file__).with_suffix(".json")
TRIALS = Trials(Path(".oasis/benchmarks/collectives.jsonl"))

SIZES = (16 << 20, 64 << 20)
"""Bytes per rank at which the overhead is measured."""

OVERHEAD_LIMIT = 1.02
EXIT_LIMIT_SECONDS = 30.0

GATE_LIMIT_SECONDS = 120.0
GATES = 5

WITHOUT_RAY, ON_ONE_NODE, ON_TWO_NODES = ("overhead",), ("kills", "slow", "control"), ("node", "rail", "even", "gate")
CONTROLS = {"slow": "control", "node": "even", "rail": "even"}
"""For a part, the part that it needs for comparison."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials that are missing, print the figures and keep them; returns 1 if a figure is not as it must be."""
    parser = command.parser(RESULTS, __doc__)
    command.add_parts(parser, PARTS)
    for option, count, told in (
        ("--pairs", 80, "pairs of ours and the bare loop, per size"),
        ("--kills", 20, "runs with a rank killed"),
        ("--slow", 20, "runs with a slow rank, and without"),
        ("--places", 10, "runs with a slow node, rail, and without"),
    ):
        parser.add_argument(option, type=int, default=count, metavar="N", help=f"{told} (%(default)s)")
    given = TRIALS.parse(parser, arguments)
    measure(given)
    found = {**conditions(), **TRIALS.summary(PARTS, right)}
    return command.conclude(given.results, found, found["wrong"])


def measure(given: argparse.Namespace) -> None:
    """Run what is missing; trials that need a Ray of one node share one, as do those that need two nodes."""
    counts = {"overhead": len(SIZES), "kills": given.kills, "slow": given.slow, "control": given.slow}
    counts |= {"node": given.places, "rail": given.places, "even": given.places, "gate": GATES}
    controls = {CONTROLS[part] for part in given.parts if part in CONTROLS}
    asked = set(given.parts or PARTS) | controls
    missing = TRIALS.missing({part: count for part, count in counts.items() if part in asked})
    if not missing:
        return
    place = session.prepare()  # before anything that imports Ray
    from benchmarks.collective_trials import trials, two_nodes

    with tempfile.TemporaryDirectory(prefix="oasis-collectives-") as name:
        folder = Path(name)
        for parts, connected in (
            (WITHOUT_RAY, contextlib.nullcontext),
            (ON_ONE_NODE, lambda: session.connect(place, cpus=trials.CPUS)),
            (ON_TWO_NODES, lambda: two_nodes.connected(place, folder)),
        ):
            if here := [trial for trial in missing if trial[0] in parts]:
                with connected():
                    for trial in here:
                        TRIALS.keep(*trial, run(given, trial, folder))


def run(given: argparse.Namespace, trial: Trial, folder: Path) -> Record:
    """One trial, on the Ray that it needs, with a folder for what it writes."""
    from benchmarks.collective_trials import trials, two_nodes

    part, number = trial
    chance = chance_of(trial)
    match part:
        case "overhead":
            return trials.overhead(SIZES[number], given.pairs)
        case "kills":
            return trials.killed(folder, trials.undisturbed(folder), chance)
        case "slow":
            return trials.slowed(chance.randrange(trials.SLOW_RANKS))
        case "control":
            return trials.slowed(None)
        case "gate":
            return two_nodes.gated()
        case _:
            return two_nodes.slowed(part, chance)


def right(record: Record) -> bool:
    """True if a trial is as it must be."""
    match record["part"]:
        case "overhead":
            return statistics.median(record["ratios"]) <= OVERHEAD_LIMIT
        case "kills":
            # Nobody misses a rank that has given its last answer.
            ended = record["code"] == 5 or (record["code"] == 0 and record["complete"])
            free = not record["left_running"] and record["groups_removed"]
            # A rank that dies while it starts has no process known to the driver.
            blamed = record["named_process"] in (None, record["killed_process"])
            return ended and free and blamed and record["exit_seconds"] <= EXIT_LIMIT_SECONDS
        case "gate":
            return record["refused"] and record["seconds"] <= GATE_LIMIT_SECONDS
        case _:
            return record["named"] == ([] if record["slow"] is None else [record["slow"]])


def _overhead(records: Sequence[Record]) -> Record:
    return {
        f"{record['bytes'] >> 20} MiB": {
            "ratio": {**spread(record["ratios"]), "quartiles": quartiles(record["ratios"], digits=3)},
            "pairs": len(record["ratios"]),
            "milliseconds_a_call": round(1000 * record["seconds"], 2),
        }
        for record in records
    }


def _kills(records: Sequence[Record]) -> Record:
    return {
        **_counted(records),
        "exit_seconds": spread([record["exit_seconds"] for record in records]),
        "killed_after_seconds": spread([record["killed_after"] for record in records]),
        "named_rank_and_node": sum(record["named"] for record in records),
        "named_its_process": sum(record["named_process"] == record["killed_process"] for record in records),
        "killed_after_its_last_answer": sum(record["code"] == 0 for record in records),
    }


def _slow(records: Sequence[Record]) -> Record:
    ratios = [ratio for record in records for ratio in record["ratios"]]
    return {**_counted(records), "times_the_others": spread(ratios)}


def _gate(records: Sequence[Record]) -> Record:
    return {**_counted(records), "seconds": spread([record["seconds"] for record in records])}


def _counted(records: Sequence[Record]) -> Record:
    return {"trials": len(records), "right": sum(map(right, records))}


PARTS: dict[str, Callable[[Sequence[Record]], Record]] = {
    "overhead": _overhead,
    "kills": _kills,
    "slow": _slow,
    "control": _slow,
    "node": _slow,
    "rail": _slow,
    "even": _slow,
    "gate": _gate,
}

if __name__ == "__main__":
    command.run(main)
