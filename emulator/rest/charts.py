"""A Helm repository with one chart, the KubeRay operator's, of which it has the resource types alone."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from functools import cached_property

import yaml

from emulator.google.http_message import Request, Response
from emulator.kubernetes import crds
from emulator.kubernetes.kuberay import CHART

PATH = "/charts/"


class ChartRepository:
    """Answers what Helm asks of a repository: its index, and the archive that this names."""

    def answer(self, request: Request) -> Response | None:
        """The answer, or None for a path that is not of the repository."""
        if request.method != "GET" or not request.path.startswith(PATH):
            return None
        version = CHART.version
        name = f"{CHART.name}-{version}.tgz"
        if request.path == f"{PATH}index.yaml":
            digest = hashlib.sha256(self._archive).hexdigest()
            entry = {"name": CHART.name, "version": version, "urls": [name], "digest": digest}
            return Response(body=yaml.safe_dump({"apiVersion": "v1", "entries": {CHART.name: [entry]}}).encode())
        return Response(body=self._archive) if request.path == f"{PATH}{name}" else None

    @cached_property
    def _archive(self) -> bytes:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as files:
            for manifest in crds.kuberay_files():
                member = tarfile.TarInfo(f"{CHART.name}/crds/{manifest.name}")
                member.size = manifest.stat().st_size
                with manifest.open("rb") as content:
                    files.addfile(member, content)
        return gzip.compress(packed.getvalue(), compresslevel=1, mtime=0)
