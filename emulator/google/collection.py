"""What Google's APIs have in common: a collection of resources that are made, read, listed, changed and deleted.

An API's module has one subclass per collection. It decides what is refused, what is filled in, and what else the
collection can do. `do_<name>` of a collection serves the API method of that name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from emulator.google import policies
from emulator.google.cloud import Cloud, CloudObject, Use
from emulator.google.discovery import Method
from emulator.google.errors import RefusedCall
from emulator.google.scope import project_number

Body = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call of a method."""

    cloud: Cloud
    """The cloud that it acts on."""
    method: Method
    """The method called."""
    names: Mapping[str, str]
    """The parameters in the path."""
    query: Mapping[str, str]
    """The query parameters."""
    principal: str
    """IAM principal of the caller (`serviceAccount:...`); empty: an operator, who may do all."""
    quota_project: str
    """Id of the project whose quota the call counts against (`X-Goog-User-Project`), or empty."""
    sent: Mapping[str, Any]
    """The body as it was sent."""
    name: str
    """The name path that was called, with the project's id: `projects/p/secrets/s`."""
    project: str = ""
    """Id of the project that the resource is in, or empty."""
    body: Body = field(default_factory=dict[str, Any])
    """The body, checked against the API's document, without nulls and without what only Google sets."""


class Collection:
    """Resources of one kind."""

    kind: ClassVar[str]
    """Their kind in the emulated cloud."""
    items: ClassVar[str] = "items"
    """Key of the list in an answer to `list`."""
    id_parameter: ClassVar[str] = ""
    """Parameter that names a new resource; empty if the body's `name` does."""

    # ---- overridden by an API's module

    def project(self, call: Call) -> str:
        """Id of the project that a call is about, or empty."""
        found = re.match(r"projects/([^/:]+)", call.name)
        return found[1] if found else call.query.get("project", "")

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        """Refuse a body that Google would not create, or not accept as a change of `before`. Raises RefusedCall."""

    def filled(self, call: Call, name: str, body: Body) -> Body:
        """What Google adds to a new resource, besides what was sent."""
        return {}

    def uses(self, call: Call, body: Mapping[str, Any]) -> Iterable[Use]:
        """The resources that this one needs."""
        return ()

    def made(self, call: Call, found: CloudObject) -> None:
        """Do what Google does by itself once the resource has been created."""

    def admit_removal(self, call: Call, found: CloudObject) -> None:
        """Refuse to delete the resource for any reason other than its users. Raises RefusedCall."""

    def removed(self, call: Call, found: CloudObject) -> None:
        """Do what Google does by itself once the resource is gone."""

    def shown(self, call: Call, found: CloudObject) -> Body:
        """The resource, as an answer holds it."""
        return found.body

    def answer(self, call: Call, found: CloudObject, verb: str) -> Body:
        """The answer to a create, change or delete: the resource, unless the API answers with an operation."""
        return {} if verb == "delete" else self.shown(call, found)

    # ---- methods

    def do_create(self, call: Call) -> Body:
        if self.id_parameter:
            given = {key: value for key, value in call.body.items() if key != "name"}
            if not (new := call.query.get(self.id_parameter)):
                raise RefusedCall(400, f"Required parameter '{self.id_parameter}' not specified", "required")
            return self.create(call, f"{call.name}/{new}", given)
        return self.create(call, f"{call.name}/{call.body.get('name', '')}", dict(call.body))

    def create(self, call: Call, name: str, given: Body) -> Body:
        """Create a resource."""
        self.admit(call, name, given, None)
        body = {**given, **{key: value for key, value in self.filled(call, name, given).items() if key not in given}}
        found = call.cloud.create(self.kind, name, body, self.uses(call, body))
        self.made(call, found)
        return self.answer(call, call.cloud.get(self.kind, name), "create")

    do_insert = do_create

    def do_get(self, call: Call) -> Body:
        return self.shown(call, self.found(call))

    def do_list(self, call: Call) -> Body:
        prefix = re.escape(f"{call.name}/").replace(re.escape("locations/-/"), "locations/[^/]+/")
        found = [one for one in call.cloud.list(self.kind) if re.fullmatch(f"{prefix}[^/]+", one.name)]
        return {self.items: [self.shown(call, one) for one in found]} if found else {}

    def do_patch(self, call: Call) -> Body:
        found = self.found(call)
        return self.change(call, found, merged(found.body, call.body, call.query.get("updateMask", "")))

    do_update = do_patch

    def change(self, call: Call, found: CloudObject, body: Body) -> Body:
        """Replace a resource's body."""
        self.admit(call, found.name, body, found)
        changed = call.cloud.put(self.kind, found.name, body, self.uses(call, body))
        return self.answer(call, changed, "update")

    def do_delete(self, call: Call) -> Body:
        found = self.found(call)
        self.admit_removal(call, found)
        call.cloud.delete(self.kind, found.name)
        self.removed(call, found)
        return self.answer(call, found, "delete")

    def do_get_iam_policy(self, call: Call) -> Body:
        self.found(call)
        return policies.get(call.cloud, self.full_name(call))

    def do_set_iam_policy(self, call: Call) -> Body:
        found = self.found(call)
        part = Use(kind=self.kind, name=found.name, relation="part-of")
        return policies.put(call.cloud, self.full_name(call), call.body.get("policy", call.body), part)

    def full_name(self, call: Call) -> str:
        """Full name of the called resource, unique across Google's services."""
        return policies.full_name(call.method.document.host, call.name)

    def found(self, call: Call) -> CloudObject:
        """The called resource. Raises NotFoundError."""
        return call.cloud.get(self.kind, call.name)


def merged(now: Mapping[str, Any], given: Mapping[str, Any], mask: str) -> Body:
    """A resource after a PATCH of the fields in the mask (`a,b.c`, camel or snake case), or else of those given."""
    if not mask:
        return {**now, **given}
    result = dict(now)
    for path in mask.split(","):
        head, _, rest = re.sub(r"_([a-z])", lambda found: found[1].upper(), path.strip()).partition(".")
        if rest:
            result[head] = merged(result.get(head, {}), given.get(head, {}), rest)
        elif head in given:
            result[head] = given[head]
        else:
            result.pop(head, None)
    return result


def patched(now: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
    """A resource after a JSON merge patch (RFC 7396)."""
    result = dict(now)
    for key, value in given.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping):
            below = result.get(key)
            result[key] = patched(below if isinstance(below, Mapping) else {}, value)
        else:
            result[key] = value
    return result


def require(pattern: str, value: str, field: str, allowed: str) -> None:
    """Refuse a value that a field does not take. Raises RefusedCall."""
    if not re.fullmatch(pattern, value):
        raise RefusedCall(400, f"Invalid value for field '{field}': '{value}'. Must be {allowed}.", "invalid")


def numbered(name: str) -> str:
    """A name path with the project's number, as some services return it."""
    return re.sub(r"^projects/([^/]+)", lambda found: f"projects/{project_number(found[1])}", name)


def unnumbered(cloud: Cloud, name: str) -> str:
    """A name path with the project's number replaced by its id."""
    found = re.match(r"projects/(\d+)(?=/|$)", name)
    return f"projects/{project_id(cloud, found[1])}{name[found.end() :]}" if found else name


def project_id(cloud: Cloud, number: str) -> str:
    """Id of the project with that number; the number itself if there is none."""
    known = cloud.list("resourcemanager/project")
    return next((str(one.body["projectId"]) for one in known if one.body["number"] == number), number)


def name_path(reference: str) -> str:
    """The name path in a URL of Compute Engine, whatever its version; anything else unchanged."""
    return re.sub(r"^https?://[^/]+/compute/[^/]+/", "", reference)


def last(name: str) -> str:
    """The last segment of a name path."""
    return name.rsplit("/", 1)[-1]
