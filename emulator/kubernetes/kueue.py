"""Kueue's chart: the real controller with its webhooks and conversions, as a process of this machine.

What the chart has beside that is left out: roles (the process is an administrator), and the API of pending workloads
(an aggregated API, whose Service would lead to a pod). Its objects are those of sigs.k8s.io/kueue v0.19.2,
charts/kueue/templates.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from emulator.kubernetes import certificates, chart, control_plane, crds
from emulator.kubernetes.api import Api, Body
from emulator.kubernetes.chart import Chart
from emulator.machine.state import State, write_atomically
from emulator.programs.go_modules import module_directory

NAME = "kueue"

_WEBHOOK_PORT = "kueue-webhook"
_CERTIFICATES = ("ca.crt", "ca.key", "tls.crt", "tls.key")
_CHECKED = {"clusterqueues", "cohorts", "resourceflavors", "workloads"} | {
    *("jobs", "rayclusters", "rayjobs", "rayservices")
}
"""Resources whose webhooks are installed: those of Kueue and of the jobs that an emulated cluster can have."""


def start(state: State) -> None:
    """Start Kueue, as the release has it configured, unless it runs; wait until it is ready. Raises EmulatorError."""
    port = state.port(NAME)
    if state.process(NAME) is None:
        command = [
            state.path("bin", NAME),
            f"--kubeconfig={control_plane.kubeconfig_file(state)}",
            f"--config={_folder(state) / 'config.yaml'}",
            "--feature-gates=VisibilityOnDemand=false",
        ]
        state.spawn(NAME, command)
    chart.await_operator(state, NAME, port)


def _install(api: Api, state: State, release: Body) -> None:
    folder, namespace = _folder(state), release["namespace"]
    _configure(state, folder / "config.yaml", yaml.safe_dump(_configuration(state, release)))
    if not (folder / "tls.crt").exists():
        certificates.write_serving(folder, "kueue-ca", f"kueue-webhook-service.{namespace}.svc")
    data = {name: base64.b64encode((folder / name).read_bytes()).decode() for name in _CERTIFICATES}
    chart.create(api, {**_secret(namespace), "data": data})
    client = {"url": f"{_address(state)}/convert", "caBundle": data["ca.crt"]}
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": client}
    crds.install_kueue(api, {"strategy": "Webhook", "webhook": webhook})
    start(state)  # before the webhooks, which refuse what it does not answer
    for body in _webhooks(state, release, data["ca.crt"]):
        api.apply(body, NAME, force=True)  # which namespaces they are asked about may have changed


def _configure(state: State, file: Path, text: str) -> None:
    """Write the configuration; a process that runs with another one ends."""
    if not file.exists() or file.read_text() != text:
        state.stop(NAME)
        write_atomically(file, text)


def _secret(namespace: str) -> Body:
    metadata = {"name": "kueue-webhook-server-cert", "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata}


def _uninstall(api: Api, _state: State, release: Body) -> None:
    api.delete(_secret(release["namespace"]))
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        api.delete(_named(kind))
    crds.remove_kueue(api)


def _configuration(state: State, release: Body) -> Body:
    """The chart's configuration, but for what a process on loopback has otherwise than a pod."""
    given = release.get("values", {}).get("managerConfig", {}).get("controllerManagerConfigYaml", "")
    configuration: Body = yaml.safe_load(given) or {}
    return {
        **configuration,
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": release["namespace"],
        "health": {"healthProbeBindAddress": f"127.0.0.1:{state.port(NAME)}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": state.port(_WEBHOOK_PORT), "certDir": str(_folder(state))},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": True},
    }


def _webhooks(state: State, release: Body, authority: str) -> list[Body]:
    manifests = module_directory(*crds.KUEUE) / "config" / "components" / "webhook" / "manifests.yaml"
    found: list[Body] = []
    for body in filter(None, yaml.load_all(manifests.read_text(), Loader=yaml.CSafeLoader)):
        if not body["kind"].endswith("WebhookConfiguration"):
            continue
        hooks = [hook for hook in body["webhooks"] if {*hook["rules"][0]["resources"]} & _CHECKED]
        found.append(
            {**_named(body["kind"]), "webhooks": [_webhook(state, release, hook, authority) for hook in hooks]}
        )
    return found


def _webhook(state: State, release: Body, hook: Body, authority: str) -> Body:
    path = hook["clientConfig"]["service"]["path"]
    hook = {**hook, "clientConfig": {"url": f"{_address(state)}{path}", "caBundle": authority}}
    if hook["rules"][0]["apiGroups"] == ["kueue.x-k8s.io"]:
        return hook
    elsewhere = {
        "key": "kubernetes.io/metadata.name",
        "operator": "NotIn",
        "values": ["kube-system", release["namespace"]],
    }
    default = {"matchExpressions": [elsewhere]}
    selector = _configuration(state, release).get("managedJobsNamespaceSelector", default)
    return {**hook, "namespaceSelector": selector}


def _named(kind: str) -> Body:
    name = f"kueue-{kind.removesuffix('WebhookConfiguration').lower()}-webhook-configuration"
    return {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}


def _address(state: State) -> str:
    return f"https://127.0.0.1:{state.port(_WEBHOOK_PORT)}"


def _folder(state: State) -> Path:
    return state.path("kubernetes", "kueue", "_").parent


def _deployment(release: Body) -> Body:
    manager: Mapping[str, Any] = release.get("values", {}).get("controllerManager", {})
    labels = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": release["name"]}
    labels["control-plane"] = "controller-manager"
    pod = {**manager.get("manager", {}), **manager}
    default = {"repository": "registry.k8s.io/kueue/kueue", "tag": f"v{release['version']}"}
    image = {**default, **pod.get("image", {})}
    return chart.deployment(release, f"{release['name']}-controller-manager", labels, image, pod)


CHART = Chart(
    name=NAME,
    tool="kubernetes",
    module="sigs.k8s.io/kueue",
    values=frozenset({"controllerManager", "managerConfig"}),
    deployment=_deployment,
    install=_install,
    start=start,
    uninstall=_uninstall,
)
"""The chart."""
