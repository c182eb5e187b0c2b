"""Kueue: its process, with its webhooks and conversions, and its own Helm chart, directed at that process.

The chart's API for pending workloads (an aggregated API, whose Service would lead to a pod) and its dashboard are left
out. The process is an administrator, whatever roles the chart makes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path

import yaml

from emulator.kubernetes import certificates, control_plane, crds
from emulator.kubernetes.api import Api, Body
from emulator.machine.state import EmulatorError, State, write_atomically
from emulator.programs.go_modules import module_directory

NAME = control_plane.OPERATORS[1]

_WEBHOOK_PORT = "kueue-webhook"
_CERTIFICATES = ("ca.crt", "ca.key", "tls.crt", "tls.key")
_LEFT_OUT = ("templates/visibility/", "templates/kueueviz/", "tests/")
_CLIENT = re.compile(r"clientConfig:\n +service:\n +name: .*\n +namespace: .*\n +path: (\S+)")
_SECRET = "templates/internalcert/secret.yaml"
_SERVICE = "kueue-webhook-service.kueue-system.svc"
"""DNS name in Kueue's certificates: for the release `kueue` in the namespace that it is installed in."""


def archive() -> str:
    """Name of the chart's archive in a repository."""
    about = yaml.safe_load((_source() / "Chart.yaml").read_text())
    return f"{about['name']}-{about['version']}.tgz"


def chart(state: State) -> Mapping[str, bytes]:
    """The files of the chart, by their paths in it. The API server calls a process on this machine, with the
    certificates in the Secret that Kueue has for them."""
    source = _source()
    files = {str(file.relative_to(source)): file.read_text() for file in source.rglob("*.*") if file.is_file()}
    data = _certificates(state)
    address = f"https://127.0.0.1:{state.port(_WEBHOOK_PORT)}"
    client = rf'clientConfig: {{url: "{address}\1", caBundle: {data["ca.crt"]}}}'
    found = {path: _CLIENT.sub(client, text).encode() for path, text in files.items() if not path.startswith(_LEFT_OUT)}
    filled = files[_SECRET].replace(
        "{{- end }}", f"data: {yaml.safe_dump(data, default_flow_style=True)}{{{{- end }}}}"
    )
    return {**found, _SECRET: filled.encode()}


def start(state: State, api: Api, pod: Body) -> None:
    """Start Kueue with its pod's configuration, except what differs for a process on loopback."""
    namespace = pod["metadata"]["namespace"]
    [mounted] = [volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume]
    found = api.get("v1", "ConfigMap", mounted, namespace)
    if found is None:
        raise EmulatorError(f"ConfigMap {mounted}, which Kueue's pod mounts, is not there")
    [text] = found["data"].values()
    configuration = {
        **yaml.safe_load(text),
        "namespace": namespace,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{state.port(NAME)}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": state.port(_WEBHOOK_PORT), "certDir": str(_folder(state))},
        "leaderElection": {"leaderElect": False},
    }
    file = _folder(state) / "config.yaml"
    write_atomically(file, yaml.safe_dump(configuration))
    command = [
        state.path("bin", NAME),
        f"--kubeconfig={control_plane.kubeconfig_file(state)}",
        f"--config={file}",
        "--feature-gates=VisibilityOnDemand=false",
    ]
    state.spawn(NAME, command)


def _certificates(state: State) -> dict[str, str]:
    """The Secret's content, in base64; made on the first call."""
    folder = _folder(state)
    if not (folder / "tls.crt").exists():
        certificates.write_serving(folder, "kueue-ca", _SERVICE)
    return {name: base64.b64encode((folder / name).read_bytes()).decode() for name in _CERTIFICATES}


def _source() -> Path:
    return module_directory(*crds.KUEUE) / "charts" / "kueue"


def _folder(state: State) -> Path:
    return state.path("kubernetes", "kueue", "_").parent
