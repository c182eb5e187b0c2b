"""The KubeRay operator's chart.

Its resource types can also be had as a chart from `emulator.rest.charts`, the repository that the local stack names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from emulator.kubernetes import chart, control_plane, crds, pod_network
from emulator.kubernetes.api import Api, Body
from emulator.kubernetes.chart import Chart
from emulator.machine.state import State

NAME = "kuberay-operator"


def start(state: State) -> None:
    """Start the operator unless it runs, and wait until it says that it is ready. Raises EmulatorError."""
    port = state.port(NAME)
    if state.process(NAME) is None:
        command = [
            state.path("bin", NAME),
            "--enable-leader-election=false",
            "--metrics-addr=0",
            f"--health-probe-bind-address=127.0.0.1:{port}",
            "--log-stdout-encoder=console",
        ]
        environment = {"KUBECONFIG": str(control_plane.kubeconfig_file(state)), **pod_network.environment(state)}
        state.spawn(NAME, command, env=environment)
    chart.await_operator(state, NAME, port)


def _install(api: Api, _state: State, release: Body) -> None:
    if not release.get("skipCrds"):
        crds.install_kuberay(api)


def _uninstall(_api: Api, _state: State, _release: Body) -> None:
    """Helm leaves what is in a chart's `crds` folder."""


def _deployment(release: Body) -> Body:
    values: Mapping[str, Any] = release.get("values", {})
    labels = {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": release["name"]}
    image = {"repository": "quay.io/kuberay/operator", "tag": f"v{release['version']}", **values.get("image", {})}
    return chart.deployment(release, release["name"], labels, image, values)


CHART = Chart(
    name=NAME,
    tool="kuberay",
    module="github.com/ray-project/kuberay/ray-operator",
    # ray-project/kuberay, kuberay-operator/values.yaml
    values=frozenset({"affinity", "image", "nodeSelector", "priorityClassName", "resources", "tolerations"}),
    deployment=_deployment,
    install=_install,
    start=start,
    uninstall=_uninstall,
)
"""The chart."""
