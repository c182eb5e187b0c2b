"""The control plane is real, on loopback alone, and gone afterwards."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml

from emulator import build
from emulator.kubernetes import control_plane
from emulator.kubernetes.api import ApiError
from emulator.machine import processes
from emulator.machine.state import EmulatorError, State
from tests.emulator.conftest import ControlPlane
from tests.support.waiting import eventually

pytestmark = pytest.mark.emulated


def test_it_listens_on_loopback_only_and_down_leaves_no_process_and_no_listener(tmp_path: Path) -> None:
    state = State(tmp_path / ".oasis")
    before = _listening()
    try:
        build.provide(state, print)
        control_plane.start(state)
        owned = processes.owned_by(state.directory)
        ours = {address for address, pid in _listening().items() if pid in owned}
        running = {process.name for process in state.processes()}
    finally:
        state.stop_all()

    assert running == {"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok", "operators"}
    assert ours
    assert {address for address, _ in ours} == {"127.0.0.1"}
    assert processes.owned_by(state.directory) == []
    assert not ours & (_listening().keys() - before)


def test_the_auth_plugin_gives_access_as_gkes_own_would(bare_cluster: ControlPlane) -> None:
    state = bare_cluster.state
    address = json.loads(state.path(control_plane.ADDRESS_FILE).read_text())
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "gke-gcloud-auth-plugin"}
    kubeconfig = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "clusters": [
            {
                "name": "c",
                "cluster": {"server": f"https://{address['endpoint']}", "certificate-authority-data": address["ca"]},
            }
        ],
        "users": [{"name": "c", "user": {"exec": {**plugin, "interactiveMode": "Never", "provideClusterInfo": True}}}],
    }
    file = state.path("test-kubeconfig")
    file.write_text(yaml.safe_dump(kubeconfig))
    environment = {**os.environ, "KUBECONFIG": str(file), "PATH": f"{state.path('bin')}:{os.environ['PATH']}"}

    answer = subprocess.run(
        ["kubectl", "auth", "whoami", "-o", "json"], env=environment, capture_output=True, text=True, check=True
    )

    assert json.loads(answer.stdout)["status"]["userInfo"]["username"] == "deployer"
    assert base64.b64decode(address["ca"]).startswith(b"-----BEGIN CERTIFICATE-----")


def test_keys_and_tokens_are_readable_by_their_owner_alone(bare_cluster: ControlPlane) -> None:
    directory = bare_cluster.state.path("kubernetes")
    secret = [
        *directory.glob("*.key"),
        directory / "tokens.csv",
        directory / "credential.json",
        directory / "kubeconfig",
    ]

    assert {file.name: oct(file.stat().st_mode & 0o077) for file in secret} == {file.name: "0o0" for file in secret}


def test_controllers_run_a_namespace_gets_its_account_and_goes_with_what_is_in_it(bare_cluster: ControlPlane) -> None:
    api = bare_cluster.api
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "controllers"}}
    api.create(namespace)
    eventually(lambda: api.get("v1", "ServiceAccount", "default", "controllers"))
    api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "controllers"}})

    api.delete(namespace)

    eventually(lambda: api.get("v1", "Namespace", "controllers") is None)


def test_a_field_that_does_not_exist_is_refused_by_name(bare_cluster: ControlPlane) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "default"}, "dta": {}}

    with pytest.raises(ApiError, match="dta"):
        bare_cluster.api.apply(body, "test")


def test_a_program_that_cannot_start_is_reported_with_its_log(tmp_path: Path) -> None:
    state = State(tmp_path / ".oasis")
    state.path("bin", "etcd").symlink_to("/bin/false")
    state.path("bin", "kube-apiserver").symlink_to("/bin/false")
    try:
        with pytest.raises(EmulatorError, match=r"ended while it started.*logs/(etcd|kube-apiserver)\.log"):
            control_plane.start(state)
    finally:
        state.stop_all()


def _listening() -> dict[tuple[str | int, ...], int | None]:
    """Address of every TCP listener of this machine, and whose it is."""
    return {tuple(one.laddr): one.pid for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
