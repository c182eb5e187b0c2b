"""The emulator's access to an API server over TLS, by certificates as in its own kubeconfig."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from emulator.kubernetes import certificates
from emulator.kubernetes.api import Api, UnreachableError
from tests.support.loopback import Reply, Request, answering


@pytest.mark.thorough
def test_many_connections_at_once_show_the_clients_certificate_and_all_are_answered(tmp_path: Path) -> None:
    certificates.write_all(tmp_path)

    with answering(answer, tls=asking_for_certificates(tmp_path)) as server:
        api = Api(kubeconfig(server, tmp_path, {"certificate-authority": str(tmp_path / "ca.crt")}))
        with ThreadPoolExecutor(max_workers=32) as callers:
            answers = list(callers.map(lambda number: api.request("GET", f"/{number}"), range(500)))

    assert answers == [{"path": f"/{number}"} for number in range(500)]


@pytest.mark.parametrize("embedded", [False, True], ids=["a file", "embedded"])
def test_a_server_is_trusted_by_the_kubeconfigs_authority_alone(tmp_path: Path, embedded: bool) -> None:
    certificates.write_all(tmp_path / "ours")
    certificates.write_all(tmp_path / "theirs")

    with answering(answer, tls=asking_for_certificates(tmp_path / "ours")) as server:
        trusting = Api(kubeconfig(server, tmp_path / "ours", authority(tmp_path / "ours", embedded)))
        doubting = Api(kubeconfig(server, tmp_path / "ours", authority(tmp_path / "theirs", embedded)))

        assert trusting.request("GET", "/") == {"path": "/"}
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
            doubting.request("GET", "/")


def test_the_authority_is_one_that_later_pythons_take_too(tmp_path: Path) -> None:
    certificates.write_all(tmp_path)
    with answering(answer, tls=asking_for_certificates(tmp_path)) as server:
        strict = ssl.create_default_context(cafile=tmp_path / "ca.crt")
        strict.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
        strict.load_cert_chain(tmp_path / "admin.crt", tmp_path / "admin.key")
        with urllib.request.urlopen(f"{server}/path", context=strict) as reply:
            assert json.load(reply) == {"path": "/path"}


def answer(request: Request) -> Reply:
    if request.path in ("/version", "/apis"):  # what the client asks first
        return 200, {"kind": "APIGroupList", "groups": []}
    return 200, {"path": request.path}


def asking_for_certificates(directory: Path) -> ssl.SSLContext:
    """What the API server presents and asks for."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=directory / "ca.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(directory / "api-server.crt", directory / "api-server.key")
    return context


def authority(directory: Path, embedded: bool) -> dict[str, str]:
    file = directory / "ca.crt"
    if embedded:
        return {"certificate-authority-data": base64.b64encode(file.read_bytes()).decode()}
    return {"certificate-authority": str(file)}


def kubeconfig(server: str, directory: Path, trusted: dict[str, str]) -> dict[str, Any]:
    user = {"client-certificate": str(directory / "admin.crt"), "client-key": str(directory / "admin.key")}
    return {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server, **trusted}}],
        "users": [{"name": "test", "user": user}],
    }
