"""A standing process that runs a Ray on loopback for each RayCluster that KubeRay makes for a RayJob.

A Ray starts when the head's pod has a node, and ends with the RayCluster; the pod is ready once Ray answers. There are
two ways to it, as to a real one: `kubectl port-forward` (which kwok's kubelet passes on) and the operator's requests to
the head's Service (`pod_network`).
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Mapping
from pathlib import Path

from emulator.kubernetes import control_plane, pod_network
from emulator.kubernetes.api import Api, Body
from emulator.kubernetes.pod_network import PodNetwork
from emulator.machine.state import EmulatorError, State
from emulator.ray import deployed_ray
from emulator.ray import nodes as ray_nodes
from emulator.ray.deployed_ray import DeployedRay
from emulator.rest import cloud_server

INTERVAL_SECONDS = 1.0

DASHBOARD_PORT = 8265
"""Port of a head's pod and of its Service (ray-operator v1.6.2, controllers/ray/utils/constant.go)."""

FOLDER = "ray-jobs"
"""Folder that holds one folder per Ray, named like its RayCluster."""

_BY_RAY_JOB = "ray.io/originated-from-crd=RayJob"


class JobClusters:
    """The Rays of all RayJobs of one emulator."""

    def __init__(self, state: State, api: Api, network: PodNetwork) -> None:
        self._state, self._api, self._network = state, api, network

    def step(self) -> None:
        """Start missing Rays, end those no longer wanted, and make the heads ready whose Ray answers."""
        heads = self._api.list("v1", "Pod", labelSelector="ray.io/node-type=head")  # first: each one's cluster is known
        promised = {found["metadata"]["namespace"]: found["data"] for found in deployed_ray.promises(self._api)}
        wanted = {
            cluster["metadata"]["name"]: cluster
            for cluster in self._clusters()
            if cluster["metadata"]["namespace"] in promised
        }
        for running in folders(self._state):
            if running.directory.name not in wanted:
                self._network.forget(running.directory.name)
                end(running)
        for name, cluster in wanted.items():
            if not self._network.knows(name):
                self._start(name, cluster, promised[cluster["metadata"]["namespace"]])
        for pod in heads:
            name = pod["metadata"]["labels"]["ray.io/cluster"]
            # Other clusters have no Ray here; the stack's own Ray is started by the command that deploys it.
            if name not in wanted or self._network.knows(name):
                control_plane.let_ready(self._api, pod)

    def _clusters(self) -> list[Body]:
        found = self._api.list("ray.io/v1", "RayCluster", labelSelector=_BY_RAY_JOB)
        return [cluster for cluster in found if "deletionTimestamp" not in cluster["metadata"]]

    def _start(self, name: str, cluster: Body, promised: Mapping[str, str]) -> None:
        namespace = cluster["metadata"]["namespace"]
        head = f"ray.io/cluster={name},ray.io/node-type=head"
        pods = self._api.list("v1", "Pod", namespace, labelSelector=head)
        secret = self._api.get("v1", "Secret", name, namespace) or {}
        placed = [pod for pod in pods if pod["spec"].get("nodeName")]
        if not placed or "auth_token" not in secret.get("data", {}):
            return
        state = State(_parent(self._state) / name)
        ray_nodes.take_part(state, [self._state, *folders(self._state)])
        port = state.port("ray-dashboard")
        token = base64.b64decode(secret["data"]["auth_token"]).decode()
        deployed, google = DeployedRay(environment=promised, token=token), cloud_server.environment(self._state)
        url = f"http://127.0.0.1:{port}"

        def report(line: str) -> None:
            print(line)
            if name not in {found["metadata"]["name"] for found in self._clusters()}:
                raise EmulatorError(f"RayCluster {name} went before its Ray was up")

        ray_nodes.start(state, deployed, google, report, url=url, mounts=self._state.directory)
        for pod in placed:
            self._forward(pod, port)
        self._network.learn(name, f"{name}-head-svc.{namespace}", port)

    def _forward(self, pod: Body, port: int) -> None:
        """Forward a port as kwok does for `kubectl port-forward` to this pod."""
        metadata = {key: pod["metadata"][key] for key in ("name", "namespace")}
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        target = {"ports": [DASHBOARD_PORT], "target": {"address": "127.0.0.1", "port": port}}
        body = {
            "apiVersion": "kwok.x-k8s.io/v1alpha1",
            "kind": "PortForward",
            "metadata": {**metadata, "ownerReferences": [owner]},
            "spec": {"forwards": [target]},
        }
        self._api.apply(body, "kwok", force=True)


def folders(state: State) -> list[State]:
    """The folder of each Ray that was started for a RayJob."""
    return [State(path) for path in sorted(_parent(state).glob("*")) if path.is_dir()]


def end(running: State) -> None:
    """End one of these Rays and forget it."""
    ray_nodes.stop(running)
    shutil.rmtree(running.directory, ignore_errors=True)


def end_all(state: State) -> None:
    """End all of these Rays, but first the process that would restart them."""
    state.stop(NAME)
    for running in folders(state):
        end(running)


NAME = "job-clusters"
"""Name of the standing process."""


def start(state: State) -> None:
    """Start the standing process unless it runs."""
    state.spawn_module(NAME, "emulator.ray.job_clusters")


def main() -> None:
    """Look after the Rays of RayJobs until the process is ended."""
    state = State.from_environment()
    clusters = JobClusters(state, control_plane.connect(state), pod_network.serve(state))
    control_plane.keep_doing(INTERVAL_SECONDS, [clusters.step])


def _parent(state: State) -> Path:
    return state.path(FOLDER, "_").parent


if __name__ == "__main__":
    main()
