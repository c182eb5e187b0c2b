"""Where gIB, the RDMA plugin of NCCL, lies on a node, and how a pod requires it. Pure.

The installer writes a marker file last, since the files arrive while pods already start; what needs gIB waits for that.
"""

from __future__ import annotations

from typing import Any

HOST_DIRECTORY = "/home/kubernetes/bin/gib"
"""Where Google's installer puts gIB on a node (container-engine-accelerators 992db812, gpudirect-rdma)."""

HOST_DRIVER_DIRECTORY = "/home/kubernetes/bin/nvidia"
"""Where GKE puts the NVIDIA driver's libraries on a node, and the installer those of the plugin."""

DRIVER_DIRECTORY = "/usr/local/nvidia"
"""Where GPU containers on GKE expect them."""

MARKER = ".complete"
"""File in the gIB directory that exists once every other file is in place."""

WAIT_SECONDS = 900
"""Driver installation and a cold image pull take minutes on a new node; a node without gIB after this is broken."""

EXIT_BAD_FABRIC = 9
"""Of a GPU worker that ends for want of gIB: the exit code that stands for a bad fabric wherever one is reported."""

VOLUMES: list[dict[str, Any]] = [
    {"name": "gib", "hostPath": {"path": HOST_DIRECTORY, "type": "DirectoryOrCreate"}},
    {"name": "nvidia", "hostPath": {"path": HOST_DRIVER_DIRECTORY, "type": "DirectoryOrCreate"}},
]
"""A type that demands the directory would hold the pod in creation without bound; the bounded wait is ours."""


def mounts(directory: str) -> list[dict[str, Any]]:
    """Mounts of `VOLUMES`; nothing in a pod writes there."""
    return [
        {"name": "gib", "mountPath": directory, "readOnly": True},
        {"name": "nvidia", "mountPath": DRIVER_DIRECTORY, "readOnly": True},
    ]


def wait_command(directory: str, seconds: int = WAIT_SECONDS, pause: float = 5) -> list[str]:
    """Command of the init container: succeeds once gIB is complete, fails after `seconds`."""
    script = (
        f"until [ -e {directory}/{MARKER} ]; do "
        f"if (( SECONDS >= {seconds} )); then "
        f"echo 'no complete gIB in {directory} after {seconds} s: see DaemonSet nccl-rdma-installer in kube-system' "
        ">&2; "
        f"exit {EXIT_BAD_FABRIC}; fi; "
        f'echo "waiting for gIB in {directory}: $SECONDS of {seconds} s"; sleep {pause:g}; done'
    )
    return ["/bin/bash", "-c", script]


def start_guard(directory: str) -> str:
    """Shell words that load NCCL's settings for this fabric, or end the container.

    KubeRay runs `<command> && ulimit -n 65536; ray start ...` (ray-operator v1.6.2, controllers/ray/common/pod.go,
    BuildPod): behind the semicolon, Ray would start without RDMA after a failed command. Hence the explicit exit.
    """
    return (
        f"{{ [ -e {directory}/{MARKER} ] && source {directory}/scripts/set_nccl_env.sh; }} || "
        f"{{ echo 'gIB is missing in {directory}: Ray does not start without RDMA' >&2; exit {EXIT_BAD_FABRIC}; }}"
    )
