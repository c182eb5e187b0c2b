"""What can be known of `bench` without a GPU, into benchmarks/collectives.json: `python -m benchmarks.collectives`.

overhead: our time of a call over that of a bare torch.distributed loop, in turns on one gloo group. kills: a rank
killed at any moment. slow: a rank that runs a fifth of the time; control: none does. node: of two nodes one has half of
the other's rate; rail: one of two has; even: neither. gate: seconds of the check before training on two nodes. Each
trial is kept when it ends: the same command goes on where it was cut short, `--fresh` begins anew.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness.machine import machine
from benchmarks.harness.trials import Record, Trials
from benchmarks.platform import spread
from workloads import closed_pipe
from workloads.cluster import session

RESULTS = Path(__file__).with_suffix(".json")
TRIALS = Trials(Path(".oasis/benchmarks/collectives.jsonl"))

SIZES = (16 << 20, 64 << 20)
"""Bytes per rank at which the overhead is taken."""

OVERHEAD_LIMIT = 1.02
EXIT_LIMIT_SECONDS = 30.0

GATE_LIMIT_SECONDS = 120.0
GATES = 5

ON_TWO_NODES = ("node", "rail", "even", "gate")
CONTROLS = {"slow": "control", "node": "even", "rail": "even"}
"""The part without which a part says little."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials that are missing, print the figures and keep them; returns 1 if a figure is not as it must be."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.collectives",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)} (all)")
    add("--pairs", type=int, default=80, metavar="N", help="pairs of ours and the bare loop, per size (%(default)s)")
    add("--kills", type=int, default=20, metavar="N", help="runs with a rank killed (%(default)s)")
    add("--slow", type=int, default=20, metavar="N", help="runs with a slow rank, and without (%(default)s)")
    add("--places", type=int, default=10, metavar="N", help="runs with a slow node, rail, and without (%(default)s)")
    add("--seed", type=int, default=0, help="of the moments and ranks (%(default)s)")
    add("--fresh", action="store_true", help="forget the trials kept from earlier")
    given = parser.parse_args(arguments)
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if given.fresh:
        TRIALS.forget()
    measure(given)
    records = TRIALS.kept()
    figures = {"date": datetime.date.today().isoformat(), "machine": machine(), **summary(records)}
    text = json.dumps(figures, indent=2)
    print(text)
    RESULTS.write_text(text + "\n")
    return 1 if figures["wrong"] else 0


def measure(given: argparse.Namespace) -> None:
    """Run what is missing; the trials that need a Ray of one node share one, and so do those that need two nodes."""
    counts = {"overhead": len(SIZES), "kills": given.kills, "slow": given.slow, "control": given.slow}
    counts |= {"node": given.places, "rail": given.places, "even": given.places, "gate": GATES}
    controls = {CONTROLS[part] for part in given.parts if part in CONTROLS}
    asked = set(given.parts or PARTS) | controls
    missing = TRIALS.missing({part: count for part, count in counts.items() if part in asked})
    if not missing:
        return
    place = session.prepare()  # before anything that imports Ray
    from benchmarks import collective_trials, two_nodes

    for part, number in missing:
        if part == "overhead":
            TRIALS.keep(part, number, collective_trials.overhead(SIZES[number], given.pairs))
    on_two = [(part, number) for part, number in missing if part in ON_TWO_NODES]
    on_one = [(part, number) for part, number in missing if part not in ("overhead", *ON_TWO_NODES)]
    with tempfile.TemporaryDirectory(prefix="oasis-collectives-") as folder:
        if on_one:
            with session.connect(place, cpus=collective_trials.CPUS):
                span = collective_trials.undisturbed(Path(folder)) if "kills" in dict(on_one) else 0.0
                for part, number in on_one:
                    chance = _chance(given, part, number)
                    if part == "kills":
                        TRIALS.keep(part, number, collective_trials.killed(Path(folder), span, chance))
                    else:
                        slow = chance.randrange(collective_trials.SLOW_RANKS) if part == "slow" else None
                        TRIALS.keep(part, number, collective_trials.slowed(slow))
        if on_two:
            with two_nodes.connected(place, Path(folder)):
                for part, number in on_two:
                    is_gate = part == "gate"
                    found = two_nodes.gated() if is_gate else two_nodes.slowed(part, _chance(given, part, number))
                    TRIALS.keep(part, number, found)


def _chance(given: argparse.Namespace, part: str, number: int) -> random.Random:
    return random.Random(f"{given.seed}/{part}/{number}")


def summary(records: Sequence[Record]) -> Record:
    """The figures of these trials; `wrong` lists every trial that is not as it must be."""
    parts = {part: [record for record in records if record["part"] == part] for part in PARTS}
    return {
        **{part: PARTS[part](found) for part, found in parts.items() if found},
        "dates": sorted({record["date"] for record in records}),
        "wrong": [
            {"part": part, "number": record["number"]}
            for part, found in parts.items()
            for record in found
            if not right(record)
        ],
    }


def right(record: Record) -> bool:
    """True if a trial is as it must be."""
    match record["part"]:
        case "overhead":
            return statistics.median(record["ratios"]) <= OVERHEAD_LIMIT
        case "kills":
            # A rank that has given its last answer is missed by nobody.
            ended = record["code"] == 5 or (record["code"] == 0 and record["complete"])
            free = not record["left_running"] and record["groups_removed"]
            # A rank that dies while it starts has no process that the driver knows of.
            blamed = record["named_process"] in (None, record["killed_process"])
            return ended and free and blamed and record["exit_seconds"] <= EXIT_LIMIT_SECONDS
        case "gate":
            return record["refused"] and record["seconds"] <= GATE_LIMIT_SECONDS
        case _:
            return record["named"] == ([] if record["slow"] is None else [record["slow"]])


def _overhead(records: Sequence[Record]) -> Record:
    return {
        f"{record['bytes'] >> 20} MiB": {
            "ratio": spread(record["ratios"])
            | {"quartiles": [round(value, 3) for value in statistics.quantiles(record["ratios"], n=4)]},
            "pairs": len(record["ratios"]),
            "milliseconds_a_call": round(1000 * record["seconds"], 2),
        }
        for record in records
    }


def _kills(records: Sequence[Record]) -> Record:
    return {
        "trials": len(records),
        "right": sum(map(right, records)),
        "exit_seconds": spread([record["exit_seconds"] for record in records]),
        "killed_after_seconds": spread([record["killed_after"] for record in records]),
        "named_rank_and_node": sum(record["named"] for record in records),
        "named_its_process": sum(record["named_process"] == record["killed_process"] for record in records),
        "killed_after_its_last_answer": sum(record["code"] == 0 for record in records),
    }


def _slow(records: Sequence[Record]) -> Record:
    return {
        "trials": len(records),
        "right": sum(map(right, records)),
        "times_the_others": spread([ratio for record in records for ratio in record["ratios"]]),
    }


def _gate(records: Sequence[Record]) -> Record:
    return {
        "trials": len(records),
        "right": sum(map(right, records)),
        "seconds": spread([record["seconds"] for record in records]),
    }


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
    sys.exit(closed_pipe.run(main))
