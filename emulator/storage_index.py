"""What a file cannot carry of an object: generation, checksums, content type, metadata; kept in `storage.sqlite`."""

from __future__ import annotations

import base64
import hashlib
import json
import mimetypes
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import google_crc32c

from emulator.gcp_errors import Refused

_CHUNK = 1 << 20
_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT NOT NULL, name TEXT NOT NULL, facts TEXT NOT NULL, PRIMARY KEY (bucket, name));
"""


@dataclass(frozen=True, kw_only=True)
class ObjectFacts:
    """What is known of one object besides its bytes."""

    size: int
    """Bytes."""
    generation: int
    """Microseconds at which this content appeared; larger than that of any content before it."""
    metageneration: int
    """Count of the metadata's changes, from 1."""
    modified: int
    """The file's modification time in nanoseconds: another one means that someone else wrote it."""
    md5: str
    """Base64, as the API gives it."""
    crc32c: str
    """Base64 of the big-endian checksum."""
    content_type: str
    """MIME type."""
    metadata: Mapping[str, str]
    """The user's own keys."""


@dataclass(frozen=True, kw_only=True)
class Preconditions:
    """What a caller demands of the object as it is; None demands nothing, generation 0 that there is none."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None

    def check(self, found: ObjectFacts | None) -> None:
        """Raises Refused (412)."""
        actual = found.generation if found else 0
        wrong = (
            (self.generation is not None and actual != self.generation)
            or (self.not_generation is not None and actual == self.not_generation)
            or (self.metageneration is not None and (not found or found.metageneration != self.metageneration))
        )
        if wrong:
            raise Refused(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")


def examine(
    file: Path, name: str, content_type: str | None = None, metadata: Mapping[str, str] | None = None
) -> ObjectFacts:
    """The facts of an object with this file's content, or of a folder's marker. Reads all of it."""
    md5, crc32c, size = hashlib.md5(usedforsecurity=False), google_crc32c.Checksum(), 0
    if file.is_file():
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                md5.update(chunk)
                crc32c.update(chunk)
                size += len(chunk)
    return ObjectFacts(
        size=size,
        generation=time.time_ns() // 1000,
        metageneration=1,
        modified=file.stat().st_mtime_ns,
        md5=base64.b64encode(md5.digest()).decode(),
        crc32c=base64.b64encode(crc32c.digest()).decode(),
        content_type=content_type or mimetypes.guess_type(name)[0] or "application/octet-stream",
        metadata=dict(metadata or {}),
    )


class Index:
    """The facts of all buckets' objects. Each call is one transaction."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(self._open()) as connection:
            connection.executescript(_SCHEMA)

    def get(self, bucket: str, name: str) -> ObjectFacts | None:
        """What was recorded last, or None."""
        with closing(self._open()) as connection:
            query = "SELECT facts FROM objects WHERE bucket = ? AND name = ?"
            row = connection.execute(query, (bucket, name)).fetchone()
        return ObjectFacts(**json.loads(row[0])) if row else None

    def put(self, bucket: str, name: str, facts: ObjectFacts) -> ObjectFacts:
        """Record facts in place of earlier ones."""
        with closing(self._open()) as connection:
            row = (bucket, name, json.dumps(asdict(facts)))
            connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", row)
        return facts

    def forget(self, bucket: str, name: str = "") -> None:
        """Drop what is recorded of an object, or of a whole bucket."""
        with closing(self._open()) as connection:
            connection.execute("DELETE FROM objects WHERE bucket = ? AND (? = '' OR name = ?)", (bucket, name, name))

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._file, timeout=60, isolation_level=None)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = OFF")
        return connection
