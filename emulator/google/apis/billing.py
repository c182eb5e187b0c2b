"""Cloud Billing: which account a project is billed to, the catalogue of list prices, and budgets.

Google alerts when a budget's amount is spent. Nothing is ever spent here, so no budget alerts.

Billing accounts are the user's; each one asked for is assumed to exist, and to pay in US dollars. A call about a budget
must name the project whose quota it uses, as with a user's credentials: Google knows that project by itself only for a
service account.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

from emulator.google import policies
from emulator.google.cloud import CloudObject
from emulator.google.collection import Body, Call, Collection
from emulator.google.errors import RefusedCall
from emulator.google.permissions import Testable
from emulator.google.scope import project_number

ACCOUNT = "billingAccounts/000000-000000-000000"
"""The account of every emulated project."""

CURRENCY = "USD"

LONGEST_NAME = 60


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


class Accounts(Testable):
    """`billingAccounts/a`."""

    kind = "cloudbilling/billingAccount"


class Skus(Collection):
    """`services/s/skus`: only what a test has put there, as invented prices would be mistaken for real ones."""

    kind = "cloudbilling/sku"
    items = "skus"


class Budgets(Collection):
    """`billingAccounts/a/budgets/b`."""

    kind = "billingbudgets/budget"
    items = "budgets"

    def project(self, call: Call) -> str:
        if not call.quota_project:
            host = call.method.document.host
            raise RefusedCall(
                403,
                "Your application is authenticating by using local Application Default Credentials. The "
                f"{host} API requires a quota project, which is not set by default. To learn how to set your quota "
                "project, see https://cloud.google.com/docs/authentication/adc-troubleshooting/user-creds .",
                "forbidden",
            )
        return call.quota_project

    def full_name(self, call: Call) -> str:
        """The account's full name, as roles are held on the account."""
        return policies.full_name("cloudbilling.googleapis.com", call.name.partition("/budgets")[0])

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        money = body.get("amount", {}).get("specifiedAmount", {})
        if money.get("currencyCode", CURRENCY) != CURRENCY:
            raise _invalid()
        if len(body.get("displayName", "")) > LONGEST_NAME:
            raise _invalid()
        for rule in body.get("thresholdRules", []):
            if rule["thresholdPercent"] < 0:
                raise _invalid()
            if rule.get("spendBasis") == "FORECASTED_SPEND" and "customPeriod" in body.get("budgetFilter", {}):
                raise _invalid()
        if "spendCap" in body:
            raise RefusedCall(501, "the emulated Google does not serve spendCap of a budget", "notImplemented")

    def do_create(self, call: Call) -> Body:
        return self.create(call, f"{call.name}/{uuid.uuid4()}", dict(call.body))

    def do_list(self, call: Call) -> Body:
        answer = super().do_list(call)
        scope = _numbered(call.query.get("scope", ""))
        found = [
            one for one in answer.get("budgets", []) if not scope or one["budgetFilter"].get("projects") == [scope]
        ]
        return {"budgets": found} if found else {}

    def do_delete(self, call: Call) -> Body:
        # Deleting a missing budget is no error (discovery document, description of the method).
        return super().do_delete(call) if call.cloud.find(self.kind, call.name) else {}

    def shown(self, call: Call, found: CloudObject) -> Body:
        """The budget, with the defaults that the schemas' descriptions name."""
        scope = dict(found.body.get("budgetFilter", {}))
        period = {} if "customPeriod" in scope else {"calendarPeriod": "MONTH"}
        shown = {"creditTypesTreatment": "INCLUDE_ALL_CREDITS", **period, **scope}
        if "projects" in scope:
            shown["projects"] = [_numbered(project) for project in scope["projects"]]
        amount = dict(found.body["amount"])
        if "specifiedAmount" in amount:
            amount["specifiedAmount"] = {"currencyCode": CURRENCY, **amount["specifiedAmount"]}
        rules = [{"spendBasis": "CURRENT_SPEND", **rule} for rule in found.body.get("thresholdRules", [])]
        more = {"thresholdRules": rules} if rules else {}
        return {"name": found.name, **found.body, "budgetFilter": shown, "amount": amount, **more}


def _numbered(name: str) -> str:
    """A project's name with its number in place of its id; a name that has the number stays."""
    return re.sub(r"(?<=^projects/)[a-z][^/]*", lambda found: project_number(found[0]), name)


def _invalid() -> RefusedCall:
    return RefusedCall(400, "Request contains an invalid argument.", "badRequest")


COLLECTIONS = {
    "billingbudgets.billingAccounts.budgets": Budgets(),
    "cloudbilling.billingAccounts": Accounts(),
    "cloudbilling.projects": Projects(),
    "cloudbilling.services.skus": Skus(),
}
