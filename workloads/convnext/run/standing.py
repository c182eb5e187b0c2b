"""The state of a run, read from its folder alone, before Ray and the workers start."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from workloads.checkpoints import manifest
from workloads.convnext.config import TrainConfig
from workloads.errors import DataIntegrityError, WorkloadError
from workloads.reporting.history import Record
from workloads.storage.folders import Folder


def finished(folder: Folder, config: TrainConfig, note: Callable[[str], None]) -> Record | None:
    """The summary of a run that has nothing left to do; None if the workers have work, or must check.

    Args:
        folder: folder of the run; it may not exist.
        config: what the run is to compute.
        note: told which settings differ from those that the run was trained with so far.

    Raises:
        OtherSchemaError: another version of the program wrote the newest readable checkpoint.
        UsageError: the checkpoints belong to another run. The workers compare whatever depends on the data.
        PlaceError: the storage does not answer.
        AuthError: it may not be read.
    """
    checkpoints = folder.child("checkpoints")
    for name in reversed(manifest.committed(checkpoints.files())):
        try:
            found = manifest.read(checkpoints.child(name))
        except manifest.OtherSchemaError:
            raise
        except DataIntegrityError:
            continue  # the workers report it, and skip it too
        manifest.refuse_stranger(found, config.identity, checkpoints.uri)
        complete = found["facts"].get("epoch", 0) >= config.epochs
        summary = _summary(folder, name, found) if complete else None
        if changed := _changed(found["facts"].get("config", {}), config):
            used = "the run is complete, so these changes have no effect:" if summary else "changed in this run:"
            note(f"{used} {changed}")
        return summary
    return None


def _changed(before: dict[str, Any], config: TrainConfig) -> str:
    """Fields whose value differs from a checkpoint's, with both values; the recipe's name affects no computation."""
    now = config.to_dict()
    names = [name for name in now if name != "recipe" and now[name] != before.get(name, now[name])]
    return "; ".join(f"{name} {now[name]}, was {before[name]} until now" for name in names)


def prospect(folder: Folder) -> str:
    """The effect of the same command on a run that was interrupted.

    Args:
        folder: folder of the run; it may not exist.
    """
    try:
        found = manifest.committed(folder.child("checkpoints").files())
    except WorkloadError:  # the storage does not answer, which must not change how the command ends
        return "continues from the newest checkpoint, if there is one"
    if not found:
        return "begins anew: there is no checkpoint yet"
    return f"continues from the newest checkpoint, of step {manifest.step_of(found[-1])}"


def _summary(folder: Folder, name: str, found: dict[str, Any]) -> Record | None:
    """The summary at the run's end, unless the run ended at another checkpoint, or the checkpoint does not verify."""
    try:
        manifest.verify(folder.child("checkpoints", name))
        summary = json.loads(folder.child("results").read("summary.json"))
    except (DataIntegrityError, FileNotFoundError, ValueError):
        return None
    return summary if summary.get("steps") == found["step"] else None
