"""Cloud Billing: which account a project is billed to, and the catalogue of list prices."""

from __future__ import annotations

from emulator.google.collection import Body, Call, Collection
from emulator.google.permissions import tested

ACCOUNT = "billingAccounts/000000-000000-000000"
"""The account of every emulated project."""


class Projects(Collection):
    """`projects/p/billingInfo`."""

    kind = "resourcemanager/project"

    def do_get_billing_info(self, call: Call) -> Body:
        found = call.cloud.find(self.kind, f"projects/{call.project}")
        account = found.body.get("billingAccountName", ACCOUNT) if found else ACCOUNT
        name = f"projects/{call.project}/billingInfo"
        return {
            "name": name,
            "projectId": call.project,
            "billingAccountName": account,
            "billingEnabled": bool(account),
        }


class Accounts(Collection):
    """`billingAccounts/a`."""

    kind = "cloudbilling/billingAccount"

    def do_test_iam_permissions(self, call: Call) -> Body:
        return tested(call, self.full_name(call))


class Skus(Collection):
    """`services/s/skus`: those that a test has put there, as prices that the emulated Google made up would be taken for
    true ones."""

    kind = "cloudbilling/sku"
    items = "skus"


COLLECTIONS = {
    "cloudbilling.billingAccounts": Accounts(),
    "cloudbilling.projects": Projects(),
    "cloudbilling.services.skus": Skus(),
}
