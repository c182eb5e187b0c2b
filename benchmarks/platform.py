"""Times the platform, into benchmarks/platform.json: `python -m benchmarks.platform [--tests] [--demo] [--first]`.

Each figure is a median with its spread (least and most). No verdict is given: machines are shared and noisy, so a
figure means something only beside another of the same run. What a run does not measure stays as it was, with its date.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.harness import command, figures
from benchmarks.harness.figures import Record, conditions, say, spread
from emulator import lifecycle
from emulator.machine import processes
from emulator.machine.state import CHECKOUT, State

RESULTS = Path(__file__).with_suffix(".json")

LATER_DEMOS = 3
"""Runs of `make demo` in a clone that has run it before."""

_PROGRAM = """
import json, time
begun = time.perf_counter()
from oasis_stack.command_line.offline import deploy_stack
from tests.support.stacks import FULL
seconds = []
for _ in range(2):
    deployment = deploy_stack(FULL)
    seconds.append(time.perf_counter() - begun)
print(json.dumps([seconds[0], seconds[1] - seconds[0], len(deployment)]))
"""
"""The SDKs import their parts on first use, so only a second run in a process is free of imports."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print and keep."""
    parser = command.parser(RESULTS, __doc__)
    parser.add_argument("--cycles", type=int, default=3, metavar="N", help="up, no-op up, destroy, so many times (3)")
    parser.add_argument("--tests", action="store_true", help="also the component tests and `make test-fast`")
    parser.add_argument(
        "--demo", action="store_true", help="also whole runs of `make demo` in a fresh clone, built programs reused"
    )
    parser.add_argument("--first", action="store_true", help="also one with nothing built yet (15 minutes or more)")
    given = parser.parse_args(arguments)
    parts: dict[str, tuple[bool, Callable[[], Record]]] = {
        # First, as one of the tests compares docs/figures.md with the figures that the other parts replace.
        "tests": (given.tests, lambda: tests(given.cycles)),
        "lines": (True, lines),
        "program": (True, lambda: program(given.cycles)),
        "cycles": (True, lambda: cycles(given.cycles)),
        "demo, first": (given.first, lambda: demo(fresh=True)),
        "demo, programs built": (given.demo, lambda: demo(fresh=False)),
    }
    for name, (wanted, measure) in parts.items():
        if wanted:
            keep(name, measure(), given.results)
    return 0


def keep(part: str, found: Record, results: Path) -> None:
    """Replace one part's figures, with date and machine, and print them."""
    own = {part: {**conditions(), **found}}
    try:
        figures.write(results, figures.read(results) | own)
    finally:
        print(json.dumps(own, indent=2))


def lines() -> Record:
    """Lines of Python per package, including blank lines and comments."""
    packages = ("oasis_stack", "workloads", "emulator", "tests", "benchmarks", "docs")
    counted = {
        name: sum(len(file.read_text().splitlines()) for file in (CHECKOUT / name).rglob("*.py")) for name in packages
    }
    return {"__main__.py": len((CHECKOUT / "__main__.py").read_text().splitlines()), **counted}


def program(runs: int) -> Record:
    """Seconds of the Pulumi program under mocks: with its imports (in a fresh interpreter), and without them."""
    whole, itself, resources = [], [], 0
    for _ in range(runs):
        python = [sys.executable, "-c", _PROGRAM]
        done = subprocess.run(python, cwd=CHECKOUT, check=True, capture_output=True, text=True)
        first, second, resources = json.loads(done.stdout.splitlines()[-1])
        whole.append(first)
        itself.append(second)
    return {"seconds with imports": spread(whole), "seconds without imports": spread(itself), "resources": resources}


def tests(runs: int) -> Record:
    """Seconds and counts of the tests of single components, and once of `make test-fast`."""
    pytest = [sys.executable, "-m", "pytest", "-q", "--numprocesses", "auto", "tests/oasis_stack/components"]
    components = [_timed(pytest) for _ in range(runs)]
    fast, output = _timed(["make", "test-fast"])
    return {
        "component tests, seconds": spread([seconds for seconds, _ in components]),
        "component tests": components[-1][1],
        "make test-fast, seconds": round(fast, 1),
        "make test-fast": output,
    }


def _timed(words: Sequence[str]) -> tuple[float, str]:
    """Wall seconds of a test run, and pytest's own last line about it. Raises CalledProcessError if a test fails."""
    say(" ".join(words[:4]))
    begun = time.monotonic()
    done = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return time.monotonic() - begun, done.stdout.strip().splitlines()[-1].strip("= ")


def cycles(runs: int) -> Record:
    """Seconds of up, no-op up and destroy on the emulated cloud, and the memory of all that runs."""
    with tempfile.TemporaryDirectory(prefix="oasis-benchmark-") as folder:
        state = State(Path(folder) / ".oasis")
        seconds: dict[str, list[float]] = {"up": [], "no-op up": [], "destroy": []}
        changes: dict[str, object] = {}
        with peak_memory(state) as peak:
            for run in range(runs):
                try:
                    with lifecycle.started(state, lambda line: None) as engine:
                        for verb, call in (("up", engine.up), ("no-op up", engine.up), ("destroy", engine.destroy)):
                            result = call()
                            seconds[verb].append(result.seconds)
                            changes[verb] = dict(result.changes)
                finally:
                    lifecycle.take_down(state)
                told = ", ".join(f"{verb} {taken[-1]:.1f} s" for verb, taken in seconds.items())
                say(f"cycle {run + 1} of {runs}: {told}")
    spreads = {f"{verb} seconds": spread(taken) for verb, taken in seconds.items()}
    return {**spreads, "changes": changes, "emulated cloud, peak MiB": peak()}


def demo(*, fresh: bool) -> Record:
    """Seconds of `make demo` in a fresh clone; `fresh` with an empty cache, so that every program is built."""
    with tempfile.TemporaryDirectory(prefix="oasis-benchmark-") as folder:
        clone = Path(folder) / "oasis"
        subprocess.run(["git", "clone", "--quiet", str(CHECKOUT), str(clone)], check=True)
        environment = dict(os.environ)
        if fresh:
            environment["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        state = State(clone / ".oasis")
        begun = time.monotonic()
        with peak_memory(state) as peak:
            status = _make("demo", clone, environment)
            seconds = time.monotonic() - begun
        _make("down", clone, environment)
        later = []
        for _ in range(LATER_DEMOS):
            begun = time.monotonic()
            status = status or _make("demo", clone, environment)
            later.append(time.monotonic() - begun)
            _make("down", clone, environment)
        _remove_read_only(Path(folder))
    return {
        "seconds": round(seconds, 1),
        "later runs, seconds": spread(later),
        "exit status": status,
        "peak MiB": peak(),
    }


@contextlib.contextmanager
def peak_memory(state: State) -> Iterator[Callable[[], int]]:
    """Peak memory of this emulator's processes together: proportional set size in MiB, sampled once a second."""
    ended, most = threading.Event(), [0]

    def watch() -> None:
        while not ended.wait(1.0):
            # Ray's processes rename themselves, which wipes the mark; their session stays.
            pids = {*processes.owned_by(state.directory), *processes.descendants(os.getpid())}
            pids |= {pid for process in state.processes() for pid in processes.session_of(process)}
            most[0] = max(most[0], sum(map(_proportional_bytes, pids)) >> 20)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: most[0]
    finally:
        ended.set()
        watcher.join()


def _proportional_bytes(pid: int) -> int:
    """Proportional set size; 0 for a process that has ended."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).memory_full_info().pss
    return 0


def _make(target: str, clone: Path, environment: dict[str, str]) -> int:
    say(f"make {target} in a fresh clone")
    log = Path(tempfile.gettempdir()) / f"oasis-benchmark-{os.getpid()}-{target}.log"
    with log.open("w") as output:
        return subprocess.run(
            ["make", target], cwd=clone, env=environment, stdout=output, stderr=subprocess.STDOUT
        ).returncode


def _remove_read_only(folder: Path) -> None:
    # Go's module cache is read-only, so that rmtree would stop at it.
    for directory in [path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink()]:
        directory.chmod(0o755)
    shutil.rmtree(folder / "oasis", ignore_errors=True)


if __name__ == "__main__":
    command.run(main)
