"""Checkpoints that survive a kill at any instant: shards, then a manifest of their hashes, then COMMIT (`manifest`).

Ray Train is told of metrics but not of checkpoints: its own bookkeeping lags the newest upload by a poll and refuses to
start when its snapshot is torn. This store is the one source of truth: a restart takes the newest one that verifies.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workloads.checkpoints import manifest
from workloads.checkpoints import state as checkpoint_state
from workloads.errors import DataIntegrityError, WorkloadError
from workloads.reporting.progress import counted
from workloads.storage.folders import Folder


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read back, with every hash as written."""

    name: str
    """Its folder: step, then a random attempt, so that two attempts at one step never share an object."""
    manifest: dict[str, Any]
    """Its description: step, identity, facts, files."""
    state: dict[str, Any]
    """The training state, on the CPU."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was committed."""

    name: str
    """Its folder."""
    size: int
    """Bytes of the state."""
    seconds: float
    """From the call to COMMIT."""
    committed: float
    """When COMMIT was written, unix time."""


class CheckpointStore:
    """The checkpoints of one run, in one folder. One writer at a time; readers may come at any instant."""

    def __init__(self, folder: Folder, keep: int) -> None:
        """Set the place; nothing is read or written yet.

        Args:
            folder: where the run's checkpoints are.
            keep: how many checkpoints that verify `tidy` leaves; at least 1.
        """
        self._folder = folder
        self._keep = keep
        self._good: set[str] = set()  # checkpoints that this process read back, every hash as written

    def save(self, state: Mapping[str, Any], step: int, identity: Mapping[str, Any], facts: Mapping[str, Any]) -> Saved:
        """Write one checkpoint, read it back, and remove those that it makes obsolete: `write`, then `tidy`."""
        saved = self.write(state, step, identity, facts, threading.Event())
        self.tidy(saved.name)
        return saved

    def write(
        self,
        state: Mapping[str, Any],
        step: int,
        identity: Mapping[str, Any],
        facts: Mapping[str, Any],
        cut: threading.Event,
    ) -> Saved:
        """Write one checkpoint; when this returns, it is committed, and every older one is still there.

        Args:
            state: what to save; tensors and plain data.
            step: optimiser steps done; newer means larger.
            identity: what a run must have in common with the checkpoint to load it.
            facts: anything worth knowing about its origin.
            cut: another thread sets it to abandon this save; one that is written whole is committed even so.

        Returns:
            Its name and size.

        Raises:
            CutError: it was cut; as below.
            PlaceError: the storage does not accept it; the part that was written is removed, or an orphan.
            AuthError: the storage refuses it.
        """
        began = time.monotonic()
        name = manifest.new_name(step)
        folder = self._folder.child(name)
        try:
            files = checkpoint_state.write(folder, state, cut)
            content = {"step": step, "identity": dict(identity), "facts": dict(facts), "torch": torch.__version__}
            manifest.commit(folder, {**content, "files": files})
        except WorkloadError:
            _try_to(lambda: manifest.discard(folder))  # a full disk needs the room
            raise
        size = sum(file["bytes"] for file in files.values())
        return Saved(name, size, time.monotonic() - began, time.time())

    def tidy(self, name: str) -> None:
        """Read back what was written, then remove the checkpoints that are older than the `keep` newest good ones.

        Nothing is removed because of COMMIT alone: even if storage returns other bytes than it was given, save after
        save, the last checkpoint that loads stays.

        Args:
            name: name of the checkpoint that `write` just made.

        Raises:
            DataIntegrityError: it does not read back as it was written; it is removed, and nothing else is.
            PlaceError: the storage does not answer.
        """
        try:
            self._verify(name)
        except DataIntegrityError as error:
            _try_to(lambda: manifest.discard(self._folder.child(name)))
            raise DataIntegrityError(
                f"checkpoint {name} did not read back as it was written ({error.problem}) and was removed.",
                "Older ones are kept; look at the disk, the mount or the network between here and there.",
            ) from error
        kept = 0
        for older in reversed(self.committed()):
            # The new checkpoint may not be the newest: one that another rank could not read is kept, see `collect`.
            if kept >= self._keep and older != name:
                manifest.discard(self._folder.child(older))
            elif self._is_good(older):
                kept += 1

    def newest(
        self, identity: Mapping[str, Any], say: Callable[[str], None], without: Collection[str] = ()
    ) -> Checkpoint | None:
        """The newest checkpoint that verifies, or None if the run has none.

        Args:
            identity: identity of the run that wants to load it.
            say: told of each checkpoint that was skipped, and why.
            without: names of checkpoints that another reader could not load.

        Raises:
            UsageError: the run's checkpoints belong to another model or other data.
            DataIntegrityError: there are committed checkpoints, but none verifies, or the newest that may be loaded has
                another schema.
        """
        tried = set(without)
        # List again if all failed: a writer may have replaced every checkpoint of the first list meanwhile.
        while names := [name for name in self.committed() if name not in tried]:
            for name in reversed(names):
                try:
                    return self.load(name, identity)
                except manifest.OtherSchemaError:
                    raise
                except DataIntegrityError as error:
                    say(f"checkpoint {name} is passed over: {error.problem}")
            tried.update(names)
        if tried:
            raise DataIntegrityError(
                f"{self._folder.uri} has {counted(len(tried), 'checkpoint')}, and none verifies for every reader.",
                "Every node must see the same --storage. If it does: train under another --run name, or delete that "
                "folder to start this run again.",
            )
        return None

    def load(self, name: str, identity: Mapping[str, Any]) -> Checkpoint:
        """Read one checkpoint.

        Raises:
            UsageError: it belongs to another model or other data.
            DataIntegrityError: it does not verify.
        """
        folder = self._folder.child(name)
        found = manifest.read(folder)
        manifest.refuse_stranger(found, identity, self._folder.uri)
        checkpoint = Checkpoint(name, found, checkpoint_state.read(folder, found["files"]))
        self._good.add(name)
        return checkpoint

    def committed(self) -> list[str]:
        """Names of the committed checkpoints, oldest first, without verification."""
        return manifest.committed(self._folder.files())

    def collect(self) -> list[str]:
        """Remove what killed attempts left unfinished. Call it when nobody writes.

        A committed checkpoint that did not verify stays until enough newer ones are good: only the reading may be bad.

        Returns:
            The removed names.
        """
        whole = set(self.committed())
        orphans = [name for name in self._folder.names() if manifest.is_name(name) and name not in whole]
        for name in orphans:
            manifest.discard(self._folder.child(name))
        return orphans

    def _is_good(self, name: str) -> bool:
        try:
            self._verify(name)
        except DataIntegrityError:
            return False
        return True

    def _verify(self, name: str) -> None:
        if name not in self._good:
            manifest.verify(self._folder.child(name))
            self._good.add(name)


def _try_to(clean_up: Callable[[], None]) -> None:
    """Clean up after a failure, which is the one to report: anything left is an orphan, collected later."""
    try:
        clean_up()
    except WorkloadError:
        return
