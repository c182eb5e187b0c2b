"""Where runs and results live: one folder on gs:// or on a local path, behind the few operations the workloads need.

An object on Cloud Storage appears when its stream is closed and never in part, so one `write` is atomic there; a
folder of objects never is, which is why a checkpoint ends with a marker object.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from pyarrow import fs

from workloads.errors import AuthError, PlaceError, UsageError, WorkloadError

EMULATOR_VARIABLE = "CLOUD_STORAGE_EMULATOR_ENDPOINT"
"""The variable with which google-cloud-cpp, and so pyarrow, is pointed at another storage endpoint."""

RETRY_LIMIT = timedelta(seconds=60)
"""How long one operation may retry. pyarrow's default, 15 minutes, outlasts a Spot node's notice many times over."""


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
        with self._explained(f"write {name} to"):
            if self.filesystem.type_name == "local":
                _replace(Path(self.path) / name, content)
                return
            with self.filesystem.open_output_stream(f"{self.path}/{name}", compression=None) as stream:
                stream.write(content)

    def read(self, name: str) -> bytes:
        """Read one object.

        Raises:
            FileNotFoundError: there is none; every other failure is a WorkloadError.
        """
        # A stream, not a random-access file: pyarrow asks for the latter's size without letting other threads run.
        path = f"{self.path}/{name}"
        with self._explained(f"read {name} from"), self.filesystem.open_input_stream(path, compression=None) as stream:
            return stream.readall()

    def names(self) -> list[str]:
        """Names of the objects and folders directly inside, sorted; empty where the folder does not exist.

        Reckoned from the objects: pyarrow lists a folder of Cloud Storage only where it has a marker object.
        """
        return sorted({path.partition("/")[0] for path, _ in self._below()})

    def files(self) -> list[str]:
        """Paths of all objects below, relative to this folder, sorted."""
        return sorted(path for path, kind in self._below() if kind == fs.FileType.File)

    def remove(self) -> None:
        """Delete the folder and everything in it; nothing happens if it is gone already."""
        with self._explained("delete"):
            if self.filesystem.get_file_info(self.path).type == fs.FileType.NotFound:
                return
            try:
                self.filesystem.delete_dir(self.path)
            except FileNotFoundError:
                # On Cloud Storage the contents have gone by now, and there was no marker object for the folder itself.
                return

    def _below(self) -> list[tuple[str, fs.FileType]]:
        with self._explained("list"):
            infos = self.filesystem.get_file_info(fs.FileSelector(self.path, recursive=True, allow_not_found=True))
        inside = len(self.path.rstrip("/")) + 1
        return [(info.path[inside:], info.type) for info in infos]

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if action.startswith("read"):
                raise
            raise PlaceError(
                f"cannot {action} {self.uri}: {_first_line(error)}.", "Check the bucket's name."
            ) from error
        except OSError as error:
            raise _explain(action, self.uri, error) from error


def locate(uri: str | Path) -> Folder:
    """The folder that a `gs://bucket/prefix` address or a local path names.

    Raises:
        UsageError: the address has another scheme or no bucket.
    """
    text = str(uri)
    parts = urlsplit(text)
    if parts.scheme == "gs":
        if not parts.netloc:
            raise UsageError(f"{text!r} names no bucket.", "Write gs://BUCKET/PATH.")
        return Folder(text, _cloud_storage(), f"{parts.netloc}{parts.path}".rstrip("/"))
    if "://" in text:
        raise UsageError(f"{text!r} is neither gs://BUCKET/PATH nor a local path.", "Use one of the two.")
    path = str(Path(text).expanduser().absolute())
    return Folder(path, fs.LocalFileSystem(), path)


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


def _replace(file: Path, content: bytes | memoryview) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(file)


def _explain(action: str, uri: str, error: OSError) -> WorkloadError:
    text = f"cannot {action} {uri}: {_first_line(error)}."
    if isinstance(error, PermissionError) or "PERMISSION_DENIED" in str(error) or "storage." in str(error):
        return AuthError(text, "The account needs roles/storage.objectUser and storage.buckets.get on the bucket.")
    return PlaceError(text, "Check the address, the free space and the network, then run the same command again.")


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")
