"""Cloud Storage: buckets, and who may read and write them. Their objects are served by `emulator.rest.storage_api`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from emulator.google import policies
from emulator.google.cloud import CloudObject, Use, timestamp
from emulator.google.collection import Body, Call, Collection, patched, project_id, require
from emulator.google.errors import NotFoundError, RefusedCall
from emulator.google.scope import project_number
from emulator.google.storage import ObjectStore

_DAY = 86400


class Buckets(Collection):
    """`b/<bucket>`, whose name has no project in it."""

    kind = "storage/bucket"

    def do_insert(self, call: Call) -> Body:
        return self.create(call, str(call.body["name"]), dict(call.body))

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
            # "Soft delete": seven days unless said otherwise.
            "softDeletePolicy": {"retentionDurationSeconds": str(7 * _DAY), "effectiveTime": now},
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
        """JSON merge patch (RFC 7396): nulls, which take a label away, are in `call.sent`."""
        found = self.found(call)
        body = patched(found.body, call.sent)
        generation = int(body["metageneration"]) + 1
        etag = base64.b64encode(str(generation).encode()).decode()
        changed = {"metageneration": str(generation), "etag": etag, "updated": timestamp(call.cloud.now())}
        return self.change(call, found, {**body, **changed})

    def do_delete(self, call: Call) -> Body:
        found = self.found(call)
        ObjectStore(call.cloud).drop(found.name, force=False)
        call.cloud.delete(self.kind, found.name)
        return {}

    def do_get_iam_policy(self, call: Call) -> Body:
        return {"kind": "storage#policy", **super().do_get_iam_policy(call)}

    def do_set_iam_policy(self, call: Call) -> Body:
        part = Use(kind=self.kind, name=self.found(call).name, relation="part-of")
        policy = policies.put(call.cloud, self.full_name(call), call.body, part)
        return {"kind": "storage#policy", **policy}

    def project(self, call: Call) -> str:
        """That of the bucket, whose name does not say it."""
        found = call.cloud.find(self.kind, call.names.get("bucket", ""))
        return project_id(call.cloud, found.body["projectNumber"]) if found else super().project(call)

    def full_name(self, call: Call) -> str:
        return policies.full_name(call.method.document.host, call.names.get("bucket", ""))

    def found(self, call: Call) -> CloudObject:
        found = call.cloud.find(self.kind, call.names["bucket"])
        if found is None:
            raise NotFoundError(self.kind, call.names["bucket"])
        return found


COLLECTIONS = {"storage.buckets": Buckets()}
