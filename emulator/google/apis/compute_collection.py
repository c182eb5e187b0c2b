"""What the collections of Compute Engine have in common: links, fingerprints, lists by location, and operations.

A stored body names other resources by name path; an answer holds URLs of the API version that was called.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from emulator.google import limits, operations
from emulator.google.cloud import CloudObject, Use, timestamp
from emulator.google.collection import Body, Call, Collection, last, name_path, patched, require, unnumbered
from emulator.google.errors import RefusedCall

_GOOGLES = ("fingerprint", "labelFingerprint", "region")
"""Fields that requests may hold but that only Google sets."""


class ComputeCollection(Collection):
    """Resources of one kind, global or in regions or zones."""

    noun: ClassVar[str] = ""
    """Google's word for the resource in `kind`, if it differs from the kind here."""
    refers: ClassVar[Mapping[str, str]] = {}
    """Fields that name another resource, and its kind; empty for a kind that the emulated cloud does not hold."""
    required: ClassVar[tuple[str, ...]] = ()
    """Required fields that the API's document does not call required."""

    # ---- overridden by a collection

    def stored(self, call: Call, body: Body) -> Body:
        """A body as it is stored: other resources by their name paths, and nothing empty."""
        kept = {key: value for key, value in body.items() if key not in _GOOGLES and value not in ("", [])}
        return {**kept, **{field: referred(call, field, kept[field]) for field in self.refers if field in kept}}

    def everywhere(self, call: Call) -> list[CloudObject]:
        """All resources of this kind in the project."""
        return call.cloud.list(self.kind, f"projects/{call.project}/")

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        # "Naming resources".
        allowed = "1-63 lower-case letters, digits and dashes"
        require("[a-z]([-a-z0-9]{0,61}[a-z0-9])?", last(name), "resource.name", allowed)
        for field in self.required:
            if field not in body:
                raise RefusedCall(400, f"Required field 'resource.{field}' not specified", "required")

    def uses(self, call: Call, body: Mapping[str, Any]) -> Iterable[Use]:
        return [Use(kind=kind, name=body[field]) for field, kind in self.refers.items() if kind and body.get(field)]

    def shown(self, call: Call, found: CloudObject) -> Body:
        base = _base(call)
        links = {field: base + name_path(found.body[field]) for field in self.refers if found.body.get(field)}
        kind = f"compute#{self.noun or last(self.kind)}"
        own = {"kind": kind, "id": _number(found), "creationTimestamp": found.created, "selfLink": base + found.name}
        return {**found.body, **links, **own, **_place(base, found.name)}

    def answer(self, call: Call, found: CloudObject, verb: str) -> Body:
        return self.operation(call, found)

    def operation(self, call: Call, found: CloudObject, error: Mapping[str, Any] | None = None) -> Body:
        """A new operation on a resource, which ends with `error` if there is one."""
        base, now = _base(call), timestamp(call.cloud.now())
        about = {
            "kind": "compute#operation",
            "operationType": call.method.name,
            "targetLink": base + found.name,
            "targetId": _number(found),
            "user": call.principal,
            "insertTime": now,
            "startTime": now,
            "selfLink": base,
            **_place(base, found.name),
        }
        return operations.begin(call, found.name.rsplit("/", 2)[0], about, form="compute", error=error)

    # ---- methods

    def create(self, call: Call, name: str, given: Body) -> Body:
        limits.require_quota(call.cloud, self.kind, name, given)
        return super().create(call, name, self.stored(call, given))

    def change(self, call: Call, found: CloudObject, body: Body) -> Body:
        return super().change(call, found, self.stored(call, {**body, "name": last(found.name)}))

    def do_patch(self, call: Call) -> Body:
        found = self.found(call)
        taken_away = {key: None for key, value in call.sent.items() if value is None}
        return self.change(call, found, patched(found.body, {**taken_away, **call.body}))

    def do_update(self, call: Call) -> Body:
        found = self.found(call)
        body = self.stored(call, call.body)
        return self.change(call, found, {**self.filled(call, found.name, body), **body})

    def do_list(self, call: Call) -> Body:
        items = [self.shown(call, one) for one in call.cloud.list(self.kind, f"{call.name}/")]
        return self._list(call, "List", items)

    def do_aggregated_list(self, call: Call) -> Body:
        scopes: dict[str, dict[str, list[Body]]] = {}
        for one in self.everywhere(call):
            scope = re.sub(r"^projects/[^/]+/(global|[^/]+/[^/]+)/.*", r"\1", one.name)
            scopes.setdefault(scope, {}).setdefault(last(call.name), []).append(self.shown(call, one))
        return self._list(call, "AggregatedList", scopes)

    def found(self, call: Call) -> CloudObject:
        return call.cloud.get(self.kind, call.name.removesuffix(f"/{call.method.name}"))

    def _list(self, call: Call, word: str, items: Any) -> Body:
        kind, link = f"compute#{self.noun or last(self.kind)}{word}", _base(call) + call.name
        return {"kind": kind, "id": call.name, "selfLink": link, **({"items": items} if items else {})}


def referred(call: Call, field: str, reference: str) -> str:
    """The name path of a resource that a field names by URL or by path. Raises RefusedCall for a bare name."""
    path = name_path(reference)
    if re.match("(global|regions|zones)/", path):
        return f"projects/{call.project}/{path}"
    if "/" not in path:
        raise malformed(field, reference)
    return unnumbered(call.cloud, path)


def malformed(field: str, reference: str) -> RefusedCall:
    """The refusal of a field that holds neither a URL nor a path."""
    message = f"Invalid value for field 'resource.{field}': '{reference}'. The URL is malformed."
    return RefusedCall(400, message, "invalid")


def link(call: Call, name: str) -> str:
    """The URL of a name path, in the API version that was called."""
    return _base(call) + name


def fingerprint(content: Mapping[str, Any]) -> str:
    """A fingerprint that changes whenever the content does."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def require_fingerprint(now: str, given: str | None, words: str) -> None:
    """Refuse a change that is not based on the current state (compute.subnetworks.patch, `fingerprint`)."""
    if given != now:
        raise RefusedCall(412, words, "conditionNotMet")


def _base(call: Call) -> str:
    return f"https://www.googleapis.com{call.method.document.base}"


def _number(found: CloudObject) -> str:
    """The object's unique number, which fits an int64 as Google's do."""
    return str(int(hashlib.sha256(f"{found.name} {found.created}".encode()).hexdigest(), 16) % 2**63)


def _place(base: str, name: str) -> Body:
    """The region or zone of a name path, as a URL."""
    found = re.match(r"projects/[^/]+/(region|zone)s/[^/]+", name)
    return {found[1]: base + found[0]} if found else {}
