"""The runs in a place, from one listing: their checkpoints, journals and results, by name.

A run is any folder with a `checkpoints`, `journal` or `results` folder in it, so the trials of a sweep are runs too.
Nothing here needs torch.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from workloads.checkpoints import manifest
from workloads.errors import DataIntegrityError, UsageError, did_you_mean
from workloads.storage.disk import Entry
from workloads.storage.folders import Folder

TRIAL = "trial.json"
"""In the folder of a trial that has ended: how; see `tune.ledger`."""

NAMED = 20
"""Most runs that a message about an unknown name lists: each trial of a sweep is one."""

CHECKPOINTS, JOURNAL, RESULTS = PARTS = ("checkpoints", "journal", "results")


@dataclass(frozen=True)
class Attempt:
    """One attempt at a checkpoint."""

    name: str
    """Its folder: step, then a random part."""
    committed: bool
    """Whether it has COMMIT; without, it is an orphan or still being written."""
    size: int
    """Bytes of all its files."""
    modified: float
    """Unix time of its last change."""


@dataclass(frozen=True)
class KnownRun:
    """One run, as far as a listing tells."""

    name: str
    """Path of its folder below the place that was listed."""
    folder: Folder
    """Its folder."""
    attempts: tuple[Attempt, ...]
    """Oldest step first."""
    others: tuple[Entry, ...]
    """Objects of journal and results, with paths relative to the run's folder."""

    @property
    def committed(self) -> list[Attempt]:
        """Its checkpoints, oldest first; not verified."""
        return [attempt for attempt in self.attempts if attempt.committed]

    @property
    def size(self) -> int:
        """Bytes of all of it."""
        return sum(attempt.size for attempt in self.attempts) + sum(entry.size for entry in self.others)

    @property
    def modified(self) -> float | None:
        """Unix time of its last change; None where its folders are empty."""
        return max([part.modified for part in (*self.attempts, *self.others)], default=None)

    def attempt(self, name: str) -> Folder:
        """The folder of one attempt."""
        return self.folder.child(CHECKPOINTS, name)

    def newest_manifest(self) -> dict[str, Any] | None:
        """The manifest of the newest checkpoint; None without one.

        Raises:
            DataIntegrityError: it is not the one that was committed.
        """
        if not self.committed:
            return None
        newest = self.attempt(self.committed[-1].name)
        try:
            return manifest.read(newest)
        except DataIntegrityError:
            if manifest.stands(newest):
                raise
            later = _listed(self.name, self.folder)
            if later.committed == self.committed:
                raise
            return later.newest_manifest()  # its trainer has written newer ones since, and removed this one

    def status(self) -> str:
        """`complete`, `stopped early` by its search, `unfinished`, `no checkpoint`, `results only`, or, by the newest
        checkpoint's manifest, `another version's` of this program or `damaged`.
        """
        try:
            found = self.newest_manifest()
        except manifest.OtherSchemaError:
            return "another version's"
        except DataIntegrityError:
            return "damaged"
        if found is None:
            return "results only" if any(entry.path.startswith(RESULTS) for entry in self.others) else "no checkpoint"
        facts = found["facts"]
        epochs = facts.get("config", {}).get("epochs")
        if epochs is not None and facts.get("epoch", 0) >= epochs:
            return "complete"
        return "stopped early" if self._outcome() == "stopped" else "unfinished"

    def _outcome(self) -> str:
        """The search's decision on it; empty where it is no trial, or one that goes on."""
        try:
            return str(json.loads(self.folder.read(TRIAL))["status"])
        except (FileNotFoundError, ValueError, LookupError):
            return ""

    def problems(self) -> dict[str, str]:
        """Every checkpoint's damage by name, empty where it verifies. Reads every byte of all of them.

        One that was removed since the listing, by the run's own trainer for example, is left out, and so is one that
        another version of this program wrote, of which nobody here can say.
        """
        found: dict[str, str] = {}
        for attempt in self.committed:
            folder = self.attempt(attempt.name)
            try:
                manifest.verify(folder)
                found[attempt.name] = ""
            except manifest.OtherSchemaError:
                continue
            except DataIntegrityError as error:
                if manifest.stands(folder):
                    found[attempt.name] = error.problem
        return found


def runs(place: Folder) -> list[KnownRun]:
    """All runs in a place, in the order of their names."""
    parts: dict[str, list[Entry]] = defaultdict(list)
    for entry in place.entries():
        above, part = _run_of(entry.path)
        if part:
            inside = entry.path[len(above) + 1 :]
            parts[above].append(Entry(inside, entry.is_file, entry.size, entry.modified))
    return [_known(name, place.child(name), entries) for name, entries in sorted(parts.items())]


def find(place: Folder, name: str) -> KnownRun:
    """One run.

    Raises:
        UsageError: there is none of that name.
    """
    run = _listed(name, place.child(name))
    known = [] if run.attempts or run.others else [found.name for found in runs(place)]
    if run.attempts or run.others or name in known:  # the folders of one that never saved may be empty
        return run
    another = "another place with --storage or --stack; runs on this machine are in --storage .oasis/runs."
    if not known:
        raise UsageError(f"there is no run {name!r} in {place.uri}, nor any other.", f"Name {another}")
    more = f" and {len(known) - NAMED} more" if len(known) > NAMED else ""
    raise UsageError(
        f"there is no run {name!r} in {place.uri}, but {', '.join(known[:NAMED])}{more}{did_you_mean(name, known)}",
        f"Name one of them, or {another}",
    )


def _run_of(path: str) -> tuple[str, str]:
    """The run that an object belongs to and the part of it, by the first folder with a part's name; or two times ''."""
    names = path.split("/")
    for depth, name in enumerate(names):
        if depth and name in PARTS:
            return "/".join(names[:depth]), name
    return "", ""


def _part(entry: Entry) -> str:
    part = entry.path.partition("/")[0]
    return part if part in PARTS else ""


def _listed(name: str, folder: Folder) -> KnownRun:
    return _known(name, folder, [entry for entry in folder.entries() if _part(entry)])


def _known(name: str, folder: Folder, entries: list[Entry]) -> KnownRun:
    tried: dict[str, list[Entry]] = defaultdict(list)
    others = []
    for entry in entries:
        part, _, rest = entry.path.partition("/")
        attempt = rest.partition("/")[0]
        if part == CHECKPOINTS and manifest.is_name(attempt):
            tried[attempt].append(entry)
        elif part != CHECKPOINTS and entry.is_file:
            others.append(entry)
    attempts = [
        Attempt(
            attempt,
            any(entry.path == f"{CHECKPOINTS}/{attempt}/{manifest.COMMIT}" for entry in found),
            sum(entry.size for entry in found),
            max(entry.modified for entry in found),
        )
        for attempt, found in sorted(tried.items())
    ]
    return KnownRun(name, folder, tuple(attempts), tuple(sorted(others, key=lambda entry: entry.path)))
