"""Project-wide resources: the Google APIs that the stack calls, and a budget that watches its spending.

The APIs are enabled in an order that works in an empty project, and stay enabled when the stack is destroyed: something
else in the project may use them, and disabling an API deletes its objects. A budget is deleted with the stack.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack import wait
from oasis_stack.facts.site import Site

ANSWER_MINUTES = 15
"""Enabling an API takes "a few minutes" to reach Google's systems (the text of its own SERVICE_DISABLED error)."""

FIRST = ("cloudresourcemanager.googleapis.com", "serviceusage.googleapis.com")
"""Enabling any other API reads the project with the first and asks the second (hashicorp/terraform-provider-google
2026-08-21, resource_google_project_service.go: Read)."""

ALERTS = ((0.5, "CURRENT_SPEND"), (0.9, "CURRENT_SPEND"), (1.0, "CURRENT_SPEND"), (1.0, "FORECASTED_SPEND"))
"""Shares of a budget's amount at which Google sends email once they are spent; for the whole amount also once it is
forecast to be spent, while there is still time to act."""


@dataclass(frozen=True, kw_only=True)
class ProjectServicesArgs:
    """Arguments of the APIs to enable."""

    site: Site
    """Location of the stack, for good. The project must exist and have a billing account, or Google refuses to enable
    Compute Engine's API."""
    apis: Iterable[str]
    """API names such as `compute.googleapis.com`: the union of what the components of the stack declare."""


class ProjectServices(pulumi.ComponentResource):
    """Registers the stack's place, one enabled service per API, with the two that the others need first, and waits
    until they answer."""

    APIS: ClassVar[tuple[str, ...]] = FIRST

    number: pulumi.Output[str]

    def __init__(self, name: str, args: ProjectServicesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:ProjectServices", name, None, opts)
        project = args.site.project
        # Everything else comes after the APIs, so nothing has been done yet if the place has changed.
        place = wait.Place(name, project, args.site.region, args.site.zone, pulumi.ResourceOptions(parent=self))

        def enable(api: str, after: list[pulumi.Resource]) -> pulumi.Resource:
            return gcp.projects.Service(
                f"{name}-{api.partition('.')[0]}",
                project=project,
                service=api,
                disable_on_destroy=False,
                opts=pulumi.ResourceOptions(parent=self, depends_on=after),
            )

        # An enabled API does not answer at once: it refuses calls as disabled for a while, and the provider gives up.
        def answering(role: str, apis: list[str], enabled: list[pulumi.Resource]) -> pulumi.Resource:
            return wait.ApisAnswer(
                role,
                project=project,
                apis=apis,
                timeout_minutes=ANSWER_MINUTES,
                opts=pulumi.ResourceOptions(parent=self, depends_on=enabled),
            )

        first = [answering(f"{name}-first", list(FIRST), [enable(api, [place]) for api in FIRST])]
        others = sorted(set(args.apis) - set(FIRST))
        answering(name, others, [enable(api, first) for api in others])
        # This call uses no value of a service, but it fails in an empty project before the services are enabled.
        answer = gcp.organizations.get_project_output(
            project_id=project, opts=pulumi.InvokeOutputOptions(parent=self, depends_on=first)
        )
        self.number = answer.number
        self.register_outputs({"number": self.number})


@dataclass(frozen=True, kw_only=True)
class BudgetArgs:
    """Arguments of a budget."""

    site: Site
    """Where the stack stands."""
    project_number: pulumi.Input[str]
    """Number of the project that it watches: Google returns the number, whatever was sent."""
    billing_account: str
    """ID of the Cloud Billing account that pays for the project."""
    monthly_usd: int
    """Amount for a calendar month."""


class Budget(pulumi.ComponentResource):
    """Registers one budget of a billing account, which watches the stack's project alone, and a provider for it. It
    tells the account's administrators and users, which is Google's default, and stops nothing."""

    APIS: ClassVar[tuple[str, ...]] = ("billingbudgets.googleapis.com",)

    def __init__(self, name: str, args: BudgetArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:Budget", name, None, opts)
        project, given = args.site.project, pulumi.Config("gcp")
        # A budget belongs to no project, and neither do a user's credentials: they must name the project whose quota a
        # call uses, or Google answers 403 (Terraform Google provider, google_billing_budget, "Warning"). The whole
        # stack's provider cannot name one: its first calls enable the APIs that a named project must already have.
        quota = gcp.Provider(
            f"{name}-quota",
            project=project,
            billing_project=project,
            user_project_override=True,
            # A provider that the program makes does not read the stack file's settings of Google's provider by itself.
            access_token=given.get_secret("accessToken"),
            credentials=given.get_secret("credentials"),
            impersonate_service_account=given.get("impersonateServiceAccount"),
            billing_budgets_custom_endpoint=given.get("billingBudgetsCustomEndpoint"),
            opts=pulumi.ResourceOptions(parent=self),
        )
        gcp.billing.Budget(
            name,
            billing_account=args.billing_account,
            display_name=f"{args.site.prefix} in {project}",
            budget_filter={
                "projects": [pulumi.Output.concat("projects/", args.project_number)],
                "calendar_period": "MONTH",
            },
            # Without a currency the amount is in the account's own, whatever that is; Google refuses any other.
            amount={"specified_amount": {"currency_code": "USD", "units": str(args.monthly_usd)}},
            threshold_rules=[{"threshold_percent": part, "spend_basis": basis} for part, basis in ALERTS],
            opts=pulumi.ResourceOptions(parent=self, provider=quota),
        )
        self.register_outputs({})
