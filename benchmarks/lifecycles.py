"""Whether any legal stack is refused, and how often a stack must be destroyed: `python -m benchmarks.lifecycles`.

Everything in one process, on the emulated Google (`tests/emulator/one_process.py`). `--stacks` random legal stack files
are made, read back, and taken away. Then the default stack, with builds inside the VPC, is destroyed `--schedules`
times, while Google removes what it made by itself (firewall rules, the control plane's subnet and address, a worker
pool's side of the peering) after random times up to 15 and up to 20 minutes: as the program does it, and beside it
without waits, each refused deletion tried three times, as scripts do. Last, `--interruptions` times, that stack is made
and removed while two random calls that change something end badly: the answer is lost, or the engine is killed before
Google has the call, or before the engine has the answer.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from benchmarks.harness import command
from benchmarks.harness.figures import Record, conditions, median_and_range, say
from emulator.gcp.resources import google_client
from emulator.google import operations
from tests.emulator.one_process import Cut, OneProcess, resumed
from tests.emulator.provider_client import Failed
from tests.support.legal_stacks import stacks
from tests.support.stacks import FULL, changed

RESULTS = Path(__file__).with_suffix(".json")

LIMITS = (15, 20)
"""Minutes within which Google's leftovers go."""

MOST_RUNS = 10


def main(given: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--stacks", type=int, default=1000, metavar="N", help="random stacks (1000)")
    parser.add_argument("--schedules", type=int, default=500, metavar="N", help="destroys per limit (500)")
    parser.add_argument("--interruptions", type=int, default=1000, metavar="N", help="lives with two of them (1000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of both (1)")
    chosen = parser.parse_args(given)
    warnings.simplefilter("ignore", DeprecationWarning)  # of the SDK's own modules
    with tempfile.TemporaryDirectory(prefix="oasis-lifecycles-") as folder, _at_once():
        refused, seconds = legal_stacks(Path(folder), chosen.stacks, chosen.seed)
        destroys = destroyed(Path(folder), chosen.schedules, chosen.seed)
        broken, runs = interrupted(Path(folder), chosen.interruptions, chosen.seed)
    found: Record = {
        "conditions": conditions(),
        "legal stacks": {"tried": len(seconds), "refused": len(refused), "seconds each": median_and_range(seconds)},
        "destroys": destroys,
        "double interruptions": {"tried": len(runs), "not whole": len(broken), "runs": median_and_range(runs, 0)},
    }
    return command.conclude(chosen.results, found, refused + broken)


def legal_stacks(folder: Path, count: int, seed: int) -> tuple[list[str], list[float]]:
    """(what was refused, differed or stayed; seconds of each stack)"""
    wrong, seconds = list[str](), list[float]()

    @seeded(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(stacks())
    def live(config: dict[str, Any]) -> None:
        begun = time.monotonic()
        here = folder / "stack"
        try:
            google = OneProcess(here, config)
            deployment = google.up()
            wrong.extend(f"{config}: differs: {one}" for one in google.again(deployment).items())
            google.destroy()
            wrong.extend(f"{config}: left: {one.name}" for one in google.cloud.inventory().other)
        except Failed as error:
            wrong.append(f"{config}: {error}")
        shutil.rmtree(here)
        seconds.append(time.monotonic() - begun)
        if len(seconds) % 50 == 0:
            say(f"{len(seconds)} of {count} stacks")

    live()
    return wrong, seconds


def destroyed(folder: Path, count: int, seed: int) -> Record:
    """By limit and way: how many schedules needed one run, and the most that one needed."""
    config = changed("oasis:build.peered", True, FULL)
    whole = OneProcess(folder / "whole", config)
    whole.up()
    found: Record = {}
    for minutes in LIMITS:
        for way, waits in (("as the program does", True), ("without waits, three tries", False)):
            chance = random.Random(seed)
            runs: list[int] = []
            for _ in range(count):
                google = whole.configured(config, folder / "copy")
                runs.append(_runs(google, chance, minutes, waits=waits))
                shutil.rmtree(folder / "copy")
            say(f"{count} destroys {way}, leftovers up to {minutes} min")
            found[f"{way}, leftovers up to {minutes} min"] = {
                "schedules": count,
                "one run is enough": runs.count(1),
                "runs": median_and_range(runs, 0),
            }
    return found


def interrupted(folder: Path, count: int, seed: int) -> tuple[list[str], list[int]]:
    """(what differed, stayed or was there twice; runs of `up` and `destroy` that each life took)"""
    config = changed("oasis:build.peered", True, FULL)
    whole = OneProcess(folder / "undisturbed", config)
    whole.up()
    expected = Counter(one.kind for one in whole.cloud.inventory().other)
    whole.destroy()
    chance = random.Random(seed)
    wrong, runs = list[str](), list[int]()
    operations.LATE_SECONDS = 600.0
    for number in range(count):
        google = OneProcess(folder / "interrupted", config)
        google.cuts = {call: chance.choice(get_args(Cut)) for call in chance.sample(range(1, whole.calls + 1), 2)}
        life = f"{google.cuts}"
        try:
            deployment, ups = resumed(google.up)
            made = Counter(one.kind for one in google.cloud.inventory().other)
            differs = google.again(deployment)
            if made != expected or differs:
                wrong.append(f"{life}: {made - expected} too much, {expected - made} missing, or {differs} differs")
            _, destroys = resumed(google.destroy)
            wrong.extend(f"{life}: left: {one.name}" for one in google.cloud.inventory().other)
            runs.append(ups + destroys)
        except Failed as error:
            wrong.append(f"{life}: {error}")
        shutil.rmtree(folder / "interrupted")
        if (number + 1) % 50 == 0:
            say(f"{number + 1} of {count} lives with two interruptions, {len(wrong)} of them not whole")
    return wrong, runs


def _runs(google: OneProcess, chance: random.Random, minutes: int, *, waits: bool) -> int:
    """How many times `destroy` is called until nothing is left."""
    for run in range(1, MOST_RUNS + 1):
        operations.LATE_SECONDS = chance.uniform(0, 60 * minutes)
        try:
            google.destroy(waits=waits)
        except Failed:
            continue
        if not google.cloud.inventory().other:
            return run
    return MOST_RUNS + 1


@contextmanager
def _at_once() -> Iterator[None]:
    """Operations that take no time, so that only what is late is."""
    before = operations.SECONDS, operations.LATE_SECONDS, google_client.RETRY_SECONDS
    operations.SECONDS, google_client.RETRY_SECONDS = 0.0, (0.0,) * 4
    try:
        yield
    finally:
        operations.SECONDS, operations.LATE_SECONDS, google_client.RETRY_SECONDS = before


if __name__ == "__main__":
    command.run(main)
