"""The custom resource definitions of an emulated cluster: GKE's and kwok's, and where to find the charts'.

They come from published Go modules, except ComputeClass, which is written here: Google publishes its types but no
manifest.
"""

from __future__ import annotations

import time
from pathlib import Path

import yaml

from emulator.kubernetes.api import Api, ApiError, Body, KindNotServedError
from emulator.machine.state import CHECKOUT, EmulatorError
from emulator.programs.go_modules import module_directory

NETWORKING = ("gke-networking", "github.com/GoogleCloudPlatform/gke-networking-api")
KUBERAY = ("kuberay", "github.com/ray-project/kuberay/ray-operator")
KUEUE = ("kubernetes", "sigs.k8s.io/kueue")
AUTOSCALER = ("kubernetes", "k8s.io/autoscaler/cluster-autoscaler/apis")
MODULES = (NETWORKING, KUBERAY, KUEUE, AUTOSCALER)
"""Folder below `tools/` that pins the module with the definitions, and the module."""

_SERVED_SECONDS = 120


def install_networking(api: Api) -> None:
    """Install Network and GKENetworkParamSet, as GKE does on a cluster with multi-networking."""
    source = module_directory(*NETWORKING)
    names = ("networking.gke.io_networks.yaml", "networking.gke.io_gkenetworkparamsets.yaml")
    _install(api, [source / "config" / "crds" / name for name in names])


def install_provisioning(api: Api) -> None:
    """Install ProvisioningRequest, as GKE's autoscaler does."""
    source = module_directory(*AUTOSCALER)
    _install(api, [source / "config" / "crd" / "autoscaling.x-k8s.io_provisioningrequests.yaml"])


def kuberay_files() -> list[Path]:
    """The manifests in the `crds` folder of KubeRay's Helm chart."""
    return sorted((module_directory(*KUBERAY) / "config" / "crd" / "bases").glob("*.yaml"))


def install_port_forward(api: Api, kwok: Path) -> None:
    """Install kwok's kind that says where a `kubectl port-forward` to an emulated pod leads.

    Args:
        api: the cluster's API.
        kwok: folder of kwok's module.
    """
    _install(api, [kwok / "kustomize" / "crd" / "bases" / "kwok.x-k8s.io_portforwards.yaml"])


def install_compute_class(api: Api) -> None:
    """Install ComputeClass, which GKE's autoscaler installs some time after the cluster exists."""
    _install(api, [CHECKOUT / "emulator" / "crds" / "computeclass.yaml"])


def _install(api: Api, files: list[Path]) -> None:
    definitions: list[Body] = []
    for file in files:  # the API server processes one while the next is read
        for body in _bodies(file):
            body.pop("status", None)
            body["metadata"].pop("creationTimestamp", None)
            # Server-side apply would track the owner of ten thousand schema fields, for seconds each.
            try:
                api.create(body)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise
            definitions.append(body)
    for body in definitions:
        _wait_until_served(api, body)


def _bodies(file: Path) -> list[Body]:
    return list(filter(None, yaml.load_all(file.read_text(), Loader=yaml.CSafeLoader)))


def _wait_until_served(api: Api, definition: Body) -> None:
    # A definition is reported established a moment before its objects are served.
    spec, deadline = definition["spec"], time.monotonic() + _SERVED_SECONDS
    versions = [f"{spec['group']}/{version['name']}" for version in spec["versions"] if version["served"]]
    while time.monotonic() < deadline:
        try:
            for version in versions:
                api.kind(version, spec["names"]["kind"])
        except KindNotServedError:
            time.sleep(0.05)
        else:
            return
    name = definition["metadata"]["name"]
    raise EmulatorError(f"the API server does not serve {name} after {_SERVED_SECONDS} s; see kube-apiserver's log")
