"""Physical names that other texts refer to, or that a later `up` must find again: pure, within each service's limits.

Pulumi names everything else. A name here never changes for the same settings: a kept bucket is adopted by its name.
"""

from __future__ import annotations

import hashlib
import re

NAME_PATTERN = re.compile(r"(?!goog|.*google)[a-z](?:[a-z0-9-]{0,14}[a-z0-9])?")
"""The stack's `name`: 16 characters, so that a service account `<name>-image-builder` keeps within 30. It stands in
bucket names, where Google refuses its own (Cloud Storage documentation, "About Cloud Storage buckets")."""

CLOUD_PLATFORM_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
"""The OAuth scope of all of Google Cloud."""

PROJECT_PATTERN = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
"""Google Cloud project ids (Resource Manager documentation, "Creating and managing projects")."""

DNS_LABEL_PATTERN = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""Kubernetes namespaces and other DNS-1123 labels: 63 characters."""

RAY_CLUSTER_PATTERN = re.compile(r"[a-z](?:[a-z0-9-]{0,51}[a-z0-9])?")
"""RayCluster names: DNS-1035, at most 53 characters (ray-project/kuberay v1.7.0, controllers/ray/utils)."""

COMPUTE_CLASS_PATTERN = re.compile(r"(?!gke|autopilot)" + DNS_LABEL_PATTERN.pattern)
"""ComputeClass names: DNS labels, and not what GKE keeps for its own (GKE documentation, "Control autoscaled node
attributes with custom ComputeClasses", limitations)."""

LABEL_KEY_PATTERN = re.compile(r"(?!goog)[a-z][a-z0-9_-]{0,62}")
"""Google Cloud label keys (Resource Manager documentation, "Labels overview"); Google's own begin with `goog`."""

LABEL_VALUE_PATTERN = re.compile(r"[a-z0-9_-]{0,63}")
"""Google Cloud label values (same page)."""

KUBERAY_NAMESPACE = "kuberay-system"
"""Namespace of the operator; the Ray namespace's network policies let it in from here alone."""

KUEUE_NAMESPACE = "kueue-system"
"""Namespace of Kueue; the one that its chart and all its documentation use."""

RAY_NAMESPACE_PATTERN = re.compile(
    rf"(?!(?:default|{KUBERAY_NAMESPACE}|{KUEUE_NAMESPACE})\Z|(?:kube|gke|gmp)-)" + DNS_LABEL_PATTERN.pattern
)
"""Namespaces that a stack may make, and delete with all that is in them: not Kubernetes', GKE's or the operators'."""

TEAM_PATTERN = re.compile(r"(?=[a-z])" + RAY_NAMESPACE_PATTERN.pattern.replace("{0,61}", "{0,28}"))
"""Teams are namespaces, too: 30 characters, so that names made of them keep within Kubernetes' 63."""

KUBERAY_VERSION = "1.6.2"
"""The operator's Helm chart and image; token authentication of a RayCluster needs 1.5.1 or later."""

KUEUE_VERSION = "0.19.2"
"""Kueue's Helm chart and image; `kueue.x-k8s.io/v1beta2`, which all objects here are, needs 0.15 or later."""

LOCAL_QUEUE = "gpu"
"""Kueue's LocalQueue in the Ray namespace, and in each team's, which a job names to be queued. Not `default`: Kueue
would take in every job of the namespace that names none (kubernetes-sigs/kueue v0.19.2,
pkg/controller/jobframework/defaults.go)."""

CLUSTER_QUEUE = "gpu"
"""Kueue's ClusterQueue, which holds the quotas of all queued jobs."""

SYSTEM_FLAVOR, QUEUED_FLAVOR = "system", "queued"
"""Kueue's ResourceFlavors: nodes of the system pool, for heads, and of the queued GPU pool."""

QUEUED_PROVISIONING = "queued-provisioning"
"""Kueue's AdmissionCheck, which asks GKE for a job's nodes, and that check's configuration."""

RAY_ACCOUNT = "ray"
"""Kubernetes service account of every Ray pod: what the grants on buckets, secret and packages name."""

NODE_POOL_LABEL = "oasis/pool"
"""Node label by which pods choose a CPU pool, and the taint that keeps others out of a dedicated one."""

SYSTEM_POOL_LABELS, CPU_POOL_LABELS = ({NODE_POOL_LABEL: role} for role in ("system", "cpu"))
"""Labels of the nodes that are always on, for what must not lose its node, and of those for Ray's CPU workers."""

GVNIC_NETWORK = "gvnic-1"
"""GKE Network of the second gVNIC; the first is GKE's own `default`."""


def device_networks(rdma_nics: int) -> tuple[str, ...]:
    """GKE Networks of a node's further NICs in interface order: the gVNIC is eth1, RDMA NIC `i` is eth(2+i)."""
    return (GVNIC_NETWORK, *(f"rdma-{index}" for index in range(rdma_nics)))


def bucket(project: str, name: str, purpose: str) -> str:
    """Bucket name, 3 to 63 characters in a namespace that all of Google Cloud shares, hence the project in it.

    Google refuses bucket names with its own name in them, so a project that has it is represented by a digest.
    """
    owner = digest(project) if "goog" in project else project
    return f"{owner}-{name}-{purpose}"


def team_folder(team: str) -> str:
    """A team's folder in the runs bucket."""
    return f"teams/{team}"


def team_queue(team: str) -> str:
    """A team's ClusterQueue, beside `CLUSTER_QUEUE`."""
    return f"team-{team}"


def repository(name: str, purpose: str) -> str:
    """Artifact Registry repository id: at most 63 characters, unique in project and region."""
    return f"{name}-{purpose}"


def secret(name: str, purpose: str) -> str:
    """Secret Manager secret id: at most 255 characters, unique in the project."""
    return f"{name}-{purpose}"


def service_account(name: str, purpose: str) -> str:
    """Service account id: 6 to 30 characters, unique in the project.

    Raises:
        ValueError: the purpose is too long; a mistake of the program, since `name` is checked with the settings.
    """
    account = f"{name}-{purpose}"
    if not 6 <= len(account) <= 30:
        raise ValueError(f"service account id {account!r} has {len(account)} characters; Google allows 6 to 30")
    return account


def pool(mode: str, reservation: str | None, hours: int | None) -> str:
    """Logical name of a GPU node pool. Reservations are told apart by name and nodes with an end of their own by its
    `hours`, so reordering the ladder replaces nothing.

    At most 32 characters: Pulumi adds 8, and GKE allows 40.
    """
    if reservation is None:
        return f"gpu-{mode}" if hours is None else f"gpu-{mode}-{hours}h"
    short = reservation.rsplit("/", 1)[-1]
    full = f"gpu-{mode}-{short}"
    return full if len(full) <= 32 and short == reservation else f"gpu-{mode}-{digest(reservation)}"


def has_registry(image: str) -> bool:
    """True if an image reference starts with the host of a registry, as Docker reads it."""
    host, slash, _ = image.partition("/")
    return bool(slash) and ("." in host or ":" in host or host == "localhost")


def digest(text: str) -> str:
    """Twelve hexadecimal characters that stand for a text too long, or not allowed, inside a name."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]
