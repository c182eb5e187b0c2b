"""Kills training runs on a real Ray; what it cost them goes to benchmarks/kills.json: `python -m benchmarks.kills`.

Each trial is kept when it ends, so that the same command continues an interrupted measurement; `--fresh` starts over.
The baseline, Ray Train's own checkpoints with its defaults, is killed by the same code.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import command
from benchmarks.harness.figures import Record, conditions, spread
from benchmarks.harness.trials import Trials
from benchmarks.kill_runs import BASELINE_STEPS, INTERVAL_SECONDS, KILLS_PER_RUN
from workloads.cluster import session
from workloads.convnext.run import train

RESULTS = Path(__file__).with_suffix(".json")
TRIALS = Trials(Path(".oasis/benchmarks/kills.jsonl"))

COMPARED = {"killed", "streamed", "unforked"}
"""Parts whose runs end bit for bit like a run that nobody kills."""
UNFORKED = {"unforked", "baseline"}
"""Parts whose workers have imports of their own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials that are missing, print the figures and keep them; returns 1 if a figure is not as it must be."""
    parser = command.parser(RESULTS, __doc__)
    for option, count, told in (
        ("--runs", 20, f"runs killed {KILLS_PER_RUN} times each"),
        ("--streamed", 10, "such runs whose images are decoded by processes of their own, which die with their rank"),
        ("--unforked", 4, "such runs whose workers Ray starts one by one, with imports of their own"),
        ("--schedules", 20, "runs on two numbers of ranks, killed on each"),
        ("--absent", 5, "runs with a rank that stays away"),
        ("--drivers", 10, "kills of one run's driver"),
        ("--baseline", 8, "kills of Ray Train's own way"),
    ):
        parser.add_argument(option, type=int, default=count, metavar="N", help=f"{told} (%(default)s)")
    given = TRIALS.parse(parser, arguments)
    measure(given)
    found = {**conditions(), "a worker's imports, seconds": imports(), **summary()}
    return command.conclude(given.results, found, found["wrong"])


def measure(given: argparse.Namespace) -> None:
    """Run what is missing: on one Ray whose workers are forked, and on one that starts them in Ray's own way."""
    counts = {"killed": given.runs, "streamed": given.streamed, "resized": given.schedules, "absent": given.absent}
    counts |= {"unforked": given.unforked, "drivers": int(given.drivers > 0), "baseline": int(given.baseline > 0)}
    missing = TRIALS.missing(counts)
    if not missing:
        return
    place, code = session.prepare(), commit()  # before anything that imports Ray
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
                    record = kill_trials.tried(bench, (part, number), given, expected)
                    TRIALS.keep(part, number, {"commit": code, **record})


def commit() -> str:
    """The commit whose code is measured, with `-dirty` if the working tree differs from it."""
    describe = ["git", "describe", "--always", "--abbrev=12", "--dirty"]
    return subprocess.run(describe, cwd=RESULTS.parent, capture_output=True, text=True, check=True).stdout.strip()


def imports(times: int = 3) -> Record:
    """Seconds that one worker's imports alone take here, as a yardstick for the time from a kill to the next step."""
    taken = []
    for _ in range(times):
        began = time.monotonic()
        subprocess.run([sys.executable, "-c", "import workloads.convnext.run.worker"], check=True)
        taken.append(time.monotonic() - began)
    return spread(taken)


def summary() -> Record:
    """The figures of the trials; the baseline's are not ours, and never count as wrong."""
    return {
        "interval_seconds": INTERVAL_SECONDS,
        "baseline_interval_steps": BASELINE_STEPS,
        **TRIALS.summary(PARTS, right),
        "commits": sorted({record.get("commit", "not kept") for record in TRIALS.kept()}),
    }


def right(record: Record) -> bool:
    """True if a trial lost nothing that it must keep; the baseline may lose anything."""
    if record.get("part") == "baseline":
        return True
    return (
        "failed" not in record
        and all(map(within, record.get("kills", ())))
        and record.get("equal", True)
        and not any(record.get(name, 0) for name in ("orphans", "missing", "repeated"))
        and record.get("beyond_timeout", 0) <= 10
        and record.get("continued") == record.get("drivers_killed")
    )


def within(kill: Record) -> bool:
    """True if a kill cost at most one interval and one step."""
    return kill["redone_seconds"] <= INTERVAL_SECONDS + kill["longest_step"]


def _killed(records: Sequence[Record]) -> Record:
    whole = _whole(records)
    return {
        **_kills(records),
        "bitwise_equal": f"{sum(record.get('equal', False) for record in whole)} of {len(records)}",
        **_totals(whole),
    }


def _kills(records: Sequence[Record]) -> Record:
    whole = _whole(records)
    kills = [kill for record in whole for kill in record["kills"]]
    recovered = sorted(kill["recovered"] for kill in kills)
    rank = -(-95 * len(recovered) // 100) - 1
    return {
        "kills": len(kills),
        "within_interval_and_step": sum(map(within, kills)),
        "redone_seconds": spread([kill["redone_seconds"] for kill in kills]),
        "redone_steps": spread([kill["redone"] for kill in kills]),
        "recovered_seconds": spread(recovered) | ({"p95": round(recovered[rank], 2)} if recovered else {}),
        "orphans": sum(record["orphans"] for record in whole),
    }


def _resized(records: Sequence[Record]) -> Record:
    whole = _whole(records)
    return {"schedules": len(records), "worlds": [record["worlds"] for record in whole], **_totals(whole)}


def _absent(records: Sequence[Record]) -> Record:
    whole = _whole(records)
    beyond = [record["beyond_timeout"] for record in whole]
    return {"trials": len(records), "seconds_beyond_timeout": spread(beyond), **_totals(whole)}


def _drivers(records: Sequence[Record]) -> Record:
    return {name: sum(record.get(name, 0) for record in records) for name in ("drivers_killed", "continued")}


def _whole(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if "failed" not in record]


def _totals(records: Sequence[Record]) -> Record:
    return {name: sum(record[name] for record in records) for name in ("missing", "repeated", "orphans")}


PARTS: dict[str, Callable[[Sequence[Record]], Record]] = {
    "killed": _killed,
    "streamed": _killed,
    "unforked": _killed,
    "resized": _resized,
    "absent": _absent,
    "drivers": _drivers,
    "baseline": _kills,
}


if __name__ == "__main__":
    command.run(main)
