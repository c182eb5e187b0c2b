"""NetworkPolicies of the Ray namespace: they allow only the flows named here. Pure.

Never filtered: a node's kubelet (probes, and through it `kubectl port-forward`), and a pod's RDMA NICs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

DASHBOARD_PORT = 8265
SERVE_PORT = 8000

RAY_NODE = {"ray.io/is-ray-node": "yes"}
"""Label that KubeRay puts on every head and worker (ray-operator v1.6.2, controllers/ray/utils/constant.go)."""

HEAD = {"ray.io/node-type": "head"}
"""Likewise, on every head."""

SUBMITTER = {"matchExpressions": [{"key": "batch.kubernetes.io/job-name", "operator": "Exists"}]}
"""Pods of Kubernetes Jobs, such as a RayJob's submitter, to which KubeRay gives no label of its own."""

QUEUED = {"key": "kueue.x-k8s.io/podset", "operator": "Exists"}
"""Label that Kueue puts on every pod of a queued job (kubernetes-sigs/kueue v0.19.2, pkg/constants/constants.go)."""

NODE_LOCAL_DNS = "169.254.20.10/32"
"""NodeLocal DNSCache (GKE documentation, "Set up NodeLocal DNSCache")."""

CLOUD_DNS = "169.254.169.254/32"
"""The name server of Cloud DNS for GKE, where a cluster uses that (tektoncd/operator issue 4000; gke-labs/kube-agents
pull request 1169)."""

METADATA_SERVERS = (("169.254.169.254/32", 80), ("169.254.169.252/32", 988))
"""Metadata server as Dataplane V2 and as other clusters reach it; GKE asks for both, lest an upgrade cut off
Workload Identity (GKE documentation, "Network policies and Workload Identity Federation for GKE")."""

PRIVATE_RANGES = ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
"""RFC 1918, RFC 6598 and link-local addresses: pods, nodes, and what the VPC is joined to."""

Spec = dict[str, Any]


def policies(
    operator_namespace: str,
    control_plane_ranges: Sequence[str],
    dashboard_client_ranges: Sequence[str],
    queued: bool = False,
) -> dict[str, Any]:
    """Spec of every policy of the namespace, by name. Allowed is what any one of them allows.

    Args:
        operator_namespace: of KubeRay.
        control_plane_ranges: where the Kubernetes API answers; none where no head has an autoscaler.
        dashboard_client_ranges: of clients that use the dashboard's load balancer.
        queued: there is a queue for Jobs.
    """
    found: dict[str, Any] = {
        "default": _default(),
        "ray-nodes": _ray_nodes(),
        "operator": _operator(operator_namespace),
        "submitter": _submitter(),
        "submitted-to": _submitted_to(),
        "google": _google({"matchLabels": RAY_NODE}),
    }
    if control_plane_ranges:
        found["autoscaler"] = _autoscaler(control_plane_ranges)
    if queued:
        found |= {"queued-jobs": _queued_jobs(), "queued-jobs-google": _google({"matchExpressions": [QUEUED]})}
    if dashboard_client_ranges:
        found["dashboard-clients"] = _dashboard_clients(dashboard_client_ranges)
    return found


def _default() -> Spec:
    """Every pod of the namespace is cut off, except from the cluster's name servers."""
    dns_pods = [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": app}},
        }
        for app in ("kube-dns", "node-local-dns")
    ]
    return {
        "podSelector": {},
        "policyTypes": ["Ingress", "Egress"],
        "egress": [
            {
                "to": [*dns_pods, _range(NODE_LOCAL_DNS), _range(CLOUD_DNS)],
                "ports": [_port(53, "UDP"), _port(53)],
            }
        ],
    }


def _ray_nodes() -> Spec:
    """Heads and workers reach each other on any port: Ray and NCCL choose theirs at run time.

    By KubeRay's label for all Ray nodes, not by cluster, so that RayJobs with clusters of their own work here too; each
    cluster's token keeps the others out.
    """
    return {
        "podSelector": {"matchLabels": RAY_NODE},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [_pods(RAY_NODE)]}],
        "egress": [{"to": [_pods(RAY_NODE)]}],
    }


def _queued_jobs() -> Spec:
    """Pods of queued Jobs reach each other on any port, as Ray nodes do; other pods in the namespace are cut off."""
    no_ray = {"key": next(iter(RAY_NODE)), "operator": "DoesNotExist"}
    return {
        "podSelector": {"matchExpressions": [QUEUED, no_ray]},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {}}]}],
        "egress": [{"to": [{"podSelector": {}}]}],
    }


def _operator(namespace: str) -> Spec:
    """The operator asks heads for the state of RayJobs, and of RayServices through their proxy."""
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}},
    }
    return _into_head({"from": [operator], "ports": [_port(DASHBOARD_PORT), _port(SERVE_PORT)]})


def _submitter() -> Spec:
    """A RayJob's submitter reaches heads, and nothing else; the head's side of the same flow names the port."""
    return {
        "podSelector": SUBMITTER,
        "policyTypes": ["Egress"],
        "egress": [{"to": [_pods(HEAD)]}],
    }


def _submitted_to() -> Spec:
    """A head takes jobs from submitters."""
    return _into_head({"from": [{"podSelector": SUBMITTER}], "ports": [_port(DASHBOARD_PORT)]})


def _autoscaler(control_plane_ranges: Sequence[str]) -> Spec:
    """The autoscaler, a container of the head, changes its RayCluster through the Kubernetes API: at its own address
    and, for a data plane that judges before it translates, at its Service's."""
    return {
        "podSelector": {"matchLabels": HEAD},
        "policyTypes": ["Egress"],
        "egress": [{"to": [_range(cidr) for cidr in control_plane_ranges], "ports": [_port(443)]}],
    }


def _google(pods: dict[str, Any]) -> Spec:
    """These pods reach Google's and W&B's APIs, and credentials for them. Plain policies know no host names."""
    metadata = [{"to": [_range(address)], "ports": [_port(port)]} for address, port in METADATA_SERVERS]
    internet = {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(PRIVATE_RANGES)}}
    return {
        "podSelector": pods,
        "policyTypes": ["Egress"],
        "egress": [*metadata, {"to": [internet], "ports": [_port(443)]}],
    }


def _dashboard_clients(ranges: Sequence[str]) -> Spec:
    """Clients that may use the dashboard through its internal load balancer, which keeps their addresses."""
    return _into_head({"from": [_range(cidr) for cidr in ranges], "ports": [_port(DASHBOARD_PORT)]})


def _into_head(rule: dict[str, Any]) -> Spec:
    return {"podSelector": {"matchLabels": HEAD}, "policyTypes": ["Ingress"], "ingress": [rule]}


def _pods(labels: dict[str, str]) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": labels}}


def _range(cidr: str) -> dict[str, Any]:
    return {"ipBlock": {"cidr": cidr}}


def _port(port: int, protocol: str = "TCP") -> dict[str, Any]:
    return {"port": port, "protocol": protocol}
