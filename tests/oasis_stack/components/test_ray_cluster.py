"""The RayCluster component: what KubeRay, Ray's autoscaler, bash and the Kubernetes API make of it."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ray.autoscaler._private.kuberay import autoscaling_config, node_provider

from oasis_stack.command_line.offline import Deployment
from oasis_stack.components.ray_cluster import port_forward_command
from oasis_stack.facts.machine import MACHINES
from oasis_stack.facts.pod_size import whole_node_pod
from oasis_stack.pod_specs import gib
from tests.support.processes import write_program
from tests.support.waiting import read_rest, read_until
from workloads.environment import CONFIG_MAP, GIB_DIRECTORY, MAX_RUN_VARIABLE, ClusterEnvironment, variable

RAY_CLUSTER = "kubernetes:ray.io/v1:RayCluster"


def spec(deployed: Deployment) -> dict[str, Any]:
    return deployed.only(RAY_CLUSTER).inputs["spec"]


def templates(deployed: Deployment) -> dict[str, dict[str, Any]]:
    """Of the pods: `head`, `cpu` and `gpu`."""
    found = spec(deployed)
    return {
        "head": found["headGroupSpec"]["template"],
        **{group["groupName"]: group["template"] for group in found["workerGroupSpecs"]},
    }


def pods(deployed: Deployment) -> dict[str, dict[str, Any]]:
    return {name: template["spec"] for name, template in templates(deployed).items()}


def containers(deployed: Deployment) -> dict[str, dict[str, Any]]:
    """In which Ray runs."""
    return {name: pod["containers"][0] for name, pod in pods(deployed).items()}


def environment(container: dict[str, Any]) -> dict[str, str]:
    return {variable["name"]: variable["value"] for variable in container["env"] if "value" in variable}


def volumes(pod: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {volume["name"]: volume for volume in pod["volumes"]}


# ---- what KubeRay and Ray read


def test_ray_itself_reads_zero_cpus_and_drivers_on_the_head_and_whole_nodes_in_the_gpu_group(full: Deployment) -> None:
    types = autoscaling_config._generate_available_node_types_from_ray_cr_spec(spec(full))

    size = whole_node_pod(MACHINES["a3-ultragpu-8g"])
    assert types["headgroup"]["resources"] == {"CPU": 0, "memory": 16 << 30, "driver": 1000}
    assert types["gpu"]["resources"] == {"CPU": size.cpus, "GPU": 8, "memory": size.memory_gib << 30}
    assert types["cpu"]["resources"] == {"CPU": 6, "memory": 24 << 30}
    assert {name: (t["min_workers"], t["max_workers"]) for name, t in types.items() if name != "headgroup"} == {
        "cpu": (0, 4),
        "gpu": (0, 8),
    }


def test_replicas_belong_to_rays_autoscaler_and_an_update_takes_the_list_back_by_force(full: Deployment) -> None:
    cluster = full.only(RAY_CLUSTER)

    for group in cluster.inputs["spec"]["workerGroupSpecs"]:
        assert {"replicas", "scaleStrategy"} & set(group) == set()
    assert cluster.inputs["spec"]["enableInTreeAutoscaling"] is True  # what keeps KubeRay from deleting workers
    assert cluster.inputs["metadata"]["annotations"]["pulumi.com/patchForce"] == "true"
    assert cluster.ignore_changes == frozenset()


def test_the_token_is_asked_for_and_the_autoscaler_is_version_two(full: Deployment) -> None:
    assert spec(full)["authOptions"] == {"mode": "token"}
    assert spec(full)["autoscalerOptions"]["version"] == "v2"
    for pod in pods(full).values():
        assert "restartPolicy" not in pod  # autoscaler v2 refuses all but Never, and sets that itself
        assert "RAY_enable_autoscaler_v2" not in environment(pod["containers"][0])


# ---- pods


def test_every_pod_learns_the_whole_contract_from_the_config_map_that_holds_it(full: Deployment) -> None:
    assert full.only("kubernetes:core/v1:ConfigMap").inputs["metadata"] == {"name": CONFIG_MAP, "namespace": "ray"}
    fields = [field.name for field in dataclasses.fields(ClusterEnvironment)]
    for container in containers(full).values():
        assert {
            entry["name"]: entry["valueFrom"]["configMapKeyRef"] for entry in container["env"] if "valueFrom" in entry
        } == {variable(field): {"name": CONFIG_MAP, "key": field} for field in fields}


def test_a_gpu_worker_finds_driver_and_plugin_and_talks_to_others_over_its_first_interface(full: Deployment) -> None:
    container = containers(full)["gpu"]

    found = environment(container)
    assert found["NCCL_SOCKET_IFNAME"] == found["GLOO_SOCKET_IFNAME"] == "eth0"
    annotations = templates(full)["gpu"]["metadata"]["annotations"]
    assert annotations["networking.gke.io/default-interface"] == "eth0"
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    # The driver is where GKE's device plugin mounts it into whatever asks for GPUs.
    assert found["LD_LIBRARY_PATH"] == f"{mounted['gib']}/lib64:/usr/local/nvidia/lib64"


def test_a_rank_that_never_reports_holds_the_others_for_a_bounded_time_and_a_preemption_is_asked_for_often_enough(
    full: Deployment,
) -> None:
    """Unset, it is for ever, in whichever pod the driver or a worker runs; a minute is what a slow checkpoint takes."""
    for container in containers(full).values():
        assert 60 < float(environment(container)["RAY_TRAIN_COLLECTIVE_TIMEOUT_S"]) <= 3600
        assert environment(container)["RAY_TRAIN_PREEMPTION_POLL_INTERVAL_S"] == "1"


def test_a_job_that_waits_for_a_node_outlasts_the_first_rung_of_the_ladder(full: Deployment) -> None:
    """Flex-start asks for 15 minutes (DefaultFlexStartCapacityCheckWaitTime); the next rung's node boots after that."""
    head = environment(containers(full)["head"])
    for name in ("RAY_JOB_START_TIMEOUT_SECONDS", "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"):
        assert float(head[name]) >= 2 * 15 * 60


def test_the_autoscaler_has_more_memory_than_the_operators_default_at_which_it_is_killed(full: Deployment) -> None:
    sizes = {"Mi": 1, "Gi": 1024}
    for kind, asked in spec(full)["autoscalerOptions"]["resources"].items():
        assert int(asked["memory"][:-2]) * sizes[asked["memory"][-2:]] > 512, kind


def test_ray_does_not_warn_of_the_processes_of_as_many_trials_as_the_head_holds(full: Deployment) -> None:
    container = containers(full)["head"]
    resources = container["resources"]["limits"]
    warned_at = 4 * int(environment(container)["RAY_worker_maximum_startup_concurrency"])  # ray 2.60, worker_pool.cc
    # A trial has five there, and they and its `train` take 2 GiB.
    assert warned_at >= 5 * int(resources["memory"].removesuffix("Gi")) / 2


@pytest.mark.parametrize(("name", "seconds"), [("full", "604800"), ("other", "86400")])
def test_gpu_workers_alone_learn_how_long_the_shortest_lived_node_of_the_ladder_runs(
    name: str, seconds: str, request: pytest.FixtureRequest
) -> None:
    pods = containers(request.getfixturevalue(name))
    told = {name: environment(container).get(MAX_RUN_VARIABLE) for name, container in pods.items()}
    assert told == {"gpu": seconds, "cpu": None, "head": None}


def test_shared_memory_holds_rays_object_store_and_loader_workers(full: Deployment) -> None:
    for pod in pods(full).values():
        (container,) = pod["containers"]
        directory = volumes(pod)["shared-mem"]["emptyDir"]
        shared = int(directory["sizeLimit"].removesuffix("Gi"))
        memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi"))

        assert directory["medium"] == "Memory"
        assert {m["name"]: m["mountPath"] for m in container["volumeMounts"]}["shared-mem"] == "/dev/shm"
        # Ray takes 30 % of the memory, at most 200 GB, and goes to disk where /dev/shm is smaller (ray 2.60,
        # _private/ray_constants.py, DEFAULT_OBJECT_STORE_MEMORY_PROPORTION and DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES).
        assert shared << 30 >= min(0.3 * (memory << 30), 200e9)


def test_no_autoscaler_but_ray_s_own_takes_a_pod_away(full: Deployment) -> None:
    for template in templates(full).values():
        assert template["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"


def test_no_pod_has_a_way_to_its_node_and_no_container_but_the_autoscaler_a_kubernetes_token(full: Deployment) -> None:
    for pod in pods(full).values():
        assert pod["serviceAccountName"] == "ray"
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert {"hostNetwork", "hostPID", "hostIPC"} & set(pod) == set()
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in container["securityContext"]
            assert not {m["name"] for m in container["volumeMounts"]} & tokens(pod)
        assert not any("hostPath" in volume for volume in pod["volumes"])
        assert pod["automountServiceAccountToken"] is False
    head = pods(full)["head"]
    assert {volume for pod in pods(full).values() for volume in tokens(pod)} == tokens(head)
    (mount,) = spec(full)["autoscalerOptions"]["volumeMounts"]
    assert {mount["name"]} == tokens(head)
    # Where Ray's autoscaler looks (ray 2.60, _private/kuberay/node_provider.py).
    assert mount["mountPath"] == str(Path(node_provider.IN_CLUSTER_TOKEN_PATH).parent)
    projected = volumes(head)[mount["name"]]["projected"]
    files = {item["path"] for source in projected["sources"] for item in files_of(source)}
    assert {"token", Path(node_provider.IN_CLUSTER_CA_CERT_PATH).name} <= files
    labels = full.only("kubernetes:core/v1:Namespace").inputs["metadata"]["labels"]
    assert labels == {"pod-security.kubernetes.io/enforce": "baseline"}


def tokens(pod: dict[str, Any]) -> set[str]:
    """Names of the volumes of a pod that bring a Kubernetes token."""
    return {
        volume["name"]
        for volume in pod["volumes"]
        if any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", ()))
    }


def files_of(source: dict[str, Any]) -> list[dict[str, Any]]:
    """Files that one source of a projected volume brings."""
    (content,) = source.values()
    return content.get("items", [content])


def test_the_data_mount_is_read_only_and_caches_what_its_readers_may_see_late_and_the_runs_mount_does_neither(
    full: Deployment,
) -> None:
    for name, template in templates(full).items():
        pod = template["spec"]
        mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
        data, runs = (volumes(pod)[volume]["csi"]["volumeAttributes"] for volume in ("data", "runs"))
        cached, fresh = (set(volume["mountOptions"].split(",")) for volume in (data, runs))

        assert [data["bucketName"], runs["bucketName"]] == ["some-project-oasis-data", "some-project-oasis-runs"]
        places = [mounts[volume]["mountPath"] for volume in ("data", "runs", "scratch")]
        assert places == ["/data", "/bucket", "/scratch"]
        assert volumes(pod)["data"]["csi"]["readOnly"] is mounts["data"]["readOnly"] is True
        assert cached >= {
            "implicit-dirs",
            f"metadata-cache:ttl-secs:{-1 if name == 'gpu' else 60}",
            "metadata-cache:negative-ttl-secs:0",
            "metadata-cache:stat-cache-max-size-mb:-1",
            "metadata-cache:type-cache-max-size-mb:-1",
            "file-cache:cache-file-for-range-read:true",
            "file-cache:enable-parallel-downloads:true",
            "read_ahead_kb=1024",
        }
        assert fresh >= {
            "implicit-dirs",
            "metadata-cache:ttl-secs:0",
            "metadata-cache:negative-ttl-secs:0",
            "file-system:kernel-list-cache-ttl-secs:0",
            "write:enable-streaming-writes:true",
        }
        assert not any(option.startswith("file-cache") for option in fresh)
        assert (data.get("gcsfuseMetadataPrefetchOnMount") == "true") is (name == "gpu")
        assert "gcsfuseMetadataPrefetchOnMount" not in runs
        assert template["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"


def test_the_fuse_sidecar_has_no_limit_that_could_end_it_and_reserves_what_it_needs(full: Deployment) -> None:
    for template in templates(full).values():
        found = template["metadata"]["annotations"]

        assert {found[f"gke-gcsfuse/{kind}-limit"] for kind in ("cpu", "memory", "ephemeral-storage")} == {"0"}
        assert int(found["gke-gcsfuse/cpu-request"].removesuffix("m")) > 0
        assert int(found["gke-gcsfuse/memory-request"].removesuffix("Mi")) >= 256
        assert found["gke-gcsfuse/ephemeral-storage-request"] == "1Gi"


def test_a_full_file_cache_never_evicts_its_pod(full: Deployment) -> None:
    for pod in pods(full).values():
        options = volumes(pod)["data"]["csi"]["volumeAttributes"]["mountOptions"].split(",")
        (most,) = (option.rpartition(":")[2] for option in options if option.startswith("file-cache:max-size-mb:"))
        limit_gib = int(volumes(pod)["gke-gcsfuse-cache"]["emptyDir"]["sizeLimit"].removesuffix("Gi"))
        assert int(most) < limit_gib * 1024


# ---- gIB is required: the rendered commands under bash


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a container's command where `ray` only says how it was called, in an environment that has nothing else."""
    ray = write_program(folder / "bin" / "ray", 'echo "ray $* with NCCL_NET=$NCCL_NET"')
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


def gpu_container(deployed: Deployment, folder: Path) -> dict[str, Any]:
    container = containers(deployed)["gpu"]
    return {**container, "command": [word.replace(GIB_DIRECTORY, str(folder)) for word in container["command"]]}


@pytest.mark.parametrize("last", ["", "[[ -n '' ]] && export NCCL_DEBUG=INFO\n"])
def test_with_gib_ray_starts_with_its_settings(full: Deployment, gib_folder: Path, tmp_path: Path, last: str) -> None:
    with (gib_folder / "scripts" / "set_nccl_env.sh").open("a") as script:
        script.write(last)

    done = run(as_kuberay_starts_it(gpu_container(full, gib_folder)), tmp_path)

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
def test_without_a_whole_gib_ray_never_starts(full: Deployment, gib_folder: Path, tmp_path: Path, missing: str) -> None:
    take_out(gib_folder, missing)

    done = run(as_kuberay_starts_it(gpu_container(full, gib_folder)), tmp_path)

    assert done.stdout == ""
    assert (done.returncode, str(gib_folder) in done.stderr) == (9, True)


def test_a_cpu_worker_starts_without_gib(full: Deployment, tmp_path: Path) -> None:
    assert run(as_kuberay_starts_it(containers(full)["cpu"]), tmp_path).stdout.startswith("ray start")


@pytest.mark.parametrize("group", ["cpu", "gpu"])
def test_the_signal_that_ends_a_worker_reaches_ray_which_then_drains(
    full: Deployment, gib_folder: Path, tmp_path: Path, group: str
) -> None:
    container = gpu_container(full, gib_folder) if group == "gpu" else containers(full)["cpu"]
    drains = "trap 'echo drained; exit 0' TERM\necho started\nwhile :; do sleep 0.05; done"
    ray = write_program(tmp_path / "bin" / "ray", drains)
    command, path = as_kuberay_starts_it(container), f"{ray.parent}{os.pathsep}{os.defpath}"

    with subprocess.Popen(command, env={"PATH": path}, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None and worker.stdout.readline() == "started\n"
        worker.terminate()  # as the kubelet does, to the container's first process alone
        try:
            told, _ = worker.communicate(timeout=10)
        finally:
            worker.kill()

    assert (told, worker.returncode) == ("drained\n", 0)


def test_an_autoscaler_that_ends_is_started_again_and_one_that_is_told_to_end_is_not(
    full: Deployment, tmp_path: Path
) -> None:
    write_program(
        tmp_path / "ray",
        f"test -e {tmp_path}/failed || {{ touch {tmp_path}/failed; echo failed $*; exit 1; }}\n"
        "trap 'echo ended; exit 0' TERM\necho started $*\nwhile :; do sleep; done",
    )
    write_program(tmp_path / "sleep", "exec /bin/sleep 0.05")  # the seconds before it is started again, too
    given = {one["name"]: one["value"] for one in spec(full)["autoscalerOptions"]["env"]}
    environment = {**given, "PATH": f"{tmp_path}{os.pathsep}{os.defpath}"}
    # As ray-operator v1.6.2 has it (controllers/ray/common/pod.go, BuildAutoscalerContainer).
    command = ["/bin/bash", "-c", "--", "ray kuberay-autoscaler --cluster-name a"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as container:
        try:
            for said in ("failed", "started"):
                assert read_until(container, said) == f"{said} kuberay-autoscaler --cluster-name a\n"
            container.terminate()
            assert read_rest(container) == "ended\n"
        finally:
            container.kill()


def copy(
    deployed: Deployment, source: Path, folder: Path, **broken: str
) -> tuple[subprocess.CompletedProcess[str], Path]:
    """Run the init container's script with folders for the image's gIB and for the volume.

    Args:
        deployed: has the pod.
        source: what the image has.
        folder: where to put what stands for the image's programs, and the volume.
        broken: scripts that stand for programs of the image.
    """
    gpu = pods(deployed)["gpu"]
    (container,) = gpu["initContainers"]
    (mount,) = container["volumeMounts"]
    seen = [each["mountPath"] for each in gpu["containers"][0]["volumeMounts"] if each["name"] == mount["name"]]
    assert seen == [GIB_DIRECTORY]  # what is copied is what the worker looks at
    assert not mount.get("readOnly")
    assert volumes(gpu)[mount["name"]] == {"name": mount["name"], "emptyDir": {}}
    volume, programs = folder / "volume", folder / "bin"
    volume.mkdir()
    for name, text in {"container_entry.sh": "exit 0", **broken}.items():
        write_program(programs / name, text)
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
    full: Deployment, gib_folder: Path, tmp_path: Path
) -> None:
    done, volume = copy(full, gib_folder, tmp_path)

    assert done.returncode == 0, done.stderr
    names = {str(file.relative_to(gib_folder)) for file in gib_folder.rglob("*")}
    assert names == {str(file.relative_to(volume)) for file in volume.rglob("*")}
    assert run(as_kuberay_starts_it(gpu_container(full, volume)), tmp_path).returncode == 0


@pytest.mark.parametrize("missing", MISSING)
def test_an_image_without_a_whole_gib_ends_the_pod(
    full: Deployment, gib_folder: Path, tmp_path: Path, missing: str
) -> None:
    take_out(gib_folder, missing)

    done, volume = copy(full, gib_folder, tmp_path)

    assert done.returncode == 9
    assert f"{gib.IMAGE} gave no whole gIB" in done.stderr
    lacking = "lib64" if missing == "everything" else Path(missing).parent
    assert f"ls: cannot access '{volume / lacking}/" in done.stderr


@pytest.mark.parametrize("program", ["container_entry.sh", "cp"])
def test_a_step_that_fails_ends_the_pod_though_every_file_looked_for_is_there(
    full: Deployment, gib_folder: Path, tmp_path: Path, program: str
) -> None:
    # As on a full disk: the last file is missing.
    real = shutil.which("cp", path=os.defpath)
    broken = {"cp": f'{real} "$@"; rm {tmp_path}/volume/lib64/libibverbs.so.1; exit 1', "container_entry.sh": "exit 1"}

    done, _volume = copy(full, gib_folder, tmp_path, **{program: broken[program]})

    assert done.returncode not in (0, 9)


def test_gib_is_pinned_leaves_nccl_the_image_s_own_and_cannot_be_changed_by_a_job(full: Deployment) -> None:
    gpu = pods(full)["gpu"]
    (init,), (container,) = gpu["initContainers"], gpu["containers"]

    assert re.fullmatch(r"us-docker\.pkg\.dev/gce-ai-infra/gpudirect-gib/nccl-plugin-gib:v\d+\.\d+\.\d+", init["image"])
    assert "--install-nccl" not in " ".join(init["command"])
    assert [mount["readOnly"] for mount in container["volumeMounts"] if mount["name"] == "gib"] == [True]


# ---- what stands around the cluster


def test_a_port_forward_leads_to_the_dashboard_from_any_port() -> None:
    assert port_forward_command("ray", "oasis", 9000) == (
        "kubectl --namespace ray port-forward service/oasis-head-svc 9000:8265"
    )


def test_the_load_balancer_leads_to_the_dashboard_and_shows_policies_its_clients(other: Deployment) -> None:
    service = other.only("kubernetes:core/v1:Service").inputs
    assert service["spec"]["externalTrafficPolicy"] == "Local"  # or the policies would see nodes instead of clients
    assert service["spec"]["ports"] == [{"name": "dashboard", "port": 9443, "targetPort": 8265}]
    policies = {policy.name for policy in other.of_type("kubernetes:networking.k8s.io/v1:NetworkPolicy")}
    assert "dashboard-clients" in policies


def test_the_budget_protects_every_head_those_of_jobs_too_and_nothing_else(full: Deployment) -> None:
    budget = full.only("kubernetes:policy/v1:PodDisruptionBudget").inputs["spec"]

    assert budget["minAvailable"] > 1000, "as many heads as there may be"
    assert budget["selector"]["matchLabels"] == {"ray.io/node-type": "head"}
