"""The processes in the pods of operators."""

from __future__ import annotations

import os
import signal

import pytest

from emulator.kubernetes import control_plane, crds, kuberay
from emulator.kubernetes.api import is_true
from tests.emulator.conftest import ControlPlane
from tests.emulator.programs import kubernetes_object
from tests.support.waiting import eventually

pytestmark = pytest.mark.emulated


def test_an_operator_runs_while_its_pod_does_and_one_that_was_killed_comes_back_with_the_next_start(
    bare_cluster: ControlPlane,
) -> None:
    state, api = bare_cluster.state, bare_cluster.api
    crds._install(api, crds.kuberay_files())
    node = kubernetes_object("v1", "Node", "of-operators", {})
    spec = {"nodeName": "of-operators", "containers": [{"name": "c", "image": "i"}]}
    pod = kubernetes_object("v1", "Pod", "operator", spec, "default", labels={control_plane.OPERATOR: kuberay.NAME})
    api.create(node)
    api.create(pod)
    try:
        eventually(lambda: is_true(api.get("v1", "Pod", "operator", "default") or {}, "Ready"))
        process = state.process(kuberay.NAME)
        assert process is not None, "the pod was ready before its process"

        os.kill(process.pid, signal.SIGKILL)
        eventually(lambda: state.ended() == [kuberay.NAME])  # which ends a command that waits for it
        control_plane.start(state)
        eventually(lambda: state.process(kuberay.NAME) is not None)
    finally:
        api.delete(pod)
        api.delete(node)
    eventually(lambda: state.recorded(kuberay.NAME) is None)
