"""Checkpoints that survive a kill at any instant: state, then a manifest with sizes and hashes, then COMMIT, last.

Ray Train is told of metrics but not of checkpoints: its own bookkeeping lags the newest upload by a poll and refuses to
start when its snapshot is torn. What is here is the one truth; a restart reads it, and takes the newest that verifies.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workloads.errors import DataIntegrityError, UsageError
from workloads.storage import Folder

SCHEMA = 1
STATE = "state.pt"
MANIFEST = "MANIFEST.json"
COMMIT = "COMMIT"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read back, with every hash as it was written."""

    name: str
    """Its folder: step, then a random attempt, so that two attempts at one step never share an object."""
    manifest: dict[str, Any]
    """What it is: step, identity, facts, files."""
    state: dict[str, Any]
    """The training state, on the CPU."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was committed."""

    name: str
    """Its folder."""
    size: int
    """Bytes of the state."""


class CheckpointStore:
    """The checkpoints of one run, in one folder. One writer at a time; readers may come at any instant."""

    def __init__(self, folder: Folder, keep: int) -> None:
        """Name the place; nothing is read or written yet.

        Args:
            folder: where the run's checkpoints are.
            keep: how many committed checkpoints `prune` leaves.
        """
        self._folder = folder
        self._keep = keep

    def save(self, state: Mapping[str, Any], step: int, identity: Mapping[str, Any], facts: Mapping[str, Any]) -> Saved:
        """Write one checkpoint and remove those it makes superfluous.

        Args:
            state: what to save; tensors and plain data.
            step: optimiser steps done; newer means larger.
            identity: what a run must have in common with it to load it.
            facts: anything worth knowing about how it came about.

        Returns:
            Its name and size.
        """
        name = f"{step:09d}-{secrets.token_hex(4)}"
        folder = self._folder.child(name)
        buffer = io.BytesIO()
        torch.save(dict(state), buffer)
        content = buffer.getbuffer()
        manifest = {
            "schema": SCHEMA,
            "step": step,
            "identity": dict(identity),
            "facts": dict(facts),
            "torch": torch.__version__,
            "files": {STATE: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}},
        }
        text = json.dumps(manifest, indent=1, sort_keys=True).encode()
        folder.write(STATE, content)
        folder.write(MANIFEST, text)
        folder.write(COMMIT, hashlib.sha256(text).hexdigest().encode())
        self._remove_old(newest=name)
        return Saved(name, len(content))

    def newest(self, identity: Mapping[str, Any], say: Callable[[str], None]) -> Checkpoint | None:
        """The newest checkpoint that verifies, or None where the run has none.

        Args:
            identity: of the run that wants to load it.
            say: told of each checkpoint that was passed over, and why.

        Raises:
            UsageError: the run's checkpoints belong to another model or other data.
            DataIntegrityError: there are committed checkpoints, and none verifies.
        """
        names = self.committed()
        for name in reversed(names):
            try:
                return self.load(name, identity)
            except DataIntegrityError as error:
                say(f"checkpoint {name} is passed over: {error.problem}")
        if names:
            raise DataIntegrityError(
                f"none of the {len(names)} checkpoints in {self._folder.uri} verifies.",
                "Train under another --run name, or delete that folder to start this run again.",
            )
        return None

    def load(self, name: str, identity: Mapping[str, Any]) -> Checkpoint:
        """Read one checkpoint.

        Raises:
            UsageError: it belongs to another model or other data.
            DataIntegrityError: it does not verify.
        """
        folder = self._folder.child(name)
        manifest, content = verify(folder)
        _refuse_stranger(manifest, identity, self._folder.uri)
        return Checkpoint(name, manifest, _unpickle(content, folder))

    def committed(self) -> list[str]:
        """Names of the committed checkpoints, oldest first; not verified."""
        suffix = f"/{COMMIT}"
        return sorted(path.removesuffix(suffix) for path in self._folder.files() if path.endswith(suffix))

    def collect(self, resumed: str | None) -> list[str]:
        """Remove what killed attempts left unfinished, and what is newer than the checkpoint a run resumed from.

        The latter did not verify; left in place, they would count as some of those to keep. Call it when no one writes.

        Returns:
            The names removed.
        """
        committed = set(self.committed())
        refused = [name for name in self._folder.names() if name not in committed or (resumed and name > resumed)]
        for name in refused:
            self._folder.child(name).remove()
        return refused

    def _remove_old(self, newest: str) -> None:
        names = self.committed()
        for name in names[: -self._keep]:
            if name != newest:
                self._folder.child(name).remove()


def verify(folder: Folder) -> tuple[dict[str, Any], bytes]:
    """Read a committed checkpoint and compare every size and hash.

    Returns:
        The manifest and the state's bytes.

    Raises:
        DataIntegrityError: anything is missing or differs; the message says what.
    """
    try:
        text = folder.read(MANIFEST)
        if hashlib.sha256(text).hexdigest() != folder.read(COMMIT).decode(errors="replace"):
            raise _damage(f"{MANIFEST} is not the one that was committed")
        manifest = json.loads(text)
        if manifest["schema"] != SCHEMA:
            raise _damage(f"its schema is {manifest['schema']}, this program reads {SCHEMA}")
        content = folder.read(STATE)
    except FileNotFoundError as error:
        raise _damage(f"{str(error).splitlines()[0]}") from error
    expected = manifest["files"][STATE]
    if len(content) != expected["bytes"]:
        raise _damage(f"{STATE} has {len(content)} bytes instead of {expected['bytes']}")
    if hashlib.sha256(content).hexdigest() != expected["sha256"]:
        raise _damage(f"the hash of {STATE} is not the one in {MANIFEST}")
    return manifest, content


def _unpickle(content: bytes, folder: Folder) -> dict[str, Any]:
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise _damage(f"{folder.uri}/{STATE} does not load ({str(error).splitlines()[0]})") from error


def _refuse_stranger(manifest: Mapping[str, Any], identity: Mapping[str, Any], uri: str) -> None:
    theirs = manifest["identity"]
    differing = [key for key in identity if theirs.get(key) != identity[key]]
    if differing:
        given = "; ".join(f"{key} is {identity[key]!r}, the checkpoint's is {theirs.get(key)!r}" for key in differing)
        raise UsageError(
            f"the checkpoints in {uri} belong to another run: {given}.",
            "Choose another --run name, or ask for what the checkpoint holds.",
        )


def _damage(problem: str) -> DataIntegrityError:
    return DataIntegrityError(problem, "It is not used.")
