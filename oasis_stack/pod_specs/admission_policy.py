"""Admission policies that close what Kubernetes' roles and the Pod Security level `baseline` leave open around Ray's
service account. Pure.

The holder of the account's token (Ray's autoscaler, and whoever takes it over) may patch any field of a RayCluster by
the role that KubeRay writes (ray-operator v1.6.2, controllers/ray/common/rbac.go), and thus its pods' templates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oasis_stack.pod_specs import gib

AUTOSCALER = "autoscaler"
"""Container that KubeRay adds to a head (ray-operator v1.6.2, controllers/ray/common/pod.go)."""

ELASTIC = "kueue.x-k8s.io/elastic-job"
"""Annotation by which Kueue lets a job change its size (kubernetes-sigs/kueue v0.19.2, pkg/workloadslicing)."""

INTERNAL_SERVICE, INGRESS_CLASS = "networking.gke.io/load-balancer-type", "kubernetes.io/ingress.class"
"""Annotations without which a load balancer is external (GKE documentation, "About LoadBalancer Services" and "GKE
Ingress for Application Load Balancers")."""

INTERNAL_CLASS = "networking.gke.io/l4-regional-internal"
"""The class that says the same, and goes before the annotation (kubernetes/ingress-gce, `IsSubsettingL4ILBService`)."""

INITIAL = "{}.?initContainers.orValue([])"
"""Init containers of the pod at that place."""

Spec = dict[str, Any]


def policies(namespace: str, service_account: str, prefix: str) -> dict[str, Any]:
    """Spec of every ValidatingAdmissionPolicy, by name. CEL's two-variable comprehensions need Kubernetes 1.33."""
    return {
        f"{prefix}-account": _account(namespace, service_account),
        f"{prefix}-pods": _pods(namespace, service_account),
        f"{prefix}-jobs": _jobs(namespace, service_account),
        f"{prefix}-addresses": _addresses(namespace),
    }


def queued_jobs(namespace: str, controllers: Sequence[str], queue: str, priority: str) -> Spec:
    """Jobs of a namespace are in its queue and of its priority, or there are none: nodes go by quota alone.

    Args:
        namespace: whose jobs.
        controllers: accounts that are free of it: KubeRay makes Jobs that only hand a command to a Ray cluster, and
            Kueue and Kubernetes' garbage collector change these.
        queue: Kueue's LocalQueue.
        priority: Kueue's WorkloadPriorityClass.
    """
    rules = [
        {**rule, "operations": ["CREATE", "UPDATE"]}
        for group, resources in (("ray.io", "rayjobs"), ("batch", "jobs"))
        for rule in _made(namespace, group, resources)["resourceRules"]
    ]
    labels = {"kueue.x-k8s.io/queue-name": queue, "kueue.x-k8s.io/priority-class": priority}
    return {
        "matchConstraints": {**_made(namespace, "", ""), "resourceRules": rules},
        "matchConditions": [
            {"name": "people", "expression": f"!(request.userInfo.username in {list(controllers)})"},
        ],
        "validations": [
            *(
                _rule(
                    f"object.metadata.?labels[?'{key}'].orValue('') == '{value}'",
                    f"jobs of {namespace} wait in its queue: set the label {key} to {value}",
                )
                for key, value in labels.items()
            ),
            # Kueue leaves what another queued job owns alone, whoever says so (kubernetes-sigs/kueue v0.19.2,
            # pkg/controller/jobframework/reconciler.go, FindAncestorJobManagedByKueue).
            _rule(
                "!object.metadata.?ownerReferences.orValue([]).exists(owner, owner.?controller.orValue(false))",
                "a job is nobody's part: take the owner that is a controller out of metadata.ownerReferences",
            ),
            # It would grow by itself, and no quota be asked for the pods of its Ray cluster.
            _rule(
                f"!('{ELASTIC}' in object.metadata.?annotations.orValue({{}}))",
                f"a queued job has a fixed size: take out the annotation {ELASTIC}",
            ),
        ],
    }


def binding(policy: str) -> Any:
    """Spec of the binding by which a policy holds, everywhere that it matches."""
    return {"policyName": policy, "validationActions": ["Deny"]}


def _account(namespace: str, service_account: str) -> Spec:
    """The account changes nothing in the whole cluster, whatever its roles say, but what Ray's autoscaler must (ray
    2.60, _private/kuberay/node_provider.py, `worker_replica_patch` and `worker_delete_patch`)."""
    is_patch = (
        "request.operation == 'UPDATE'",
        "request.resource.group == 'ray.io'",
        "request.resource.resource == 'rayclusters'",
        "request.?subResource.orValue('') == ''",
    )
    parts = (
        ("{}.metadata", "!(key in ['generation', 'managedFields', 'resourceVersion'])"),
        ("{}.spec", "key != 'workerGroupSpecs'"),
    )
    group = _kept("group", "!(key in ['replicas', 'scaleStrategy'])")
    groups = f"{{}}.spec.?workerGroupSpecs.orValue([]).map(group, {group})"
    unchanged = [*(_kept(part, wanted) for part, wanted in parts), groups]
    return {
        "matchConstraints": {
            "resourceRules": [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]
        },
        "matchConditions": [
            {
                "name": "account",
                "expression": f"request.userInfo.username == 'system:serviceaccount:{namespace}:{service_account}'",
            }
        ],
        "validations": [
            _rule(
                " && ".join(
                    (*is_patch, *(f"{part.format('object')} == {part.format('oldObject')}" for part in unchanged))
                ),
                "Ray's account changes nothing but replicas and scaleStrategy of a RayCluster's worker groups",
            )
        ],
    }


def _pods(namespace: str, service_account: str) -> Spec:
    """Pods of the namespace, whoever makes them: Ray's account and no other, its token for the autoscaler alone, and
    nobody root (the Ray image lets its user become that by sudo) but gIB's own image before the pod begins."""
    return {
        "matchConstraints": _made(namespace, "", "pods"),
        "variables": [_tokens("object.spec")],
        "validations": _pod_rules("object.spec", service_account),
    }


def _jobs(namespace: str, service_account: str) -> Spec:
    """Jobs whose pods would be refused: a queued one would learn it when its nodes are there, and paid for."""
    template = "object.spec.template.spec"
    return {
        "matchConstraints": _made(namespace, "batch", "jobs"),
        "variables": [_tokens(template)],
        "validations": [
            *_pod_rules(template, service_account),
            # Kubernetes mounts it into the pod, not into the template.
            _rule(f"!{template}.?automountServiceAccountToken.orValue(true)", NO_TOKEN),
        ],
    }


def _addresses(namespace: str) -> Spec:
    """No Service and no Ingress has a load balancer with a public address. Changes that could give them none are not
    judged: GKE takes its marks off a Service that ends, be it older than this policy. Each kind lacks the other's
    fields, which `dyn` keeps from being called unknown."""
    made = [
        {**rule, "operations": ["CREATE", "UPDATE"]}
        for group, resources in (("", "services"), ("networking.k8s.io", "ingresses"))
        for rule in _made(namespace, group, resources)["resourceRules"]
    ]
    balancer, ingress = (f"metadata.?annotations[?'{key}'].orValue('')" for key in (INTERNAL_SERVICE, INGRESS_CLASS))
    changes = (f"object.{part} != oldObject.{part}" for part in ("spec", balancer, ingress))
    return {
        "matchConstraints": {**_made(namespace, "", ""), "resourceRules": made},
        "matchConditions": [
            {"name": "changed", "expression": f"request.operation == 'CREATE' || {' || '.join(changes)}"}
        ],
        "validations": [
            _rule(
                "request.resource.resource != 'services' || dyn(object.spec).?type.orValue('') != 'LoadBalancer' || "
                f"dyn(object.spec).?loadBalancerClass.orValue(object.{balancer}) in ['Internal', '{INTERNAL_CLASS}']",
                f"a Service has no public address: annotate it {INTERNAL_SERVICE}: Internal",
            ),
            # Those of another controller get their addresses by a Service of its own.
            _rule(
                "request.resource.resource != 'ingresses' || "
                f"!(object.{ingress} in ['', 'gce']) || dyn(object.spec).?ingressClassName.orValue('') != ''",
                f"an Ingress has no public address: annotate it {INGRESS_CLASS}: gce-internal",
            ),
        ],
    }


def _tokens(pod: str) -> dict[str, str]:
    """The variable `tokens`: names of a pod's volumes that hold a token."""
    return {
        "name": "tokens",
        "expression": f"{pod}.?volumes.orValue([]).filter(volume, volume.?projected.?sources.orValue([])"
        ".exists(source, has(source.serviceAccountToken))).map(volume, volume.name)",
    }


def _pod_rules(pod: str, service_account: str) -> list[dict[str, str]]:
    """What every pod keeps, or the template of one."""
    without_token = (
        f"[{pod}.containers[0]]",  # Ray's, by whatever name
        f"{pod}.containers.filter(each, each.name != '{AUTOSCALER}')",
        INITIAL.format(pod),
    )
    mounted = " + ".join(
        f"{containers}.map(each, each.?volumeMounts.orValue([]).map(mount, mount.name))" for containers in without_token
    )
    return [
        _account_rule(pod, service_account),
        _rule(f"({mounted}).all(names, !names.exists(name, name in variables.tokens))", NO_TOKEN),
        _rule(
            f"!{pod}.?shareProcessNamespace.orValue(false)",
            "containers that see each other's processes see each other's tokens: no shareProcessNamespace",
        ),
        _root_rule(pod),
    ]


NO_TOKEN = f"only the container {AUTOSCALER} has a Kubernetes token: set automountServiceAccountToken to false"


def _made(namespace: str, group: str, resources: str) -> Spec:
    """What is made of a kind in the namespace."""
    return {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "resourceRules": [
            {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [resources]}
        ],
    }


def _account_rule(pod: str, service_account: str) -> dict[str, str]:
    return _rule(
        f"{pod}.?serviceAccountName.orValue('') == '{service_account}'",
        f"pods here run as service account {service_account}: set serviceAccountName",
    )


def _root_rule(pod: str) -> dict[str, str]:
    not_root = (
        f"{containers}.all(each, each.?securityContext.?runAsNonRoot.orValue(true)"
        " && !each.?securityContext.?allowPrivilegeEscalation.orValue(true))"
        for containers in (
            f"{pod}.containers",
            f"{INITIAL.format(pod)}.filter(each, each.image != '{gib.IMAGE}')",
        )
    )
    return _rule(
        " && ".join((f"{pod}.?securityContext.?runAsNonRoot.orValue(false)", *not_root)),
        "nobody is root: set runAsNonRoot to true, and allowPrivilegeEscalation to false in each container",
    )


def _kept(place: str, wanted: str) -> str:
    """A map without those of its keys for which `wanted` is false."""
    return f"{place}.transformMap(key, value, {wanted}, value)"


def _rule(expression: str, message: str) -> dict[str, str]:
    return {"expression": expression, "message": message, "reason": "Forbidden"}
