"""Cloud Storage's JSON API over `ObjectStore`, as far as google-cloud-storage and pyarrow's GcsFileSystem use it.

Credentials are ignored, since both clients send none to an emulator. Buckets are in
`emulator.google.apis.storage`. Reference: Google Cloud documentation, "Cloud Storage JSON API overview" and its pages.
"""

from __future__ import annotations

import base64
from email.utils import formatdate
from typing import Any

from emulator.google.cloud import Cloud
from emulator.google.errors import RefusedCall
from emulator.google.http_message import Request, Response, Route, as_json, dispatch
from emulator.google.storage import ObjectStore
from emulator.google.storage_index import ObjectFacts
from emulator.rest.storage_json import body_of, byte_range, demands, etag, grouped, object_resource
from emulator.rest.storage_uploads import Uploads

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
            Route("GET", _OBJECTS, self._list),
            Route("POST", "/upload" + _OBJECTS, self._upload),
            Route("PUT", "/upload" + _OBJECTS, self._continue_upload),
            Route("GET", "/download" + _OBJECTS + "/{name}", self._download),
            Route("GET", _OBJECTS + "/{name}", self._get),
            Route("DELETE", _OBJECTS + "/{name}", self._delete),
            Route("POST", _OBJECTS + "/{name}/rewriteTo/b/{to_bucket}/o/{to_name}", self._rewrite),
        ]

    def answer(self, request: Request) -> Response | None:
        """The answer, or None for a path of another API."""
        return dispatch(self._routes, request)

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
        entries = grouped(names, prefix, delimiter, trailing)
        entries = [entry for entry in entries if not start or entry[0].encode() > start.encode()]
        size = min(int(query.get("maxResults", _PAGE)), _PAGE)
        page = entries[:size]
        result: dict[str, Any] = {"kind": "storage#objects"}
        items = [(name, self._store.stat(bucket, name)) for name, is_prefix in page if not is_prefix]
        result["items"] = [object_resource(request, bucket, name, facts) for name, facts in items if facts]
        result["prefixes"] = [name for name, is_prefix in page if is_prefix]
        if len(entries) > size:
            result["nextPageToken"] = base64.urlsafe_b64encode(page[-1][0].encode()).decode()
        return as_json(result)

    def _get(self, request: Request, bucket: str, name: str) -> Response:
        if request.query.get("alt") == "media":
            return self._download(request, bucket, name)
        facts = self._demanded(request, bucket, name)
        return as_json(object_resource(request, bucket, name, facts), headers={"ETag": etag(facts)})

    def _download(self, request: Request, bucket: str, name: str) -> Response:
        facts = self._demanded(request, bucket, name)
        headers = {
            "Content-Type": facts.content_type,
            "ETag": etag(facts),
            "Last-Modified": formatdate(facts.modified / 1e9, usegmt=True),
            "X-Goog-Generation": str(facts.generation),
            "X-Goog-Hash": f"crc32c={facts.crc32c}" + (f",md5={facts.md5}" if facts.md5 else ""),
            "X-Goog-Metageneration": str(facts.metageneration),
            "X-Goog-Storage-Class": "STANDARD",
            "X-Goog-Stored-Content-Encoding": "identity",
            "X-Goog-Stored-Content-Length": str(facts.size),
        }
        if name.endswith("/"):
            return Response(headers=headers)
        first, last, status = byte_range(request.headers.get("Range", ""), facts.size)
        if status == 206:
            headers["Content-Range"] = f"bytes {first}-{last}/{facts.size}"
        stream = self._store.path(bucket, name).open("rb")
        stream.seek(first)
        headers["Content-Length"] = str(last - first + 1)
        return Response(status=status, headers=headers, stream=stream)

    def _delete(self, request: Request, bucket: str, name: str) -> Response:
        self._store.bucket(bucket)
        self._store.delete(bucket, name, demands(request.query))
        return Response(status=204)

    def _rewrite(self, request: Request, bucket: str, name: str, to_bucket: str, to_name: str) -> Response:
        self._store.bucket(bucket)
        source = self._store.get(bucket, name)
        demands(request.query, "ifSource").check(source)
        given = body_of("objects.rewrite", request.json())
        content = self._store.temporary()
        if not name.endswith("/"):
            content.write_bytes(self._store.path(bucket, name).read_bytes())
        facts = self._store.put(
            to_bucket,
            to_name,
            content,
            content_type=given.get("contentType", source.content_type),
            metadata=given.get("metadata", source.metadata),
            demands=demands(request.query),
        )
        resource, size = object_resource(request, to_bucket, to_name, facts), str(facts.size)
        progress = {"totalBytesRewritten": size, "objectSize": size, "done": True, "resource": resource}
        return as_json({"kind": "storage#rewriteResponse", **progress})

    # ---- uploads

    def _upload(self, request: Request, bucket: str) -> Response:
        self._store.bucket(bucket)
        kind = request.query.get("uploadType", "media")
        if kind == "resumable":
            return self._uploads.begin(request, bucket, demands(request.query))
        content, resource = self._uploads.collect(request, multipart=kind == "multipart")
        name = str(resource.get("name") or request.query.get("name") or "")
        if not name:
            content.file.unlink()
            raise RefusedCall(400, "Required parameter: name", "required")
        facts = content.put(self._store, bucket, name, resource, request.headers, demands(request.query))
        return as_json(object_resource(request, bucket, name, facts))

    def _continue_upload(self, request: Request, bucket: str) -> Response:
        finished = self._uploads.receive(request)
        if isinstance(finished, Response):
            return finished
        name, facts = finished
        return as_json(object_resource(request, bucket, name, facts))

    def _demanded(self, request: Request, bucket: str, name: str) -> ObjectFacts:
        self._store.bucket(bucket)
        found = self._store.get(bucket, name)
        if request.query.get("generation", str(found.generation)) != str(found.generation):
            raise RefusedCall(404, f"No such object: {bucket}/{name}#{request.query['generation']}", "notFound")
        demands(request.query).check(found)
        return found
