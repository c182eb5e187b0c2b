"""What concerns the project as a whole: the Google APIs that the stack calls, and a budget that watches what it spends.

The APIs are switched on in an order that works in an empty project, and stay on when the stack goes: something else in
the project may use them, and switching one off deletes its objects. A budget goes with the stack.
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
"""Parts of a budget's amount at which Google sends mail, once they are spent; of the whole amount also once it is
forecast to be, while there is time to do something."""


@dataclass(frozen=True, kw_only=True)
class ProjectServicesArgs:
    """Arguments of the APIs to enable."""

    site: Site
    """Where the stack stands, for good. The project must exist and have a billing account, or Compute Engine's API is
    refused."""
    apis: Iterable[str]
    """API names such as `compute.googleapis.com`: the union of what the components of the stack declare."""


class ProjectServices(pulumi.ComponentResource):
    """Registers the stack's place, one enabled service per API, the two that the others need first, and waits until
    they answer."""

    APIS: ClassVar[tuple[str, ...]] = FIRST

    number: pulumi.Output[str]

    def __init__(self, name: str, args: ProjectServicesArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:ProjectServices", name, None, opts)
        project = args.site.project
        # All else comes after the APIs, so nothing has been done yet where this is another place.
        place = wait.Place(name, project, args.site.region, args.site.zone, pulumi.ResourceOptions(parent=self))

        def enable(api: str, after: list[pulumi.Resource]) -> pulumi.Resource:
            return gcp.projects.Service(
                f"{name}-{api.partition('.')[0]}",
                project=project,
                service=api,
                disable_on_destroy=False,
                opts=pulumi.ResourceOptions(parent=self, depends_on=after),
            )

        # Enabled is not answering: an API refuses calls as disabled for a while, and the provider gives up at once.
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
        # No value of a service is in this question, but an empty project cannot answer it before.
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
    """Number of the project that it watches: Google gives back that, whatever was sent."""
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
        # A budget is in no project, so that a user's credentials, which are of none either, must say whose quota a call
        # of its API takes, or Google answers 403 (Terraform Google provider, google_billing_budget, "Warning"). Not
        # the whole stack's provider: its first calls turn on the APIs that whoever says so needs on in the project.
        quota = gcp.Provider(
            f"{name}-quota",
            project=project,
            billing_project=project,
            user_project_override=True,
            # What the stack file says to Google's provider, a provider of the program's does not read by itself.
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
            # Without its currency an amount is one of the account's own, whatever that is; Google refuses another.
            amount={"specified_amount": {"currency_code": "USD", "units": str(args.monthly_usd)}},
            threshold_rules=[{"threshold_percent": part, "spend_basis": basis} for part, basis in ALERTS],
            opts=pulumi.ResourceOptions(parent=self, provider=quota),
        )
        self.register_outputs({})
