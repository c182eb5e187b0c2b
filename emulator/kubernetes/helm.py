"""Helm releases of the emulated cluster: installing a chart that is known here starts the real operator as a local
process, with its resource types, its Deployment and Helm's own record in the cluster.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from emulator.kubernetes import chart as charts
from emulator.kubernetes import kuberay, kueue
from emulator.kubernetes.api import Api, Body
from emulator.kubernetes.chart import Chart
from emulator.kubernetes.wait import NotReadyError, until_gone, until_ready
from emulator.machine.state import EmulatorError, State

RELEASE = "kubernetes:helm.sh/v3:Release"

CHARTS = {chart.name: chart for chart in (kuberay.CHART, kueue.CHART)}
"""What can be installed."""

_MANAGER = "helm"
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


def check(inputs: Body, old: Body, resource: str) -> tuple[Body, tuple[str, str] | None]:
    """The inputs with a name, and what the emulator cannot install: the input's name and the reason."""
    checked = {"namespace": "default", **inputs}
    checked.setdefault("name", old.get("name") or f"{resource}-{uuid.uuid4().hex[:8]}")
    unknown = sorted(set(inputs) - _INPUTS)
    if unknown:
        return checked, (unknown[0], f"the emulated Helm does not know it; it knows {', '.join(sorted(_INPUTS))}")
    chart = CHARTS.get(_chart_name(inputs))
    if chart is None:
        known = ", ".join(CHARTS)
        reason = f"{inputs.get('chart')!r} cannot be installed: the emulator has programs for {known} only"
        return checked, ("chart", reason)
    if str(inputs.get("version", "")).removeprefix("v") != chart.version:
        pinned = f"{chart.version} (emulator/tools/{chart.tool}/go.mod)"
        reason = f"{inputs.get('version')!r} is not what the emulator builds, {pinned}"
        return checked, ("version", reason)
    values = inputs.get("values")
    foreign = sorted(set(values) - chart.values) if isinstance(values, Mapping) else []
    if foreign:
        return checked, (f"values.{foreign[0]}", f"the emulated chart knows {', '.join(sorted(chart.values))}")
    return checked, None


def replacing(changed: Iterable[str]) -> list[str]:
    """Changed inputs that need a new release."""
    return [path for path in changed if path in (".name", ".namespace")]


def apply(api: Api, release: Body, timeout: float, stop: Callable[[], bool]) -> Body:
    """Install or upgrade: namespace, Deployment, what else the chart has, operator process, Helm's record; waits until
    all is ready.

    Raises:
        NotReadyError: the operator's pod finds no node in time.
        EmulatorError: the operator's process ended.
    """
    chart, state, namespace = _chart(release), State.from_environment(), release["namespace"]
    if release.get("createNamespace"):
        charts.create(api, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    # First, so that its pod finds a node while the definitions are read, which takes seconds.
    deployment = api.apply(chart.deployment(release), _MANAGER, force=True)
    chart.install(api, state, release)
    chart.start(state)
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
    alive = State.from_environment().process(_chart(before).name) is not None
    return before if found is not None and alive else None


def delete(api: Api, release: Body, timeout: float, stop: Callable[[], bool]) -> None:
    """Uninstall: the operator, its Deployment and the chart's other objects go; what is in a chart's `crds` folder and
    the namespace stay, as with Helm."""
    chart, state = _chart(release), State.from_environment()
    deployment = chart.deployment(release)
    state.stop(chart.name)
    if api.delete(deployment, "Foreground"):
        until_gone(api, deployment, timeout, stop)
    chart.uninstall(api, state, release)
    api.delete(_record(release))


def restart(state: State) -> None:
    """Start the operators that have ended by themselves. Raises EmulatorError."""
    ended = state.ended()
    for chart in CHARTS.values():
        if chart.name in ended:
            chart.start(state)


def _chart(release: Mapping[str, Any]) -> Chart:
    return CHARTS[_chart_name(release)]


def _chart_name(release: Mapping[str, Any]) -> str:
    """Last part of a chart's address, which for one in a repository is all of it."""
    return str(release.get("chart", "")).rpartition("/")[2]


def _record(release: Body) -> Body:
    """The Secret in which Helm records a release, without its content (helm/helm, pkg/storage/driver/secrets.go)."""
    labels = {"owner": "helm", "name": release["name"], "status": "deployed", "version": "1"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": _record_name(release), "namespace": release["namespace"], "labels": labels},
        "type": "helm.sh/release.v1",
    }


def _record_name(release: Mapping[str, Any]) -> str:
    return f"sh.helm.release.v1.{release['name']}.v1"


def _outputs(release: Body) -> Body:
    status = {
        "appVersion": release["version"],
        "chart": _chart_name(release),
        "name": release["name"],
        "namespace": release["namespace"],
        "revision": 1,
        "status": "deployed",
        "version": release["version"],
    }
    deployment = _chart(release).deployment(release)["metadata"]["name"]
    names = {"Deployment.apps/apps/v1": [f"{release['namespace']}/{deployment}"]}
    return {**release, "status": status, "resourceNames": names}
