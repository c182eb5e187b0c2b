"""`make clean`: lists what would be deleted from this checkout, asks, ends what runs, and deletes it.

Run as `python -m emulator.machine.clean` by any Python: the checkout's own is deleted with the rest.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from emulator.machine.belongings import content, runs_text, size_text
from emulator.machine.state import CHECKOUT, OWN, State

_WHOLE = ("pyvenv.cfg", ".installed", ".installed-for-the-cloud")
"""The files by which the Makefile recognises an environment that has all its packages."""

_ASK, _AGREED = "Delete all of it? [y/N] ", ("y", "yes")


def main(arguments: Sequence[str]) -> int:
    """Delete the environments and `.oasis`, once the person agrees, or with `--yes`; returns the exit status."""
    folders = [
        path
        for path in (CHECKOUT / ".venv", CHECKOUT / "policies" / ".venv", CHECKOUT / ".oasis")
        if path.is_symlink() or path.exists()
    ]
    if not folders:
        print(f"there is nothing to delete in {CHECKOUT}")
        return 0
    print(f"`make clean` deletes, in {CHECKOUT}:", *_lines(folders), sep="\n", flush=True)
    if "--yes" not in arguments:
        if not sys.stdin.isatty():
            print(
                "nothing was deleted: there is no terminal to ask on. `make clean YES=1` agrees beforehand.",
                file=sys.stderr,
            )
            return 1
        if not _agreed():
            print("nothing was deleted")
            return 0
    if status := subprocess.run(["make", "--no-print-directory", "down"], cwd=CHECKOUT, check=False).returncode:
        return status
    print("deleting; an environment with its packages takes half a minute", flush=True)
    for path in folders:
        if path.is_symlink():
            path.unlink()
            continue
        for mark in _WHOLE:  # first: if this is cut off, half an environment must not pass for a whole one
            (path / mark).unlink(missing_ok=True)
        shutil.rmtree(path)
    return 0


def _lines(folders: Sequence[Path]) -> list[str]:
    oasis = CHECKOUT / ".oasis"
    kept = State(oasis).kept() if oasis in folders else []
    parts = [path for path in folders if path != oasis] + kept
    found = {path: content(path) for path in parts}
    if (results := oasis / "results") in found:  # tables and plots of runs that are counted where they are
        found[results] = replace(found[results], runs=0)
    rows = [(str(path.relative_to(CHECKOUT)), str(found[path])) for path in parts]
    own = [content(entry).size for entry in oasis.iterdir() if entry.name in OWN] if oasis in folders else []
    if any(own):
        rows.append(("the emulated cloud", size_text(sum(own))))
    width = max(len(name) for name, _ in rows)
    runs = sum(one.runs for one in found.values())
    return [
        *(f"  {name:<{width}}  {held}" for name, held in rows),
        f"It holds {runs_text(runs) if runs else 'no runs'}.",
    ]


def _agreed() -> bool:
    try:
        return input(_ASK).strip().lower() in _AGREED
    except (EOFError, KeyboardInterrupt):
        print()
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
