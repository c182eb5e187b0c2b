"""An address inside the primary VPC that no node or pod can take: for the dashboard's load balancer, and its URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack.facts.site import Site


@dataclass(frozen=True, kw_only=True)
class InternalAddressArgs:
    """Arguments of a reserved address."""

    site: Site
    """Where the stack stands."""
    subnet_id: pulumi.Input[str]
    """Subnet whose range the address is taken from; the load balancer must be in the same one."""


class InternalAddress(pulumi.ComponentResource):
    """Registers one reserved internal address."""

    APIS: ClassVar[tuple[str, ...]] = ("compute.googleapis.com",)

    address: pulumi.Output[str]

    def __init__(self, name: str, args: InternalAddressArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:InternalAddress", name, None, opts)
        reserved = gcp.compute.Address(
            name,
            project=args.site.project,
            region=args.site.region,
            subnetwork=args.subnet_id,
            address_type="INTERNAL",
            purpose="GCE_ENDPOINT",
            labels=dict(args.site.labels),
            opts=pulumi.ResourceOptions(
                parent=self,
                # It is released some time after the load balancer is gone.
                custom_timeouts=pulumi.CustomTimeouts(create="20m", update="20m", delete="20m"),
            ),
        )
        self.address = reserved.address
        self.register_outputs({"address": self.address})
