"""The DaemonSet that puts gIB, the RDMA plugin of NCCL, on every GPU node.

NCCL itself comes from the image: Google's default installer dropped `--install-nccl` on 2026-05-06.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pulumi
import pulumi_kubernetes as kubernetes

from oasis_stack import gib

NAME = "nccl-rdma-installer"
NAMESPACE = "kube-system"
LABELS = {"k8s-app": NAME}

IMAGE = "us-docker.pkg.dev/gce-ai-infra/gpudirect-gib/nccl-plugin-gib:v1.1.1"
"""Tag of GoogleCloudPlatform/container-engine-accelerators, gpudirect-rdma/nccl-rdma-installer.yaml at 992db812
(2026-06-11; there since 2026-03-09). Other public manifests use v1.1.0 and v1.1.2; no digest of v1.1.1 is public."""

PAUSE = "gke.gcr.io/pause:3.8@sha256:880e63f94b145e46f1b1082bb71b85e21f16b99b180b9996407d61240ceb9830"
"""From the same manifest."""

_TARGET = "/target"


@dataclass(frozen=True, kw_only=True)
class NcclInstallerArgs:
    """What the installer needs to know."""

    accelerator: str
    """GPU type as in the node label `cloud.google.com/gke-accelerator`; another one, and workers wait for ever."""


class NcclInstaller(pulumi.ComponentResource):
    """Registers the DaemonSet nccl-rdma-installer in kube-system."""

    APIS: ClassVar[tuple[str, ...]] = ("container.googleapis.com",)

    daemon_set_name: pulumi.Output[str]

    def __init__(self, name: str, args: NcclInstallerArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("oasis:index:NcclInstaller", name, None, opts)
        daemon_set = kubernetes.apps.v1.DaemonSet(
            name,
            metadata=kubernetes.meta.v1.ObjectMetaArgs(name=NAME, namespace=NAMESPACE, labels=LABELS),
            spec=installer_spec(args.accelerator),
            opts=pulumi.ResourceOptions(parent=self),
        )
        self.daemon_set_name = daemon_set.metadata.apply(lambda metadata: str(metadata.name))
        self.register_outputs({"daemon_set_name": self.daemon_set_name})


def installer_spec(accelerator: str) -> Any:
    """Spec of the DaemonSet, as Kubernetes writes it: on every node with the accelerator, whatever its taints.

    Privileged and in the node's namespaces, as in Google's manifest: which of it the plugin's own install script needs
    is not documented, and without the plugin no GPU worker starts.
    """
    volumes = {"gib": gib.HOST_DIRECTORY, "library": f"{gib.HOST_DRIVER_DIRECTORY}/lib64"}
    return {
        "selector": {"matchLabels": LABELS},
        # One version per job: with several nodes at a time the mix lasts shortest.
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "priorityClassName": "system-node-critical",
                "nodeSelector": {"cloud.google.com/gke-accelerator": accelerator},
                "tolerations": [{"operator": "Exists"}],
                "hostNetwork": True,
                "hostPID": True,
                "automountServiceAccountToken": False,
                "volumes": [
                    {"name": volume, "hostPath": {"path": path, "type": "DirectoryOrCreate"}}
                    for volume, path in volumes.items()
                ],
                "initContainers": [
                    {
                        "name": "install",
                        "image": IMAGE,
                        "command": ["/bin/sh", "-c", install_script()],
                        "resources": {"requests": {"cpu": "150m", "memory": "64Mi"}},
                        "securityContext": {"privileged": True},
                        "volumeMounts": [{"name": volume, "mountPath": f"{_TARGET}/{volume}"} for volume in volumes],
                    }
                ],
                "containers": [
                    {
                        "name": "pause",
                        "image": PAUSE,
                        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "16Mi"}},
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    }
                ],
            },
        },
    }


def install_script() -> str:
    """What the installer runs; the marker goes first and comes last, so that nobody uses half of a version."""
    return "\n".join(
        (
            "set -ex",
            f"rm -f {_TARGET}/gib/{gib.MARKER}",
            "/scripts/container_entry.sh install",
            f"cp -r /var/lib/gib/lib64/. {_TARGET}/library",
            f"cp -r /var/lib/gib/. {_TARGET}/gib",
            f"touch {_TARGET}/gib/{gib.MARKER}",
        )
    )
