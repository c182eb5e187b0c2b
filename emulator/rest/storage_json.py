"""The shapes of Cloud Storage's JSON API: resources, preconditions, byte ranges, listings with a delimiter."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

from emulator.google.cloud import timestamp
from emulator.google.discovery import Method, admitted, document
from emulator.google.errors import RefusedCall
from emulator.google.http_message import Request
from emulator.google.storage_index import ObjectFacts, Preconditions


def body_of(method: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A body of `objects.insert` or `objects.rewrite`, checked against Google's description.

    Raises:
        RefusedCall: a field is unknown, has a wrong type, or is missing.
    """
    return admitted(_methods()[f"storage.{method}"], given)


@cache
def _methods() -> Mapping[str, Method]:
    return {method.id: method for method in document("storage.v1").methods}


def demands(query: Mapping[str, str], prefix: str = "if") -> Preconditions:
    """The preconditions in a request's parameters."""

    def number(name: str) -> int | None:
        return int(query[name]) if name in query else None

    return Preconditions(
        generation=number(f"{prefix}GenerationMatch"),
        not_generation=number(f"{prefix}GenerationNotMatch"),
        metageneration=number(f"{prefix}MetagenerationMatch"),
    )


def grouped(names: list[str], prefix: str, delimiter: str, trailing: bool) -> list[tuple[str, bool]]:
    """(name, whether it is a prefix that stands for all names below it), in order."""
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


def byte_range(header: str, size: int) -> tuple[int, int, int]:
    """First byte, last byte and status of the answer. Raises RefusedCall (416)."""
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header.strip())
    if not found or found.group(0) == "bytes=-":
        return 0, size - 1, 200
    first, last = found[1], found[2]
    if not first:
        start, end = max(size - int(last), 0), size - 1
    else:
        start, end = int(first), min(int(last), size - 1) if last else size - 1
    if start >= size:
        raise RefusedCall(416, "The requested range cannot be satisfied.", "requestedRangeNotSatisfiable")
    return start, end, 206


def etag(facts: ObjectFacts) -> str:
    """A tag that changes with the content and with the metadata."""
    return base64.b64encode(f"{facts.generation}/{facts.metageneration}".encode()).decode()


def object_resource(request: Request, bucket: str, name: str, facts: ObjectFacts) -> dict[str, Any]:
    """An object as the API shows it."""
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
        "crc32c": facts.crc32c,
        "etag": etag(facts),
        "timeCreated": timestamp(facts.generation / 1e6),
        "updated": timestamp(facts.modified / 1e9),
    }
    if facts.md5:
        shown["md5Hash"] = facts.md5
    return shown | ({"metadata": dict(facts.metadata)} if facts.metadata else {})
