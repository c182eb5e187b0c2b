"""A real Kubernetes control plane on loopback: etcd, API server, controller-manager, scheduler, and kwok for kubelets.

It runs from `python -m emulator up` to `down`, whether or not the stack's cluster exists. The emulated cluster's
endpoint is this API server, and `gke-gcloud-auth-plugin` in `.oasis/bin` hands out its token instead of Google's.
"""

from __future__ import annotations

import base64
import json
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from emulator.kubernetes import certificates, crds
from emulator.kubernetes.api import Api, ApiError, Body, KindNotServedError, UnreachableError
from emulator.machine.state import EmulatorError, State, write_atomically
from emulator.programs.go_modules import module_directory

AUTH_PLUGIN = "gke-gcloud-auth-plugin"

ADDRESS_FILE = "control-plane.json"
"""File in the emulator's folder with `endpoint` and `ca` (base64), which the emulated clusters report as their own."""

STAGES_MODULE = ("kubernetes", "sigs.k8s.io/kwok")
"""Folder below `tools/` that pins the module with kwok's stages, and the module."""

ANSWERS = "emulator/answers"
"""Annotation that makes the pod of an operator, or of a Ray's head, ready: set once the process in its place answers.
On Google Cloud the pod's probes check that: those of the charts, and those that KubeRay gives a head (ray-operator
v1.6.2, controllers/ray/common/pod.go, `initLivenessAndReadinessProbe`)."""

OPERATOR = "app.kubernetes.io/name"
"""Label of a pod that names its operator, as charts set it (Helm documentation, "Labels and Annotations")."""

OPERATORS = ("kuberay-operator", "kueue")
"""The operators that run here, by the names of their charts."""

_READY_SECONDS = 240
# kwok's own stages (its repository, kustomize/stage), without `pod-complete`: that ends a Job's pod at once, and
# KubeRay takes a submitter that ended without a finished Ray job for a failure.
_POD_READY = "pod/fast/pod-ready.yaml"
_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    _POD_READY,
    "pod/fast/pod-delete.yaml",
)
_HEAD = '.labels["ray.io/node-type"] == "head"'


def start(state: State, *, heads_wait: bool = False) -> None:
    """Start what is not running and wait until the API server answers.

    Args:
        state: the emulator's folder.
        heads_wait: whether a Ray head's pod is ready only once it has `ANSWERS`, not at once like other pods.

    Raises:
        EmulatorError: a program ended or did not become ready; the message names its log.
    """
    directory = state.path("kubernetes", "_").parent
    if not kubeconfig_file(state).exists():
        certificates.write_all(directory)
        _write_access(state, directory)
    _spawn(state, "etcd", _etcd(state))
    _spawn(state, "kube-apiserver", _api_server(state, directory))
    _wait_until_ready(state)
    kubeconfig = f"--kubeconfig={directory}/kubeconfig"
    controllers = [kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=0"]
    signing = [
        f"--service-account-private-key-file={directory}/service-accounts.key",
        f"--root-ca-file={directory}/ca.crt",
    ]
    _spawn(state, "kube-controller-manager", [*controllers, *signing])
    _spawn(state, "kube-scheduler", controllers)
    crds.install_port_forward(connect(state), module_directory(*STAGES_MODULE))
    # kwok would read and write ~/.kwok
    kwok = [kubeconfig, *_kwok(state, _write_stages(directory, heads_wait))]
    _spawn(state, "kwok", kwok, environment={"HOME": str(directory)})
    for name in {*OPERATORS} & {*state.ended()}:  # the `operators` process does not restart one that ended by itself
        state.stop(name)
    state.spawn_module("operators", "emulator.kubernetes.operators")


def endpoint(state: State) -> str:
    """`127.0.0.1:PORT` of the API server, which is also the emulated cluster's endpoint."""
    return f"127.0.0.1:{state.port('kube-apiserver')}"


def ca_certificate(state: State) -> str:
    """The API server's certificate authority, PEM."""
    return state.path("kubernetes", "ca.crt").read_text()


def kubeconfig_file(state: State) -> Path:
    """Kubeconfig of an administrator with a client certificate; the stack's own uses the auth plugin instead."""
    return state.path("kubernetes", "kubeconfig")


def is_running(state: State) -> bool:
    """True if the API server's process runs."""
    return state.process("kube-apiserver") is not None


def connect(state: State) -> Api:
    """An administrator's connection."""
    return Api(yaml.safe_load(kubeconfig_file(state).read_text()))


def let_ready(api: Api, pod: Body) -> None:
    """Make a pod ready that waits for the process in its place."""
    if ANSWERS not in pod["metadata"].get("annotations", {}):
        api.merge(pod, {"metadata": {"annotations": {ANSWERS: "true"}}})


def keep_doing(
    interval_seconds: float, steps: Sequence[Callable[[], None]], failures: tuple[type[Exception], ...] = ()
) -> None:
    """Repeat these steps until this process is told to end. A failed step is retried if somebody else changed something
    meanwhile, if the API server is being stopped, or if the failure is one of these `failures`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        begun = time.monotonic()
        for step in steps:
            try:
                step()
            except KindNotServedError:
                continue  # a resource type that is not installed yet has no objects
            except (ApiError, EmulatorError, UnreachableError, *failures) as error:
                print(f"{step.__qualname__}: {error}", file=sys.stderr, flush=True)
        time.sleep(max(0.05, interval_seconds - (time.monotonic() - begun)))


def _spawn(state: State, program: str, arguments: list[str], environment: dict[str, str] | None = None) -> None:
    if state.process(program) is None:
        state.spawn(program, [state.path("bin", program), *arguments], env=environment)


def _etcd(state: State) -> list[str]:
    clients = f"http://127.0.0.1:{state.port('etcd-client')}"
    peers = f"http://127.0.0.1:{state.port('etcd-peer')}"
    return [
        f"--data-dir={state.path('kubernetes', 'etcd')}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync=true",  # the emulated cloud does not outlive the machine
        "--log-level=warn",
    ]


def _api_server(state: State, directory: Path) -> list[str]:
    return [
        f"--etcd-servers=http://127.0.0.1:{state.port('etcd-client')}",
        "--bind-address=127.0.0.1",
        f"--secure-port={state.port('kube-apiserver')}",
        "--advertise-address=127.0.0.1",
        "--endpoint-reconciler-type=none",
        f"--cert-dir={directory}",
        f"--tls-cert-file={directory}/api-server.crt",
        f"--tls-private-key-file={directory}/api-server.key",
        f"--client-ca-file={directory}/ca.crt",
        f"--token-auth-file={directory}/tokens.csv",
        f"--service-account-issuer=https://{endpoint(state)}/",
        f"--service-account-key-file={directory}/service-accounts.key",
        f"--service-account-signing-key-file={directory}/service-accounts.key",
        # GKE's default range for Services (Google Cloud documentation, "IP address management in GKE").
        "--service-cluster-ip-range=34.118.224.0/20",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        "--kubelet-preferred-address-types=InternalIP",  # kwok's address; nothing resolves the nodes' host names
        "--profiling=false",
    ]


def _kwok(state: State, stages: Path) -> list[str]:
    port = state.port("kwok")
    return [
        f"--config={stages}",
        "--manage-all-nodes=true",
        "--node-lease-duration-seconds=40",
        f"--server-address=127.0.0.1:{port}",
        # kwok is every node's kubelet, also for `kubectl port-forward`, which leads where a PortForward object says.
        *("--node-ip=127.0.0.1", f"--node-port={port}", "--enable-crds=PortForward"),
    ]


def _wait_until_ready(state: State) -> None:
    api = connect(state)
    deadline = time.monotonic() + _READY_SECONDS
    last = "no answer yet"
    while time.monotonic() < deadline:
        for program in ("etcd", "kube-apiserver"):
            if state.process(program) is None:
                raise EmulatorError(
                    f"{program} ended while it started; the reason is at the end of {state.log(program)}"
                )
        try:
            api.request("GET", "/readyz", query={"verbose": "false"})
            return
        except UnreachableError as error:
            last = str(error)
        except ApiError as error:
            last = error.message
        time.sleep(0.2)
    raise EmulatorError(
        f"the API server is not ready after {_READY_SECONDS} s ({last}); see {state.log('kube-apiserver')}, "
        "then `make down` and try again"
    )


def _write_access(state: State, directory: Path) -> None:
    token = secrets.token_urlsafe(32)
    write_atomically(directory / "tokens.csv", f'{token},deployer,deployer,"system:masters"\n', mode=0o600)
    credential = {
        "apiVersion": "client.authentication.k8s.io/v1beta1",
        "kind": "ExecCredential",
        "status": {"token": token},
    }
    write_atomically(directory / "credential.json", json.dumps(credential), mode=0o600)
    plugin = f"#!/bin/sh\nexec cat {shlex.quote(str(directory / 'credential.json'))}\n"
    write_atomically(state.path("bin", AUTH_PLUGIN), plugin, mode=0o755)
    authority = base64.b64encode(ca_certificate(state).encode()).decode()
    write_atomically(state.path(ADDRESS_FILE), json.dumps({"endpoint": endpoint(state), "ca": authority}))
    write_atomically(directory / "kubeconfig", yaml.safe_dump(_kubeconfig(state, directory)), mode=0o600)


def _kubeconfig(state: State, directory: Path) -> dict[str, Any]:
    name = "oasis-emulator"
    user = {"client-certificate": str(directory / "admin.crt"), "client-key": str(directory / "admin.key")}
    cluster = {"server": f"https://{endpoint(state)}", "certificate-authority": str(directory / "ca.crt")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user}],
    }


def _write_stages(directory: Path, heads_wait: bool) -> Path:
    source = module_directory(*STAGES_MODULE) / "kustomize" / "stage"
    file = directory / "kwok.yaml"
    stages = {name: yaml.safe_load((source / name).read_text()) for name in _STAGES}
    waiting = [f'.labels["{OPERATOR}"] == "{name}"' for name in OPERATORS] + [_HEAD] * heads_wait
    silent = f'.metadata | select(({" or ".join(waiting)}) and .annotations["{ANSWERS}"] == null) | .uid'
    stages[_POD_READY]["spec"]["selector"]["matchExpressions"].append({"key": silent, "operator": "DoesNotExist"})
    write_atomically(file, yaml.safe_dump_all(stages.values()))
    return file
