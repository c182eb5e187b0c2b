"""Kubernetes objects as Pulumi's provider sees them: names, our part of the live state, changes, replacements. Pure.

Ours is what the program wrote: what a server defaults or a controller adds beside it is never a difference.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from emulator.protocol.wire import UNKNOWN

Body = dict[str, Any]

AUTONAMED = "pulumi.com/autonamed"
PATCH_FORCE = "pulumi.com/patchForce"
PATCH_FIELD_MANAGER = "pulumi.com/patchFieldManager"
SKIP_AWAIT = "pulumi.com/skipAwait"
WAIT_FOR = "pulumi.com/waitFor"
DELETION_PROPAGATION = "pulumi.com/deletionPropagationPolicy"

FIELD_MANAGER = "__fieldManager"
"""Output that remembers under which name the object was applied."""

_SELECTED = (".spec.selector",)
_ROLE = (".roleRef",)
_IMMUTABLE: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("apps/v1", "Deployment"): _SELECTED,
    ("apps/v1", "DaemonSet"): _SELECTED,
    ("apps/v1", "StatefulSet"): (
        *_SELECTED,
        ".spec.podManagementPolicy",
        ".spec.revisionHistoryLimit",
        ".spec.serviceName",
        ".spec.volumeClaimTemplates",
    ),
    ("batch/v1", "Job"): (*_SELECTED, ".spec.completions", ".spec.parallelism", ".spec.template"),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"): _ROLE,
    ("rbac.authorization.k8s.io/v1", "RoleBinding"): _ROLE,
    ("storage.k8s.io/v1", "StorageClass"): (".parameters", ".provisioner"),
    ("v1", "ConfigMap"): (".binaryData", ".data"),
    ("v1", "PersistentVolumeClaim"): (".spec",),
    ("v1", "Pod"): (".spec",),
    ("v1", "ResourceQuota"): (".spec.scopes",),
    ("v1", "Secret"): (".type", ".stringData", ".data"),
    ("v1", "Service"): (".spec.clusterIP",),
}
"""Fields whose change replaces the object (pulumi/pulumi-kubernetes, provider/pkg/provider/diff.go)."""

_IDENTITY = (".apiVersion", ".kind", ".metadata.name", ".metadata.namespace")
_LIST_KEYS = ("name", "groupName", "key", "mountPath", "containerPort", "port", "ip", "type")


def is_true(live: Body, condition: str) -> bool:
    """True if a live object's status says that a condition holds."""
    conditions = live.get("status", {}).get("conditions") or []
    return any(entry["type"] == condition and entry["status"] == "True" for entry in conditions)


def annotation(body: Mapping[str, Any], name: str) -> str:
    """An annotation's text; empty without it."""
    return str(body.get("metadata", {}).get("annotations", {}).get(name, ""))


def is_set(body: Mapping[str, Any], name: str) -> bool:
    """True if an annotation says true."""
    return annotation(body, name).lower() == "true"


def named(inputs: Body, old: Mapping[str, Any], resource: str) -> Body:
    """The inputs with a name: the program's, else the one this resource got before, else a fresh one."""
    metadata = dict(inputs.get("metadata", {}))
    if "name" in metadata or "generateName" in metadata:
        return {**inputs, "metadata": metadata}
    before = old.get("metadata", {}).get("name") if is_set(old, AUTONAMED) else None
    metadata["name"] = before or f"{resource}-{uuid.uuid4().hex[:8]}"
    metadata["annotations"] = {**metadata.get("annotations", {}), AUTONAMED: "true"}
    return {**inputs, "metadata": metadata}


def our_part(inputs: Any, before: Any, live: Any) -> Any:
    """The inputs as the live object now has them: ours where nobody touched them, the live value where somebody did.

    Args:
        inputs: what the program wrote.
        before: the object as it was right after our last write. A value that is still the same is no difference,
            however the server spells it ("1000m" and "1").
        live: the object as it is.
    """
    if isinstance(inputs, Mapping) and isinstance(live, Mapping):
        before = before if isinstance(before, Mapping) else {}
        # What the server never stored (`stringData`, an empty map) is as unchanged as what it stored and still has.
        kept = [key for key in inputs if key in live or key not in before]
        return {key: our_part(inputs[key], before.get(key), live.get(key)) for key in kept}
    if isinstance(inputs, list) and isinstance(live, list):
        return _our_items(inputs, before if isinstance(before, list) else [], live)
    return inputs if live == before else live


def _our_items(inputs: list[Any], before: list[Any], live: list[Any]) -> list[Any]:
    if not all(isinstance(item, Mapping) for item in inputs):
        return inputs if live == before else live
    key = _list_key(inputs)
    if key is None:
        paired = [(item, _at(before, index), _at(live, index)) for index, item in enumerate(inputs)]
    else:
        paired = [(item, _keyed(before, key, item[key]), _keyed(live, key, item[key])) for item in inputs]
    return [our_part(item, old, new) for item, old, new in paired if new is not None]


def _list_key(items: list[Any]) -> str | None:
    for key in _LIST_KEYS:
        values = [item.get(key) for item in items]
        if None not in values and len(set(map(str, values))) == len(values):
            return key
    return None


def _keyed(items: Iterable[Any], key: str, value: Any) -> Any:
    return next((item for item in items if isinstance(item, Mapping) and item.get(key) == value), None)


def _at(items: list[Any], index: int) -> Any:
    return items[index] if index < len(items) else None


def changes(old: Any, new: Any, path: str = "") -> dict[str, str]:
    """Paths (`.spec.ports[0].port`) that differ, with `add`, `delete` or `update`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        found: dict[str, str] = {}
        for key in sorted({*old, *new}):
            below = f"{path}.{key}"
            if key not in new:
                found[below] = "delete"
            elif key not in old:
                found[below] = "add"
            else:
                found |= changes(old[key], new[key], below)
        return found
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return {
            where: how
            for index, pair in enumerate(zip(old, new, strict=True))
            for where, how in changes(*pair, f"{path}[{index}]").items()
        }
    return {} if old == new else {path: "update"}


def replacing(old: Mapping[str, Any], new: Mapping[str, Any], mutable_kinds: Iterable[str]) -> list[str]:
    """Changed paths that an object cannot take in place.

    Args:
        old: inputs of the object there.
        new: inputs it should get.
        mutable_kinds: of ConfigMap and Secret, those that the provider was told to change in place.
    """
    kind = str(new.get("kind"))
    fixed = _IDENTITY if kind in set(mutable_kinds) else (*_IDENTITY, *_fixed(new))
    return [path for path in changes(old, new) if any(_touches(path, prefix) for prefix in fixed)]


def _fixed(body: Mapping[str, Any]) -> tuple[str, ...]:
    return _IMMUTABLE.get((str(body.get("apiVersion")), str(body.get("kind"))), ())


def _touches(path: str, prefix: str) -> bool:
    # A whole block that goes or comes (`.spec`) takes what is below it along.
    return path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")) or prefix.startswith(f"{path}.")


def same_place(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """True if both would be the same object to the API server, so that one must go before the other comes."""

    def place(body: Mapping[str, Any]) -> tuple[Any, ...]:
        metadata = body.get("metadata", {})
        group = str(body.get("apiVersion")).rpartition("/")[0]
        return group, body.get("kind"), metadata.get("namespace", "default"), metadata.get("name")

    return place(old) == place(new) and UNKNOWN not in place(new)


def identifier(body: Mapping[str, Any]) -> str:
    """The resource's id: `namespace/name`, or the name alone."""
    metadata = body["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


def type_of(token: str) -> tuple[str, str]:
    """apiVersion and kind of a resource type: `kubernetes:apps/v1:Deployment`; the core group is `core/v1`."""
    _, version, kind = token.split(":")
    return version.removeprefix("core/"), kind


def importable(live: Body) -> Body:
    """The inputs that a program would have to write for an object found alive."""
    body = {key: value for key, value in live.items() if key != "status"}
    kept = ("name", "namespace", "labels", "annotations")
    body["metadata"] = {key: value for key, value in live["metadata"].items() if key in kept}
    return body


def outputs(live: Body, manager: str) -> Body:
    """The live object as the stack's state remembers it."""
    metadata = {key: value for key, value in live["metadata"].items() if key != "managedFields"}
    return {**live, "metadata": metadata, FIELD_MANAGER: manager}
