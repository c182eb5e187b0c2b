"""Whether the fast model of `benchmarks.lifecycles` is right: `python -m benchmarks.model`.

Lives of random stacks, each through the real engine on an emulated platform of this command's own and through the model
(`tests/emulator/one_process.py`): `up`, `up` with other settings, `destroy`. In most commands one call that changes
something fails, and Google removes what it made by itself after up to twenty minutes, or later than the program waits.
Each command is repeated until it is whole. After each run that was not killed, the objects at Google are compared field
by field; in the end, so are the number of runs that each command took and how each ended. The program's waits for
Google go by the emulated cloud's clock in both.

A life takes minutes: results are written life by life, and the next run continues with those that are missing
(`--engine-schedules`: how many in all).
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args

import yaml

from benchmarks.harness import cloud_clock, command
from benchmarks.harness.figures import Record, conditions, median_and_range, read, say, write
from benchmarks.interruptions import Platform
from benchmarks.lifecycles import at_once
from emulator import lifecycle
from emulator.gke.controller import INTERVAL_SECONDS
from emulator.google import operations
from emulator.google.cloud import Cloud
from emulator.machine.state import CHECKOUT, State, write_atomically
from emulator.rest import cloud_server
from tests.emulator.one_process import Cut, Killed, OneProcess
from tests.emulator.provider_client import Failed
from tests.support.legal_stacks import ladders_of_rungs

RESULTS = Path(__file__).with_suffix(".json")

MOST_RUNS = 6

_PULUMI = """#!{python}
import os
import sys
from pathlib import Path

sys.path.append({checkout!r})
from emulator import lifecycle
from emulator.machine.state import State

if not {{"up", "refresh", "destroy"}} & {{*sys.argv}}:
    os.execv({pulumi!r}, ["pulumi", *sys.argv[1:]])
engine = lifecycle.engine(State(Path({directory!r})), print, checkout=Path({folder!r}))
sys.exit(engine.command_line(sys.argv[1:]))
"""
"""The `pulumi` of the engine's shell: without the Ray that the emulator starts beside an `up`, which Google does not
see."""

_SETTLE_SECONDS = 3 * INTERVAL_SECONDS
"""Time within which the emulated GKE has written its additions into pools."""

VERBS = ("up", "up", "destroy")

_MADE_UP: Mapping[str, str] = {
    r"(-[0-9a-f]{1,7})?-[0-9a-f]{8}(?=\"|-grp\b|-pe\b)": "-#",
    r"-[0-9a-f]{7}\b": "-*",
    r"(?<=/budgets/)[0-9a-f-]{36}": "*",
}
"""Generated parts of names, by Google and Pulumi; GKE ends its own with a hash, after as much as there is room for."""

_OF_THE_MOMENT = frozenset(
    {"createTime", "effectiveTime", "etag", "id", "metageneration", "timeCreated", "uid", "updateTime", "updated"}
)
"""Fields that differ from one `up` to the next. `metageneration` counts changes: what a killed run had changed but not
recorded, beside the call that it was killed at, the next run changes again."""

_CONTROL_PLANE = frozenset({"clusterCaCertificate", "endpoint", "privateEndpoint", "publicEndpoint"})
"""Fields about the Kubernetes behind a cluster, which the model lacks."""

_NAMED_BY_GOOGLE = "billingbudgets/budget "
"""A run that is killed at one particular call leaves one more of these (docs/cost.md); whether it is that call depends
on the order in which the engine makes independent resources, which varies."""

_SECTIONS: Mapping[str, Sequence[Mapping[str, Any] | None]] = {
    "oasis:build": (None, {}, {"peered": True}),
    "oasis:wandb": (None, {}, {"keep": False}),
    "oasis:data": (None, {"soft_delete_days": 0}, {"keep": False}),
    "oasis:network": (None, {"proxy_only": True}),
    "oasis:labels": (None, {"team": "vision"}),
    "oasis:cost": (None, {"billing_account": "0A0A0A-0B0B0B-0C0C0C", "monthly_usd": 50_000}),
}

Outcome = Literal["whole", "failed", "killed"]

Fields = dict[str, list[str]]
"""Bodies, as JSON, by kind and name of their object; several if names differ only in what Pulumi generated."""


class Schedule(NamedTuple):
    """The plan of a life."""

    settings: tuple[dict[str, Any], ...]
    """Settings of each command."""
    cuts: tuple[tuple[float, Cut] | None, ...]
    """For each command, what happens at which fraction of the calls that it makes undisturbed."""
    minutes: int
    """Minutes after which Google removes what it made."""


class Command(NamedTuple):
    """History of a command that was repeated until it was whole."""

    outcomes: list[Outcome]
    seen: list[Fields]
    """What was at Google after each run that was not killed."""
    told: list[str]
    """Messages of the failed runs."""


class Side(Protocol):
    """The engine or the model."""

    def configure(self, config: Mapping[str, Any]) -> None:
        """Change the stack file."""
        ...

    def run(self, verb: str, call: int, cut: Cut) -> tuple[Outcome, str]:
        """Run a command, cut off at a call unless that is 0; returns how it ended, and its message."""
        ...

    @property
    def cloud(self) -> Cloud: ...


class Engine:
    """Pulumi's engine, used by a person's commands."""

    def __init__(self, state: State, folder: Path, minutes: int) -> None:
        for name in ("Pulumi.yaml", "__main__.py"):
            shutil.copy2(CHECKOUT / name, folder)
        shutil.copy2(cloud_clock.__file__, folder / "sitecustomize.py")
        program, own = folder / "bin" / "pulumi", state.path("bin", "pulumi")
        places = {"checkout": CHECKOUT, "pulumi": own, "directory": state.directory, "folder": folder}
        script = _PULUMI.format(python=sys.executable, **{name: str(place) for name, place in places.items()})
        write_atomically(program, script, mode=0o755)
        self._platform, self._file = Platform(state, folder, [program.parent]), folder / "Pulumi.local.yaml"
        self.cloud = self._platform.cloud
        state.stop(cloud_server.NAME)
        os.environ["OASIS_EMULATOR_LATE_SECONDS"] = str(60 * minutes)
        cloud_server.start(state)

    def configure(self, config: Mapping[str, Any]) -> None:
        self._file.write_text(yaml.safe_dump({"config": dict(config)}))

    def run(self, verb: str, call: int, cut: Cut) -> tuple[Outcome, str]:
        status, said = self._platform.run(verb, call, cut)
        time.sleep(_SETTLE_SECONDS)
        return "killed" if status < 0 else "failed" if status else "whole", said

    def forget(self) -> None:
        """Delete everything at Google, so that the next life starts like the model's."""
        for one in [*self.cloud.inventory().kept, *self.cloud.inventory().other]:
            if self.cloud.find(one.kind, one.name):
                self.cloud.delete(one.kind, one.name)


class Model:
    """The same in one process."""

    def __init__(self, folder: Path, minutes: int) -> None:
        self._folder, self._google = folder, None
        operations.LATE_SECONDS = 60.0 * minutes

    def configure(self, config: Mapping[str, Any]) -> None:
        self._google = self._google.configured(config) if self._google else OneProcess(self._folder, config)

    def run(self, verb: str, call: int, cut: Cut) -> tuple[Outcome, str]:
        google = self.google
        google.cuts = {google.calls + call: cut} if call else {}
        try:
            getattr(google, verb)()
        except Killed:
            return "killed", ""
        except Failed as error:
            return "failed", str(error)
        return "whole", ""

    @property
    def google(self) -> OneProcess:
        """The stack."""
        assert self._google
        return self._google

    @property
    def cloud(self) -> Cloud:
        return self.google.cloud


def drawn(seed: int, number: int) -> Schedule:
    """One of the random schedules."""
    chance = random.Random(f"{seed} {number}")
    local = yaml.safe_load((CHECKOUT / "Pulumi.local.yaml").read_text())["config"]
    ladders = list(ladders_of_rungs())
    first, then = ({**local, **_settings(chance, ladders)} for _ in range(2))
    ways: tuple[Cut | None, ...] = (None, *get_args(Cut))
    cuts = [(chance.uniform(0.02, 0.9), way) if (way := chance.choice(ways)) else None for _ in VERBS]
    minutes = chance.choice((chance.randint(0, 20), chance.randint(0, 20), chance.randint(40, 50)))
    return Schedule((first, then, then), tuple(cuts), minutes)


def _settings(chance: random.Random, ladders: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Sections of a stack file."""
    ladder = chance.choice(ladders)
    found = {key: chance.choice(ways) for key, ways in _SECTIONS.items()}
    gpu = {"machine_type": "a3-ultragpu-8g", "capacity": chance.sample(ladder, len(ladder))}
    return {"oasis:gpu": gpu, **{key: value for key, value in found.items() if value is not None}}


def lived(side: Side, schedule: Schedule, calls: Sequence[int]) -> list[Command]:
    """Live a schedule; `calls` says how many calls each command makes undisturbed."""
    found: list[Command] = []
    for verb, config, cut, count in zip(VERBS, schedule.settings, schedule.cuts, calls, strict=True):
        side.configure(config)
        call, way = (max(1, round(cut[0] * count)), cut[1]) if cut and count else (0, "lost")
        done = Command([], [], [])
        while "whole" not in done.outcomes and len(done.outcomes) < MOST_RUNS:
            outcome, said = side.run(verb, 0 if done.outcomes else call, way)
            done.outcomes.append(outcome)
            if outcome == "failed":
                done.told.append(said)
            if outcome != "killed":
                done.seen.append(fields(side.cloud))
        found.append(done)
    return found


def undisturbed(folder: Path, schedule: Schedule) -> list[int]:
    """How many calls that change something the model makes in the first run of each command."""
    model = Model(folder, schedule.minutes)
    found: list[int] = []
    for verb, config in zip(VERBS, schedule.settings, strict=True):
        model.configure(config)
        before = model.google.calls
        ended, _ = model.run(verb, 0, "lost")
        found.append(model.google.calls - before)
        while ended != "whole":
            ended, _ = model.run(verb, 0, "lost")
    return found


def fields(cloud: Cloud) -> Fields:
    """What is at Google, by names without their generated parts."""
    found: Fields = defaultdict(list)
    inventory = cloud.inventory()
    for one in [*inventory.kept, *inventory.other]:
        whole = json.dumps([one.kind, one.name, one.body], sort_keys=True)
        for made_up, instead in _MADE_UP.items():
            whole = re.sub(made_up, instead, whole)
        kind, name, body = json.loads(whole)
        found[f"{kind} {name}"].append(json.dumps(body))
    return {name: sorted(bodies) for name, bodies in found.items()}


def differences(engine: Sequence[Command], model: Sequence[Command]) -> Iterator[str]:
    """Where the results of the engine and the model differ."""
    killed = False
    for number, (verb, ours, theirs) in enumerate(zip(VERBS, engine, model, strict=True), 1):
        where = f"{verb}, command {number}"
        if ours.outcomes != theirs.outcomes:
            yield f"{where}: the engine's runs were {ours.outcomes}, the model's {theirs.outcomes}"
        killed |= "killed" in ours.outcomes
        for run, (there, here) in enumerate(zip(ours.seen, theirs.seen, strict=False), 1):
            for name in sorted(there.keys() | here.keys()):
                found, modelled = there.get(name, []), here.get(name, [])
                if len(found) != len(modelled) and not (killed and name.startswith(_NAMED_BY_GOOGLE)):
                    yield f"{where}, look {run}: {name}: {len(found)} with the engine, {len(modelled)} in the model"
                for one, other in zip(found, modelled, strict=False):
                    told = (
                        f"{where}, look {run}: {name}: {field}"
                        for field in _unequal(json.loads(one), json.loads(other))
                    )
                    yield from told


def _unequal(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """The fields in which two bodies differ, with both values."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted((one.keys() | other.keys()) - _OF_THE_MOMENT - _CONTROL_PLANE):
            yield from _unequal(one.get(key), other.get(key), f"{path}.{key}")
    elif one != other:
        yield f"{path} is {json.dumps(one)} with the engine, {json.dumps(other)} in the model"


def main(given: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--engine-schedules", type=int, default=30, metavar="N", help="lives in all (30)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of all lives (1)")
    chosen = parser.parse_args(given)
    warnings.simplefilter("ignore", DeprecationWarning)  # of the SDK's own modules
    lives: list[Record] = read(chosen.results).get("lives", [])
    missing = sorted({*range(chosen.engine_schedules)} - {one["number"] for one in lives if one["seed"] == chosen.seed})
    with tempfile.TemporaryDirectory(prefix="oasis-model-") as folder:
        state = State(Path(folder) / ".oasis")
        try:
            with lifecycle.started(state, say) as engine:
                engine.preview()  # creates the stack, without any resources
                for number in missing:
                    lives.append(_compared(state, Path(folder), chosen.seed, number))
                    write(chosen.results, _record(lives))
                    if "whole" not in lives[-1]["ended"][-1]:
                        break  # leftovers would count for the next life
        finally:
            lifecycle.take_down(state)
    return command.conclude(chosen.results, _record(lives), [one for one in lives if one["differences"]])


def _compared(state: State, folder: Path, seed: int, number: int) -> Record:
    """Live one life in both."""
    schedule, begun = drawn(seed, number), time.monotonic()
    here = folder / str(number)
    here.mkdir()
    with at_once():
        calls = undisturbed(here / "undisturbed", schedule)
        model = lived(Model(here / "model", schedule.minutes), schedule, calls)
    between = time.monotonic()
    side = Engine(state, here, schedule.minutes)
    engine = lived(side, schedule, calls)
    found = list(differences(engine, model))
    ended = [one.outcomes for one in engine]
    if "whole" in ended[-1]:
        side.forget()
    cuts = [cut and cut[1] for cut in schedule.cuts]
    say(f"life {number}: {cuts}, leftovers {schedule.minutes} min: {ended}; {len(found)} differences")
    if found:
        say("\n".join([*found, *(said[-1500:] for one in (*engine, *model) for said in one.told)]))
    looks = [seen for one in engine for seen in one.seen]
    return {
        "seed": seed,
        "number": number,
        "cuts": cuts,
        "leftovers, minutes": schedule.minutes,
        "ended": ended,
        "objects compared": sum(len(bodies) for seen in looks for bodies in seen.values()),
        "differences": found,
        "seconds": round(time.monotonic() - begun),
        "seconds of the model": round(between - begun),
    }


def _record(lives: Sequence[Record]) -> Record:
    return {
        "conditions": conditions(),
        "lived": len(lives),
        "equal": sum(not one["differences"] for one in lives),
        "seconds each": median_and_range([float(one["seconds"]) for one in lives]),
        "lives": sorted(lives, key=lambda one: (one["seed"], one["number"])),
    }


if __name__ == "__main__":
    command.run(main)
