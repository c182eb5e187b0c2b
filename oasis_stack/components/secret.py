"""A secret in Secret Manager, whose value need not pass through the stack.

Without a value in the stack's configuration only the container is made, and `make secret` fills it. With one, the value
is a write-only argument: the provider sends it and keeps no copy, but the stack's state has one among the inputs, in
encrypted form (pulumi/pulumi-terraform-bridge issue 3201); `make secret` leaves none. Replaced when changed: the secret
with its id, a version with its value (hashicorp/terraform-provider-google 2026-08-21, resource_secret_manager_secret.go
and ..._version.go).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack.components.adoption import keep_or_adopt
from oasis_stack.facts import names
from oasis_stack.facts.retention import Retention
from oasis_stack.facts.site import Site


@dataclass(frozen=True, kw_only=True)
class ApiKeySecretArgs:
    """Arguments of a secret."""

    site: Site
    """Where the stack stands."""
    retention: Retention
    """Retention of the secret and its values."""
    value: pulumi.Output[str] | None
    """First value, secret; None leaves the secret empty, and a workload that reads it gets a message that says so."""


class ApiKeySecret(pulumi.ComponentResource):
    """Registers one Secret Manager secret, whose id ends in the component's name, and a version of it where the stack's
    configuration has a value."""

    APIS: ClassVar[tuple[str, ...]] = ("secretmanager.googleapis.com",)

    secret_id: pulumi.Output[str]

    def __init__(self, name: str, args: ApiKeySecretArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:ApiKeySecret", name, None, opts)
        retention, secret_name = args.retention, names.secret(args.site.prefix, name)
        secret = gcp.secretmanager.Secret(
            name,
            project=args.site.project,
            secret_id=secret_name,
            labels=dict(args.site.labels),
            replication={"auto": {}},
            opts=keep_or_adopt(self, retention, f"projects/{args.site.project}/secrets/{secret_name}"),
        )
        if args.value is not None:
            gcp.secretmanager.SecretVersion(
                f"{name}-value",
                secret=secret.id,
                secret_data_wo=args.value,
                # The provider cannot see a change of a write-only value; this number, which follows from the value
                # alone, shows it.
                secret_data_wo_version=args.value.apply(value_version),
                opts=pulumi.ResourceOptions(parent=self, retain_on_delete=retention.keep),
            )
        self.secret_id = secret.id
        self.register_outputs({"secret_id": self.secret_id})


def value_version(value: str) -> str:
    """A number that changes with the value and does not reveal it: 31 bits of its hash."""
    return str(int.from_bytes(hashlib.sha256(value.encode()).digest()[:4], "big") >> 1)
