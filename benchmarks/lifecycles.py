"""Whether any legal stack is refused, and how many attempts a destroy takes: `python -m benchmarks.lifecycles`.

Everything in one process, on the emulated Google (`tests/emulator/one_process.py`). `--stacks` random legal stack files
are made, read back, and taken away; then, in `--zones` zones each, stacks with every ladder of up to four of seven ways
to buy nodes. Then the default stack, with builds inside the VPC, is destroyed `--schedules` times, while Google removes
what it made by itself (firewall rules, the control plane's subnet and address, a worker pool's side of the peering)
after random times up to 15 and up to 20 minutes: as the program does it, and for comparison without waits: in its
order, each refused deletion tried three times or, as by `terraform destroy`, once; and by name, in the reverse of
creation, each tried three times and then skipped. A destroy that is not complete is run again a minute later. Then it
is destroyed among `--neighbours` sets of other people's objects with similar names, ten sets at a time, none of which
may be deleted or waited for. Last, `--interruptions` times, that stack is made and removed while two random calls that
change something fail: the answer is lost, or the engine is killed before Google has the call, or before the engine has
the answer.

Each part is kept when it ends. One whose number is 0 is left out, and its last figures stay.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import re
import shutil
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from benchmarks.harness import command
from benchmarks.harness.figures import Record, conditions, median_and_range, read, say, today, write
from emulator.gcp.resources import google_client
from emulator.google import operations
from oasis_stack.facts.machine import MACHINES
from tests.emulator.one_process import Cut, OneProcess, resumed
from tests.emulator.provider_client import Failed
from tests.support.legal_stacks import ladders_of_rungs, stacks
from tests.support.stacks import FULL, changed

RESULTS = Path(__file__).with_suffix(".json")

LIMITS = (15, 20)
"""Minutes within which Google's leftovers disappear."""

MOST_RUNS = 10

WAYS: Mapping[str, Callable[[OneProcess], None]] = {
    "as the program does": lambda google: google.destroy(),
    "by name, in reverse, three tries": lambda google: google.destroy_by_name(3),
    "without waits, three tries": lambda google: google.destroy(tries=3),
    "without waits, one try": lambda google: google.destroy(tries=1),
}
"""Ways to destroy.

"By name" is the guide from which this program comes, "nearmap-gcp-ml", read backwards: it makes networks, subnets,
firewall rules, cluster and node pool in this order by `gcloud ... create NAME`, and does not say how to delete them.
Its other page, "Setup", does: `terraform destroy`, and "You may have to run `destroy` more than once as some networking
components take a while to be destroyed."
"""

RERUN_SECONDS = 60.0
"""Time from the end of an incomplete destroy to the next; a guess."""

SETS_AT_ONCE = 10

_DIGITS = "0123456789abcdef"

_OWN_NAME = re.compile(r"[a-z][a-z0-9-]*-[0-9a-f]{7}|oasis-[a-z]+(?=@)")
"""Names that Pulumi generates, and those that the program fixes."""


def main(given: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--stacks", type=int, default=1000, metavar="N", help="random stacks (1000)")
    parser.add_argument("--zones", type=int, default=3, metavar="N", help="zones, each with all 98 ladders (3)")
    parser.add_argument("--schedules", type=int, default=500, metavar="N", help="destroys per limit (500)")
    parser.add_argument("--neighbours", type=int, default=10_000, metavar="N", help="sets of others' objects (10000)")
    parser.add_argument("--interruptions", type=int, default=1000, metavar="N", help="lives with two of them (1000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of all parts (1)")
    chosen = parser.parse_args(given)
    warnings.simplefilter("ignore", DeprecationWarning)  # of the SDK's own modules
    wrong: list[str] = []
    found: Record = read(chosen.results) | {"conditions": conditions()}
    parts = {
        "legal stacks": (legal_stacks, chosen.stacks),
        "ladders": (ladders, chosen.zones),
        "destroys": (destroyed, chosen.schedules),
        "neighbours": (among_neighbours, chosen.neighbours),
        "double interruptions": (interrupted, chosen.interruptions),
    }
    with tempfile.TemporaryDirectory(prefix="oasis-lifecycles-") as folder, at_once():
        for name, (measure, count) in parts.items():
            if count:
                found[name], problems = measure(Path(folder), count, chosen.seed)
                wrong += problems
                write(chosen.results, found)
    return command.conclude(chosen.results, found, wrong)


def legal_stacks(folder: Path, count: int, seed: int) -> tuple[Record, list[str]]:
    """(how many were refused; what was refused, differed or stayed)"""
    seconds, lived = list[float](), list[list[str]]()

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
        lived.append(list(_lived(folder / "stack", config)))
        seconds.append(time.monotonic() - begun)
        if len(seconds) % 50 == 0:
            say(f"{len(seconds)} of {count} stacks")

    live()
    return {**_refused(lived), "seconds each": median_and_range(seconds)}, [*itertools.chain(*lived)]


def ladders(folder: Path, count: int, seed: int) -> tuple[Record, list[str]]:
    """(how many were refused; what was refused, differed or stayed)"""
    chance = random.Random(seed)
    zones = MACHINES["a3-ultragpu-8g"].zones[:count]
    lived: list[list[str]] = []
    for zone, rungs in itertools.product(zones, ladders_of_rungs()):
        place = {"oasis:region": zone.rpartition("-")[0], "oasis:zone": zone}
        capacity = chance.sample(rungs, len(rungs))
        lived.append(list(_lived(folder / "stack", changed("oasis:gpu.capacity", capacity, {**FULL, **place}))))
        if len(lived) % 50 == 0:
            say(f"{len(lived)} ladders")
    return {**_refused(lived), "zones": len(zones)}, [*itertools.chain(*lived)]


def _refused(lived: Sequence[Sequence[str]]) -> Record:
    return {"date": today(), "tried": len(lived), "refused": sum(map(bool, lived))}


def _lived(here: Path, config: dict[str, Any]) -> Iterator[str]:
    """Make a stack, read it back, and destroy it; yields what was refused, differed or stayed."""
    try:
        google = OneProcess(here, config)
        deployment = google.up()
        yield from (f"{config}: differs: {one}" for one in google.again(deployment).items())
        google.destroy()
        yield from (f"{config}: left: {one.name}" for one in google.cloud.inventory().other)
    except Failed as error:
        yield f"{config}: {error}"
    shutil.rmtree(here)


def destroyed(folder: Path, count: int, seed: int) -> tuple[Record, list[str]]:
    """(by limit and way: how many schedules needed one run or up to three, and the maximum; nothing)"""
    config = changed("oasis:build.peered", True, FULL)
    whole = OneProcess(folder / "whole", config)
    whole.up()
    found: Record = {"date": today()}
    for minutes in LIMITS:
        for way, destroy in WAYS.items():
            runs: list[int] = []
            for number in range(count):
                google = whole.configured(config, folder / "copy")
                runs.append(_runs(google, random.Random(f"{seed} {number}"), minutes, destroy))
                shutil.rmtree(folder / "copy")
            say(f"{count} destroys {way}, leftovers up to {minutes} min")
            found[f"{way}, leftovers up to {minutes} min"] = {
                "schedules": count,
                "one run is enough": runs.count(1),
                "three runs are enough": sum(needed <= 3 for needed in runs),
                "runs": median_and_range(runs, 0),
            }
    return found, []


def among_neighbours(folder: Path, count: int, seed: int) -> tuple[Record, list[str]]:
    """(sets of others' objects, those that a destroy deleted; what was deleted, stayed, or held up the destroy)"""
    config = changed("oasis:build.peered", True, FULL)
    whole = OneProcess(folder / "alone", config)
    whole.up()
    own = json.dumps([[one.kind, one.name, one.body] for one in whole.cloud.inventory().other])
    chance, wrong, gone = random.Random(seed), list[str](), 0
    for begun in range(0, count, SETS_AT_ONCE):
        google = whole.configured(config, folder / "among")
        sets = min(SETS_AT_ONCE, count - begun)
        others = set[tuple[str, str]]()
        for _ in range(sets):
            for kind, name, body in json.loads(_OWN_NAME.sub(_similar(chance), own)):
                if not google.cloud.find(kind, name):
                    google.cloud.create(kind, name, body)
                    others.add((kind, name))
        operations.LATE_SECONDS = chance.uniform(0, 900)
        try:
            google.destroy()
        except Failed as error:
            wrong.append(f"destroy among {sorted(others)}: {error}")
        left = {(one.kind, one.name) for one in google.cloud.inventory().other}
        gone += len(others - left)
        wrong += [f"deleted: {one}" for one in others - left] + [f"left: {one}" for one in left - others]
        shutil.rmtree(folder / "among")
        if not (begun + sets) % 500:
            say(f"{begun + sets} of {count} sets of neighbours, {gone} of their objects deleted")
    return {"date": today(), "sets": count, "their objects deleted": gone, "destroys not whole": len(wrong)}, wrong


def interrupted(folder: Path, count: int, seed: int) -> tuple[Record, list[str]]:
    """(runs of `up` and `destroy` that each life took; what differed, stayed or was there twice)"""
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
    found = {"date": today(), "tried": count, "not whole": len(wrong), "runs": median_and_range(runs, 0)}
    return found, wrong


def _runs(google: OneProcess, chance: random.Random, minutes: int, destroy: Callable[[OneProcess], None]) -> int:
    """How many times a way to destroy is run until nothing is left."""
    for run in range(1, MOST_RUNS + 1):
        operations.LATE_SECONDS = chance.uniform(0, 60 * minutes)
        with contextlib.suppress(Failed):
            destroy(google)
        if not google.cloud.inventory().other:
            return run
        google.cloud.turn(RERUN_SECONDS)
    return MOST_RUNS + 1


def _similar(chance: random.Random) -> Callable[[re.Match[str]], str]:
    """A way to turn a name into another: longer, shorter, or different in one place."""
    length = chance.randint(1, 3)
    letters = "".join(chance.choices(_DIGITS, k=length))
    another = dict(zip(_DIGITS, _DIGITS[1:] + _DIGITS[:1], strict=True))
    ways: tuple[Callable[[str], str], ...] = (
        lambda name: f"{name}{letters}",
        lambda name: f"{name}-{letters}",
        lambda name: f"{letters}-{name}",
        lambda name: name[:-length],
        # Never the same: an object in this stack's own network is not a neighbour, and is waited for.
        lambda name: f"{name[:-1]}{another[letters[0]] if name.endswith(letters[0]) else letters[0]}",
    )
    way = chance.choice(ways)
    return lambda found: way(found[0])


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Make operations take no time, so that only Google's late removals do."""
    before = operations.SECONDS, operations.LATE_SECONDS, google_client.RETRY_SECONDS
    operations.SECONDS, google_client.RETRY_SECONDS = 0.0, (0.0,) * 4
    try:
        yield
    finally:
        operations.SECONDS, operations.LATE_SECONDS, google_client.RETRY_SECONDS = before


if __name__ == "__main__":
    command.run(main)
