"""A Helm repository with the charts of the operators that the emulator runs as processes."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import threading
from collections.abc import Mapping

import yaml

from emulator.google.http_message import Request, Response
from emulator.kubernetes import kuberay, kueue
from emulator.machine.state import State

PATH = "/charts/"


class ChartRepository:
    """Serves what Helm asks of a repository: its index, and the archives that the index names."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._packed: dict[str, tuple[dict[str, str], bytes]] = {}
        """By file name: what the index says of a chart, and its archive."""
        self._packing = threading.Lock()

    def answer(self, request: Request) -> Response | None:
        """The answer, or None for a path outside the repository."""
        if request.method != "GET" or not request.path.startswith(PATH):
            return None
        name = request.path.removeprefix(PATH)
        # Helm and the program ask at the same time, and must get the same certificates in Kueue's chart.
        with self._packing:
            self._packed = self._packed or self._pack()
        if name == "index.yaml":
            entries = {about["name"]: [{**about, "urls": [file]}] for file, (about, _) in self._packed.items()}
            return Response(body=yaml.safe_dump({"apiVersion": "v1", "entries": entries}).encode())
        return Response(body=self._packed[name][1]) if name in self._packed else None

    def _pack(self) -> dict[str, tuple[dict[str, str], bytes]]:
        found = {}
        for files in (kuberay.chart(), kueue.chart(self._state)):
            about = yaml.safe_load(files["Chart.yaml"])
            packed = _archive(about["name"], files)
            digest = hashlib.sha256(packed).hexdigest()
            found[f"{about['name']}-{about['version']}.tgz"] = ({**about, "digest": digest}, packed)
        return found


def _archive(name: str, files: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(f"{name}/{path}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(packed.getvalue(), compresslevel=1, mtime=0)
