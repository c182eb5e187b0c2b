"""The NcclInstaller component: which nodes it reaches, what it runs there, and in which order files appear."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from oasis_stack import gib
from oasis_stack.nccl_installer import NcclInstaller, NcclInstallerArgs, install_script
from tests.deployment import Deploy


@pytest.fixture
def pod(deploy: Deploy) -> dict[str, Any]:
    deployment = deploy(lambda: NcclInstaller("nccl", NcclInstallerArgs(accelerator="nvidia-h200-141gb")))
    assert deployment.only("oasis:index:NcclInstaller").outputs == {"daemon_set_name": "nccl-rdma-installer"}
    inputs = deployment.only("kubernetes:apps/v1:DaemonSet").inputs
    assert inputs["metadata"]["namespace"] == "kube-system"
    labels = inputs["spec"]["template"]["metadata"]["labels"]
    assert inputs["spec"]["selector"]["matchLabels"].items() <= labels.items()
    return inputs["spec"]["template"]["spec"]


def test_it_reaches_every_gpu_node_and_no_other(pod: dict[str, Any]) -> None:
    assert pod["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}
    assert pod["tolerations"] == [{"operator": "Exists"}]


def test_images_are_pinned_and_nccl_stays_the_image_s_own(pod: dict[str, Any]) -> None:
    (installer,), (pause,) = pod["initContainers"], pod["containers"]

    assert re.fullmatch(
        r"us-docker\.pkg\.dev/gce-ai-infra/gpudirect-gib/nccl-plugin-gib:v\d+\.\d+\.\d+", installer["image"]
    )
    assert re.fullmatch(r".*@sha256:[0-9a-f]{64}", pause["image"])
    assert "--install-nccl" not in " ".join(installer["command"])
    assert "privileged" not in pause["securityContext"]


def test_it_writes_where_gpu_workers_look(pod: dict[str, Any]) -> None:
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}

    assert paths == {"gib": gib.HOST_DIRECTORY, "library": "/home/kubernetes/bin/nvidia/lib64"}
    assert {volume["hostPath"]["path"] for volume in gib.VOLUMES} == {gib.HOST_DIRECTORY, "/home/kubernetes/bin/nvidia"}


@pytest.mark.parametrize("fails", [False, True])
def test_the_marker_is_there_after_a_whole_installation_and_never_after_half_of_one(
    tmp_path: Path, fails: bool
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "lib64").mkdir(parents=True)
    (source / "lib64" / "libnccl-net.so").touch()
    (target / "gib").mkdir(parents=True)
    (target / "library").mkdir()
    marker = target / "gib" / gib.MARKER
    marker.touch()  # an earlier version is installed
    script = (
        install_script()
        .replace("/scripts/container_entry.sh install", "false" if fails else "true")
        .replace("/var/lib/gib", str(source))
        .replace("/target", str(target))
    )

    done = subprocess.run(["/bin/sh", "-c", script], capture_output=True, timeout=30, check=False)

    assert (done.returncode == 0, marker.exists()) == (not fails, not fails)
    assert (target / "gib" / "lib64" / "libnccl-net.so").exists() is not fails
    assert (target / "library" / "libnccl-net.so").exists() is not fails
