"""Cloud Billing: which account a project is billed to."""

from __future__ import annotations

from emulator.google.collection import Body, Call, Collection

ACCOUNT = "billingAccounts/000000-000000-000000"
"""The account of every emulated project."""


class Projects(Collection):
    """`projects/p/billingInfo`."""

    kind = "resourcemanager/project"

    def do_get_billing_info(self, call: Call) -> Body:
        name = f"projects/{call.project}/billingInfo"
        return {"name": name, "projectId": call.project, "billingAccountName": ACCOUNT, "billingEnabled": True}


COLLECTIONS = {"cloudbilling.projects": Projects()}
