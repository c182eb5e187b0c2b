"""The format of a checkpoint: a folder with a MANIFEST of its files' sizes and hashes, and COMMIT, written last.

This module needs no torch, so that any place can tell which checkpoints are complete. There is no mutable pointer to
the newest one: names are never reused, so a stale view can hide a checkpoint but never mix two.
"""

from __future__ import annotations

import hashlib
import json
import re
import reprlib
import secrets
import time
from collections.abc import Mapping
from typing import Any

from workloads.errors import DataIntegrityError, UsageError, first_line
from workloads.storage.folders import Folder, in_parallel

SCHEMA = 2
MANIFEST = "MANIFEST.json"
COMMIT = "COMMIT"


class OtherSchemaError(DataIntegrityError):
    """A checkpoint that another version of this program wrote. It may be undamaged, so a run does not skip it."""


_NAME = re.compile(r"[0-9]{9}-[0-9a-f]{15}")


def new_name(step: int) -> str:
    """A name for one attempt at a checkpoint: sortable by step and time, and never used by another attempt."""
    # During an evaluation the step stays the same, and a later save is further on.
    return f"{step:09d}-{time.time_ns() // 1_000_000:011x}{secrets.token_hex(2)}"


def is_name(name: str) -> bool:
    """True if this is the name of an attempt; anything else in the folder is somebody else's and is left alone."""
    return _NAME.fullmatch(name) is not None


def step_of(name: str) -> int:
    """The optimiser step of a checkpoint."""
    return int(name.partition("-")[0])


def committed(paths: list[str]) -> list[str]:
    """Names of the committed checkpoints among the objects' paths below a run's checkpoints, oldest first."""
    found = (path.partition("/") for path in paths)
    return sorted(name for name, _, rest in found if rest == COMMIT and is_name(name))


def commit(folder: Folder, manifest: Mapping[str, Any]) -> None:
    """Declare a folder whose files are complete to be a checkpoint.

    Args:
        folder: folder of this attempt.
        manifest: `step`, `identity`, `facts`, and `files`, each with `bytes` and `sha256`.
    """
    text = json.dumps({"schema": SCHEMA, **manifest}, indent=1, sort_keys=True).encode()
    folder.write(MANIFEST, text)
    folder.write(COMMIT, hashlib.sha256(text).hexdigest().encode())


def read(folder: Folder) -> dict[str, Any]:
    """The manifest that was committed.

    Raises:
        DataIntegrityError: it is incomplete.
        OtherSchemaError: another version of this program wrote it.
    """
    try:
        text, marker = folder.read(MANIFEST), folder.read(COMMIT)
    except FileNotFoundError as error:
        raise damage(first_line(error)) from error
    if hashlib.sha256(text).hexdigest() != marker.decode(errors="replace"):
        raise damage(f"{MANIFEST} is not the one that was committed")
    manifest: dict[str, Any] = json.loads(text)
    if manifest["schema"] != SCHEMA:
        raise OtherSchemaError(
            f"checkpoint {folder.uri.rpartition('/')[2]} has schema {manifest['schema']}, this program reads {SCHEMA}.",
            "Use the version of the program that wrote it, or train under another --run name.",
        )
    return manifest


def refuse_stranger(found: Mapping[str, Any], identity: Mapping[str, Any], uri: str) -> None:
    """Refuse a checkpoint that belongs to another run.

    Args:
        found: the checkpoint's manifest.
        identity: identity of the run, or as much of it as is known.
        uri: address of the run's checkpoints, for the message.

    Raises:
        UsageError: part of the identity differs.
    """
    theirs = found["identity"]
    differing = [key for key in identity if theirs.get(key) != identity[key]]
    if differing:
        pairs = {key: (identity[key], theirs.get(key)) for key in differing}
        given = "; ".join(
            f"{key} is {_shown(mine, its)}, the checkpoint's is {_shown(its, mine)}"
            for key, (mine, its) in pairs.items()
        )
        raise UsageError(
            f"the checkpoints in {uri} belong to another run: {given}.",
            "Choose another --run name, or give the values that the checkpoint has.",
        )


def _shown(value: object, other: object) -> str:
    """A value for a message; for a list only the difference, because there may be thousands of classes."""
    if not isinstance(value, list) or not isinstance(other, list):
        return repr(value)
    known = set(other)
    own = [item for item in value if item not in known]
    if known == set(value):  # the same items in another order
        own = [item for item, there in zip(value, other, strict=False) if item != there]
    same = len(value) - len(own)
    return reprlib.repr(own) + (f" and {same} that are the same" if same else "")


def verify(folder: Folder) -> dict[str, Any]:
    """Read every byte of a committed checkpoint and compare sizes and hashes.

    Returns:
        The manifest.

    Raises:
        DataIntegrityError: anything is missing or differs; the message says what.
    """
    manifest = read(folder)

    def compare(name: str) -> None:
        try:
            size, sha256 = folder.digest(name)
        except FileNotFoundError as error:
            raise damage(first_line(error)) from error
        check(name, manifest["files"][name], size, sha256)

    in_parallel(compare, sorted(manifest["files"]))
    return manifest


def check(name: str, expected: Mapping[str, Any], size: int, sha256: str) -> None:
    """Compare one file with its line in the manifest.

    Raises:
        DataIntegrityError: size or hash differ.
    """
    if size != expected["bytes"]:
        raise damage(f"{name} has {size} bytes instead of {expected['bytes']}")
    if sha256 != expected["sha256"]:
        raise damage(f"the hash of {name} is not the one in {MANIFEST}")


def stands(folder: Folder) -> bool:
    """True if it is committed at this moment: a reader that finds damage asks, since `discard` may be the cause."""
    try:
        folder.read(COMMIT)
    except FileNotFoundError:
        return False
    return True


def withdraw(folder: Folder) -> None:
    """Make it stop counting as a checkpoint, in one step; its files stay."""
    folder.delete(COMMIT)


def discard(folder: Folder) -> None:
    """Delete it, COMMIT first: an interrupted deletion leaves an orphan and not a damaged checkpoint."""
    withdraw(folder)
    folder.remove()


def damage(problem: str) -> DataIntegrityError:
    """The error for a checkpoint that differs from what was committed."""
    return DataIntegrityError(problem, "It is not used.")
