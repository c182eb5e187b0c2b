"""Helm releases of the emulated cluster: installing the KubeRay chart starts the real operator as a local process.

The chart itself is not rendered: its CRDs, its Deployment (whose pod kwok pretends to run) and Helm's own record are
made from here. Its CRDs can also be had as a chart from `emulator.rest.charts`, the repository that the local stack
names.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from emulator.kubernetes import control_plane, crds, pod_network
from emulator.kubernetes.api import Api, ApiError, Body
from emulator.kubernetes.wait import NotReadyError, until_gone, until_ready
from emulator.machine.state import EmulatorError, State
from emulator.programs.go_modules import TOOLS

RELEASE = "kubernetes:helm.sh/v3:Release"
CHART = "kuberay-operator"

_MANAGER = "helm"
_VALUES = {"affinity", "image", "nodeSelector", "priorityClassName", "resources", "tolerations"}
"""Values of the chart that the Deployment below carries out (ray-project/kuberay, kuberay-operator/values.yaml)."""

_INPUTS = {
    "atomic",
    "chart",
    "cleanupOnFail",
    "createNamespace",
    "maxHistory",
    "name",
    "namespace",
    "repositoryOpts",
    "skipAwait",
    "skipCrds",
    "timeout",
    "values",
    "version",
    "waitForJobs",
    "compat",
}
_READY_SECONDS = 240
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on loopback, whatever proxy there is


def check(inputs: Body, old: Body, resource: str) -> tuple[Body, tuple[str, str] | None]:
    """The inputs with a name, and what the emulator cannot install: the input's name and the reason."""
    checked = {"namespace": "default", **inputs}
    checked.setdefault("name", old.get("name") or f"{resource}-{uuid.uuid4().hex[:8]}")
    unknown = sorted(set(inputs) - _INPUTS)
    if unknown:
        return checked, (unknown[0], f"the emulated Helm does not know it; it knows {', '.join(sorted(_INPUTS))}")
    if inputs.get("chart") != CHART:
        return checked, (
            "chart",
            f"{inputs.get('chart')!r} cannot be installed: the emulator has a program for {CHART} only",
        )
    if str(inputs.get("version", "")).removeprefix("v") != operator_version():
        pinned = f"{operator_version()} (emulator/tools/kuberay/go.mod)"
        reason = f"{inputs.get('version')!r} is not what the emulator builds, {pinned}"
        return checked, ("version", reason)
    values = inputs.get("values")
    foreign = sorted(set(values) - _VALUES) if isinstance(values, Mapping) else []
    if foreign:
        return checked, (f"values.{foreign[0]}", f"the emulated chart knows {', '.join(sorted(_VALUES))}")
    return checked, None


def replacing(changed: Iterable[str]) -> list[str]:
    """Changed inputs that need a new release."""
    return [path for path in changed if path in (".name", ".namespace")]


def operator_version() -> str:
    """Version of the KubeRay operator that the emulator builds."""
    pins = (TOOLS / "kuberay" / "go.mod").read_text()
    found = re.search(r"github\.com/ray-project/kuberay/ray-operator v(\S+)", pins)
    if found is None:
        raise EmulatorError(f"{TOOLS / 'kuberay' / 'go.mod'} does not pin the KubeRay operator")
    return found[1]


def apply(api: Api, release: Body, timeout: float, stop: Callable[[], bool]) -> Body:
    """Install or upgrade: namespace, CRDs, Deployment, operator process, Helm's record; waits until all is ready.

    Raises:
        NotReadyError: the operator's pod finds no node in time.
        EmulatorError: the operator's process ended.
    """
    namespace = release["namespace"]
    if release.get("createNamespace"):
        _create(api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    # First, so that its pod finds a node while the definitions are read, which takes seconds.
    deployment = api.apply(_deployment(release), _MANAGER, force=True)
    if not release.get("skipCrds"):
        crds.install_kuberay(api)
    start_operator(State.from_environment())
    if not release.get("skipAwait"):
        try:
            until_ready(api, deployment, release.get("timeout") or timeout, stop)
        except NotReadyError as error:
            raise EmulatorError(
                f"the operator's Deployment is {error.reason}; see `kubectl describe pods -n {namespace}`"
            ) from None
    api.apply(_record(release), _MANAGER, force=True)
    return _outputs(release)


def read(api: Api, before: Body) -> Body | None:
    """The release as it is; None when its record or its operator is gone."""
    found = api.get("v1", "Secret", _record_name(before), before["namespace"])
    alive = State.from_environment().process(CHART) is not None
    return before if found is not None and alive else None


def delete(api: Api, release: Body, timeout: float, stop: Callable[[], bool]) -> None:
    """Uninstall: the operator and its Deployment go; the CRDs and the namespace stay, as with Helm."""
    deployment = _deployment(release)
    State.from_environment().stop(CHART)
    if api.delete(deployment, "Foreground"):
        until_gone(api, deployment, timeout, stop)
    api.delete(_record(release))


def start_operator(state: State) -> None:
    """Start the KubeRay operator unless it runs, and wait until it says that it is ready. Raises EmulatorError."""
    port = state.port(CHART)
    if state.process(CHART) is None:
        command = [
            state.path("bin", CHART),
            "--enable-leader-election=false",
            "--metrics-addr=0",
            f"--health-probe-bind-address=127.0.0.1:{port}",
            "--log-stdout-encoder=console",
        ]
        environment = {"KUBECONFIG": str(control_plane.kubeconfig_file(state)), **pod_network.environment(state)}
        state.spawn(CHART, command, env=environment)
    deadline = time.monotonic() + _READY_SECONDS
    while not _answers(port):
        if state.process(CHART) is None or time.monotonic() > deadline:
            raise EmulatorError(
                f"the KubeRay operator does not come up; the reason is at the end of {state.log(CHART)}"
            )
        time.sleep(0.1)


def _answers(port: int) -> bool:
    try:
        with _DIRECTLY.open(f"http://127.0.0.1:{port}/readyz", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def _create(api: Api, body: Body) -> None:
    try:
        api.create(body)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise


def _deployment(release: Body) -> Body:
    values: Mapping[str, Any] = release.get("values", {})
    labels = {"app.kubernetes.io/name": CHART, "app.kubernetes.io/instance": release["name"]}
    image = {"repository": "quay.io/kuberay/operator", "tag": f"v{release['version']}", **values.get("image", {})}
    container: Body = {"name": CHART, "image": f"{image['repository']}:{image['tag']}"}
    if "resources" in values:
        container["resources"] = values["resources"]
    placement = {
        key: values[key] for key in ("affinity", "nodeSelector", "priorityClassName", "tolerations") if key in values
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": release["name"], "namespace": release["namespace"], "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {**placement, "containers": [container]}},
        },
    }


def _record(release: Body) -> Body:
    """Helm's own record of a release, so that `helm list` finds it (helm/helm, pkg/storage/driver/secrets.go)."""
    content = {
        "name": release["name"],
        "namespace": release["namespace"],
        "version": 1,
        "info": {"status": "deployed", "description": "Install complete"},
        "chart": {"metadata": {"name": CHART, "version": release["version"], "appVersion": release["version"]}},
        "config": release.get("values", {}),
    }
    # Helm compresses and encodes its JSON, and then encodes it once more as every Secret's value is.
    packed = base64.b64encode(gzip.compress(json.dumps(content).encode(), mtime=0))
    labels = {"owner": "helm", "name": release["name"], "status": "deployed", "version": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _record_name(release), "namespace": release["namespace"], "labels": labels},
        "type": "helm.sh/release.v1",
        "data": {"release": base64.b64encode(packed).decode()},
    }


def _record_name(release: Mapping[str, Any]) -> str:
    return f"sh.helm.release.v1.{release['name']}.v1"


def _outputs(release: Body) -> Body:
    status = {
        "appVersion": release["version"],
        "chart": CHART,
        "name": release["name"],
        "namespace": release["namespace"],
        "revision": 1,
        "status": "deployed",
        "version": release["version"],
    }
    names = {"Deployment.apps/apps/v1": [f"{release['namespace']}/{release['name']}"]}
    return {**release, "status": status, "resourceNames": names}
