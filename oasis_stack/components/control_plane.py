"""Control plane settings that need an explanation, the grant that one of them needs, and the way to reach it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import pulumi
import pulumi_gcp as gcp

from oasis_stack import wait

Endpoint = Literal["dns", "ip"]

MAINTENANCE_START = "03:00"
"""UTC. GKE accepts exclusions only beside a window."""

NO_ROLES_FOR_EVERYBODY: gcp.container.ClusterRbacBindingConfigArgsDict = {
    "enable_insecure_binding_system_authenticated": False,
    "enable_insecure_binding_system_unauthenticated": False,
}
"""No further role may be bound to everybody who has a Google account, nor to callers without one (GKE documentation,
"Best practices for GKE RBAC"). Where the policy container.managed.disableRBACSystemBindings is on, GKE creates no
cluster without this."""


@dataclass(frozen=True, kw_only=True)
class EncryptionKey:
    """A Cloud KMS key that belongs to the user."""

    APIS: ClassVar[tuple[str, ...]] = ("cloudkms.googleapis.com",)

    name: str
    """The key as `projects/<p>/locations/<region>/keyRings/<ring>/cryptoKeys/<key>`."""


@dataclass(frozen=True, kw_only=True)
class ControlPlane:
    """Settings of the control plane: its addresses, its upgrades, the encryption of Kubernetes Secrets."""

    address_range: str
    """A /28 of its own for the private endpoint."""
    endpoint: Endpoint
    """`dns`: reached by a Google name, guarded by IAM. `ip`: by a public address, only from authorised networks."""
    authorized_networks: Mapping[str, str]
    """With `ip`, the networks that may connect: CIDR to description. If empty, nobody outside the VPC can."""
    release_channel: str
    """How early GKE upgrades."""
    minimum_version: str
    """Lowest version; if it is too low it lacks what the GPU pools ask for, and GKE refuses to create them."""
    maintenance_exclusion: tuple[str, str | None] | None
    """First and last moment, as RFC 3339 in UTC, of the period in which GKE upgrades neither minor versions nor nodes;
    without a last one, until support for the cluster's version ends."""
    secrets_encryption_key: EncryptionKey | None
    """Cloud KMS key for Kubernetes Secrets; None: Google's own encryption."""
    security_group: str | None
    """Google group whose member groups Kubernetes recognises; None: it recognises none."""


def authorized(plane: ControlPlane) -> gcp.container.ClusterMasterAuthorizedNetworksConfigArgsDict | None:
    """Networks that may reach the control plane's public address; None if that address is off."""
    if plane.endpoint == "dns":
        return None
    blocks: list[gcp.container.ClusterMasterAuthorizedNetworksConfigCidrBlockArgsDict] = [
        {"cidr_block": block, "display_name": label} for block, label in plane.authorized_networks.items()
    ]
    # Otherwise every virtual machine on Google Cloud, whoever rents it, could connect.
    return {"cidr_blocks": blocks, "gcp_public_cidrs_access_enabled": False}


def private_cluster(plane: ControlPlane) -> gcp.container.ClusterPrivateClusterConfigArgsDict:
    """Private nodes, and the control plane's own range in their network."""
    private: gcp.container.ClusterPrivateClusterConfigArgsDict = {
        "enable_private_nodes": True,
        "master_ipv4_cidr_block": plane.address_range,
    }
    if plane.endpoint == "ip":
        # Set only here: with IP endpoints off GKE answers true, and every plan would show a difference
        # (hashicorp/terraform-provider-google issue 27901).
        private["enable_private_endpoint"] = False
    return private


def secrets_encryption(key: EncryptionKey | None) -> gcp.container.ClusterDatabaseEncryptionArgsDict:
    """Encryption of Kubernetes Secrets in the control plane's store."""
    return {"state": "DECRYPTED"} if key is None else {"state": "ENCRYPTED", "key_name": key.name}


def groups(security_group: str | None) -> gcp.container.ClusterAuthenticatorGroupsConfigArgsDict | None:
    """The Google group in which GKE looks up groups for Kubernetes. Without the argument the provider leaves the value
    as it is (hashicorp/terraform-provider-google, resource_container_cluster.go: optional and computed)."""
    return None if security_group is None else {"security_group": security_group}


def endpoints(endpoint: Endpoint) -> gcp.container.ClusterControlPlaneEndpointsConfigArgsDict:
    """One way to the control plane from outside; the other one is off."""
    return {
        "dns_endpoint_config": {"allow_external_traffic": endpoint == "dns"},
        "ip_endpoints_config": {"enabled": endpoint == "ip"},
    }


def key_grant(
    parent: pulumi.Resource, name: str, project: str, project_number: pulumi.Input[str], key: EncryptionKey
) -> wait.GrantInEffect:
    """Registers GKE's service agent, its grant on the key for Kubernetes Secrets, and a wait until it is in effect."""
    # In a project that has had no cluster yet the agent does not exist, and Google refuses a grant to a missing member.
    agent = gcp.projects.ServiceIdentity(
        f"{name}-agent",
        project=project,
        service="container.googleapis.com",
        opts=pulumi.ResourceOptions(parent=parent),
    )
    grant = gcp.kms.CryptoKeyIAMMember(
        f"{name}-secrets",
        crypto_key_id=key.name,
        role="roles/cloudkms.cryptoKeyEncrypterDecrypter",
        # Not the identity's own output, which is empty if Google's answer names no account
        # (GoogleCloudPlatform/magic-modules pull request 6192).
        member=pulumi.Output.format(
            "serviceAccount:service-{0}@container-engine-robot.iam.gserviceaccount.com", project_number
        ),
        # The agent belongs to the project: another cluster there may have the same grant. It would lose the grant, and
        # with it its Secrets (hashicorp/terraform-provider-google, tpgiamresource/resource_iam_member.go: the member is
        # removed).
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[agent], retain_on_delete=True),
    )
    return wait.GrantInEffect(
        f"{name}-secrets-in-effect",
        project=project,
        key=key.name,
        timeout_minutes=10,
        opts=pulumi.ResourceOptions(parent=parent, depends_on=[grant]),
    )


def maintenance(exclusion: tuple[str, str | None] | None) -> gcp.container.ClusterMaintenancePolicyArgsDict:
    """When GKE may upgrade: nodes and minor versions never during the exclusion, security patches of the control plane
    always."""
    policy: gcp.container.ClusterMaintenancePolicyArgsDict = {
        "daily_maintenance_window": {"start_time": MAINTENANCE_START}
    }
    if exclusion is not None:
        start, end = exclusion
        window: gcp.container.ClusterMaintenancePolicyMaintenanceExclusionArgsDict = {
            "exclusion_name": "no-node-upgrades",
            "start_time": start,
            "exclusion_options": {"scope": "NO_MINOR_OR_NODE_UPGRADES"},
        }
        if end is None:
            # As in Google's own A3 Ultra cluster (cluster-toolkit, examples/gke-a3-ultragpu).
            window["exclusion_options"] = {
                "scope": "NO_MINOR_OR_NODE_UPGRADES",
                "end_time_behavior": "UNTIL_END_OF_SUPPORT",
            }
        else:
            window["end_time"] = end
        policy["maintenance_exclusions"] = [window]
    return policy


def server(cluster: gcp.container.Cluster, endpoint: Endpoint) -> pulumi.Output[str]:
    """Address of the Kubernetes API."""
    if endpoint == "ip":
        return pulumi.Output.format("https://{0}", cluster.endpoint)
    # Applied after the id, which is unknown in a preview of a new cluster: the name is missing then, but not unknown.
    return cluster.id.apply(lambda _: cluster.control_plane_endpoints_config).apply(_dns_server)


def _dns_server(endpoints: gcp.container.outputs.ClusterControlPlaneEndpointsConfig) -> str:
    if endpoints.dns_endpoint_config is None or not endpoints.dns_endpoint_config.endpoint:
        raise ValueError('GKE gave the cluster no DNS endpoint; set cluster.endpoint to "ip" with authorized_networks')
    return f"https://{endpoints.dns_endpoint_config.endpoint}"


def kubeconfig(cluster_name: str, server: str, certificate: str | None) -> str:
    """Kubeconfig as JSON, which every YAML parser reads.

    `certificate` is the cluster's own CA certificate, base64; None if the server's certificate is publicly trusted, as
    for the DNS endpoint.
    """
    trust = {} if certificate is None else {"certificate-authority-data": certificate}
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "command": "gke-gcloud-auth-plugin",
        # The login that the provider and the waits use, not gcloud's own, which expires separately.
        "args": ["--use_application_default_credentials"],
        "installHint": "Install it with `gcloud components install gke-gcloud-auth-plugin`.",
        "provideClusterInfo": True,
    }
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": cluster_name, "cluster": {"server": server, **trust}}],
            "users": [{"name": cluster_name, "user": {"exec": plugin}}],
            "contexts": [{"name": cluster_name, "context": {"cluster": cluster_name, "user": cluster_name}}],
            "current-context": cluster_name,
        },
        sort_keys=True,
    )
