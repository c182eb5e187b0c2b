"""gIB, the RDMA plugin of NCCL: how a pod gets it, and how the pod requires it. Pure.

An init container copies it from its image into a volume of the pod, as Google's charts for A3 Ultra and A4 do
(AI-Hypercomputer/gpu-recipes 2e1fd5e, src/helm-charts/a3ultra/jobset/templates/workload-jobset.yaml,
RL/a4/recipes/llama3.1-8b/nemoRL/values.yaml): nothing of it is on the node, so no pod needs access there. NCCL itself
comes from the Ray image; hence no `--install-nccl`, as in GKE's installer since 2026-05-06.
"""

from __future__ import annotations

from typing import Any

IMAGE = "us-docker.pkg.dev/gce-ai-infra/gpudirect-gib/nccl-plugin-gib:v1.1.1"
"""Tag of GoogleCloudPlatform/container-engine-accelerators, gpudirect-rdma/nccl-rdma-installer.yaml at 992db812
(2026-06-11; there since 2026-03-09). Other public manifests use v1.1.0 and v1.1.2; none names a digest."""

DRIVER_DIRECTORY = "/usr/local/nvidia"
"""Where GKE's device plugin mounts the node's driver, read-only, into each container that asks for GPUs
(container-engine-accelerators 992db812, cmd/nvidia_gpu/nvidia_gpu.go, `container-path`)."""

EXIT_BAD_FABRIC = 9
"""Exit code of a GPU worker that ends because gIB is missing: the one that means a bad fabric everywhere."""

FILES = ("lib64/libnccl-net*.so", "configs/*.txtpb", "scripts/set_nccl_env.sh")
"""What a whole gIB has at least: the plugin, the tuner's configuration, NCCL's settings."""

VOLUME: dict[str, Any] = {"name": "gib", "emptyDir": {}}
"""Of the pod alone, and gone with it: each pod starts with the version that its template names."""

_TARGET = "/target/gib"
"""Where the init container has the volume: at gIB's own place it would hide what the image has there."""


def mount(directory: str) -> dict[str, Any]:
    """Mount of `VOLUME` in the Ray container, which may not change what the next start of it uses."""
    return {"name": "gib", "mountPath": directory, "readOnly": True}


def install_container(security: dict[str, Any]) -> dict[str, Any]:
    """The init container that fills `VOLUME`; without a whole gIB it fails, and the pod with it.

    Args:
        security: security context of the other containers. This one runs as root, as in Google's charts: the image's
            install script writes to root's folders, and runs before anything of a job does.
    """
    return {
        "name": "install-gib",
        "image": IMAGE,
        "command": ["/bin/sh", "-c", install_script()],
        "resources": {kind: {"cpu": "1", "memory": "1Gi"} for kind in ("requests", "limits")},
        "securityContext": {**security, "runAsUser": 0, "runAsNonRoot": False},
        "volumeMounts": [{"name": "gib", "mountPath": _TARGET}],
    }


def install_script() -> str:
    """The script of the init container."""
    return "\n".join(
        (
            "set -ex",
            "/scripts/container_entry.sh install",
            f"cp -r /var/lib/gib/. {_TARGET}",
            f"{_whole(_TARGET)} || {_refuse(f'{IMAGE} gave no whole gIB')}",
        )
    )


def start_guard(directory: str) -> str:
    """Shell words that load NCCL's settings for this fabric, or end the container.

    KubeRay runs `<command> && ulimit -n 65536; ray start ...` (ray-operator v1.6.2, controllers/ray/common/pod.go,
    BuildPod): behind the semicolon, Ray would start without RDMA after a failed command. Hence the explicit exit. The
    status of the script's last line is nothing to go by, and Google's own manifests do not.
    """
    loaded = f"{{ {_whole(directory)} && {{ source {directory}/scripts/set_nccl_env.sh || true; }}; }}"
    return f"{loaded} || {_refuse(f'gIB is not whole in {directory}: Ray does not start without RDMA')}"


def _whole(directory: str) -> str:
    """A command that succeeds where all of `FILES` are, and says on stderr which is not."""
    return f"ls {' '.join(f'{directory}/{name}' for name in FILES)} > /dev/null"


def _refuse(why: str) -> str:
    return f"{{ echo '{why}' >&2; exit {EXIT_BAD_FABRIC}; }}"
