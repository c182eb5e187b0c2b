"""Cloud Storage: buckets, and who may read and write them. Their objects are served by `emulator.rest.storage_api`."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from emulator.google import policies
from emulator.google.cloud import CloudObject, Use, timestamp
from emulator.google.collection import Body, Call, Collection, patched, project_id, require
from emulator.google.discovery import admitted
from emulator.google.errors import NotFoundError, RefusedCall
from emulator.google.scope import project_number
from emulator.google.storage import ObjectStore

_DAY = 86400


class _InBuckets(Collection):
    """What buckets and managed folders have in common."""

    def project(self, call: Call) -> str:
        """The bucket's project, which its name does not contain."""
        found = call.cloud.find("storage/bucket", call.names.get("bucket", ""))
        return project_id(call.cloud, found.body["projectNumber"]) if found else super().project(call)

    def do_get_iam_policy(self, call: Call) -> Body:
        return {"kind": "storage#policy", **super().do_get_iam_policy(call)}

    def do_set_iam_policy(self, call: Call) -> Body:
        return {"kind": "storage#policy", **super().do_set_iam_policy(call)}


class Buckets(_InBuckets):
    """`b/<bucket>`, a name without a project."""

    kind = "storage/bucket"

    def do_insert(self, call: Call) -> Body:
        # "Soft delete": seven days by default.
        kept = {"retentionDurationSeconds": str(7 * _DAY), **call.body.get("softDeletePolicy", {})}
        policy = {**kept, "effectiveTime": timestamp(call.cloud.now())}
        return self.create(call, str(call.body["name"]), {**call.body, "softDeletePolicy": policy})

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        # "Bucket naming requirements", without dots: a name with dots is a domain that must be verified.
        require(
            "[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]",
            name,
            "bucket",
            "3-63 lower-case letters, digits, dashes and underscores",
        )
        kept = int(body.get("softDeletePolicy", {}).get("retentionDurationSeconds", 7 * _DAY))
        # "Soft delete": 0 turns it off, otherwise 7 to 90 days.
        if kept and not 7 * _DAY <= kept <= 90 * _DAY:
            raise RefusedCall(400, f"Soft delete retention of {kept} s must be 0 or between 7 and 90 days.", "invalid")
        if body.get("hierarchicalNamespace", {}).get("enabled"):
            # "Hierarchical namespace": needs uniform bucket-level access; no object versioning.
            if not body.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {}).get("enabled"):
                raise RefusedCall(
                    400, "Hierarchical namespace buckets must use uniform bucket-level access.", "invalid"
                )
            if body.get("versioning", {}).get("enabled"):
                raise RefusedCall(400, "Hierarchical namespace buckets do not support object versioning.", "invalid")

    def filled(self, call: Call, name: str, body: Body) -> Body:
        now = timestamp(call.cloud.now())
        return {
            "kind": "storage#bucket",
            "id": name,
            "projectNumber": project_number(call.project),
            "location": "US",
            "locationType": "region" if "-" in body.get("location", "US") else "multi-region",
            "storageClass": "STANDARD",
            "metageneration": "1",
            "etag": "CAE=",
            "timeCreated": now,
            "updated": now,
            "iamConfiguration": {
                "uniformBucketLevelAccess": {"enabled": False},
                "publicAccessPrevention": "inherited",
            },
        }

    def shown(self, call: Call, found: CloudObject) -> Body:
        body = found.body
        link = f"https://www.googleapis.com/storage/v1/b/{found.name}"
        return {**body, "selfLink": link, "location": str(body["location"]).upper()}

    def do_list(self, call: Call) -> Body:
        number = project_number(call.project)
        found = call.cloud.list(self.kind, call.query.get("prefix", ""))
        items = [self.shown(call, one) for one in found if one.body.get("projectNumber") == number]
        return {"kind": "storage#buckets", "items": items}

    def do_patch(self, call: Call) -> Body:
        """Apply a JSON merge patch (RFC 7396): nulls, which remove a label, are in `call.sent`."""
        found = self.found(call)
        body = patched(found.body, admitted(call.method, call.sent, nulls=True))
        generation = int(body["metageneration"]) + 1
        etag = base64.b64encode(str(generation).encode()).decode()
        changed = {"metageneration": str(generation), "etag": etag, "updated": timestamp(call.cloud.now())}
        return self.change(call, found, {**body, **changed})

    def do_delete(self, call: Call) -> Body:
        found = self.found(call)
        ObjectStore(call.cloud).drop(found.name, force=False)
        call.cloud.delete(self.kind, found.name)
        return {}

    def full_name(self, call: Call) -> str:
        return policies.full_name(call.method.document.host, call.names.get("bucket", ""))

    def found(self, call: Call) -> CloudObject:
        found = call.cloud.find(self.kind, call.names["bucket"])
        if found is None:
            raise NotFoundError(self.kind, call.names["bucket"])
        return found


class ManagedFolders(_InBuckets):
    """`b/<bucket>/managedFolders/<folder>/`: prefixes of objects' names on which roles can be held."""

    kind = "storage/managedFolder"

    def do_insert(self, call: Call) -> Body:
        return self.create(call, f"{call.names['bucket']}/{call.body.get('name', '')}", dict(call.body))

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        bucket = call.cloud.get("storage/bucket", call.names["bucket"]).body
        # "Managed folders": these two, and no more than 15 levels.
        if not bucket.get("iamConfiguration", {}).get("uniformBucketLevelAccess", {}).get("enabled"):
            raise RefusedCall(400, "Managed folders need uniform bucket-level access.", "invalid")
        require("([^/]+/){1,15}", str(body.get("name", "")), "name", "a path of at most 15 folders that ends with /")

    def filled(self, call: Call, name: str, body: Body) -> Body:
        now = timestamp(call.cloud.now())
        return {
            "kind": "storage#managedFolder",
            "id": name,
            "bucket": call.names["bucket"],
            "metageneration": "1",
            "createTime": now,
            "updateTime": now,
        }

    def uses(self, call: Call, body: Mapping[str, Any]) -> Iterable[Use]:
        return [Use(kind="storage/bucket", name=call.names["bucket"], relation="part-of")]

    def shown(self, call: Call, found: CloudObject) -> Body:
        bucket, _, folder = found.name.partition("/")
        link = f"https://www.googleapis.com/storage/v1/b/{bucket}/managedFolders/{quote(folder, safe='')}"
        return {**found.body, "selfLink": link}

    def do_list(self, call: Call) -> Body:
        found = call.cloud.list(self.kind, f"{call.names['bucket']}/{call.query.get('prefix', '')}")
        return {"kind": "storage#managedFolders", "items": [self.shown(call, one) for one in found]}

    def admit_removal(self, call: Call, found: CloudObject) -> None:
        bucket, _, folder = found.name.partition("/")
        held = set(ObjectStore(call.cloud).names(bucket, folder)) - {folder}
        # Reference of `managedFolders.delete`, allowNonEmpty; the objects stay in any case.
        if held and call.query.get("allowNonEmpty") != "true":
            raise RefusedCall(409, "The managed folder you tried to delete is not empty.", "conflict")

    def full_name(self, call: Call) -> str:
        place = call.names["bucket"]
        if "managedFolder" in call.names:
            place += f"/managedFolders/{call.names['managedFolder']}"
        return policies.full_name(call.method.document.host, place)

    def found(self, call: Call) -> CloudObject:
        return call.cloud.get(self.kind, f"{call.names['bucket']}/{call.names['managedFolder']}")


COLLECTIONS = {"storage.buckets": Buckets(), "storage.managedFolders": ManagedFolders()}
