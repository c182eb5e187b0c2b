"""Cloud Billing: which account a project is billed to, and the catalogue of list prices."""

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


class Skus(Collection):
    """`services/s/skus`: those that a test has put there, as prices that the emulated Google made up would be taken for
    true ones."""

    kind = "cloudbilling/sku"
    items = "skus"


COLLECTIONS = {"cloudbilling.projects": Projects(), "cloudbilling.services.skus": Skus()}
