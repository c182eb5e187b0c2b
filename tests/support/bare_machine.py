"""A machine with a GPU and no more Python packages than are named: the others cannot be imported there."""

from __future__ import annotations

import os
import re
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

BARE = """
import os, sys
from importlib.machinery import PathFinder

MISSING = set(os.environ["MISSING_MODULES"].split())

class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in MISSING else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Bare
"""
"""A `sitecustomize`, which each Python imports when it starts."""


def variables(folder: Path, *names: str) -> dict[str, str]:
    """Environment of a command there, which its own processes inherit.

    Args:
        folder: an empty one.
        names: distributions that are installed, their own requirements with them.
    """
    present: set[str] = set()
    waiting = {_normal(name) for name in names}
    while waiting:
        name = waiting.pop()
        present.add(name)
        try:
            needed = [one for one in requires(name) or () if "extra ==" not in one]
        except PackageNotFoundError:  # of another platform
            continue
        waiting |= {_normal(re.split(r"[^\w.-]", one)[0]) for one in needed} - present
    missing = {
        module
        for module, distributions in packages_distributions().items()
        if not present & {_normal(distribution) for distribution in distributions}
    }
    (folder / "sitecustomize.py").write_text(BARE)
    return {**os.environ, "PYTHONPATH": str(folder), "MISSING_MODULES": " ".join(missing)}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
