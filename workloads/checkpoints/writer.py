"""Background saves, one at a time: the step loop hands over a copy of the state and continues.

Storage that fails for a while costs checkpoints, not the run: a failed save is reported and the next one tries again,
until PATIENCE of them have failed in a row.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workloads.checkpoints.state import CutError
from workloads.checkpoints.store import CheckpointStore, Saved
from workloads.errors import AuthError, DataIntegrityError, PlaceError

PATIENCE = 5
"""Number of saves that must fail in a row to fail the run."""

HANG_SECONDS = 600.0
"""A save that takes longer hangs, as on a dead mount: it counts as failed, and the next one does not wait for it."""

PASSING = (PlaceError, AuthError, DataIntegrityError)
"""Errors that may be temporary: storage out of reach, a token that is being renewed, bytes that arrived incomplete."""


@dataclass(frozen=True)
class Snapshot:
    """The parts of one checkpoint."""

    state: Mapping[str, Any]
    """A copy on the CPU that later steps do not change."""
    step: int
    """Optimiser steps done."""
    identity: Mapping[str, Any]
    """What a run must have in common with the checkpoint to load it."""
    facts: Mapping[str, Any]
    """Anything worth knowing about its origin."""
    before: Callable[[], None]
    """Called before the shards are written, in the same thread, for anything that must be stored before COMMIT; if it
    raises, the save has failed."""

    def write(self, store: CheckpointStore, cut: threading.Event) -> Saved:
        """Save it, unless it is cut; returns at COMMIT. Raises as `CheckpointStore.write` does."""
        self.before()
        return store.write(self.state, self.step, self.identity, self.facts, cut)


@dataclass
class _Flight:
    """One save under way, in a thread that keeps no process alive."""

    thread: threading.Thread = field(default_factory=threading.Thread)
    cut: threading.Event = field(default_factory=threading.Event)
    """Set to abandon the save."""
    saved: Saved | None = None
    began: float = field(default_factory=time.monotonic)
    told: bool = False
    """Whether the caller has been told what was saved."""
    error: BaseException | None = None

    @property
    def seconds_left(self) -> float:
        """Seconds until it counts as hanging; 0 from then on."""
        return max(0.0, self.began + HANG_SECONDS - time.monotonic())

    @property
    def under_way(self) -> bool:
        """True if it is still worth waiting for."""
        return self.thread.is_alive() and self.seconds_left > 0

    def launch(self, work: Callable[[], None]) -> _Flight:
        def fly() -> None:
            try:
                work()
            except BaseException as error:  # handed to the thread that trains, which decides
                self.error = error

        self.thread = threading.Thread(target=fly, name="checkpoint", daemon=True)
        self.thread.start()
        return self


class Writer:
    """The background writer of one store, for one thread that trains.

    A process that exits does not wait: a save in flight is left without COMMIT, and the next attempt collects it.
    """

    def __init__(self, store: CheckpointStore, say: Callable[[str], None]) -> None:
        """Nothing is started yet.

        Args:
            store: where to save.
            say: told, in the caller's thread, of every failed save and of anything that could not be tidied up.
        """
        self._store, self._say = store, say
        self._flights: list[_Flight] = []  # a save, and beside it the clean-up after an urgent one
        self._urgent = False
        self._failures = 0

    @property
    def busy(self) -> bool:
        """True if a save is in flight, so that it would be pointless to copy the state for another."""
        return any(flight.under_way for flight in self._flights)

    def start(self, snapshot: Snapshot) -> bool:
        """Begin to save in the background, unless a save is in flight; nothing is queued.

        Returns:
            Whether it began. The result of the previous save, if `wait` has not returned it, is lost.

        Raises:
            WorkloadError: the previous save failed, and was one too many; see `wait`.
        """
        if self.busy:
            return False
        self.wait(0)
        flight = _Flight()

        def save() -> None:
            flight.saved = snapshot.write(self._store, flight.cut)
            if not self._urgent:
                self._store.tidy(flight.saved.name)

        self._flights = [flight.launch(save)]
        return True

    def wait(self, seconds: float | None = None) -> Saved | None:
        """Wait for the save in flight, if there is one, and for its tidying up.

        Args:
            seconds: longest wait; 0 only looks, None waits to the end, or until it counts as hanging.

        Returns:
            What was saved, reported once; None if it is still in flight, if there was none, or if a failure is
            tolerated.

        Raises:
            WorkloadError: it failed, as `PATIENCE` in a row have. Any other exception is raised at once.
        """
        for flight in self._flights:
            flight.thread.join(flight.seconds_left if seconds is None else min(seconds, flight.seconds_left))
        if self.busy:
            return None
        flights, self._flights = self._flights, []
        failures = self._failures
        saved = next(filter(None, [self._judge(flight) for flight in flights]), None)
        if self._failures > failures:
            # The failure's frames hold a copy of the state, gigabytes, and, on Python 3.12 and 3.13, each other: an
            # exception for which a context manager raises another one is a variable of a frame in its own traceback.
            gc.collect()
        return saved

    def save_now(self, take: Callable[[], Snapshot]) -> Saved:
        """Save in the foreground, for the last state of a run or of a node, in up to PATIENCE attempts.

        A save in flight is abandoned, and no clean-up is waited for: a node with seconds to live has none to spare. The
        clean-up continues in the background, and `wait` waits for it.

        Args:
            take: copies the state; called once the save in flight, which would slow it down, no longer writes.

        Returns:
            What was saved, at its COMMIT.

        Raises:
            WorkloadError: the last of the failures.
        """
        self._urgent = True  # a save in flight that ends now leaves the clean-up to this one
        try:
            for flight in self._flights:
                flight.cut.set()
            saved = self._insist(take())
        finally:
            self._urgent = False
        tidying = _Flight(saved=saved, told=True)
        self._flights.append(tidying.launch(lambda: self._store.tidy(saved.name)))
        return saved

    def _insist(self, snapshot: Snapshot) -> Saved:
        failures = 0
        while True:
            try:
                return snapshot.write(self._store, threading.Event())
            except PASSING as error:
                failures += 1
                if failures == PATIENCE:
                    raise
                self._say(f"saving step {snapshot.step} failed and is tried again at once: {error.problem}")

    def _judge(self, flight: _Flight) -> Saved | None:
        error, flight.error = flight.error, None  # its frames refer to the flight and to a copy of the state
        if flight.thread.is_alive():
            error = PlaceError(
                f"a save has not ended within {HANG_SECONDS:.0f} s.",
                "Look at the disk, the mount or the network there.",
            )
        if flight.saved and isinstance(error, PlaceError | AuthError):
            self._say(f"{flight.saved.name} is committed; older checkpoints were not removed: {error.problem}")
            error = None
        if isinstance(error, CutError):
            return None
        if error is None:
            self._failures = 0
            return None if flight.told else flight.saved
        self._failures += 1
        if not isinstance(error, PASSING) or self._failures >= PATIENCE:
            raise error
        self._say(f"a checkpoint was not saved ({self._failures} of {PATIENCE} in a row): {error.problem}")
        return None
