"""The folder of a run or its results, on gs:// or a local path, behind the few operations that the workloads need.

An object on Cloud Storage appears when its stream is closed and never in part, so one `write` is atomic there; a
folder of objects never is, which is why a checkpoint ends with a marker object.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

from pyarrow import ArrowInvalid, fs

from workloads.errors import AuthError, PlaceError, UsageError, WorkloadError, first_line
from workloads.storage import disk
from workloads.storage.disk import Entry

EMULATOR_VARIABLE = "CLOUD_STORAGE_EMULATOR_ENDPOINT"
"""The variable that points google-cloud-cpp, and so pyarrow, at another storage endpoint."""

RETRY_LIMIT = timedelta(seconds=60)
"""How long one operation may retry. pyarrow's default, 15 minutes, outlasts a Spot node's notice many times over."""

STREAMS = 8
"""Objects read or written at a time: one stream of Cloud Storage is far slower than a node's network, and each that
is being written holds some 64 MiB in a gcsfuse sidecar."""

T = TypeVar("T")
R = TypeVar("R")


class Sink(Protocol):
    """A place to write an object's bytes to."""

    def write(self, content: bytes | memoryview, /) -> object:
        """Add bytes."""
        ...


@dataclass(frozen=True)
class Folder:
    """A folder of a bucket or of a local disk; it need not exist before the first write."""

    uri: str
    """Address that `locate` reads back in any process of any working directory; a local one is absolute."""
    filesystem: fs.FileSystem
    """pyarrow file system; pickles, so a worker can be handed a Folder."""
    path: str
    """Path within the file system: `bucket/prefix`, or an absolute local path."""

    def child(self, *names: str) -> Folder:
        """The folder below this one."""
        suffix = "/".join(names)
        return Folder(f"{self.uri.rstrip('/')}/{suffix}", self.filesystem, f"{self.path.rstrip('/')}/{suffix}")

    def write(self, name: str, content: bytes | memoryview) -> None:
        """Write one object, replacing what was there; whoever reads sees all of it or nothing."""
        if self._local:
            with self._explained(f"write {name} to"):
                disk.write(f"{self.path}/{name}", content)
            return

        def put(whole: bytes | memoryview) -> None:
            with self.create(name) as stream:
                stream.write(whole)

        # In a thread, which Ctrl-C does not interrupt: Arrow ends an upload with its stream, whatever it has by then.
        in_parallel(put, [content])

    @contextmanager
    def create(self, name: str) -> Iterator[Sink]:
        """Write one object piece by piece; on a local disk, readers may see a part of it until the block ends."""
        path = f"{self.path}/{name}"
        with self._explained(f"write {name} to"):
            opened: AbstractContextManager[Sink] = (
                disk.create(path) if self._local else self.filesystem.open_output_stream(path, compression=None)
            )
            with opened as stream:
                yield stream

    def read(self, name: str) -> bytes:
        """Read one object.

        Raises:
            FileNotFoundError: there is none; every other failure is a WorkloadError.
        """
        path = f"{self.path}/{name}"
        with self._explained(f"read {name} from"):
            if self._local:
                return disk.read(path)
            # A stream, not a random-access file: pyarrow asks for its size without letting other threads run.
            with self.filesystem.open_input_stream(path, compression=None) as stream:
                return stream.readall()

    def digest(self, name: str) -> tuple[int, str]:
        """Bytes of one object and their SHA-256, without holding it; raises as `read`."""
        if self._local:
            with self._explained(f"read {name} from"):
                return disk.digest(f"{self.path}/{name}")
        total, sha256 = 0, hashlib.sha256()
        for piece in self._pieces(name):
            total += len(piece)
            sha256.update(piece)
        return total, sha256.hexdigest()

    def copy(self, name: str, file: Path) -> int:
        """Copy one object to a file of this machine, without holding it; returns its bytes.

        Raises:
            FileNotFoundError: there is no such object.
            OSError: the disk refuses; what failed in reading is a WorkloadError.
        """
        with file.open("wb") as target:
            return sum(map(target.write, [self.read(name)] if self._local else self._pieces(name)))

    def _pieces(self, name: str) -> Iterator[bytes]:
        """The content of an object of Cloud Storage; what the receiver of a piece raises is not explained here."""
        with (
            self._explained(f"read {name} from"),
            self.filesystem.open_input_stream(f"{self.path}/{name}", compression=None) as stream,
        ):
            while piece := stream.read(disk.CHUNK):
                yield piece

    def exists(self) -> bool:
        """Whether the folder is there: on Cloud Storage, the bucket itself, or an object below the address."""
        # With a slash: a team's grant covers what is below its folder, and not an object with the folder's bare name.
        inside = not self._local and "/" in self.path
        with self._explained("list"):
            info = self.filesystem.get_file_info(f"{self.path}/" if inside else self.path)
        return info.type == fs.FileType.Directory

    def entries(self) -> list[Entry]:
        """Everything below, objects and folders; empty where the folder does not exist."""
        with self._explained("list"):
            if self._local:
                return disk.entries(self.path)
            infos = self.filesystem.get_file_info(fs.FileSelector(self.path, recursive=True, allow_not_found=True))
        inside = len(self.path.rstrip("/")) + 1
        return [
            Entry(info.path[inside:], info.type == fs.FileType.File, info.size or 0, (info.mtime_ns or 0) / 1e9)
            for info in infos
        ]

    def names(self) -> list[str]:
        """Names of the objects and folders directly inside, sorted; empty where the folder does not exist.

        Reckoned from the objects: pyarrow lists a folder of Cloud Storage only where it has a marker object.
        """
        return sorted({entry.path.partition("/")[0] for entry in self.entries()})

    def files(self) -> list[str]:
        """Paths of all objects below, relative to this folder, sorted."""
        return sorted(entry.path for entry in self.entries() if entry.is_file)

    def delete(self, name: str) -> None:
        """Delete one object; nothing happens if it is gone already."""
        path = f"{self.path}/{name}"
        with self._explained(f"delete {name} from"):
            if self._local:
                disk.delete(path)
                return
            with suppress(FileNotFoundError):  # deleted by another, or by a try whose answer was lost
                self.filesystem.delete_file(path)

    def remove(self) -> None:
        """Delete the folder and everything in it; nothing happens if it is gone already."""
        with self._explained("delete"):
            if self._local:
                disk.remove(self.path)
                return
            if self.filesystem.get_file_info(self.path).type == fs.FileType.NotFound:
                return
            try:
                self.filesystem.delete_dir(self.path)
            except FileNotFoundError:
                # On Cloud Storage the contents have gone by now, and there was no marker object for the folder itself.
                return

    def remove_empty(self) -> None:
        """Delete the folder unless something is in it; Cloud Storage knows no empty ones."""
        if self._local:
            with suppress(OSError):  # another has written to it since, or removed it
                disk.calls.rmdir(self.path)

    @property
    def _local(self) -> bool:
        return self.filesystem.type_name == "local"

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if action.startswith("read"):
                raise
            remedy = "Name another folder." if self._local else "Check the bucket's name."
            raise PlaceError(f"cannot {action} {self.uri}: {_reason(error)}.", remedy) from error
        except OSError as error:
            raise _explain(action, self.uri, error) from error
        except ArrowInvalid as error:  # how a refused login and a bucket's impossible name arrive
            raise _explain(action, self.uri, OSError(str(error))) from error


def check_writable(folder: Folder) -> None:
    """Refuse at once a folder that cannot be written to: writes an object below it, and removes what it made.

    Raises:
        AuthError: it may not be written.
        PlaceError: it cannot be: a full or read-only disk, a bucket that does not exist or answer.
    """
    probe = folder.child("write-test")
    existed = folder.exists()
    try:
        probe.write("probe", b"probe")  # an empty one has room on a full disk
    except WorkloadError:
        with suppress(WorkloadError):  # the first failure is the one to tell
            probe.remove()
        raise
    probe.remove()
    if not existed:
        folder.remove_empty()


def bucket_and_path(uri: str) -> tuple[str, str]:
    """The two parts of a `gs://` address, whose path may have any character, as `#` and `?`.

    Raises:
        UsageError: it names no bucket.
    """
    scheme, _, path = uri.partition("://")
    bucket, _, path = path.partition("/")
    if scheme != "gs" or not bucket:
        raise UsageError(f"{uri!r} names no bucket.", "Write gs://BUCKET/PATH.")
    return bucket, path


def locate(uri: str | Path) -> Folder:
    """The folder that a `gs://bucket/prefix` address or a local path names.

    Raises:
        UsageError: the address has another scheme or no bucket.
    """
    text = str(uri)
    if text.startswith("gs:"):
        return Folder(text, _cloud_storage(), "/".join(bucket_and_path(text)).rstrip("/"))
    if "://" in text:
        raise UsageError(f"{text!r} is neither gs://BUCKET/PATH nor a local path.", "Use one of the two.")
    path = str(Path(text).expanduser().absolute())
    return Folder(path, fs.LocalFileSystem(), path)


def in_parallel(call: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Call for each item, up to STREAMS at a time; after a failure no further call begins.

    Its threads, unlike those of concurrent.futures, keep no process alive: one that hangs in a dead mount shall not
    keep a worker from ending.

    Returns:
        The results, in the items' order. The earliest item's exception is raised, once all calls have ended.
    """
    waiting = list(enumerate(items))[::-1]
    results: dict[int, R] = {}
    errors: dict[int, BaseException] = {}

    def work() -> None:
        while waiting and not errors:
            try:
                index, item = waiting.pop()
            except IndexError:  # another thread took the last one
                return
            try:
                results[index] = call(item)
            except BaseException as error:  # raised again by the thread that called
                errors[index] = error

    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(STREAMS, len(waiting)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        error = errors[min(errors)]
        errors.clear()
        try:
            raise error
        finally:
            del error  # its frames would know it, and keep what they hold, gigabytes, until cycles are collected
    return [results[index] for index in sorted(results)]


def _cloud_storage() -> fs.GcsFileSystem:
    endpoint = os.environ.get(EMULATOR_VARIABLE, "")
    if not endpoint:
        return fs.GcsFileSystem(retry_time_limit=RETRY_LIMIT)
    parts = urlsplit(endpoint)
    return fs.GcsFileSystem(
        anonymous=True,
        scheme=parts.scheme,
        endpoint_override=parts.netloc,
        retry_time_limit=timedelta(seconds=10),
    )


def _explain(action: str, uri: str, error: OSError) -> WorkloadError:
    text = f"cannot {action} {uri}: {_reason(error)}."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return PlaceError(text, "Free some space there; `python -m workloads runs gc` finds what no run needs.")
    if error.errno == errno.EROFS:
        return PlaceError(text, "Mount it for writing, or name another place with --storage.")
    if error.errno in (errno.ENOTCONN, errno.ESTALE):
        return PlaceError(text, "The mount is gone or stale: restart its pod, or use the bucket's gs:// address.")
    if "invalid_grant" in str(error):  # a token that has expired or was revoked (RFC 6749, 5.2)
        return AuthError(
            text, "Log in anew with `gcloud auth application-default login`, then run the same command again."
        )
    if isinstance(error, PermissionError) and not uri.startswith("gs:"):
        return AuthError(text, "Check the folder's owner and mode; on a mount, its account's roles on the bucket.")
    # Google names the permission that is missing, as in "does not have storage.objects.get access to ...".
    if isinstance(error, PermissionError) or re.search(r"PERMISSION_DENIED|storage\.(objects|buckets)\.", str(error)):
        return AuthError(
            text, "The account needs roles/storage.objectUser and roles/storage.bucketViewer on the bucket."
        )
    return PlaceError(text, "Check the address, the free space and the network, then run the same command again.")


def _reason(error: OSError) -> str:
    """The system's or Google's reason, without the path before it and what the client says about itself."""
    said = error.strerror or first_line(error)
    google = re.search(r"with a last message of (.*?) error_info=", said)
    return (google[1] if google else said).partition("\n")[0][:300].rstrip(".")
