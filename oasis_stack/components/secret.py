"""A secret in Secret Manager, whose value need not pass through the stack.

Without a value in the stack's configuration only the container is made, and `make secret` fills it. With one, the value
is a write-only argument: the provider sends it and keeps no copy, but the stack's state has one among the inputs, in
encrypted form (pulumi/pulumi-terraform-bridge issue 3201); `make secret` leaves none. Replaced when changed: the secret
with its id, a version with its value (hashicorp/terraform-provider-google 2026-08-21, resource_secret_manager_secret.go
and ..._version.go).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pulumi
import pulumi_gcp as gcp

from oasis_stack.components.adoption import keep_or_adopt


@dataclass(frozen=True, kw_only=True)
class ApiKeySecretArgs:
    """What a secret needs to know."""

    project: str
    """Project id."""
    secret_name: str
    """Secret's id in the project; deterministic, so that workloads and a later stack find it."""
    labels: Mapping[str, str]
    """Labels, for the bill."""
    keep: bool
    """Whether a destroy leaves the secret and its values."""
    adopt: bool
    """Whether to take over an existing secret of this id."""
    value: pulumi.Output[str] | None
    """First value, secret; None leaves the secret empty, and a workload that reads it is told so."""


class ApiKeySecret(pulumi.ComponentResource):
    """Registers one Secret Manager secret, and a version of it where the stack's configuration has a value."""

    APIS: ClassVar[tuple[str, ...]] = ("secretmanager.googleapis.com",)

    secret_id: pulumi.Output[str]

    def __init__(self, name: str, args: ApiKeySecretArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:ApiKeySecret", name, None, opts)
        secret = gcp.secretmanager.Secret(
            name,
            project=args.project,
            secret_id=args.secret_name,
            labels=dict(args.labels),
            replication={"auto": {}},
            opts=keep_or_adopt(
                self, args.keep, f"projects/{args.project}/secrets/{args.secret_name}" if args.adopt else None
            ),
        )
        if args.value is not None:
            gcp.secretmanager.SecretVersion(
                f"{name}-value",
                secret=secret.id,
                secret_data_wo=args.value,
                # The provider cannot see a write-only value change; this number, of the value alone, tells it.
                secret_data_wo_version=args.value.apply(value_version),
                opts=pulumi.ResourceOptions(parent=self, retain_on_delete=args.keep),
            )
        self.secret_id = secret.id
        self.register_outputs({"secret_id": self.secret_id})


def value_version(value: str) -> str:
    """A number that changes with the value and does not tell it: 31 bits of its hash."""
    return str(int.from_bytes(hashlib.sha256(value.encode()).digest()[:4], "big") >> 1)
