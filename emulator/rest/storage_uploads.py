"""Uploads to the emulated Cloud Storage: simple, multipart, resumable. The object appears once that is complete."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from emulator.google.errors import CloudError, RefusedCall
from emulator.google.http_message import Request, Response
from emulator.google.storage import ObjectStore
from emulator.google.storage_index import Checksums, ObjectFacts, Preconditions, pieces
from emulator.rest.storage_json import body_of

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+|\*)|\*)/(\d+|\*)")


class UploadBody:
    """An upload's bytes in a file, with checksums that are updated as the bytes arrive."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._sums = Checksums()

    @property
    def size(self) -> int:
        """Number of bytes held."""
        return self._sums.size

    def take(self, body: BinaryIO, offset: int = 0) -> None:
        """Replace everything after the first `offset` bytes."""
        with self.file.open("r+b", buffering=0) as stream:
            stream.truncate(offset)
            stream.seek(offset)
            if offset != self.size:
                self._sums = Checksums.of(self.file)
            for piece in pieces(body):
                left = memoryview(piece)
                while left:  # unbuffered, so that only what is in the file counts as held
                    left = left[stream.write(left) :]
                self._sums.update(piece)

    def put(
        self,
        store: ObjectStore,
        bucket: str,
        name: str,
        resource: Mapping[str, Any],
        headers: Mapping[str, str],
        demands: Preconditions,
    ) -> ObjectFacts:
        """Make it the object's content.

        Raises what `ObjectStore.put` raises, and RefusedCall if the checksums differ from those that the client sent.
        """
        self._check(resource, headers)
        return store.put(
            bucket,
            name,
            self.file,
            content_type=resource.get("contentType"),
            metadata=resource.get("metadata"),
            demands=demands,
            sums=self._sums,
        )

    def _check(self, resource: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        announced = {"crc32c": resource.get("crc32c"), "md5": resource.get("md5Hash")}
        for pair in headers.get("X-Goog-Hash", "").split(","):
            kind, _, value = pair.strip().partition("=")
            if kind in announced:
                announced[kind] = value
        if announced["md5"]:
            with self.file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "md5").digest()
            self._sums.md5 = base64.b64encode(digest).decode()
        for kind, actual in (("crc32c", self._sums.crc32c), ("md5", self._sums.md5)):
            if announced[kind] and announced[kind] != actual:
                self.file.unlink()
                kind, said = kind.upper(), announced[kind]
                raise RefusedCall(
                    400, f"Provided {kind} {said!r} doesn't match calculated {kind} {actual!r}.", "invalid"
                )


@dataclass(kw_only=True)
class _Session:
    """A resumable upload under way."""

    bucket: str
    resource: dict[str, Any]
    demands: Preconditions
    content: UploadBody
    lock: threading.Lock = field(default_factory=threading.Lock)
    finished: tuple[str, ObjectFacts] | None = None


class Uploads:
    """Collects uploads. Sessions live as long as the server: a client that finds none starts over, as with Google."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._sessions: dict[str, _Session] = {}

    def collect(self, request: Request, *, multipart: bool) -> tuple[UploadBody, dict[str, Any]]:
        """The content of a whole upload, and the object's metadata that came with it."""
        content = UploadBody(self._store.temporary())
        if not multipart:
            content.take(request.body)
            return content, {"contentType": request.headers.get("Content-Type")}
        metadata, media_type, media = _parts(request)
        content.take(BytesIO(media))
        resource = body_of("objects.insert", json.loads(metadata))
        return content, {"contentType": media_type, **resource}

    def begin(self, request: Request, bucket: str, demands: Preconditions) -> Response:
        """Open a session; the answer's Location holds its URL."""
        resource = body_of("objects.insert", request.json())
        resource.setdefault("name", request.query.get("name"))
        resource.setdefault("contentType", request.headers.get("X-Upload-Content-Type"))
        if not resource["name"]:
            raise RefusedCall(400, "Required parameter: name", "required")
        self._store.path(bucket, resource["name"])  # a name that cannot be stored is refused before its content is sent
        upload = secrets.token_urlsafe(32)
        content = UploadBody(self._store.temporary())
        self._sessions[upload] = _Session(bucket=bucket, resource=resource, demands=demands, content=content)
        query = f"uploadType=resumable&name={quote(resource['name'], safe='')}&upload_id={upload}"
        location = f"http://{request.host}/upload/storage/v1/b/{quote(bucket, safe='')}/o?{query}"
        return Response(headers={"Location": location, "X-GUploader-UploadID": upload})

    def receive(self, request: Request) -> Response | tuple[str, ObjectFacts]:
        """Take a chunk, or report how much has arrived. Returns the object once it is complete."""
        upload = request.query.get("upload_id", "")
        session = self._session(upload)
        found = _CONTENT_RANGE.fullmatch(request.headers.get("Content-Range", "").strip())
        with session.lock:
            if session.finished:
                return session.finished
            held = session.content.size
            if found is None:  # everything in one request
                session.content.take(request.body)
            elif found[1] is not None:
                if int(found[1]) > held:
                    message = f"The chunk starts at byte {found[1]}; {held} bytes have been received."
                    raise RefusedCall(400, message, "invalid")
                session.content.take(request.body, int(found[1]))
            held = session.content.size
            total = found[3] if found else str(held)
            if total == "*" or held < int(total):
                # 308, "Resume Incomplete": no Range header means that nothing has been received.
                return Response(status=308, headers={"Range": f"bytes=0-{held - 1}"} if held else {})
            return self._finish(upload, session, request.headers)

    def _finish(self, upload: str, session: _Session, headers: Mapping[str, str]) -> tuple[str, ObjectFacts]:
        name = str(session.resource["name"])
        try:
            facts = session.content.put(self._store, session.bucket, name, session.resource, headers, session.demands)
        except CloudError:
            del self._sessions[upload]
            raise
        session.finished = (name, facts)
        return session.finished

    def _session(self, upload: str) -> _Session:
        if upload not in self._sessions:
            raise RefusedCall(404, "No such upload session; start the upload again.", "notFound")
        return self._sessions[upload]


def _parts(request: Request) -> tuple[bytes, str | None, bytes]:
    """The two parts of a multipart/related upload, as metadata, media type and media."""
    boundary = re.search(r'boundary="?([^";]+)"?', request.headers.get("Content-Type", ""))
    if boundary is None:
        raise RefusedCall(400, "A multipart upload names its boundary in Content-Type.", "badRequest")
    pieces = (b"\r\n" + request.body.read()).split(b"\r\n--" + boundary[1].encode())
    if len(pieces) < 4:
        raise RefusedCall(400, "A multipart upload has two parts: metadata and media.", "badRequest")
    (_, metadata), (headers, media) = (piece.removeprefix(b"\r\n").split(b"\r\n\r\n", 1) for piece in pieces[1:3])
    media_type = re.search(rb"(?im)^content-type:\s*(.+?)\s*$", headers)
    return metadata, media_type[1].decode() if media_type else None, media
