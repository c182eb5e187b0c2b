"""Object facts that a file cannot carry: generation, checksums, content type, metadata; kept in `storage.sqlite`."""

from __future__ import annotations

import base64
import json
import mimetypes
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from emulator.google.cloud import opened
from emulator.google.errors import RefusedCall

_PIECE = 1 << 18
"""Bytes per piece: with smaller ones, a dozen uploads at once fight over the interpreter's lock; larger ones have left
the processor's cache before they are hashed and written."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    bucket TEXT NOT NULL, name TEXT NOT NULL, facts TEXT NOT NULL, PRIMARY KEY (bucket, name));
"""


@dataclass(frozen=True, kw_only=True)
class ObjectFacts:
    """Metadata of one object."""

    size: int
    """Bytes."""
    generation: int
    """Time at which this content appeared, in microseconds; larger than that of any earlier content."""
    metageneration: int
    """Version of the metadata, from 1; here the metadata changes only with the content."""
    modified: int
    """The file's modification time in nanoseconds: a different one means that someone else wrote the file."""
    md5: str
    """Base64, as the API gives it; empty if the client sent none, as Cloud Storage has none for composite objects.
    Computing it takes as long as the rest of an upload, on the cores that the client needs."""
    crc32c: str
    """Base64 of the big-endian checksum."""
    content_type: str
    """MIME type."""
    metadata: Mapping[str, str]
    """The user's own keys."""


@dataclass(frozen=True, kw_only=True)
class Preconditions:
    """A caller's conditions on the current object: None demands nothing, generation 0 that there is no object."""

    generation: int | None = None
    not_generation: int | None = None
    metageneration: int | None = None

    def check(self, found: ObjectFacts | None) -> None:
        """Raises RefusedCall (412)."""
        actual = found.generation if found else 0
        wrong = (
            (self.generation is not None and actual != self.generation)
            or (self.not_generation is not None and actual == self.not_generation)
            or (self.metageneration is not None and (not found or found.metageneration != self.metageneration))
        )
        if wrong:
            raise RefusedCall(412, "At least one of the pre-conditions you specified did not hold.", "conditionNotMet")


def pieces(stream: BinaryIO) -> Iterator[bytes]:
    """The rest of a stream, piece by piece."""
    while piece := stream.read(_PIECE):
        yield piece


class Checksums:
    """Checksums of content that comes in pieces, as the API gives them."""

    def __init__(self) -> None:
        self._crc32c = google_crc32c.Checksum()
        self.size = 0
        self.md5 = ""

    @classmethod
    def of(cls, file: Path) -> Checksums:
        """Checksums of a file's whole content; of nothing for a folder."""
        sums = cls()
        if file.is_file():
            with file.open("rb") as stream:
                for piece in pieces(stream):
                    sums.update(piece)
        return sums

    def update(self, piece: bytes) -> None:
        """Add the next piece."""
        self._crc32c.update(piece)
        self.size += len(piece)

    @property
    def crc32c(self) -> str:
        """Base64 of the big-endian checksum."""
        return base64.b64encode(self._crc32c.digest()).decode()


def examine(
    file: Path,
    name: str,
    content_type: str | None = None,
    metadata: Mapping[str, str] | None = None,
    sums: Checksums | None = None,
) -> ObjectFacts:
    """The facts of an object with this file's content, or of a folder's marker. Without its `sums`, reads all of it."""
    sums = sums or Checksums.of(file)
    return ObjectFacts(
        size=sums.size,
        generation=time.time_ns() // 1000,
        metageneration=1,
        modified=file.stat().st_mtime_ns,
        md5=sums.md5,
        crc32c=sums.crc32c,
        content_type=content_type or mimetypes.guess_type(name)[0] or "application/octet-stream",
        metadata=dict(metadata or {}),
    )


class Index:
    """The facts of all buckets' objects. Each call is one transaction."""

    def __init__(self, file: Path) -> None:
        self._file = file
        with closing(opened(self._file)) as connection:
            connection.executescript(_SCHEMA)

    def get(self, bucket: str, name: str) -> ObjectFacts | None:
        """The newest record, or None."""
        with closing(opened(self._file)) as connection:
            query = "SELECT facts FROM objects WHERE bucket = ? AND name = ?"
            row = connection.execute(query, (bucket, name)).fetchone()
        return ObjectFacts(**json.loads(row[0])) if row else None

    def put(self, bucket: str, name: str, facts: ObjectFacts) -> ObjectFacts:
        """Record facts in place of earlier ones."""
        with closing(opened(self._file)) as connection:
            row = (bucket, name, json.dumps(asdict(facts)))
            connection.execute("INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", row)
        return facts

    def forget(self, bucket: str, name: str = "") -> None:
        """Drop the records of an object, or of a whole bucket."""
        with closing(opened(self._file)) as connection:
            connection.execute("DELETE FROM objects WHERE bucket = ? AND (? = '' OR name = ?)", (bucket, name, name))
