"""Kills training runs on a real Ray; what it cost them goes to benchmarks/kills.json: `python -m benchmarks.kills`.

Each trial is kept when it ends, so that an interrupted measurement goes on where it was: the same command again, or
`--fresh` to begin anew. The baseline, Ray Train's own checkpoints with its defaults, is killed by the same code.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness.machine import machine
from benchmarks.harness.trials import Record, Trials
from benchmarks.platform import spread
from workloads import closed_pipe
from workloads.cluster import session
from workloads.convnext.run import train

if TYPE_CHECKING:
    from benchmarks.kill_runs.trials import Bench

RESULTS = Path(__file__).with_suffix(".json")
TRIALS = Trials(Path(".oasis/benchmarks/kills.jsonl"))

KILLS_PER_RUN = 2
COMPARED = {"killed", "unforked"}
"""Parts whose runs end as one does that nobody kills, bit by bit."""
UNFORKED = {"unforked", "baseline"}
"""Parts whose workers have imports of their own."""
ABSENCE_TIMEOUT_SECONDS = 3.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials that are missing, print the figures and keep them; returns 1 if a figure is not as it must be."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kills", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--runs", type=int, default=20, metavar="N", help=f"runs killed {KILLS_PER_RUN} times each (%(default)s)")
    add(
        "--unforked",
        type=int,
        default=4,
        metavar="N",
        help="such runs whose workers Ray starts one by one, with imports of their own (%(default)s)",
    )
    add(
        "--schedules",
        type=int,
        default=20,
        metavar="N",
        help="runs on two numbers of ranks, killed on each (%(default)s)",
    )
    add("--absent", type=int, default=5, metavar="N", help="runs with a rank that stays away (%(default)s)")
    add("--drivers", type=int, default=10, metavar="N", help="kills of one run's driver (%(default)s)")
    add("--baseline", type=int, default=8, metavar="N", help="kills of Ray Train's own way (%(default)s)")
    add("--seed", type=int, default=0, help="of the moments and ranks (%(default)s)")
    add("--fresh", action="store_true", help="forget the trials kept from earlier")
    given = parser.parse_args(arguments)
    if given.fresh:
        TRIALS.forget()
    measure(given)
    records = TRIALS.kept()
    facts = {"date": datetime.date.today().isoformat(), "machine": machine(), "a worker's imports, seconds": imports()}
    figures = {**facts, **summary(records)}
    text = json.dumps(figures, indent=2)
    print(text)
    RESULTS.write_text(text + "\n")
    return 1 if figures["wrong"] else 0


def measure(given: argparse.Namespace) -> None:
    """Run what is missing: on one Ray whose workers are forked, and on one that starts them as Ray does."""
    counts = {"killed": given.runs, "resized": given.schedules, "absent": given.absent, "unforked": given.unforked}
    missing = TRIALS.missing(counts | {"drivers": int(given.drivers > 0), "baseline": int(given.baseline > 0)})
    if not missing:
        return
    place, code = session.prepare(), commit()
    from benchmarks.kill_runs import trials as kill_trials
    from benchmarks.kill_runs import work as kill_work

    with tempfile.TemporaryDirectory(prefix="oasis-kills-") as folder:
        bench = kill_trials.Bench(Path(folder))
        kill_work.write_images(bench.data)
        for imports in (train.IMPORTS, ()):
            here = [(part, number) for part, number in missing if (part in UNFORKED) != bool(imports)]
            if not here:
                continue
            with session.connect(place, cpus=kill_trials.CPUS, imports=imports):
                compared = any(part in COMPARED for part, _ in here)
                expected = kill_trials.undisturbed(bench, f"undisturbed-{len(imports)}") if compared else ""
                for part, number in here:
                    TRIALS.keep(part, number, {"commit": code, **tried(bench, part, number, given, expected)})


def tried(bench: Bench, part: str, number: int, given: argparse.Namespace, expected: str) -> Record:
    """One trial's record, of a failed one too, with the machine's load when it began."""
    from benchmarks.kill_runs import trials as kill_trials

    began, load = time.monotonic(), round(os.getloadavg()[0], 1)
    try:
        record = trial(bench, part, number, given, expected)
    except kill_trials.FAILED as error:
        record = {"failed": f"{type(error).__name__}: {error}"}
    return {"seconds": round(time.monotonic() - began, 1), "load": load, **record}


def commit() -> str:
    """The commit whose code is measured; with `-dirty` where the working tree differs from it."""
    command = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
    return subprocess.run(command, cwd=RESULTS.parent, capture_output=True, text=True, check=True).stdout.strip()


def imports(times: int = 3) -> Record:
    """Seconds that one worker's imports alone take here, as a measure for the time from a kill to the next step."""
    command = [sys.executable, "-c", "import workloads.convnext.run.worker"]
    taken = []
    for _ in range(times):
        began = time.monotonic()
        subprocess.run(command, check=True)
        taken.append(time.monotonic() - began)
    return spread(taken)


def trial(bench: Bench, part: str, number: int, given: argparse.Namespace, expected: str) -> Record:
    """One trial of a part; `expected` is the final state of a run that nobody kills."""
    from benchmarks.kill_runs import trials as kill_trials

    name, chance = f"{part}-{number}", random.Random(f"{given.seed}/{part}/{number}")
    match part:
        case "killed" | "unforked":
            return kill_trials.killed_run(bench, name, KILLS_PER_RUN, chance, expected)
        case "resized":
            return kill_trials.resized_run(bench, name, chance)
        case "absent":
            return kill_trials.absent_rank(bench, name, ABSENCE_TIMEOUT_SECONDS, chance)
        case "drivers":
            return kill_trials.killed_drivers(bench, name, given.drivers, chance)
        case _:
            return kill_trials.baseline(bench, name, given.baseline, chance)


def summary(records: Sequence[Record]) -> Record:
    """The figures of these trials; `wrong` lists every trial that is not as it must be."""
    from benchmarks.kill_runs.trials import BASELINE_STEPS, INTERVAL_SECONDS

    parts = {part: [record for record in records if record["part"] == part] for part in PARTS}
    figures: Record = {"interval_seconds": INTERVAL_SECONDS, "baseline_interval_steps": BASELINE_STEPS}
    figures |= {part: PARTS[part](found) for part, found in parts.items() if found}
    figures["dates"] = sorted({record["date"] for record in records})
    figures["commits"] = sorted({record.get("commit", "not kept") for record in records})
    figures["wrong"] = [
        {"part": record["part"], "number": record["number"]}
        for part, found in parts.items()
        if part != "baseline"
        for record in found
        if not right(record, INTERVAL_SECONDS)
    ]
    return figures


def right(record: Record, interval: float) -> bool:
    """True if a trial lost nothing that it may not lose."""
    if "failed" in record:
        return False
    return (
        all(within(kill, interval) for kill in record.get("kills", ()))
        and record.get("equal", True)
        and not any(record.get(name, 0) for name in ("orphans", "missing", "repeated"))
        and record.get("beyond_timeout", 0) <= 10
        and record.get("continued") == record.get("drivers_killed")
    )


def within(kill: Record, interval: float) -> bool:
    """True if a kill cost at most one interval and one step."""
    return kill["redone_seconds"] <= interval + kill["longest_step"]


def _killed(records: Sequence[Record]) -> Record:
    whole = [record for record in records if "failed" not in record]
    return {
        **_kills(whole),
        "bitwise_equal": f"{sum(record.get('equal', False) for record in whole)} of {len(records)}",
        **_totals(whole),
    }


def _kills(records: Sequence[Record]) -> Record:
    from benchmarks.kill_runs.trials import INTERVAL_SECONDS

    kills = [kill for record in records for kill in record["kills"]]
    recovered = sorted(kill["recovered"] for kill in kills)
    return {
        "kills": len(kills),
        "within_interval_and_step": sum(within(kill, INTERVAL_SECONDS) for kill in kills),
        "redone_seconds": spread([kill["redone_seconds"] for kill in kills]),
        "redone_steps": spread([kill["redone"] for kill in kills]),
        "recovered_seconds": spread(recovered)
        | {"p95": round(recovered[max(0, -(-95 * len(recovered) // 100) - 1)], 2)},
        "orphans": sum(record["orphans"] for record in records),
    }


def _resized(records: Sequence[Record]) -> Record:
    whole = [record for record in records if "failed" not in record]
    return {"schedules": len(records), "worlds": [record["worlds"] for record in whole], **_totals(whole)}


def _absent(records: Sequence[Record]) -> Record:
    whole = [record for record in records if "failed" not in record]
    beyond = [record["beyond_timeout"] for record in whole]
    return {"trials": len(records), "seconds_beyond_timeout": spread(beyond), **_totals(whole)}


def _drivers(records: Sequence[Record]) -> Record:
    return {name: sum(record.get(name, 0) for record in records) for name in ("drivers_killed", "continued")}


def _totals(records: Sequence[Record]) -> Record:
    return {name: sum(record[name] for record in records) for name in ("missing", "repeated", "orphans")}


PARTS: dict[str, Callable[[Sequence[Record]], Record]] = {
    "killed": _killed,
    "unforked": _killed,
    "resized": _resized,
    "absent": _absent,
    "drivers": _drivers,
    "baseline": _kills,
}


if __name__ == "__main__":
    sys.exit(closed_pipe.run(main))
