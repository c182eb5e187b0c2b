"""IAM: service accounts."""

from __future__ import annotations

import base64
import hashlib

from emulator.google.cloud import CloudObject
from emulator.google.collection import Body, Call, Collection, merged, require
from emulator.google.errors import RefusedCall
from emulator.google.scope import project_number


class ServiceAccounts(Collection):
    """`projects/p/serviceAccounts/<e-mail address>`."""

    kind = "iam/serviceAccount"
    items = "accounts"

    def do_create(self, call: Call) -> Body:
        account = call.body["accountId"]
        require("[a-z]([-a-z0-9]{4,28}[a-z0-9])", account, "account_id", "6-30 lower-case letters, digits and dashes")
        email = f"{account}@{call.project}.iam.gserviceaccount.com"
        return self.create(call, f"{call.name}/{email}", call.body.get("serviceAccount", {}))

    def filled(self, call: Call, name: str, body: Body) -> Body:
        email = name.rsplit("/", 1)[-1]
        digits = str(int(hashlib.sha256(name.encode()).hexdigest(), 16))[:21]
        etag = base64.b64encode(digits[:8].encode()).decode()
        return {
            "name": name,
            "projectId": call.project,
            "uniqueId": digits,
            "email": email,
            "etag": etag,
            "oauth2ClientId": project_number(email) + digits[:9],
        }

    def found(self, call: Call) -> CloudObject:
        found = call.cloud.find(self.kind, call.name)
        if found is None:
            raise RefusedCall(404, "Unknown service account", "notFound")
        return found

    def do_patch(self, call: Call) -> Body:
        found = self.found(call)
        mask = call.body.get("updateMask", "")
        return self.change(call, found, merged(found.body, call.body.get("serviceAccount", {}), mask))


COLLECTIONS = {"iam.projects.serviceAccounts": ServiceAccounts()}
