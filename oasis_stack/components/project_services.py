"""The Google APIs that the stack calls, switched on in an order that works in an empty project.

They stay on when the stack goes: something else in the project may use them, and switching one off deletes its objects.
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
