"""Google's own description of its REST APIs: which methods there are, and what a request's body may hold.

The descriptions are the discovery documents in the package google-api-python-client. Where Google's behaviour
differs, `OPTIONAL` and `UNDOCUMENTED` say so, with sources. The package has no document for the Cloud Quotas API:
`cloudquotas.v1.json` is made by hand, for one method that takes no body (google-cloud-quotas 0.6.3, rest_base.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from emulator.google.errors import RefusedCall

SERVED = (
    "artifactregistry.v1",
    "billingbudgets.v1",
    "cloudbilling.v1",
    "cloudbuild.v1",
    "cloudkms.v1",
    "cloudquotas.v1",
    "cloudresourcemanager.v1",
    "compute.v1",
    "compute.beta",
    "container.v1",
    "container.v1beta1",
    "iam.v1",
    "monitoring.v3",
    "orgpolicy.v2",
    "secretmanager.v1",
    "servicenetworking.v1",
    "serviceusage.v1",
    "serviceusage.v1beta1",
    "storage.v1",
)
"""Documents of the APIs that the program, its waits and pulumi-gcp call."""

OPTIONAL = frozenset(
    {
        # A private pool needs no network of the user's ("Private pools overview").
        "cloudbuild.NetworkConfig.peeredNetwork",
        # hashicorp/terraform-provider-google-beta v7.45.0, resource_compute_firewall.go sends a PATCH without it.
        "compute.Firewall.name",
        # Uniform bucket-level access has no ACLs ("Access control lists").
        "storage.Bucket.acl",
        # The same provider, iam_storage_bucket.go: the policy that remains once its last binding is removed.
        "storage.Policy.bindings",
    }
)
"""Properties that may be left out, although the documents call them required."""

REQUIRED = frozenset(
    {
        # "Required if not specified by URL parameter", and the method has no such parameter.
        "storage.ManagedFolder.name",
    }
)
"""Properties that a create call must hold, although the documents do not call them required."""

OUTPUT_ONLY = frozenset(
    {
        # google-cloud-storage 3.17.1, google/cloud/_storage_v2/types/storage.py: "Output only", by their names there.
        # The clients send them back with the rest (google/cloud/storage/_helpers.py, `_PropertyMixin.update`, and
        # blob.py, `Blob.rewrite`).
        *(f"storage.Bucket.{name}" for name in ("id", "locationType", "metageneration", "owner")),
        *(f"storage.Bucket.{name}" for name in ("timeCreated", "updated")),
        *(f"storage.Object.{name}" for name in ("componentCount", "hardDeleteTime", "metageneration", "owner")),
        *(f"storage.Object.{name}" for name in ("restoreToken", "size", "softDeleteTime", "timeCreated")),
        *(f"storage.Object.{name}" for name in ("timeDeleted", "timeFinalized", "timeStorageClassUpdated", "updated")),
        # googleapis/storage-testbench, gcs/bucket.py: what the caller sends is dropped or overwritten.
        *(f"storage.Bucket.{name}" for name in ("etag", "kind", "projectNumber")),
        # hashicorp/terraform-provider-google-beta v7.45.0, storage_managed_folder.html.markdown: its attributes.
        *(f"storage.ManagedFolder.{name}" for name in ("createTime", "metageneration", "updateTime")),
        # "This field is ignored on input."
        *(f"storage.Policy.{name}" for name in ("kind", "resourceId")),
    }
)
"""Properties that Google alone sets, although the documents do not say so."""

UNDOCUMENTED: Mapping[str, Mapping[str, Any]] = {
    # hashicorp/terraform-provider-google-beta v7.45.0, resource_compute_network.go and resource_compute_router_nat.go.
    "compute.Network.fingerprint": {"type": "string"},
    "compute.NetworkRoutingConfig.deleteBgpAlwaysCompareMed": {"type": "boolean"},
    "compute.RouterNat.initialNatIps": {"type": "array", "items": {"type": "string"}},
}
"""Properties that Google accepts (its own provider sends them) but the documents lack."""

_READING = frozenset({"access", "getIamPolicy", "testIamPermissions", "wait"})
"""Names of methods that change nothing, whatever their verb."""

_INTEGERS = {"int32": 2**31, "uint32": 2**32, "int64": 2**63, "uint64": 2**64}


@dataclass(frozen=True, kw_only=True, eq=False)
class Method:
    """One method of an API."""

    id: str
    """Google's id for it: `compute.networks.insert`."""
    verb: str
    """GET, POST, ..."""
    path: re.Pattern[str]
    """The whole path, with a group for each parameter in it."""
    template: str
    """The whole path, `/v1/projects/{projectsId}/secrets`."""
    document: Document
    """The API's document."""
    request: str
    """Name of the body's schema; empty for a method that takes none."""
    parameters: Mapping[str, Mapping[str, Any]]
    """Its parameters, those in the path included."""

    @property
    def collection(self) -> str:
        """The collection it works on: `compute.networks`."""
        return self.id.rpartition(".")[0]

    @property
    def name(self) -> str:
        """The method's own name: `insert`."""
        return self.id.rpartition(".")[2]

    @property
    def changes(self) -> bool:
        """True if it changes something: false for methods that are sent like a change but only read or wait."""
        reads = self.collection == "compute.advice" or self.name in _READING
        return self.verb != "GET" and not reads


class Document:
    """One version of one API."""

    def __init__(self, name: str) -> None:
        self.api, self.version = name.split(".")
        package = find_spec("googleapiclient")
        if package is None or package.origin is None:
            raise ModuleNotFoundError("google-api-python-client is not installed")
        ours = Path(__file__).with_name(f"{name}.json")
        google = Path(package.origin).parent / "discovery_cache" / "documents" / f"{name}.json"
        file = ours if ours.exists() else google
        self._content: dict[str, Any] = json.loads(file.read_bytes())

    @property
    def host(self) -> str:
        """Name of the service that a project enables: `compute.googleapis.com`."""
        return str(self._content["rootUrl"]).removeprefix("https://").rstrip("/")

    @property
    def title(self) -> str:
        """Title of the API: `Compute Engine API`."""
        return str(self._content["title"])

    @property
    def base(self) -> str:
        """What precedes a resource's name in a path: `/compute/v1/`, `/v1/`."""
        return f"/{self._content['servicePath'] or f'{self.version}/'}"

    @cached_property
    def methods(self) -> list[Method]:
        """Every method."""
        return list(self._methods(self._content["resources"]))

    def schema(self, name: str) -> Mapping[str, Any]:
        """One schema."""
        return self._content["schemas"][name]

    def _methods(self, resources: Mapping[str, Any]) -> Iterator[Method]:
        for resource in resources.values():
            for method in resource.get("methods", {}).values():
                template = f"/{self._content['servicePath']}{method.get('flatPath', method['path'])}"
                pattern = re.sub(r"\\\{\\?\+?(\w+)\\\}", r"(?P<\1>[^/]+?)", re.escape(template))
                yield Method(
                    id=method["id"],
                    verb=method["httpMethod"],
                    path=re.compile(pattern),
                    template=template,
                    document=self,
                    request=method.get("request", {}).get("$ref", ""),
                    parameters=method.get("parameters", {}),
                )
            yield from self._methods(resource.get("resources", {}))


@cache
def document(name: str) -> Document:
    """A document, `compute.v1`."""
    return Document(name)


@cache
def _methods_under(verb: str, segments: int) -> list[Method]:
    found = [
        method
        for name in SERVED
        for method in document(name).methods
        if method.verb == verb and method.template.count("/") == segments
    ]
    # Of two that match, the one whose parameters take fewer characters wins: `{secret}:access`, not `{secret}`.
    return sorted(found, key=lambda method: -len(re.sub(r"\{[^}]*\}", "", method.template)))


def methods_at(verb: str, path: str) -> Iterator[tuple[Method, dict[str, str]]]:
    """The methods that match a path, the most literal first, with the path's decoded parameters."""
    for method in _methods_under(verb, path.count("/")):
        if found := method.path.fullmatch(path):
            yield method, {name: unquote(value) for name, value in found.groupdict().items()}


def admitted(method: Method, body: Mapping[str, Any], *, nulls: bool = False) -> dict[str, Any]:
    """A request's body without what only Google sets, and without nulls, which are absent in Google's JSON.

    `nulls` keeps the nulls: in a JSON merge patch they remove something.

    Raises:
        RefusedCall: a field is unknown, has a wrong type, or is missing.
    """
    if not method.request:
        return {}
    return _Reader(method, nulls).read(method.request, body, "")


def is_output_only(schema: Mapping[str, Any]) -> bool:
    """True for a property that only Google sets."""
    words = str(schema.get("description", "")).lower().lstrip("[").removeprefix("a ")
    return bool(schema.get("readOnly")) or words.startswith(("output only", "server-determined value"))


class _Reader:
    """Reads one request's body by its method's schemas. Google's words: the errors of its JSON transcoding, as
    googleapis/google-api-python-client and hashicorp/terraform-provider-google issues quote them."""

    def __init__(self, method: Method, nulls: bool) -> None:
        self._method, self._nulls = method, nulls
        self._document = method.document

    def read(self, name: str, body: Mapping[str, Any], at: str) -> dict[str, Any]:
        """A message of the schema `name`."""
        return self._message(name, self._document.schema(name).get("properties", {}), body, at)

    def _message(self, name: str, documented: Mapping[str, Any], body: Mapping[str, Any], at: str) -> dict[str, Any]:
        owner = f"{self._document.api}.{name}."
        more = {key.removeprefix(owner): schema for key, schema in UNDOCUMENTED.items() if key.startswith(owner)}
        properties = {**documented, **more}
        result: dict[str, Any] = {}
        for key, value in body.items():
            if key not in properties:
                where = f" at '{at}'" if at else ""
                raise _invalid(f'Invalid JSON payload received. Unknown name "{key}"{where}: Cannot find field.')
            if f"{owner}{key}" in OUTPUT_ONLY or is_output_only(properties[key]):
                continue
            if value is not None:
                below = f"{at}.{_snake(key)}" if at else _snake(key)
                result[key] = self._value(properties[key], value, below, f"{name}.{key}")
            elif self._nulls:
                result[key] = None
        for key, schema in properties.items():
            if key not in result and self._is_required(name, key, schema):
                field = f"{at}.{_snake(key)}" if at else _snake(key)
                raise RefusedCall(400, f"Required field '{field}' not specified", "required")
        return result

    def _is_required(self, name: str, key: str, schema: Mapping[str, Any]) -> bool:
        named = f"{self._document.api}.{name}.{key}"
        if named in OPTIONAL:
            return False
        said = self._method.id in schema.get("annotations", {}).get("required", [])
        creates = self._method.name in ("create", "insert")
        return said or (creates and (named in REQUIRED or str(schema.get("description", "")).startswith("Required.")))

    def _value(self, schema: Mapping[str, Any], value: Any, at: str, name: str) -> Any:
        if "$ref" in schema:
            if self._document.schema(schema["$ref"]).get("type") != "object":
                return value
            return self.read(schema["$ref"], _of_type(value, dict, schema["$ref"], at), at)
        match schema.get("type"):
            case "array":
                items = _of_type(value, list, "a list", at)
                return [self._value(schema["items"], item, f"{at}[{index}]", name) for index, item in enumerate(items)]
            case "object" if "properties" in schema:
                return self._message(name, schema["properties"], _of_type(value, dict, "an object", at), at)
            case "object":
                below = schema.get("additionalProperties", {})
                found = _of_type(value, dict, "a map", at).items()
                return {
                    key: item if item is None else self._value(below, item, f"{at}[{key}]", name)
                    for key, item in found
                    if item is not None or self._nulls
                }
            case "boolean":
                return _of_type(value, bool, "TYPE_BOOL", at)
            case "integer":
                return int(_integer(value, schema.get("format", "int32"), at))
            case "number":
                return _of_type(value, (int, float), "TYPE_DOUBLE", at)
            case "string" if schema.get("format") in _INTEGERS:
                return str(_integer(value, schema["format"], at))
            case "string":
                text = _of_type(value, str, "TYPE_STRING", at)
                if "enum" in schema and text and text not in schema["enum"]:
                    allowed = ", ".join(schema["enum"])
                    raise _invalid(f"Invalid value at '{at}', \"{text}\": it must be one of {allowed}.")
                return text
        return value


def _of_type(value: Any, expected: Any, word: str, at: str) -> Any:
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise _invalid(f"Invalid value at '{at}' ({word}), {json.dumps(value)}")
    return value


def _integer(value: Any, form: str, at: str) -> int:
    """An integer, which JSON may hold as a number or as digits (protobuf's JSON mapping)."""
    digits = str(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    limit = _INTEGERS[form]
    if not re.fullmatch(r"-?\d+", digits) or not (0 if form.startswith("u") else -limit) <= int(digits) < limit:
        raise _invalid(f"Invalid value at '{at}' (TYPE_{form.upper()}), {json.dumps(value)}")
    return int(digits)


def _invalid(message: str) -> RefusedCall:
    return RefusedCall(400, message, "invalid")


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()
