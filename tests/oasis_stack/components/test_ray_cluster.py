"""The RayCluster component: what KubeRay, Ray's autoscaler, bash and the Kubernetes API make of it."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pulumi
import pytest
from ray.autoscaler._private.kuberay import autoscaling_config, node_provider

from oasis_stack.components.attachments import AdditionalNetwork
from oasis_stack.components.compute_class import ComputeClass, ComputeClassArgs
from oasis_stack.components.device_network import DeviceNetworks, DeviceNetworksArgs
from oasis_stack.components.ray_cluster import InternalLoadBalancer, RayCluster, RayClusterArgs, port_forward_command
from oasis_stack.facts.machine import MACHINES
from oasis_stack.facts.pod_size import PodSize, whole_node_pod
from oasis_stack.pod_specs import gib
from oasis_stack.pod_specs.pods import GpuGroup
from tests.support.deployment import Deploy, Deployment
from workloads.environment import CONFIG_MAP, GIB_DIRECTORY, MAX_RUN_VARIABLE, ClusterEnvironment, variable

RAY_CLUSTER = "kubernetes:ray.io/v1:RayCluster"
H200 = MACHINES["a3-ultragpu-8g"]
NETWORKS = ["gvnic-1", *(f"rdma-{i}" for i in range(8))]
ENVIRONMENT = {field.name: f"<{field.name}>" for field in dataclasses.fields(ClusterEnvironment)}

LOAD_BALANCER = InternalLoadBalancer(address="10.64.0.50", port=8265, client_ranges=["10.64.0.0/16"])


def gpu_group(**changes: Any) -> GpuGroup:
    group = GpuGroup(
        compute_class="h200", machine=H200, max_nodes=4, spot=False, max_run_seconds=None, device_networks=NETWORKS
    )
    return dataclasses.replace(group, **changes)


def arguments(**changes: Any) -> RayClusterArgs:
    args = RayClusterArgs(
        namespace="ray",
        cluster_name="oasis",
        ray_version="2.60.0",
        image="rayproject/ray:2.60.0-py312-cu128",
        environment=ENVIRONMENT,
        head=PodSize(cpus=4, memory_gib=16),
        cpu_worker=PodSize(cpus=6, memory_gib=24),
        cpu_workers_max=3,
        gpu=gpu_group(),
        idle_timeout_seconds=600,
        data_bucket="data-bucket",
        runs_bucket="runs-bucket",
        control_plane_ranges=["10.64.128.0/28", "10.96.0.0/20"],
        load_balancer=None,
        kubeconfig=pulumi.Output.secret("{}"),
    )
    return dataclasses.replace(args, **changes)


def build(deploy: Deploy, **changes: Any) -> Deployment:
    return deploy(lambda: RayCluster("ray", arguments(**changes)))


def spec(deploy: Deploy, **changes: Any) -> dict[str, Any]:
    return build(deploy, **changes).only(RAY_CLUSTER).inputs["spec"]


def pod(group: dict[str, Any]) -> dict[str, Any]:
    return group["template"]["spec"]


def worker_groups(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {group["groupName"]: group for group in found["workerGroupSpecs"]}


def templates(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [group["template"] for group in (found["headGroupSpec"], *found["workerGroupSpecs"])]


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}


# ---- what KubeRay and Ray read


def test_ray_itself_reads_zero_cpus_and_drivers_on_the_head_and_whole_nodes_in_the_gpu_group(deploy: Deploy) -> None:
    found = spec(deploy)

    types = autoscaling_config._generate_available_node_types_from_ray_cr_spec(found)

    size = whole_node_pod(H200)
    assert types["headgroup"]["resources"] == {"CPU": 0, "memory": 16 << 30, "driver": 1000}
    assert types["gpu"]["resources"] == {"CPU": size.cpus, "GPU": 8, "memory": size.memory_gib << 30}
    assert types["cpu"]["resources"] == {"CPU": 6, "memory": 24 << 30}
    assert {name: (t["min_workers"], t["max_workers"]) for name, t in types.items() if name != "headgroup"} == {
        "cpu": (0, 3),
        "gpu": (0, 4),
    }


def test_replicas_belong_to_rays_autoscaler_and_an_update_takes_the_list_back_by_force(deploy: Deploy) -> None:
    cluster = build(deploy).only(RAY_CLUSTER)

    for group in cluster.inputs["spec"]["workerGroupSpecs"]:
        assert {"replicas", "scaleStrategy"} & set(group) == set()
        assert group["minReplicas"] == 0
    assert cluster.inputs["spec"]["enableInTreeAutoscaling"] is True  # what keeps KubeRay from deleting workers
    assert cluster.inputs["metadata"]["annotations"]["pulumi.com/patchForce"] == "true"
    assert cluster.ignore_changes == frozenset()


def test_the_token_is_asked_for_and_the_autoscaler_is_version_two(deploy: Deploy) -> None:
    found = spec(deploy)

    assert found["authOptions"] == {"mode": "token"}
    assert found["autoscalerOptions"]["version"] == "v2"
    assert found["autoscalerOptions"]["idleTimeoutSeconds"] == 600
    for template in templates(found):
        assert "restartPolicy" not in template["spec"]  # autoscaler v2 refuses all but Never, and sets that itself
        assert "RAY_enable_autoscaler_v2" not in environment(template["spec"]["containers"][0])


def test_groups_that_no_setting_asks_for_are_not_built(deploy: Deploy) -> None:
    assert worker_groups(spec(deploy, gpu=None)).keys() == {"cpu"}
    assert worker_groups(spec(deploy, cpu_workers_max=0)).keys() == {"gpu"}
    assert spec(deploy, cpu_workers_max=0, gpu=None)["workerGroupSpecs"] == []


# ---- pods


def test_every_pod_learns_the_whole_contract_from_the_config_map_that_holds_it(deploy: Deploy) -> None:
    deployment = build(deploy)

    config_map = deployment.only("kubernetes:core/v1:ConfigMap")
    assert config_map.inputs["metadata"] == {"name": CONFIG_MAP, "namespace": "ray"}
    assert config_map.inputs["data"] == ENVIRONMENT
    for template in templates(deployment.only(RAY_CLUSTER).inputs["spec"]):
        references = {
            entry["name"]: entry["valueFrom"]["configMapKeyRef"]
            for entry in template["spec"]["containers"][0]["env"]
            if "valueFrom" in entry
        }
        assert references == {variable(field): {"name": CONFIG_MAP, "key": field} for field in ENVIRONMENT}


def test_a_gpu_worker_has_ten_interfaces_in_nic_order(deploy: Deploy) -> None:
    annotations = worker_groups(spec(deploy))["gpu"]["template"]["metadata"]["annotations"]

    assert annotations["networking.gke.io/default-interface"] == "eth0"
    assert json.loads(annotations["networking.gke.io/interfaces"]) == [
        {"interfaceName": f"eth{i}", "network": network} for i, network in enumerate(["default", *NETWORKS])
    ]


def test_a_gpu_worker_finds_driver_and_plugin_and_talks_to_others_over_its_first_interface(deploy: Deploy) -> None:
    gpu = pod(worker_groups(spec(deploy))["gpu"])
    (container,) = gpu["containers"]

    found = environment(container)
    assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "eth0"
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    # The driver is where GKE's device plugin mounts it into whatever asks for GPUs.
    assert found["LD_LIBRARY_PATH"] == f"{mounted['gib']}/lib64:/usr/local/nvidia/lib64"
    assert "nvidia.com/gpu" in container["resources"]["limits"]


def test_a_gpu_worker_lands_on_its_class_alone_and_tolerates_what_such_nodes_carry(deploy: Deploy) -> None:
    taints = {"nvidia.com/gpu": "present", "cloud.google.com/compute-class": "h200"}
    for spot, expected in ((False, taints), (True, {**taints, "cloud.google.com/gke-spot": "true"})):
        gpu = pod(worker_groups(spec(deploy, gpu=gpu_group(spot=spot)))["gpu"])

        assert gpu["nodeSelector"] == {"cloud.google.com/compute-class": "h200"}
        assert {entry["key"]: entry["value"] for entry in gpu["tolerations"]} == expected
        assert gpu["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"


@pytest.mark.parametrize(("spot", "group", "most"), [(True, "gpu", 15), (False, "gpu", 150), (True, "cpu", 150)])
def test_a_worker_drains_within_its_grace_and_nothing_delays_the_signal(
    deploy: Deploy, spot: bool, group: str, most: int
) -> None:
    worker = pod(worker_groups(spec(deploy, gpu=gpu_group(spot=spot)))[group])
    (container,) = worker["containers"]

    drain = int(environment(container)["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    # What is left of the grace is for Ray to end its processes.
    assert drain + 3 <= worker["terminationGracePeriodSeconds"] <= most
    # A preStop hook runs before the signal, out of the same seconds; one with `ray stop` would skip the drain.
    assert "lifecycle" not in container


def test_a_rank_that_never_reports_holds_the_others_for_a_bounded_time(deploy: Deploy) -> None:
    """Unset, it is for ever, in whichever pod the driver or a worker runs; a minute is what a slow checkpoint takes."""
    for template in templates(spec(deploy)):
        assert 60 < float(environment(template["spec"]["containers"][0])["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"]) <= 3600


def test_the_autoscaler_has_more_memory_than_the_operators_default_at_which_it_is_killed(deploy: Deploy) -> None:
    sizes = {"Mi": 1, "Gi": 1024}
    for kind, asked in spec(deploy)["autoscalerOptions"]["resources"].items():
        assert int(asked["memory"][:-2]) * sizes[asked["memory"][-2:]] > 512, kind


def test_training_asks_about_a_preemption_often_enough_for_spot(deploy: Deploy) -> None:
    for template in templates(spec(deploy)):
        assert environment(template["spec"]["containers"][0])["RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S"] == "1"


def test_ray_does_not_warn_of_the_processes_of_as_many_trials_as_the_head_holds(deploy: Deploy) -> None:
    container = pod(spec(deploy)["headGroupSpec"])["containers"][0]
    resources = container["resources"]["limits"]
    warned_at = 4 * int(environment(container)["RAY_worker_maximum_startup_concurrency"])  # ray 2.60, worker_pool.cc
    # A trial has five there, and they and its `train` take 2 GiB.
    assert warned_at >= 5 * int(resources["memory"].removesuffix("Gi")) / 2


def test_only_gpu_workers_of_a_ladder_with_flex_start_learn_when_their_node_goes(deploy: Deploy) -> None:
    for seconds, shown in ((86400, "86400"), (None, None)):
        found = spec(deploy, gpu=gpu_group(max_run_seconds=seconds))

        told = {name: environment(pod(group)["containers"][0]) for name, group in worker_groups(found).items()}
        told["head"] = environment(pod(found["headGroupSpec"])["containers"][0])
        assert {name: known.get(MAX_RUN_VARIABLE) for name, known in told.items()} == {
            "gpu": shown,
            "cpu": None,
            "head": None,
        }


def test_shared_memory_holds_rays_object_store_and_loader_workers(deploy: Deploy) -> None:
    for template in templates(spec(deploy)):
        (container,) = template["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        shared = int(volumes["shared-mem"]["emptyDir"]["sizeLimit"].removesuffix("Gi"))
        memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi"))

        assert {m["name"]: m["mountPath"] for m in container["volumeMounts"]}["shared-mem"] == "/dev/shm"
        # Ray takes 30 % of the memory, at most 200 GB, and goes to disk where /dev/shm is smaller (ray 2.60,
        # _private/ray_constants.py, DEFAULT_OBJECT_STORE_MEMORY_PROPORTION and DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES).
        assert shared << 30 >= min(0.3 * (memory << 30), 200e9)


def test_no_autoscaler_but_ray_s_own_takes_a_pod_away(deploy: Deploy) -> None:
    for template in templates(spec(deploy)):
        assert template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_the_head_and_cpu_workers_stay_on_their_own_pools(deploy: Deploy) -> None:
    found = spec(deploy)

    assert pod(found["headGroupSpec"])["nodeSelector"] == {"oasis/pool": "system"}
    assert "tolerations" not in pod(found["headGroupSpec"])
    cpu = pod(worker_groups(found)["cpu"])
    assert cpu["nodeSelector"] == {"oasis/pool": "cpu"}
    assert [(entry["key"], entry["value"]) for entry in cpu["tolerations"]] == [("oasis/pool", "cpu")]


def test_no_pod_has_a_way_to_its_node_and_no_container_but_the_autoscaler_a_kubernetes_token(deploy: Deploy) -> None:
    deployment = build(deploy)
    found = deployment.only(RAY_CLUSTER).inputs["spec"]

    for template in templates(found):
        spec_ = template["spec"]
        assert spec_["serviceAccountName"] == "ray"
        assert spec_["securityContext"]["runAsNonRoot"] is True
        assert {"hostNetwork", "hostPID", "hostIPC"} & set(spec_) == set()
        for container in [*spec_["containers"], *spec_.get("initContainers", [])]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in container["securityContext"]
            assert not {m["name"] for m in container["volumeMounts"]} & tokens(spec_)
        assert not any("hostPath" in volume for volume in spec_["volumes"])
        assert spec_["automountServiceAccountToken"] is False
    assert {volume for template in templates(found) for volume in tokens(template["spec"])} == tokens(
        pod(found["headGroupSpec"])
    )
    (mount,) = found["autoscalerOptions"]["volumeMounts"]
    assert {mount["name"]} == tokens(pod(found["headGroupSpec"]))
    # Where Ray's autoscaler looks (ray 2.60, _private/kuberay/node_provider.py).
    assert mount["mountPath"] == str(Path(node_provider.IN_CLUSTER_TOKEN_PATH).parent)
    (projected,) = (v["projected"] for v in pod(found["headGroupSpec"])["volumes"] if v["name"] == mount["name"])
    files = {item["path"] for source in projected["sources"] for item in files_of(source)}
    assert {"token", Path(node_provider.IN_CLUSTER_CA_CERT_PATH).name} <= files
    labels = deployment.only("kubernetes:core/v1:Namespace").inputs["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "baseline"}


def tokens(spec_: dict[str, Any]) -> set[str]:
    """Names of the volumes of a pod that bring a Kubernetes token."""
    return {
        volume["name"]
        for volume in spec_["volumes"]
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", ()))
    }


def files_of(source: dict[str, Any]) -> list[dict[str, Any]]:
    """Files that one source of a projected volume brings."""
    (content,) = source.values()
    return content.get("items", [content])


def test_the_data_mount_is_cached_and_read_only_and_the_runs_mount_is_neither(deploy: Deploy) -> None:
    for template in templates(spec(deploy)):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        mounts = {mount["name"]: mount for mount in template["spec"]["containers"][0]["volumeMounts"]}
        data, runs = (volumes[name]["csi"] for name in ("data", "runs"))

        assert (data["volumeAttributes"]["bucketName"], mounts["data"]["mountPath"]) == ("data-bucket", "/data")
        assert data["readOnly"] is mounts["data"]["readOnly"] is True
        assert "file-cache:cache-file-for-range-read:true" in data["volumeAttributes"]["mountOptions"]
        assert (runs["volumeAttributes"]["bucketName"], mounts["runs"]["mountPath"]) == ("runs-bucket", "/bucket")
        options = runs["volumeAttributes"]["mountOptions"].split(",")
        assert {"metadata-cache:ttl-secs:0", "write:enable-streaming-writes:true"} <= set(options)
        assert not any(option.startswith("file-cache") for option in options)
        assert template["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"
        assert mounts["scratch"]["mountPath"] == "/scratch"
        assert volumes["shared-mem"]["emptyDir"]["medium"] == "Memory"


def test_the_fuse_sidecar_has_no_limit_that_could_end_it_and_reserves_what_it_needs(deploy: Deploy) -> None:
    for template in templates(spec(deploy)):
        found = template["metadata"]["annotations"]

        assert {found[f"gke-gcsfuse/{kind}-limit"] for kind in ("cpu", "memory", "ephemeral-storage")} == {"0"}
        assert int(found["gke-gcsfuse/cpu-request"].removesuffix("m")) > 0
        assert int(found["gke-gcsfuse/memory-request"].removesuffix("Mi")) >= 256
        assert found["gke-gcsfuse/ephemeral-storage-request"] == "1Gi"


def test_each_mount_caches_what_its_readers_may_see_late(deploy: Deploy) -> None:
    for template in templates(spec(deploy)):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        attributes = {name: volumes[name]["csi"]["volumeAttributes"] for name in ("data", "runs")}
        data, runs = (set(attributes[name]["mountOptions"].split(",")) for name in ("data", "runs"))
        training = template["spec"].get("nodeSelector", {}).keys() == {"cloud.google.com/compute-class"}

        assert data >= {
            "implicit-dirs",
            f"metadata-cache:ttl-secs:{-1 if training else 60}",
            "metadata-cache:negative-ttl-secs:0",
            "metadata-cache:stat-cache-max-size-mb:-1",
            "metadata-cache:type-cache-max-size-mb:-1",
            "file-cache:enable-parallel-downloads:true",
            "read_ahead_kb=1024",
        }
        assert runs >= {
            "implicit-dirs",
            "metadata-cache:ttl-secs:0",
            "metadata-cache:negative-ttl-secs:0",
            "file-system:kernel-list-cache-ttl-secs:0",
        }
        assert (attributes["data"].get("gcsfuseMetadataPrefetchOnMount") == "true") is training
        assert "gcsfuseMetadataPrefetchOnMount" not in attributes["runs"]


def test_a_full_file_cache_never_evicts_its_pod(deploy: Deploy) -> None:
    for template in templates(spec(deploy)):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        options = dict(
            option.rsplit(":", 1)
            for option in volumes["data"]["csi"]["volumeAttributes"]["mountOptions"].split(",")
            if ":" in option
        )
        limit_gib = int(volumes["gke-gcsfuse-cache"]["emptyDir"]["sizeLimit"].removesuffix("Gi"))
        assert int(options["file-cache:max-size-mb"]) < limit_gib * 1024


def test_a_machine_without_rdma_needs_no_gib(deploy: Deploy) -> None:
    group = gpu_group(machine=MACHINES["g2-standard-4"], device_networks=[])

    template = worker_groups(spec(deploy, gpu=group))["gpu"]["template"]
    assert "initContainers" not in template["spec"]
    assert "command" not in template["spec"]["containers"][0]
    assert not any(key.startswith("networking.gke.io") for key in template["metadata"]["annotations"])
    assert "gib" not in {volume["name"] for volume in template["spec"]["volumes"]}


# ---- gIB is required: the rendered commands under bash


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a container's command where `ray` only says how it was called, in an environment that has nothing else."""
    ray = folder / "bin" / "ray"
    ray.parent.mkdir(exist_ok=True)
    ray.write_text('#!/bin/bash\necho "ray $* with NCCL_NET=$NCCL_NET"\n')
    ray.chmod(0o755)
    path = f"{ray.parent}{os.pathsep}{os.defpath}"
    return subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, timeout=30, check=False)


def as_kuberay_starts_it(container: dict[str, Any], options: str = "--num-gpus=8") -> list[str]:
    """The container's final command: what ray-operator v1.6.2 does in controllers/ray/common/pod.go, BuildPod.

    Args:
        container: as rendered.
        options: of `ray start`, besides `--block`.
    """
    joined = "".join(f" {word} " for word in (*container.get("command", []), *container.get("args", [])))
    assert "ray start" not in joined  # KubeRay would take it for a start command, and add none
    start = f"ulimit -n 65536; ray start  --block  {options} "
    return ["/bin/bash", "-c", "--", f"{joined} && {start}" if joined else start]


@pytest.fixture
def gib_folder(tmp_path: Path) -> Path:
    """A whole gIB."""
    folder = tmp_path / "gib"
    for name in ("lib64/libnccl-net.so", "lib64/libibverbs.so.1", "configs/tuner_config_a3u.txtpb"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "scripts").mkdir()
    (folder / "scripts" / "set_nccl_env.sh").write_text("export NCCL_NET=gIB\n")
    return folder


def gpu_container(deploy: Deploy, folder: Path) -> dict[str, Any]:
    container = pod(worker_groups(spec(deploy))["gpu"])["containers"][0]
    return {**container, "command": [word.replace(GIB_DIRECTORY, str(folder)) for word in container["command"]]}


def test_with_gib_ray_starts_with_its_settings(deploy: Deploy, gib_folder: Path, tmp_path: Path) -> None:
    done = run(as_kuberay_starts_it(gpu_container(deploy, gib_folder)), tmp_path)

    assert done.stdout == "ray start --block --num-gpus=8 with NCCL_NET=gIB\n"
    assert done.returncode == 0


MISSING = ("lib64/libnccl-net.so", "configs/tuner_config_a3u.txtpb", "scripts/set_nccl_env.sh", "everything")


def take_out(folder: Path, missing: str) -> None:
    """What is left of a gIB that is not whole."""
    if missing == "everything":
        shutil.rmtree(folder)
        folder.mkdir()
    else:
        (folder / missing).unlink()


@pytest.mark.parametrize("missing", MISSING)
def test_without_a_whole_gib_ray_never_starts(deploy: Deploy, gib_folder: Path, tmp_path: Path, missing: str) -> None:
    take_out(gib_folder, missing)

    done = run(as_kuberay_starts_it(gpu_container(deploy, gib_folder)), tmp_path)

    assert done.stdout == ""
    assert (done.returncode, str(gib_folder) in done.stderr) == (9, True)


def test_a_cpu_worker_starts_without_gib(deploy: Deploy, tmp_path: Path) -> None:
    container = pod(worker_groups(spec(deploy))["cpu"])["containers"][0]

    assert run(as_kuberay_starts_it(container), tmp_path).stdout.startswith("ray start")


@pytest.mark.parametrize("group", ["cpu", "gpu"])
def test_the_signal_that_ends_a_worker_reaches_ray_which_then_drains(
    deploy: Deploy, gib_folder: Path, tmp_path: Path, group: str
) -> None:
    cpu = pod(worker_groups(spec(deploy))["cpu"])["containers"][0]
    container = gpu_container(deploy, gib_folder) if group == "gpu" else cpu
    ray = tmp_path / "bin" / "ray"
    ray.parent.mkdir()
    ray.write_text("#!/bin/bash\ntrap 'echo drained; exit 0' TERM\necho started\nwhile :; do sleep 0.05; done\n")
    ray.chmod(0o755)
    command, path = as_kuberay_starts_it(container), f"{ray.parent}{os.pathsep}{os.defpath}"

    with subprocess.Popen(command, env={"PATH": path}, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == "started\n"
        worker.terminate()  # as the kubelet does, to the container's first process alone
        try:
            told, _ = worker.communicate(timeout=10)
        finally:
            worker.kill()

    assert (told, worker.returncode) == ("drained\n", 0)


def copy(deploy: Deploy, source: Path, folder: Path, **broken: str) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the init container's script with folders for the image's gIB and for the volume.

    Args:
        deploy: renders the pod.
        source: what the image has.
        folder: where to put what stands for the image's programs, and the volume.
        broken: scripts that stand for programs of the image.
    """
    gpu = pod(worker_groups(spec(deploy))["gpu"])
    (container,) = gpu["initContainers"]
    (mount,) = container["volumeMounts"]
    seen = [each["mountPath"] for each in gpu["containers"][0]["volumeMounts"] if each["name"] == mount["name"]]
    assert seen == [GIB_DIRECTORY]  # what is copied is what the worker looks at
    assert not mount.get("readOnly")
    assert {v["name"]: v for v in gpu["volumes"]}[mount["name"]] == {"name": mount["name"], "emptyDir": {}}
    volume, programs = folder / "volume", folder / "bin"
    volume.mkdir()
    programs.mkdir()
    for name, text in {"container_entry.sh": "exit 0", **broken}.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    places = {
        mount["mountPath"]: volume,
        "/var/lib/gib": source,
        "/scripts/container_entry.sh": programs / "container_entry.sh",
    }
    command = container["command"]
    for there, here in places.items():
        command = [word.replace(there, str(here)) for word in command]
    path = f"{programs}{os.pathsep}{os.defpath}"
    done = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True, timeout=30, check=False)
    return done, volume


def test_the_init_container_brings_all_of_gib_and_then_ray_starts(
    deploy: Deploy, gib_folder: Path, tmp_path: Path
) -> None:
    done, volume = copy(deploy, gib_folder, tmp_path)

    assert done.returncode == 0, done.stderr
    names = {str(file.relative_to(gib_folder)) for file in gib_folder.rglob("*")}
    assert names == {str(file.relative_to(volume)) for file in volume.rglob("*")}
    assert run(as_kuberay_starts_it(gpu_container(deploy, volume)), tmp_path).returncode == 0


@pytest.mark.parametrize("missing", MISSING)
def test_an_image_without_a_whole_gib_ends_the_pod(
    deploy: Deploy, gib_folder: Path, tmp_path: Path, missing: str
) -> None:
    take_out(gib_folder, missing)

    done, volume = copy(deploy, gib_folder, tmp_path)

    assert done.returncode == 9
    assert f"{gib.IMAGE} gave no whole gIB" in done.stderr
    lacking = "lib64" if missing == "everything" else Path(missing).parent
    assert f"ls: cannot access '{volume / lacking}/" in done.stderr


@pytest.mark.parametrize("program", ["container_entry.sh", "cp"])
def test_a_step_that_fails_ends_the_pod_though_every_file_looked_for_is_there(
    deploy: Deploy, gib_folder: Path, tmp_path: Path, program: str
) -> None:
    # As on a full disk: the last file is missing.
    real = shutil.which("cp", path=os.defpath)
    broken = {"cp": f'{real} "$@"; rm {tmp_path}/volume/lib64/libibverbs.so.1; exit 1', "container_entry.sh": "exit 1"}

    done, _volume = copy(deploy, gib_folder, tmp_path, **{program: broken[program]})

    assert done.returncode not in (0, 9)


def test_gib_is_pinned_leaves_nccl_the_image_s_own_and_cannot_be_changed_by_a_job(deploy: Deploy) -> None:
    gpu = pod(worker_groups(spec(deploy))["gpu"])
    (init,), (container,) = gpu["initContainers"], gpu["containers"]

    assert re.fullmatch(r"us-docker\.pkg\.dev/gce-ai-infra/gpudirect-gib/nccl-plugin-gib:v\d+\.\d+\.\d+", init["image"])
    assert "--install-nccl" not in " ".join(init["command"])
    assert [mount["readOnly"] for mount in container["volumeMounts"] if mount["name"] == "gib"] == [True]


# ---- what stands around the cluster


def test_the_dashboard_is_behind_no_load_balancer_unless_an_address_is_given(deploy: Deploy) -> None:
    assert build(deploy).of_type("kubernetes:core/v1:Service") == []
    assert port_forward_command("ray", "oasis", 9000) == (
        "kubectl --namespace ray port-forward service/oasis-head-svc 9000:8265"
    )


def test_the_load_balancer_is_internal_and_for_the_given_ranges_alone(deploy: Deploy) -> None:
    deployment = build(deploy, load_balancer=LOAD_BALANCER)

    service = deployment.only("kubernetes:core/v1:Service").inputs
    assert service["metadata"]["annotations"]["networking.gke.io/load-balancer-type"] == "Internal"
    assert service["spec"]["loadBalancerIP"] == "10.64.0.50"
    assert service["spec"]["externalTrafficPolicy"] == "Local"  # or the policies would see nodes instead of clients
    assert service["spec"]["loadBalancerSourceRanges"] == ["10.64.0.0/16"]
    assert service["spec"]["ports"] == [{"name": "dashboard", "port": 8265, "targetPort": 8265}]
    policies = {policy.name for policy in deployment.of_type("kubernetes:networking.k8s.io/v1:NetworkPolicy")}
    assert "dashboard-clients" in policies


def test_the_budget_protects_the_head_and_nothing_else(deploy: Deploy) -> None:
    budget = build(deploy).only("kubernetes:policy/v1:PodDisruptionBudget").inputs["spec"]

    assert budget["minAvailable"] == 1
    assert budget["selector"]["matchLabels"] == {"ray.io/cluster": "oasis", "ray.io/node-type": "head"}


def test_on_destroy_our_cluster_goes_first_then_users_workloads_then_what_they_lived_in(deploy: Deploy) -> None:
    deployment = build(deploy, load_balancer=LOAD_BALANCER)

    cluster = deployment.only(RAY_CLUSTER)
    (workloads,) = [resource for resource in deployment if resource.type.endswith(":WorkloadsGone")]
    assert deployment.is_before(workloads, cluster)
    assert deployment.is_before(workloads, deployment.only("kubernetes:core/v1:Service"))
    for type_ in (
        "core/v1:Namespace",
        "core/v1:ServiceAccount",
        "core/v1:ConfigMap",
        "networking.k8s.io/v1:NetworkPolicy",
        "policy/v1:PodDisruptionBudget",
        "admissionregistration.k8s.io/v1:ValidatingAdmissionPolicy",
        "admissionregistration.k8s.io/v1:ValidatingAdmissionPolicyBinding",
    ):
        for resource in deployment.of_type(f"kubernetes:{type_}"):
            assert deployment.is_before(resource, workloads), resource.name


def test_the_cluster_waits_for_the_class_and_the_networks_that_its_pods_name(deploy: Deploy) -> None:
    def program() -> None:
        class_args = ComputeClassArgs(
            class_name="h200", pool_names=["flex"], consolidation_delay_minutes=10, kubeconfig="{}"
        )
        class_name = ComputeClass("class", class_args).class_name
        args = DeviceNetworksArgs(
            nics=[AdditionalNetwork(network="vpc", subnetwork=f"subnet-{i}") for i in range(9)],
            kubeconfig="{}",
        )
        networks = DeviceNetworks("devices", args).network_names
        RayCluster("ray", arguments(gpu=gpu_group(compute_class=class_name, device_networks=networks)))

    deployment = deploy(program)

    networks = deployment.of_type("kubernetes:networking.gke.io/v1:Network")
    assert [network.name for network in networks] == sorted(NETWORKS)
    for needed in (*networks, deployment.only("kubernetes:cloud.google.com/v1:ComputeClass")):
        assert deployment.is_before(needed, deployment.only(RAY_CLUSTER))


def test_outputs_are_the_names_that_jobs_and_people_use(deploy: Deploy) -> None:
    component = build(deploy).only("oasis:index:RayCluster")

    assert component.outputs == {"ray_namespace": "ray", "ray_cluster_name": "oasis"}
