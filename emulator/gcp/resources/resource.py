"""A resource type made of calls: create, read, update, delete, with names that differ between Pulumi and REST.

Which calls, with which bodies: pulumi/pulumi-gcp v9.35.0 (hashicorp/terraform-provider-google-beta v7.45.0), recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from emulator.gcp.resources.google_client import Body, GoogleClient

PROVISIONED = {"goog-pulumi-provisioned": "true"}
"""Label that pulumi-gcp adds by default (its installation page, `addPulumiAttributionLabel`)."""

_OF_THE_PROVIDER = frozenset({"project", "deletionPolicy"})
"""Inputs that are in no body."""


class Client(Protocol):
    """What a resource type does with Google's API."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Make an object; returns its id."""
        ...

    def read(self, google: GoogleClient, identity: str, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """Outputs, or None if it is gone; `given` are its inputs, as far as they are known."""
        ...

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Change an object as its inputs changed."""
        ...

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Let an object go that is there."""
        ...


@dataclass(frozen=True, kw_only=True)
class Resource:
    """A resource type whose objects have one collection: the calls as most APIs have them."""

    parent: str
    """Path of the collection, with the inputs in it as `{names}`: `v1/projects/{project}/secrets`."""
    identity: str
    """Template of Pulumi's id."""
    id_input: str = "name"
    """Input that names an object."""
    id_parameter: str = ""
    """Parameter that carries a new object's name; empty if the body's `name` does."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Wire paths of Pulumi's properties that have another path in the REST body."""
    unsent: frozenset[str] = frozenset()
    """Inputs that are in no body."""
    labels: str = ""
    """Input with labels, to which pulumi-gcp adds one of its own; empty for a type without."""

    def path(self, identity: str) -> str:
        """Path of the object with that id."""
        return f"{self.parent.partition('projects/')[0]}{identity}"

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Make an object; returns its id."""
        body, query = self.body(inputs), {}
        if self.id_parameter:
            query = {self.id_parameter: str(inputs[self.id_input])}
        else:
            body["name"] = inputs[self.id_input]
        self.finished(google, google.call("POST", fill(self.parent, inputs), body, query))
        return fill(self.identity, inputs)

    def read(self, google: GoogleClient, identity: str, given: Mapping[str, Any]) -> Body | None:
        """Outputs of an object, or None if it is gone; `given` are its inputs, as far as they are known."""
        answer = google.find(self.path(identity))
        return None if answer is None else self.outputs(identity, answer, given)

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Change an object as its inputs changed."""
        before, after = self.body(old), self.body(new)
        changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        if changed:
            body = {key: after[key] for key in changed if key in after}
            self.finished(google, google.call("PATCH", self.path(identity), body, {"updateMask": ",".join(changed)}))

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Let an object go that is there."""
        self.finished(google, google.call("DELETE", self.path(identity)))

    def finished(self, google: GoogleClient, answer: Body) -> Body:
        """The final answer to a call that may answer with an operation."""
        if "/operations/" in f"/{answer.get('name', '')}":
            return google.await_operation(f"{self.parent.partition('/')[0]}/", answer)
        return answer

    def body(self, inputs: Mapping[str, Any]) -> Body:
        """The REST body for the inputs, without the object's name."""
        left = _OF_THE_PROVIDER | self.unsent | {self.id_input}
        sent: Body = {}
        for key, value in inputs.items():
            if key not in left and f"{{{key}}}" not in self.parent:
                _place(sent, key, value, self.renamed)
        if self.labels:
            sent[self.labels] = {**sent.get(self.labels, {}), **PROVISIONED}
        return sent

    def outputs(self, identity: str, answer: Mapping[str, Any], given: Mapping[str, Any]) -> Body:
        """Pulumi's outputs for Google's answer about an object."""
        result = dict(answer)
        for wire, rest in self.renamed.items():
            if (value := taken(answer, rest)) is not None:
                _place(result, wire, value, {})
        result |= {key: given[key] for key in (*self.unsent, "deletionPolicy") if key in given}
        result |= self.places(identity)
        if self.labels:
            every = dict(answer.get(self.labels, {}))
            own = given.get(self.labels)
            result["pulumiLabels"] = result["effectiveLabels"] = every
            result[self.labels] = {key: value for key, value in every.items() if own is None or key in own}
        return result

    def places(self, identity: str) -> Body:
        """The inputs that the id contains: project, location, name."""
        names = [part for part in self.identity.split("/") if part.startswith("{")]
        pieces = dict(zip(self.identity.split("/"), identity.split("/"), strict=False))
        return {name.strip("{}"): pieces[name] for name in names if ":" not in name}


class _Text(str):
    def __format__(self, spec: str) -> str:
        return self.rsplit("/", 1)[-1] if spec == "last" else str(self)


def fill(template: str, fields: Mapping[str, Any]) -> str:
    """Fill a template. Raises KeyError for a missing field."""
    return template.format_map(
        {key: _Text(value) if isinstance(value, str) else value for key, value in fields.items()}
    )


def taken(body: Mapping[str, Any], path: str) -> Any:
    """The value at a path, or None."""
    value: Any = body
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _place(body: Body, path: str, value: Any, renamed: Mapping[str, str]) -> None:
    """Put a value, or each of its parts, at its path in the REST body."""
    if isinstance(value, Mapping) and any(name.startswith(f"{path}.") for name in renamed):
        for key, item in value.items():
            _place(body, f"{path}.{key}", item, renamed)
        return
    *parents, name = renamed.get(path, path).split(".")
    for parent in parents:
        body = body.setdefault(parent, {})
    body[name] = value
