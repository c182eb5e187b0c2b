"""What runs in the pods of the operators: each as a process of this machine, from when its pod has a node to its end.

A standing process, in the place of those nodes' kubelets: kwok only says that pods run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from emulator.kubernetes import control_plane, kuberay, kueue
from emulator.kubernetes.api import Api, Body
from emulator.machine.loopback import answers
from emulator.machine.state import State

INTERVAL_SECONDS = 0.5

_STARTS: Mapping[str, Callable[[State, Api, Body], None]] = {kuberay.NAME: kuberay.start, kueue.NAME: kueue.start}
"""What starts each one's process for its pod, by the name of the process and of its port for health."""


class Operators:
    """The processes of all operators of one emulator."""

    def __init__(self, state: State, api: Api) -> None:
        self._state, self._api = state, api
        self._pods: dict[str, str] = {}
        """By process, uid of the pod that it is in."""

    def step(self) -> None:
        """Start what is missing, end what has no pod any more, and have the pods ready whose process says so."""
        pods = self._api.list("v1", "Pod", labelSelector=f"{control_plane.OPERATOR} in ({', '.join(_STARTS)})")
        for name in _STARTS:
            placed = [
                pod
                for pod in pods
                if pod["metadata"]["labels"][control_plane.OPERATOR] == name
                and pod["spec"].get("nodeName")
                and "deletionTimestamp" not in pod["metadata"]
            ]
            if placed:  # during an upgrade two; there is one process, and it is the new one's
                self._run(name, max(placed, key=lambda pod: str(pod["metadata"]["creationTimestamp"])))
            else:
                self._state.stop(name)

    def _run(self, name: str, pod: Body) -> None:
        metadata = pod["metadata"]
        if self._pods.setdefault(name, metadata["uid"]) != metadata["uid"]:
            self._state.stop(name)
            self._pods[name] = metadata["uid"]
        if self._state.recorded(name) is None:  # one that has ended by itself is told of: `lifecycle.trouble`
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
