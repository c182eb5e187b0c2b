"""Google's side of the Pulumi provider: makes, changes, reads and deletes emulated objects by table and rule.

Knows nothing of the provider protocol: property values are plain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from emulator.gcp import rules as gcp_rules
from emulator.gcp.diff import applied
from emulator.gcp.row import COMPUTE_URL, Made, ResourceType, at_path, completed, fill
from emulator.gcp.tables import IDENTITIES, ROWS
from emulator.gcp.types import inputs_of
from emulator.google.cloud import Cloud, CloudObject, Use
from emulator.google.errors import NotFoundError
from emulator.google.http_errors import RefusedCall
from emulator.google.scope import Scope, project_number
from emulator.google.storage import ObjectStore

# Outputs that follow from inputs, so that an update computes them again.
_FOLLOWING = frozenset({"effectiveAnnotations", "effectiveLabels", "pulumiLabels"})


class MissingRowError(Exception):
    """The program uses a resource type that `tables` has no row for."""


def row_of(token: str) -> ResourceType:
    """The row of a resource type. Raises UnknownTypeError."""
    if token not in ROWS:
        raise MissingRowError(
            f"the emulated Google has no {token!r}. Add a row to emulator/gcp/tables.py, with the page it was read "
            f"from; it has {', '.join(sorted(ROWS))}."
        )
    return ROWS[token]


class GoogleCloud:
    """The emulated Google as a provider sees it. Every call is one transaction."""

    def __init__(self, cloud: Cloud, scope: Scope) -> None:
        self._cloud = cloud
        self._scope = scope
        self._objects = ObjectStore(cloud)

    def create(self, token: str, inputs: Mapping[str, Any]) -> CloudObject:
        """Make an object from plain inputs. Raises CloudError."""
        row = row_of(token)
        with self._cloud.transaction():
            body, project = self._scoped(token, inputs)
            gcp_rules.require_api(self._cloud, row.api, project, project_number(project))
            gcp_rules.assign(self._cloud, row.kind, body)
            name = fill(row.identity, {"project": project, **body})
            gcp_rules.admit(self._cloud, row.kind, body, name)
            body = completed(row, self._made(name, body, project, _now()))
            uses = self._uses(row, body, project)
            if row.shared:
                found = self._cloud.put(row.kind, name, body, uses)
            else:
                found = self._cloud.create(row.kind, name, body, uses)
            gcp_rules.made(self._cloud, row.kind, body, name)
            return found

    def update(self, token: str, name: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> CloudObject:
        """Change an object as its inputs changed. Raises CloudError."""
        row = row_of(token)
        with self._cloud.transaction():
            found = self._cloud.get(row.kind, name)
            body = self.body_after(token, found, old, new)
            # What is asked for is judged, not what GKE made of it since, such as the number of nodes.
            asked, project = self._scoped(token, new)
            gcp_rules.admit(self._cloud, row.kind, asked, name)
            return self._cloud.put(row.kind, name, body, self._uses(row, body, project))

    def body_after(
        self, token: str, found: CloudObject, old: Mapping[str, Any], new: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The body that an update would give; nothing is changed."""
        row = row_of(token)
        changed = {k: v for k, v in applied(found.body, old, new).items() if k not in _FOLLOWING}
        body, project = self._scoped(token, changed)
        return completed(row, self._made(found.name, body, project, found.created))

    def find(self, token: str, name: str) -> CloudObject | None:
        """The object, or None; a bucket also as `<project>/<bucket>`, which an import may say."""
        kind = row_of(token).kind
        return self._cloud.find(kind, name.rsplit("/", 1)[-1] if kind == "storage/bucket" else name)

    def delete(self, token: str, name: str) -> None:
        """Let an object go; one that is gone already is no error. Raises CloudError."""
        row = row_of(token)
        with self._cloud.transaction():
            found = self._cloud.find(row.kind, name)
            policy = found.body.get("deletionPolicy", "DELETE") if found else ""
            if found is None or row.stays or policy == "ABANDON":
                return
            if policy == "PREVENT":
                raise RefusedCall(400, f"cannot destroy {name} while deletion_policy is PREVENT", "failedPrecondition")
            gcp_rules.admit_removal(self._cloud, found)
            if row.kind == "storage/bucket":
                self._objects.drop(name, force=bool(found.body.get("forceDestroy")))
            self._cloud.delete(row.kind, name)
            gcp_rules.removed(self._cloud, found)

    def _scoped(self, token: str, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Inputs with the place filled in, and the project they are in."""
        scope = self._scope
        takes, row = inputs_of(token), row_of(token)
        places = {
            "project": scope.project,
            "region": scope.region,
            "location": scope.zone if row.kind.startswith("container/") else scope.region,
        }
        body = {**{key: place for key, place in places.items() if key in takes and place}, **inputs}
        needed = [key for key in places if f"{{{key}}}" in row.identity and key in takes and not body.get(key)]
        if needed:
            raise RefusedCall(400, f"{needed[0]}: required field is not set", "required")
        project = str(body.get("project") or self._project_of_named(row, body) or scope.project)
        path = f"projects/{project}"
        if self._cloud.find("resourcemanager/project", path) is None:
            self._cloud.put("resourcemanager/project", path, {"projectId": project, "number": project_number(project)})
        return body, project

    def _project_of_named(self, row: ResourceType, body: Mapping[str, Any]) -> str:
        """The project of the first object that a part names: a grant on a bucket, a version of a secret."""
        for edge in row.edges:
            for reference in at_path(body, edge.path):
                if edge.kind == "storage/bucket" and (bucket := self._cloud.find(edge.kind, str(reference))):
                    return str(bucket.body["project"])
                if found := re.match(r"projects/([^/]+)/", str(reference).removeprefix(COMPUTE_URL)):
                    return found[1]
        return ""

    def _made(self, name: str, body: Mapping[str, Any], project: str, created: str) -> Made:
        file = self._cloud.directory / "control-plane.json"
        return Made(
            name=name,
            body=body,
            project=project,
            number=project_number(project),
            created=created,
            control_plane=json.loads(file.read_text()) if file.exists() else {},
        )

    def _uses(self, row: ResourceType, body: Mapping[str, Any], project: str) -> list[Use]:
        found: list[Use] = []
        for edge in row.edges:
            for reference in at_path(body, edge.path):
                items = reference if isinstance(reference, list) else [reference]
                for item in items:
                    name = self._resolved(edge.kind, str(item), {"project": project, **body})
                    if edge.relation:
                        found.append(Use(kind=edge.kind, name=name, relation=edge.relation))
                    elif self._cloud.find(edge.kind, name) is None:
                        raise NotFoundError(edge.kind, name)
        return found

    def _resolved(self, kind: str, reference: str, fields: Mapping[str, Any]) -> str:
        """The name path of what an input names by path, URL, e-mail address or bare name."""
        path = reference.removeprefix(COMPUTE_URL)
        if kind == "iam/serviceAccount" and "/" not in path:
            project = path.split("@", 1)[-1].removesuffix(".iam.gserviceaccount.com")
            return f"projects/{project}/serviceAccounts/{path}"
        if kind == "storage/bucket":
            return path.removeprefix("b/")
        if "/" in path:  # some of Google's services want the project's number in it
            project = str(fields["project"])
            return path.replace(f"projects/{project_number(project)}/", f"projects/{project}/", 1)
        location = str(fields.get("location", ""))
        region = location.rsplit("-", 1)[0] if location.count("-") == 2 else location
        collection = IDENTITIES[kind].rsplit("/", 1)[0]
        return fill(collection, {"region": region, **fields}) + "/" + path


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
