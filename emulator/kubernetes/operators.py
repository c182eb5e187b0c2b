"""The operators in their pods: each is a process on this machine, from when its pod has a node until the pod's end.

This standing process takes the place of those nodes' kubelets: kwok only reports that pods run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from emulator.kubernetes import control_plane, kuberay, kueue
from emulator.kubernetes.api import Api, Body
from emulator.machine.loopback import answers
from emulator.machine.state import State

INTERVAL_SECONDS = 0.5

_STARTS: Mapping[str, Callable[[State, Api, Body], None]] = {kuberay.NAME: kuberay.start, kueue.NAME: kueue.start}
"""Functions that start each operator's process for its pod, by the name of the process and of its health port."""


class Operators:
    """The processes of all operators of one emulator."""

    def __init__(self, state: State, api: Api) -> None:
        self._state, self._api = state, api
        self._pods: dict[str, str] = {}
        """For each process, the uid of its pod."""

    def step(self) -> None:
        """Start missing processes, end those without a pod, and make the pods ready whose process is."""
        pods = self._api.list("v1", "Pod", labelSelector=f"{control_plane.OPERATOR} in ({', '.join(_STARTS)})")
        for name in _STARTS:
            placed = [
                pod
                for pod in pods
                if pod["metadata"]["labels"][control_plane.OPERATOR] == name
                and pod["spec"].get("nodeName")
                and "deletionTimestamp" not in pod["metadata"]
            ]
            if placed:  # two during an upgrade; the single process belongs to the new one
                self._run(name, max(placed, key=lambda pod: str(pod["metadata"]["creationTimestamp"])))
            else:
                self._state.stop(name)

    def _run(self, name: str, pod: Body) -> None:
        metadata = pod["metadata"]
        if self._pods.setdefault(name, metadata["uid"]) != metadata["uid"]:
            self._state.stop(name)
            self._pods[name] = metadata["uid"]
        if self._state.recorded(name) is None:  # one that ended by itself is reported by `lifecycle.trouble`
            _STARTS[name](self._state, self._api, pod)
        silent = control_plane.ANSWERS not in metadata.get("annotations", {})
        if silent and answers(f"http://127.0.0.1:{self._state.port(name)}/readyz"):
            control_plane.let_ready(self._api, pod)


def main() -> None:
    """Look after the operators until the process is ended."""
    state = State.from_environment()
    control_plane.keep_doing(INTERVAL_SECONDS, [Operators(state, control_plane.connect(state)).step])


if __name__ == "__main__":
    main()
