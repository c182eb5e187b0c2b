"""The namespace's policies against a table of flows, and the table against the policies."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from oasis_stack.pod_specs import network_policy
from tests.support.policy_evaluator import Outside, Peer, Pod, allows

RAY = "ray"


class Flow(NamedTuple):
    """One attempt to open a port."""

    name: str
    source: Peer
    target: Peer
    port: int
    protocol: str = "TCP"

    def passes(self, policies: list[dict[str, Any]]) -> bool:
        return allows(policies, self.source, self.target, self.port, self.protocol)


def ray_node(node_type: str, cluster: str = "oasis", namespace: str = RAY) -> Pod:
    labels = {"ray.io/is-ray-node": "yes", "ray.io/node-type": node_type, "ray.io/cluster": cluster}
    return Pod(namespace=namespace, labels=labels)


HEAD, WORKER = ray_node("head"), ray_node("worker")
OPERATOR = Pod(namespace="kuberay-system", labels={"app.kubernetes.io/name": "kuberay-operator"})
SUBMITTER = Pod(namespace=RAY, labels={"batch.kubernetes.io/job-name": "train-x"})
QUEUED = {"kueue.x-k8s.io/podset": "main"}
QUEUED_JOB = Pod(namespace=RAY, labels={**SUBMITTER.labels, **QUEUED})
QUEUED_HEAD = Pod(namespace=RAY, labels={**HEAD.labels, **QUEUED})
STRANGER = Pod(namespace=RAY, labels={"app": "shell"})
OTHER_TEAM = Pod(namespace="default", labels={"app": "web"})
FALSE_OPERATOR = Pod(namespace="default", labels={"app.kubernetes.io/name": "kuberay-operator"})
NEIGHBOUR = Pod(namespace="kuberay-system", labels={"app": "web"})
FALSE_WORKER = ray_node("worker", namespace="default")
KUBE_DNS = Pod(namespace="kube-system", labels={"k8s-app": "kube-dns"})
NODE_LOCAL_DNS = Pod(namespace="kube-system", labels={"k8s-app": "node-local-dns"})
METRICS_SERVER = Pod(namespace="kube-system", labels={"k8s-app": "metrics-server"})
FALSE_DNS = Pod(namespace="default", labels={"k8s-app": "kube-dns"})
FALSE_NODE_LOCAL_DNS = Pod(namespace="default", labels={"k8s-app": "node-local-dns"})

ALLOWED: list[Flow] = [
    Flow("a worker registers with the head", WORKER, HEAD, 6379),
    Flow("the head starts tasks on a worker", HEAD, WORKER, 10002),
    Flow("workers exchange objects and NCCL's first words", WORKER, WORKER, 41235),
    Flow("a RayJob's worker finds its own head", ray_node("worker", "job-1"), ray_node("head", "job-1"), 6379),
    Flow("the operator asks a head for a RayJob's state", OPERATOR, HEAD, 8265),
    Flow("the operator asks a head's proxy for a RayService's state", OPERATOR, HEAD, 8000),
    Flow("a submitter reaches the Jobs API", SUBMITTER, HEAD, 8265),
    Flow("the autoscaler reaches the Kubernetes API", HEAD, Outside(address="10.64.128.2"), 443),
    Flow("a worker looks a name up", WORKER, KUBE_DNS, 53, "UDP"),
    Flow("a worker looks a long name up", WORKER, KUBE_DNS, 53),
    Flow("a worker asks the node's own name server", WORKER, NODE_LOCAL_DNS, 53, "UDP"),
    Flow("a worker asks the node's name server by address", WORKER, Outside(address="169.254.20.10"), 53, "UDP"),
    Flow("a submitter looks the head up", SUBMITTER, KUBE_DNS, 53, "UDP"),
    Flow("the autoscaler reaches the Kubernetes API by its Service", HEAD, Outside(address="10.64.160.1"), 443),
    Flow("a worker asks Cloud DNS", WORKER, Outside(address="169.254.169.254"), 53, "UDP"),
    Flow("a worker asks Cloud DNS for a long name", WORKER, Outside(address="169.254.169.254"), 53),
    Flow("a pod gets Google credentials under Dataplane V2", WORKER, Outside(address="169.254.169.254"), 80),
    Flow("a pod gets Google credentials elsewhere", WORKER, Outside(address="169.254.169.252"), 988),
    Flow("the head reads a secret", HEAD, Outside(address="199.36.153.8"), 443),
    Flow("a worker writes a checkpoint", WORKER, Outside(address="142.250.74.91"), 443),
    Flow("the head logs to W&B", HEAD, Outside(address="35.186.228.49"), 443),
    Flow("a colleague opens the dashboard through its load balancer", Outside(address="10.64.3.7"), HEAD, 8265),
    Flow("the pods of a queued job find each other", QUEUED_JOB, QUEUED_JOB, 29500),
]
DENIED: list[Flow] = [
    Flow("another namespace opens the dashboard", OTHER_TEAM, HEAD, 8265),
    Flow("another namespace runs code through GCS", OTHER_TEAM, HEAD, 6379),
    Flow("another namespace reads a worker's metrics", OTHER_TEAM, WORKER, 8080),
    Flow("another namespace wears a Ray label", FALSE_WORKER, HEAD, 6379),
    Flow("another namespace wears the operator's label", FALSE_OPERATOR, HEAD, 8265),
    Flow("a neighbour of the operator opens the dashboard", NEIGHBOUR, HEAD, 8265),
    Flow("the operator reaches GCS", OPERATOR, HEAD, 6379),
    Flow("the operator reaches a worker", OPERATOR, WORKER, 8265),
    Flow("a submitter reaches GCS", SUBMITTER, HEAD, 6379),
    Flow("a submitter reaches a worker", SUBMITTER, WORKER, 8265),
    Flow("a submitter reaches the internet", SUBMITTER, Outside(address="142.250.74.91"), 443),
    Flow("a submitter gets Google credentials", SUBMITTER, Outside(address="169.254.169.254"), 80),
    Flow("an unknown pod of the namespace opens the dashboard", STRANGER, HEAD, 8265),
    Flow("an unknown pod of the namespace reaches the internet", STRANGER, Outside(address="142.250.74.91"), 443),
    Flow("an unknown pod of the namespace is reached", OTHER_TEAM, STRANGER, 80),
    Flow("a worker reaches the Kubernetes API", WORKER, Outside(address="10.64.128.2"), 443),
    Flow("the autoscaler reaches the control plane's other ports", HEAD, Outside(address="10.64.128.2"), 22),
    Flow("a worker reaches another namespace", WORKER, OTHER_TEAM, 443),
    Flow("a worker reaches a node", WORKER, Outside(address="10.64.0.9"), 443),
    Flow("a worker reaches a network joined by 172.16/12", WORKER, Outside(address="172.20.0.5"), 443),
    Flow("a worker reaches a network joined by 192.168/16", WORKER, Outside(address="192.168.1.5"), 443),
    Flow("a worker reaches a network of shared addresses", WORKER, Outside(address="100.100.0.5"), 443),
    Flow("a worker reaches a link-local service by TLS", WORKER, Outside(address="169.254.169.254"), 443),
    Flow("the head reaches a node", HEAD, Outside(address="10.64.0.9"), 443),
    Flow("a worker reads the web without TLS", WORKER, Outside(address="142.250.74.91"), 80),
    Flow("a worker uses a metadata port elsewhere", WORKER, Outside(address="142.250.74.91"), 988),
    Flow("a worker mixes the metadata servers up", WORKER, Outside(address="169.254.169.252"), 80),
    Flow("a worker sends mail", WORKER, Outside(address="142.250.74.91"), 25),
    Flow("a worker talks to the metadata server's other ports", WORKER, Outside(address="169.254.169.254"), 8080),
    Flow("a worker uses a name server of the internet", WORKER, Outside(address="8.8.8.8"), 53, "UDP"),
    Flow("a worker uses a false name server", WORKER, FALSE_DNS, 53, "UDP"),
    Flow("a worker uses a false name server of the node", WORKER, FALSE_NODE_LOCAL_DNS, 53, "UDP"),
    Flow("a worker reaches the rest of kube-system", WORKER, METRICS_SERVER, 53),
    Flow("a name server's other ports are reached", WORKER, KUBE_DNS, 9153),
    Flow("a stranger opens the dashboard through the load balancer", Outside(address="10.200.0.1"), HEAD, 8265),
    Flow("a colleague reaches GCS through a load balancer", Outside(address="10.64.3.7"), HEAD, 6379),
    Flow("the internet opens the dashboard", Outside(address="203.0.113.9"), HEAD, 8265),
    Flow("a submitter reaches a queued head's GCS", SUBMITTER, QUEUED_HEAD, 6379),
    Flow("a queued job reaches an unknown pod", QUEUED_JOB, STRANGER, 80),
    Flow("a queued job is reached from outside", Outside(address="10.64.3.7"), QUEUED_JOB, 29500),
    Flow("a queued job reaches a worker", QUEUED_JOB, WORKER, 10002),
]
for flows in (ALLOWED, DENIED):  # Google is to queued jobs what it is to workers
    outside = [flow for flow in flows if flow.source is WORKER and isinstance(flow.target, Outside)]
    flows += [flow._replace(name=flow.name + ", a queued job too", source=QUEUED_JOB) for flow in outside]


def rendered() -> dict[str, Any]:
    ranges = ["10.64.128.0/28", "10.64.160.0/20"]
    return network_policy.policies("kuberay-system", ranges, ["10.64.0.0/16"], queued=True)


def objects(specs: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"metadata": {"name": name, "namespace": RAY}, "spec": spec} for name, spec in specs.items()]


def broken_rows(specs: dict[str, Any]) -> list[str]:
    """Rows of the two tables that do not hold under these policies."""
    found = objects(specs)
    refused = [flow.name for flow in ALLOWED if not flow.passes(found)]
    return refused + [flow.name for flow in DENIED if flow.passes(found)]


def parts(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Path of every part that can be taken away: whole policies, list items and the labels of selectors."""
    items = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for key, inner in items:
        if isinstance(value, list) or not path or path[-1] == "matchLabels":
            yield (*path, key)
        yield from parts(inner, (*path, key))


def without(specs: dict[str, Any], path: tuple[str | int, ...]) -> dict[str, Any]:
    reduced = copy.deepcopy(specs)
    target: Any = reduced
    for key in path[:-1]:
        target = target[key]
    del target[path[-1]]
    return reduced


def missing_row(path: tuple[str | int, ...]) -> str:
    """Which flow the tables lack: the one by which a part of a policy would be noticed if it were gone."""
    part: Any = rendered()
    for key in path:
        part = part[key]
    where = ".".join(map(str, path))
    return f"no flow needs {where}, which is {part}: add the one that it alone lets through (ALLOWED) or stops (DENIED)"


PARTS = list(parts(rendered()))


def test_flows_that_the_platform_needs_pass_and_those_that_nothing_needs_are_dropped() -> None:
    assert broken_rows(rendered()) == []
    assert len(PARTS) > 40


@pytest.mark.parametrize("path", PARTS, ids=lambda path: ".".join(map(str, path)))
def test_a_policy_rule_peer_port_or_label_taken_away_breaks_a_row(path: tuple[str | int, ...]) -> None:
    assert broken_rows(without(rendered(), path)), missing_row(path)


def test_without_a_load_balancer_nobody_outside_reaches_the_dashboard() -> None:
    specs = network_policy.policies("kuberay-system", "10.64.128.0/28", [])

    assert not allows(objects(specs), Outside(address="10.64.3.7"), HEAD, 8265)
    assert "dashboard-clients" not in specs
