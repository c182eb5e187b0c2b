"""The KubeRay operator: its process, and a Helm chart for it, since no Go module contains the project's own chart."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from emulator.kubernetes import control_plane, crds, pod_network
from emulator.kubernetes.api import Api, Body
from emulator.machine.state import State
from emulator.programs.go_modules import TOOLS

NAME = control_plane.OPERATORS[0]

# The chart's values (ray-project/kuberay, helm-chart/kuberay-operator/values.yaml) that concern the pod.
_DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .Release.Name }}
  namespace: {{ .Release.Namespace }}
spec:
  replicas: 1
  strategy: {type: Recreate}
  selector:
    matchLabels: &labels
      app.kubernetes.io/name: {{ .Chart.Name }}
      app.kubernetes.io/instance: {{ .Release.Name }}
  template:
    metadata:
      labels: *labels
    spec:
      affinity: {{ toJson .Values.affinity }}
      nodeSelector: {{ toJson .Values.nodeSelector }}
      priorityClassName: {{ toJson .Values.priorityClassName }}
      tolerations: {{ toJson .Values.tolerations }}
      containers:
        - name: {{ .Chart.Name }}
          image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"
          resources: {{ toJson .Values.resources }}
"""


def version() -> str:
    """Version of the operator that the emulator builds."""
    tool, module = crds.KUBERAY
    [found] = re.findall(rf"^\s*{re.escape(module)} v(\S+)", (TOOLS / tool / "go.mod").read_text(), re.MULTILINE)
    return str(found)


def chart() -> Mapping[str, bytes]:
    """The files of the chart, by their paths in it."""
    about = {"apiVersion": "v2", "name": NAME, "version": version()}
    image = {"repository": "quay.io/kuberay/operator", "tag": f"v{version()}"}
    values = {"affinity": {}, "image": image, "nodeSelector": {}, "priorityClassName": "", "resources": {}}
    return {
        "Chart.yaml": json.dumps(about).encode(),
        "values.yaml": json.dumps({**values, "tolerations": []}).encode(),
        "templates/deployment.yaml": _DEPLOYMENT.encode(),
        **{f"crds/{manifest.name}": manifest.read_bytes() for manifest in crds.kuberay_files()},
    }


def start(state: State, _api: Api, _pod: Body) -> None:
    """Start the operator."""
    command = [
        state.path("bin", NAME),
        "--enable-leader-election=false",
        "--metrics-addr=0",
        f"--health-probe-bind-address=127.0.0.1:{state.port(NAME)}",
        "--log-stdout-encoder=console",
    ]
    environment = {"KUBECONFIG": str(control_plane.kubeconfig_file(state)), **pod_network.environment(state)}
    state.spawn(NAME, command, env=environment)
