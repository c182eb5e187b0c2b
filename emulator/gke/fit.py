"""Whether a pending pod would fit a node: selectors, taints and resources, as the scheduler judges them. Pure.

It reads only the required terms of node affinity, and leaves what it cannot judge (pod affinity, volumes) to the
scheduler.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from emulator.gke.node_shapes import GPU, network_resources

Body = dict[str, Any]

_NOT_READY = "node.kubernetes.io/not-ready"
"""Taint of every new node for a moment. Meanwhile no second node is added for a pod, as the autoscaler counts on
upcoming nodes (kubernetes/autoscaler, cluster-autoscaler/utils/taints/taints.go, NodeConditionTaints)."""


_ON_EVERY_NODE = {"cpu": 0.253, "memory": 346 * 2.0**20, "pods": 5.0}
_BESIDE_GPUS = {"cpu": 0.15, "memory": 80 * 2.0**20, "pods": 1.0}
"""What GKE's DaemonSets request on each node, as far as public sources say; the autoscaler counts it before the node
exists. fluentbit-gke, gke-metadata-server and ip-masq-agent: cryptnono/cryptnono issue 34. netd and
node-local-dns: cloudpilot-ai/karpenter-provider-gcp issue 202, which gives their CPU and no memory.
nvidia-gpu-device-plugin: vllm-project/production-stack, tutorials/terraform/gke/README.md."""


def quantity(text: str) -> float:
    """A Kubernetes quantity (`100m`, `2Gi`, `8`) as a number."""
    return float(parse_quantity(text))


def requests(pod: Mapping[str, Any]) -> dict[str, float]:
    """A pod's requests: all its containers, or one init container if that is more, each plus the sidecars.

    GKE's webhooks add the FUSE sidecar (GoogleCloudPlatform/gcs-fuse-csi-driver, pkg/webhook) and the additional
    networks by annotation. Neither webhook exists here, but their requests still count.
    """
    spec = pod["spec"]
    sidecars = _fuse_sidecar(pod["metadata"].get("annotations") or {})
    peak: dict[str, float] = {}
    for container in spec.get("initContainers") or []:
        beside = _sum(sidecars, _requests(container))
        if container.get("restartPolicy") == "Always":
            sidecars = beside
        else:
            peak = _larger(peak, beside)
    together = sidecars
    for container in spec.get("containers", []):
        together = _sum(together, _requests(container))
    return {**_larger(together, peak), **dict.fromkeys(network_resources(networks_named(pod)), 1.0), "pods": 1.0}


def is_over(pod: Mapping[str, Any]) -> bool:
    """True if the pod has ended, so that it no longer holds any resources."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def networks_named(pod: Mapping[str, Any]) -> set[str]:
    """The GKE Networks that a pod's interfaces name beside the cluster's own (gke-networking-api v0.2.0,
    apis/network/v1)."""
    text = (pod["metadata"].get("annotations") or {}).get("networking.gke.io/interfaces", "[]")
    try:
        return {str(interface["network"]) for interface in json.loads(text)} - {"default", "pod-network"}
    except (ValueError, TypeError, KeyError):
        return {text}  # GKE refuses the pod; here it fits nowhere


def free(node: Mapping[str, Any], pods: list[Body]) -> dict[str, float]:
    """A node's resources minus the requests of GKE's own pods on it and of `pods`."""
    left = {key: quantity(value) for key, value in node["status"]["allocatable"].items()}
    own = [_ON_EVERY_NODE, _BESIDE_GPUS] if GPU in left else [_ON_EVERY_NODE]
    for asked in (*own, *map(requests, pods)):
        left = _sum(left, {key: -amount for key, amount in asked.items()})
    return left


def refusal(pod: Mapping[str, Any], node: Mapping[str, Any], left: Mapping[str, float]) -> str:
    """Why the pod may not run on the node or does not fit into what is `left`, in the scheduler's words; empty if it
    fits."""
    if not selects(pod, node["metadata"]["labels"]):
        return "node(s) didn't match Pod's node affinity/selector"
    if not tolerates(pod, node["spec"].get("taints") or []):
        return "node(s) had untolerated taint(s)"
    short = [key for key, amount in requests(pod).items() if left.get(key, 0.0) < amount - 1e-9]
    return f"Insufficient {short[0]}" if short else ""


def fits(pod: Mapping[str, Any], node: Mapping[str, Any], left: Mapping[str, float]) -> bool:
    """True if the pod may run on the node, once the node is ready, and fits into what is `left`."""
    taints = [taint for taint in node["spec"].get("taints") or [] if taint["key"] != _NOT_READY]
    return not refusal(pod, {**node, "spec": {**node["spec"], "taints": taints}}, left)


def selects(pod: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """True if the pod's node selector and required node affinity allow these labels."""
    spec = pod["spec"]
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    terms = required.get("nodeSelectorTerms", [])
    return any(all(_matches(rule, labels) for rule in term.get("matchExpressions", [])) for term in terms)


def tolerates(pod: Mapping[str, Any], taints: list[Body]) -> bool:
    """True if the pod tolerates every taint that keeps pods away."""
    tolerations = pod["spec"].get("tolerations") or []
    return all(
        any(_tolerated(taint, toleration) for toleration in tolerations)
        for taint in taints
        if taint["effect"] in ("NoSchedule", "NoExecute")
    )


def _fuse_sidecar(annotations: Mapping[str, str]) -> dict[str, float]:
    if annotations.get("gke-gcsfuse/volumes") != "true":
        return {}
    asked = {name: annotations.get(f"gke-gcsfuse/{name}-request") for name in ("cpu", "memory", "ephemeral-storage")}
    with contextlib.suppress(ValueError):
        amounts = {name: quantity(amount) for name, amount in asked.items() if amount}
        if all(0 <= amount < math.inf for amount in amounts.values()):
            return amounts
    return {"gke-gcsfuse": 1.0}  # GKE refuses the pod; here it fits nowhere


def _requests(container: Mapping[str, Any]) -> dict[str, float]:
    resources = container.get("resources") or {}
    # A limit without a request counts as the request.
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {key: quantity(value) for key, value in asked.items()}


def _sum(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in {*one, *other}}


def _larger(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    return {key: max(one.get(key, 0.0), other.get(key, 0.0)) for key in {*one, *other}}


def _matches(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(rule["key"]), rule.get("values") or []
    match rule["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case _:  # Gt, Lt: both are false for a label that is not a number
            try:
                above = int(value or "") - int(values[0])
            except ValueError:
                return False
            return above > 0 if rule["operator"] == "Gt" else above < 0


def _tolerated(taint: Mapping[str, Any], toleration: Mapping[str, Any]) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint["key"]:
        return False
    return toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", "")
