"""Whether `up` and `destroy` of the whole stack recover however they are cut off: `python -m benchmarks.interruptions`.

The real engine, the real API server and the emulated Google, on a platform of this command's own. In each life one call
of `up` that changes something in the emulated Google fails, and one of `destroy`: its answer is lost, or the engine and
its providers are killed before Google has the call, or before they have the answer. Then the same command is given once
more. A life is whole if both second commands succeed, everything exists once, no preview shows a change, and nothing is
left at the end. There are some seventy calls of `up` and three ways, a minute or more each: results are written life by
life, and the next run goes on with those that are missing (`--lives`: at most so many more).
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from benchmarks.harness import command
from benchmarks.harness.figures import Record, conditions, median_and_range, read, say, write
from emulator import lifecycle
from emulator.engine.commands import first_on_path
from emulator.google import faults
from emulator.google.cloud import Cloud
from emulator.machine.state import CHECKOUT, State, write_atomically
from tests.support.processes import kill

RESULTS = Path(__file__).with_suffix(".json")

Cut = Literal["lost", "killed before", "killed after"]

_FAULTS: Mapping[Cut, Mapping[str, Any]] = {
    "lost": {"effect": "lose-answer"},
    "killed before": {"effect": "fail", "seconds": 60},
    "killed after": {"effect": "lose-answer", "seconds": 60},
}
"""The fault that makes each cut; the engine is killed while the call is delayed."""

_COMMAND = """
import sys
from pathlib import Path
from oasis_stack.__main__ import main
sys.exit(main(sys.argv[2:], Path(sys.argv[1])))
"""
"""`python -m oasis_stack`, for the checkout that is its first argument."""

_COMMAND_SECONDS = 600


class Platform:
    """The emulated platform of this command, with a person's commands in its shell."""

    def __init__(self, state: State, checkout: Path = CHECKOUT, programs: Sequence[Path] = ()) -> None:
        """`checkout` holds the program and stack file; folders of `programs` come first on the shell's PATH."""
        self.cloud, self._checkout = Cloud(state.directory), checkout
        self._environment = {**os.environ, **lifecycle.environment(state)}
        self._environment["PATH"] = first_on_path(self._environment["PATH"], *programs)

    def life(self, calls: Mapping[str, int], cut: Cut, expected: Counter[str]) -> list[str]:
        """What went wrong in a life with a cut at one call of each verb, counted from 1."""
        wrong: list[str] = []
        for verb, call in calls.items():
            first = self.run(verb, call, cut)
            status, said = self.run(verb)
            if status:
                wrong.append(f"the second {verb} failed after a first with status {first[0]}: {said[-2000:]}")
            if verb == "up":
                made = self.made()
                if made != expected:
                    wrong.append(f"too much: {made - expected}; missing: {expected - made}")
                wrong += self._differences()
        wrong += [f"left: {one.kind} {one.name}" for one in self.cloud.inventory().other]
        return wrong

    def made(self) -> Counter[str]:
        """Number of objects of each kind that a destroy removes."""
        return Counter(one.kind for one in self.cloud.inventory().other)

    def undisturbed(self, verb: str) -> int:
        """Run a command that must succeed; returns how many calls changed something."""
        self._plan([{"changes": True, "effect": "delay"}])
        status, said = self.run(verb)
        if status:
            raise RuntimeError(f"{verb} failed without a cut:\n{said}")
        self._plan([])
        return self._counted()

    def forget_what_is_kept(self) -> None:
        """Delete data and repositories that a destroy leaves on purpose; the next life starts without them."""
        for one in self.cloud.inventory().kept:
            if not one.kind.startswith("serviceusage/") and self.cloud.find(one.kind, one.name):
                self.cloud.delete(one.kind, one.name)

    def run(self, verb: str, call: int = 0, cut: Cut = "lost") -> tuple[int, str]:
        """Exit status and output of a command, cut off at a call if one is given."""
        for one in self.cloud.list("emulator/fault"):
            self.cloud.delete(one.kind, one.name)
        planned = {"changes": True, "after": call - 1, "times": 1, **_FAULTS[cut]}
        if call:
            self._plan([planned])
        line = [sys.executable, "-c", _COMMAND, str(self._checkout), verb, "--stack", "local", "--yes"]
        asked, answers = os.openpty()
        os.write(asked, b"y\n" * 20)  # a person at a terminal, who knows what belongs to this stack
        with tempfile.TemporaryFile("w+") as output, os.fdopen(answers) as keyboard, os.fdopen(asked):
            running = subprocess.Popen(
                line,
                cwd=CHECKOUT,
                env=self._environment,
                stdin=keyboard,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
            if call and cut != "lost":
                self._kill_at(running, call)
            status = running.wait(_COMMAND_SECONDS)
            if call:
                self._plan([])
            output.seek(0)
            return status, output.read()

    def _kill_at(self, running: subprocess.Popen[Any], call: int) -> None:
        """Kill the command and all that it started once the call has arrived."""
        while running.poll() is None:
            if self._counted() >= call:
                time.sleep(0.1)  # until whatever else was under way is answered
                kill(running)
                return
            time.sleep(0.05)

    def _counted(self) -> int:
        return sum(one.body["met"] for one in self.cloud.list("emulator/fault"))

    def _plan(self, planned: Sequence[Mapping[str, Any]]) -> None:
        write_atomically(self.cloud.directory / faults.FILE, json.dumps(planned))

    def _differences(self) -> list[str]:
        line = ["pulumi", "preview", "--stack", "local", "--json"]
        done = subprocess.run(
            line, cwd=self._checkout, env=self._environment, capture_output=True, text=True, check=False
        )
        steps = json.loads(done.stdout)["steps"] if not done.returncode else []
        said = [f"preview: {done.stderr[-500:]}"] if done.returncode else []
        return said + [f"{step['op']} {step['urn'].rpartition('::')[2]}" for step in steps if step["op"] != "same"]


def main(given: Sequence[str] | None = None) -> int:
    """Measure; returns the exit code."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--lives", type=int, default=10_000, metavar="N", help="run at most so many more (all)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of their order (1)")
    chosen = parser.parse_args(given)
    lives: list[Record] = read(chosen.results).get("lives", [])
    with tempfile.TemporaryDirectory(prefix="oasis-interruptions-") as folder:
        state = State(Path(folder) / ".oasis")
        try:
            with lifecycle.started(state, say) as engine:
                engine.preview()  # creates the stack, without any resources
                platform = Platform(state)
                ups = platform.undisturbed("up")
                expected = platform.made()
                calls = {"up": ups, "destroy": platform.undisturbed("destroy")}
                platform.forget_what_is_kept()
                say(f"up makes {calls['up']} calls that change something, destroy {calls['destroy']}")
                for at, cut in _missing(lives, calls, chosen.seed)[: chosen.lives]:
                    begun = time.monotonic()
                    wrong = platform.life(at, cut, expected)
                    lives.append({"at": at, "cut": cut, "wrong": wrong, "seconds": round(time.monotonic() - begun)})
                    say(f"{cut} at {at}: {wrong or 'whole'}")
                    write(chosen.results, _record(lives, calls))
                    platform.forget_what_is_kept()
                    if wrong:  # the next life still starts with nothing
                        platform.undisturbed("up")
                        platform.undisturbed("destroy")
                        platform.forget_what_is_kept()
        finally:
            lifecycle.take_down(state)
    return command.conclude(chosen.results, _record(lives, calls), [str(one) for one in lives if one["wrong"]])


def _missing(lives: Sequence[Record], calls: Mapping[str, int], seed: int) -> list[tuple[dict[str, int], Cut]]:
    """The lives still to be lived: first one for each call of `up`, with the cuts in turn; then those with the other
    cuts, calls that Google carried out before calls that it never got; each group in random order. The calls of
    `destroy` are spread over these. A life is repeated for a call of `destroy` that never came, as only in some runs
    GKE refuses and must be asked again."""
    lived, destroyed = {(one["at"]["up"], one["cut"]) for one in lives}, {one["at"]["destroy"] for one in lives}
    cuts = get_args(Cut)
    chance = random.Random(seed)
    every = [
        ({"up": call, "destroy": call % calls["destroy"] + 1}, cuts[(call + turn) % len(cuts)])
        for turn in range(len(cuts))
        for call in chance.sample(range(1, calls["up"] + 1), calls["up"])
    ]
    every[calls["up"] :] = sorted(every[calls["up"] :], key=lambda life: life[1] == "killed before")
    return [(at, cut) for at, cut in every if (at["up"], cut) not in lived or at["destroy"] not in destroyed]


def _record(lives: Sequence[Record], calls: Mapping[str, int]) -> Record:
    return {
        "conditions": conditions(),
        "calls that change something": dict(calls),
        "lived": dict(Counter(str(one["cut"]) for one in lives)),
        "whole": sum(not one["wrong"] for one in lives),
        "seconds each": median_and_range([float(one["seconds"]) for one in lives]),
        "lives": list(lives),
    }


if __name__ == "__main__":
    command.run(main)
