"""Cloud Storage's JSON API over `ObjectStore`: what google-cloud-storage and pyarrow's GcsFileSystem ask of it.

No credentials are looked at, since both clients send none to an emulator. Buckets come and go with the Pulumi program
alone. Reference: Google Cloud documentation, "Cloud Storage JSON API overview" and its pages.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any
from urllib.parse import quote

from emulator.cloud import Cloud, CloudObject
from emulator.gcp_errors import Refused
from emulator.gcp_scope import project_number
from emulator.http_message import Request, Response, Route, as_json, dispatch
from emulator.storage import ObjectStore
from emulator.storage_index import ObjectFacts, Preconditions
from emulator.storage_uploads import Uploads, require_checksums

_BUCKETS = "/storage/v1/b"
_OBJECTS = _BUCKETS + "/{bucket}/o"
_PAGE = 1000


class StorageApi:
    """Answers `/storage/v1/...`, `/upload/storage/v1/...` and `/download/storage/v1/...`."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._store = ObjectStore(cloud)
        self._uploads = Uploads(self._store)
        self._routes = [
            Route("GET", _BUCKETS, self._list_buckets),
            Route("POST", _BUCKETS, self._refuse_bucket),
            Route("GET", _BUCKETS + "/{bucket}", self._bucket),
            Route("DELETE", _BUCKETS + "/{bucket}", self._refuse_bucket),
            Route("GET", _OBJECTS, self._list),
            Route("POST", "/upload" + _OBJECTS, self._upload),
            Route("PUT", "/upload" + _OBJECTS, self._continue_upload),
            Route("DELETE", "/upload" + _OBJECTS, self._cancel_upload),
            Route("GET", "/download" + _OBJECTS + "/{name}", self._download),
            Route("GET", _OBJECTS + "/{name}", self._get),
            Route("PATCH", _OBJECTS + "/{name}", self._patch),
            Route("PUT", _OBJECTS + "/{name}", self._patch),
            Route("DELETE", _OBJECTS + "/{name}", self._delete),
            Route("POST", _OBJECTS + "/{name}/compose", self._compose),
            Route("POST", _OBJECTS + "/{name}/{verb}/b/{to_bucket}/o/{to_name}", self._copy),
            Route("POST", _OBJECTS + "/{name}/moveTo/o/{to_name}", self._move),
        ]

    def answer(self, request: Request) -> Response | None:
        """The answer, or None for a path of another API."""
        return dispatch(self._routes, request)

    # ---- buckets

    def _list_buckets(self, request: Request) -> Response:
        found = self._cloud.list("storage/bucket", request.query.get("prefix", ""))
        project = request.query.get("project")
        items = [_bucket_resource(request, one) for one in found if one.body.get("project") == project]
        return as_json({"kind": "storage#buckets", "items": items})

    def _bucket(self, request: Request, bucket: str) -> Response:
        found = self._cloud.get("storage/bucket", bucket)
        return as_json(_bucket_resource(request, found))

    def _refuse_bucket(self, request: Request, bucket: str = "") -> Response:
        message = "Buckets of the emulated cloud are made and deleted by the Pulumi program alone."
        raise Refused(403, message, "forbidden")

    # ---- objects

    def _list(self, request: Request, bucket: str) -> Response:
        query = request.query
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        start = base64.urlsafe_b64decode(query.get("pageToken", "")).decode()
        names = [
            name
            for name in self._store.names(bucket, prefix)
            if name.encode() >= query.get("startOffset", "").encode()
            and ("endOffset" not in query or name.encode() < query["endOffset"].encode())
        ]
        trailing = query.get("includeTrailingDelimiter") == "true"
        entries = _grouped(names, prefix, delimiter, trailing)
        entries = [entry for entry in entries if not start or entry[0].encode() > start.encode()]
        size = min(int(query.get("maxResults", _PAGE)), _PAGE)
        page = entries[:size]
        result: dict[str, Any] = {"kind": "storage#objects"}
        items = [(name, self._store.stat(bucket, name)) for name, is_prefix in page if not is_prefix]
        result["items"] = [_resource(request, bucket, name, facts) for name, facts in items if facts]
        result["prefixes"] = [name for name, is_prefix in page if is_prefix]
        if len(entries) > size:
            result["nextPageToken"] = base64.urlsafe_b64encode(page[-1][0].encode()).decode()
        return as_json(result)

    def _get(self, request: Request, bucket: str, name: str) -> Response:
        if request.query.get("alt") == "media":
            return self._download(request, bucket, name)
        facts = self._demanded(request, bucket, name)
        return as_json(_resource(request, bucket, name, facts), headers={"ETag": _etag(facts)})

    def _download(self, request: Request, bucket: str, name: str) -> Response:
        facts = self._demanded(request, bucket, name)
        headers = {
            "Content-Type": facts.content_type,
            "ETag": _etag(facts),
            "Last-Modified": formatdate(facts.modified / 1e9, usegmt=True),
            "X-Goog-Generation": str(facts.generation),
            "X-Goog-Hash": f"crc32c={facts.crc32c},md5={facts.md5}",
            "X-Goog-Metageneration": str(facts.metageneration),
            "X-Goog-Storage-Class": "STANDARD",
            "X-Goog-Stored-Content-Encoding": "identity",
            "X-Goog-Stored-Content-Length": str(facts.size),
        }
        if name.endswith("/"):
            return Response(headers=headers)
        first, last, status = _range(request.headers.get("Range", ""), facts.size)
        if status == 206:
            headers["Content-Range"] = f"bytes {first}-{last}/{facts.size}"
        stream = self._store.path(bucket, name).open("rb")
        stream.seek(first)
        headers["Content-Length"] = str(last - first + 1)
        return Response(status=status, headers=headers, stream=stream)

    def _patch(self, request: Request, bucket: str, name: str) -> Response:
        given = request.json()
        facts = self._store.patch(
            bucket,
            name,
            content_type=given.get("contentType"),
            metadata=given.get("metadata") or {},
            demands=demands(request.query),
        )
        return as_json(_resource(request, bucket, name, facts))

    def _delete(self, request: Request, bucket: str, name: str) -> Response:
        self._store.bucket(bucket)
        self._store.delete(bucket, name, demands(request.query))
        return Response(status=204)

    # ---- copies

    def _copy(self, request: Request, bucket: str, name: str, verb: str, to_bucket: str, to_name: str) -> Response:
        if verb not in ("copyTo", "rewriteTo"):
            raise Refused(404, f"no method {verb}", "notFound")
        facts = self._copied(request, bucket, name, to_bucket, to_name)
        resource = _resource(request, to_bucket, to_name, facts)
        if verb == "copyTo":
            return as_json(resource)
        size = str(facts.size)
        progress = {"totalBytesRewritten": size, "objectSize": size, "done": True, "resource": resource}
        return as_json({"kind": "storage#rewriteResponse", **progress})

    def _move(self, request: Request, bucket: str, name: str, to_name: str) -> Response:
        facts = self._copied(request, bucket, name, bucket, to_name)
        self._store.delete(bucket, name)
        return as_json(_resource(request, bucket, to_name, facts))

    def _copied(self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str) -> ObjectFacts:
        self._store.bucket(bucket)
        source = self._store.get(bucket, name)
        demands(request.query, "ifSource").check(source)
        given = request.json()
        content = self._store.temporary()
        if not name.endswith("/"):
            content.write_bytes(self._store.path(bucket, name).read_bytes())
        return self._store.put(
            to_bucket,
            to_name,
            content,
            content_type=given.get("contentType", source.content_type),
            metadata=given.get("metadata", source.metadata),
            demands=demands(request.query),
        )

    def _compose(self, request: Request, bucket: str, name: str) -> Response:
        given = request.json()
        content = self._store.temporary()
        with content.open("wb") as stream:
            for source in given.get("sourceObjects", []):
                self._store.get(bucket, source["name"])
                stream.write(self._store.path(bucket, source["name"]).read_bytes())
        destination = given.get("destination", {})
        facts = self._store.put(
            bucket,
            name,
            content,
            content_type=destination.get("contentType"),
            metadata=destination.get("metadata"),
            demands=demands(request.query),
        )
        return as_json(_resource(request, bucket, name, facts))

    # ---- uploads

    def _upload(self, request: Request, bucket: str) -> Response:
        self._store.bucket(bucket)
        kind = request.query.get("uploadType", "media")
        if kind == "resumable":
            return self._uploads.begin(request, bucket, demands(request.query))
        content, resource = self._uploads.collect(request, multipart=kind == "multipart")
        name = str(resource.get("name") or request.query.get("name") or "")
        if not name:
            raise Refused(400, "Required parameter: name", "required")
        require_checksums(content, resource, request.headers)
        facts = self._store.put(
            bucket,
            name,
            content,
            content_type=resource.get("contentType"),
            metadata=resource.get("metadata"),
            demands=demands(request.query),
        )
        return as_json(_resource(request, bucket, name, facts))

    def _continue_upload(self, request: Request, bucket: str) -> Response:
        finished = self._uploads.receive(request)
        if isinstance(finished, Response):
            return finished
        name, facts = finished
        return as_json(_resource(request, bucket, name, facts))

    def _cancel_upload(self, request: Request, bucket: str) -> Response:
        self._uploads.cancel(request.query.get("upload_id", ""))
        return Response(status=499)

    def _demanded(self, request: Request, bucket: str, name: str) -> ObjectFacts:
        self._store.bucket(bucket)
        found = self._store.get(bucket, name)
        if request.query.get("generation", str(found.generation)) != str(found.generation):
            raise Refused(404, f"No such object: {bucket}/{name}#{request.query['generation']}", "notFound")
        demands(request.query).check(found)
        return found


def demands(query: Mapping[str, str], prefix: str = "if") -> Preconditions:
    """The preconditions in a request's parameters."""

    def number(name: str) -> int | None:
        return int(query[name]) if name in query else None

    return Preconditions(
        generation=number(f"{prefix}GenerationMatch"),
        not_generation=number(f"{prefix}GenerationNotMatch"),
        metageneration=number(f"{prefix}MetagenerationMatch"),
    )


def _grouped(names: list[str], prefix: str, delimiter: str, trailing: bool) -> list[tuple[str, bool]]:
    """(name, whether it is a prefix that stands for all names under it), in order."""
    result: dict[tuple[str, bool], None] = {}
    for name in names:
        head, found, rest = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
        if not found:
            result[(name, False)] = None
            continue
        result[(prefix + head + found, True)] = None
        if trailing and not rest:
            result[(name, False)] = None
    return list(result)


def _range(header: str, size: int) -> tuple[int, int, int]:
    """First byte, last byte and status of the answer. Raises Refused (416)."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    if not found or found.group(0) == "bytes=-":
        return 0, size - 1, 200
    first, last = found[1], found[2]
    if not first:
        start, end = max(size - int(last), 0), size - 1
    else:
        start, end = int(first), min(int(last), size - 1) if last else size - 1
    if start >= size:
        raise Refused(416, "The requested range cannot be satisfied.", "requestedRangeNotSatisfiable")
    return start, end, 206


def _etag(facts: ObjectFacts) -> str:
    return base64.b64encode(f"{facts.generation}/{facts.metageneration}".encode()).decode()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _bucket_resource(request: Request, found: CloudObject) -> dict[str, Any]:
    body, kept = found.body, found.body.get("softDeletePolicy", {}).get("retentionDurationSeconds", 604800)
    return {
        "kind": "storage#bucket",
        "id": found.name,
        "name": found.name,
        "selfLink": f"http://{request.host}/storage/v1/b/{found.name}",
        "projectNumber": project_number(str(body.get("project", ""))),
        "location": str(body.get("location", "")).upper(),
        "storageClass": body.get("storageClass", "STANDARD"),
        "labels": body.get("labels", {}),
        "metageneration": "1",
        "etag": "CAE=",
        "timeCreated": found.created,
        "updated": found.created,
        "hierarchicalNamespace": body.get("hierarchicalNamespace", {"enabled": False}),
        "iamConfiguration": {
            "uniformBucketLevelAccess": {"enabled": bool(body.get("uniformBucketLevelAccess"))},
            "publicAccessPrevention": body.get("publicAccessPrevention", "inherited"),
        },
        "softDeletePolicy": {"retentionDurationSeconds": str(kept)},
    }


def _resource(request: Request, bucket: str, name: str, facts: ObjectFacts) -> dict[str, Any]:
    path = f"{bucket}/o/{quote(name, safe='')}"
    here = f"http://{request.host}"  # a client follows these links, and must not leave the machine
    generation = str(facts.generation)
    shown = {
        "kind": "storage#object",
        "id": f"{bucket}/{name}/{generation}",
        "selfLink": f"{here}/storage/v1/b/{path}",
        "mediaLink": f"{here}/download/storage/v1/b/{path}?generation={generation}&alt=media",
        "bucket": bucket,
        "name": name,
        "generation": generation,
        "metageneration": str(facts.metageneration),
        "contentType": facts.content_type,
        "storageClass": "STANDARD",
        "size": str(facts.size),
        "md5Hash": facts.md5,
        "crc32c": facts.crc32c,
        "etag": _etag(facts),
        "timeCreated": _time(facts.generation / 1e6),
        "updated": _time(facts.modified / 1e9),
    }
    return shown | ({"metadata": dict(facts.metadata)} if facts.metadata else {})
