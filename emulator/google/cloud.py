"""What exists in the emulated Google Cloud: objects by (kind, name) with their in-use edges, in one SQLite file.

Several processes share it: Pulumi's provider, the HTTP server, the GKE loop. Every method is one transaction, and
`with cloud.transaction():` groups several into one. An object with an expiry time (`expire`) disappears by itself,
later, like the things that Google cleans up.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from emulator.google.errors import AlreadyExistsError, InUseError, NotFoundError, RefusedCall
from emulator.machine.state import write_atomically

KEPT_KINDS = frozenset(
    {
        "artifactregistry/repository",
        "secretmanager/secret",
        "secretmanager/version",
        "serviceusage/service",
        "storage/bucket",
    }
)
"""Kinds that a destroyed stack may leave behind on purpose: data, and APIs with their agents, which always stay."""

OWN_KINDS = frozenset(
    {
        "compute/reservation",
        "compute/reservationBlock",
        "compute/reservationSubBlock",
        "emulator/fault",
        "emulator/grants",
        "emulator/identity",
        "emulator/operation",
        "iam/workloadIdentityPool",
        "monitoring/timeSeries",
        "resourcemanager/project",
    }
)
"""Kinds that no stack makes: the emulator's own records, and what a project has by itself."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    kind TEXT NOT NULL, name TEXT NOT NULL, body TEXT NOT NULL, created TEXT NOT NULL, ends REAL,
    PRIMARY KEY (kind, name));
CREATE TABLE IF NOT EXISTS uses (
    user_kind TEXT NOT NULL, user_name TEXT NOT NULL, used_kind TEXT NOT NULL, used_name TEXT NOT NULL,
    relation TEXT NOT NULL,
    PRIMARY KEY (user_kind, user_name, used_kind, used_name),
    FOREIGN KEY (user_kind, user_name) REFERENCES objects (kind, name) ON DELETE CASCADE,
    FOREIGN KEY (used_kind, used_name) REFERENCES objects (kind, name) ON DELETE CASCADE);
CREATE INDEX IF NOT EXISTS uses_by_used ON uses (used_kind, used_name);
"""

Relation = Literal["blocks", "part-of"]
"""`blocks`: the used object cannot go while the user exists. `part-of`: the user goes with it."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """An edge from the object that is being made to one it needs."""

    kind: str
    """Kind of the object needed."""
    name: str
    """Its name path; it must exist when the edge is made."""
    relation: Relation = "blocks"
    """What the edge means when either end is deleted."""


@dataclass(frozen=True, kw_only=True)
class CloudObject:
    """One object as it stood when it was read."""

    kind: str
    """`<service>/<collection's singular>`: `compute/network`, `storage/bucket`, `container/nodePool`."""
    name: str
    """Google's name path, which is also Pulumi's id: `projects/p/global/networks/n`; a bucket's is its bare name."""
    body: dict[str, Any]
    """State in the wire names of the Pulumi SDK (camelCase), so that a refresh shows what anyone changed here."""
    created: str
    """RFC 3339 time of creation."""


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """Everything that is in the emulated cloud."""

    kept: list[CloudObject]
    """What a destroyed stack may leave on purpose (`KEPT_KINDS`)."""
    other: list[CloudObject]
    """What must be gone after a destroy; empty then."""


class Cloud:
    """The emulated cloud of one checkout. Safe to use from several threads and processes."""

    def __init__(self, directory: Path) -> None:
        """Open (or make) the cloud in `directory`, the checkout's emulator folder (`OASIS_EMULATOR_DIR`)."""
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._path = directory / "cloud.sqlite"
        self._clock = directory / "clock"
        # The file holds secrets; SQLite gives its log files the same mode.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
        self._local = threading.local()
        with closing(opened(self._path)) as connection:
            connection.executescript(_SCHEMA)

    def now(self) -> float:
        """Seconds since the epoch by this cloud's own clock, which `turn` sets forward for every process."""
        try:
            return time.time() + float(self._clock.read_text())
        except FileNotFoundError:
            return time.time()

    def turn(self, seconds: float) -> None:
        """Move the clock forward; objects that expire within that time expire now."""
        write_atomically(self._clock, str(self.now() - time.time() + seconds))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run this thread's calls in one transaction: others see all of it or, after an exception, nothing."""
        with self._connection():
            yield

    def create(self, kind: str, name: str, body: Mapping[str, Any], uses: Iterable[Use] = ()) -> CloudObject:
        """Make an object.

        Raises:
            AlreadyExistsError: one of that name exists.
            NotFoundError: an object named in `uses` is missing.
        """
        with self._connection() as connection:
            if self.find(kind, name) is not None:
                raise AlreadyExistsError(kind, name)
            created = timestamp(self.now())
            row = (kind, name, json.dumps(dict(body)), created)
            connection.execute("INSERT INTO objects (kind, name, body, created) VALUES (?, ?, ?, ?)", row)
            self._connect(connection, kind, name, uses)
            return self.get(kind, name)

    def asked_in(self, file: str, kind: type[dict[str, Any]] | type[list[Any]]) -> Any:
        """The content of a JSON file that a person put into the emulator's folder; empty if there is no such file.

        Raises:
            RefusedCall: the file holds something else.
        """
        try:
            found = json.loads((self.directory / file).read_text())
        except FileNotFoundError:
            return kind()
        except ValueError:
            found = None
        if not isinstance(found, kind):
            raise RefusedCall(400, f"{file} holds no JSON {kind.__name__}", "badRequest")
        return found

    def put(self, kind: str, name: str, body: Mapping[str, Any], uses: Iterable[Use] | None = None) -> CloudObject:
        """Make an object, or replace the body of the existing one; `uses` replaces its edges unless None."""
        with self._connection() as connection:
            if self.find(kind, name) is None:
                return self.create(kind, name, body, uses or ())
            connection.execute(
                "UPDATE objects SET body = ?, ends = NULL WHERE kind = ? AND name = ?",
                (json.dumps(dict(body)), kind, name),
            )
            if uses is not None:
                connection.execute("DELETE FROM uses WHERE user_kind = ? AND user_name = ?", (kind, name))
                self._connect(connection, kind, name, uses)
            return self.get(kind, name)

    def update(self, kind: str, name: str, change: Callable[[dict[str, Any]], None]) -> CloudObject:
        """Let `change` edit the body in place, with no other writer in between. Raises NotFoundError."""
        with self._connection():
            body = self.get(kind, name).body
            change(body)
            return self.put(kind, name, body)

    def find(self, kind: str, name: str) -> CloudObject | None:
        """The object, or None."""
        with self._connection() as connection:
            query = "SELECT kind, name, body, created FROM objects WHERE kind = ? AND name = ?"
            row = connection.execute(query, (kind, name)).fetchone()
        return _object(row) if row else None

    def get(self, kind: str, name: str) -> CloudObject:
        """The object. Raises NotFoundError."""
        found = self.find(kind, name)
        if found is None:
            raise NotFoundError(kind, name)
        return found

    def list(self, kind: str = "", prefix: str = "") -> list[CloudObject]:
        """Objects of one kind (of every kind if empty) whose name starts with `prefix`, oldest first."""
        query = (
            "SELECT kind, name, body, created FROM objects "
            "WHERE (? = '' OR kind = ?) AND substr(name, 1, length(?)) = ? ORDER BY created, rowid"
        )
        with self._connection() as connection:
            return [_object(row) for row in connection.execute(query, (kind, kind, prefix, prefix))]

    def users(self, kind: str, name: str, relation: Relation = "blocks") -> list[tuple[str, str]]:
        """(kind, name) of the objects that have an edge of that relation to this one."""
        query = (
            "SELECT user_kind, user_name FROM uses WHERE used_kind = ? AND used_name = ? AND relation = ? "
            "ORDER BY user_kind, user_name"
        )
        with self._connection() as connection:
            return [(row[0], row[1]) for row in connection.execute(query, (kind, name, relation))]

    def delete(self, kind: str, name: str) -> None:
        """Delete an object and its parts.

        Raises:
            NotFoundError: there is no such object.
            InUseError: it, or one of its parts, is used by an object that is not itself a part.
        """
        with self._connection() as connection:
            self.get(kind, name)
            parts = self._with_parts(kind, name)
            blockers = [user for part in parts for user in self.users(*part) if user not in parts]
            if blockers:
                raise InUseError(kind, name, blockers)
            connection.executemany("DELETE FROM objects WHERE kind = ? AND name = ?", parts)

    def expire(self, kind: str, name: str, seconds: float) -> None:
        """Make an object disappear after `seconds`; until then it blocks what it uses. Raises NotFoundError."""
        with self._connection() as connection:
            self.get(kind, name)
            connection.execute(
                "UPDATE objects SET ends = ? WHERE kind = ? AND name = ?", (self.now() + seconds, kind, name)
            )

    def inventory(self) -> Inventory:
        """Everything there is: what is kept on purpose, and separately what a destroy must have removed."""
        everything = [found for found in self.list() if found.kind not in OWN_KINDS]
        kept_roots = {(found.kind, found.name) for found in everything if found.kind in KEPT_KINDS}
        # A grant on a kept bucket lives and dies with the bucket.
        kept = {part for root in kept_roots for part in self._with_parts(*root)}
        return Inventory(
            kept=[found for found in everything if (found.kind, found.name) in kept],
            other=[found for found in everything if (found.kind, found.name) not in kept],
        )

    def _with_parts(self, kind: str, name: str) -> list[tuple[str, str]]:
        found = [(kind, name)]
        for part in found:  # the list grows while it is walked, so parts of parts are found
            found += [user for user in self.users(*part, relation="part-of") if user not in found]
        return found

    def _connect(self, connection: sqlite3.Connection, kind: str, name: str, uses: Iterable[Use]) -> None:
        for use in uses:
            self.get(use.kind, use.name)
            row = (kind, name, use.kind, use.name, use.relation)
            connection.execute("INSERT OR REPLACE INTO uses VALUES (?, ?, ?, ?, ?)", row)

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        current: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if current is not None:
            yield current
            return
        with closing(opened(self._path)) as connection:
            self._local.connection = connection
            try:
                # IMMEDIATE: a transaction that reads first and writes later must not fail against another writer.
                connection.execute("BEGIN IMMEDIATE")
                connection.execute("DELETE FROM objects WHERE ends <= ?", (self.now(),))
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            finally:
                self._local.connection = None


def opened(file: Path) -> sqlite3.Connection:
    """A connection to a database that several processes write at once and that need not outlive the machine."""
    connection = sqlite3.connect(file, timeout=60, isolation_level=None)
    for setting in ("journal_mode = WAL", "synchronous = OFF", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {setting}")
    return connection


def timestamp(seconds: float) -> str:
    """A time as Google's APIs write it (RFC 3339, UTC)."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _object(row: tuple[str, str, str, str]) -> CloudObject:
    kind, name, body, created = row
    return CloudObject(kind=kind, name=name, body=json.loads(body), created=created)
