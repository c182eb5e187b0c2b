"""The standing Ray's end: complete, also when a node's first process has died, and past a proxy of the user's."""

from __future__ import annotations

import json
import os
import secrets
import signal
import urllib.request
from pathlib import Path

import pytest

from emulator.machine import processes
from emulator.machine.state import State
from emulator.ray import folder as ray_folder
from emulator.ray import nodes as ray_nodes
from tests.emulator.programs import deployed_ray
from tests.support.processes import running
from tests.support.waiting import eventually

pytestmark = pytest.mark.ray

JOB = f"sleep {10**6 + os.getpid()}"


def test_stop_leaves_nothing_of_ray_or_its_jobs_even_if_the_nodes_first_processes_were_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody answers there
    # A folder for temporary files that is too deep for Ray's sockets.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    state = State(tmp_path / ".oasis")
    url = f"http://127.0.0.1:{state.port('ray-dashboard')}"
    deployed = deployed_ray(url, secrets.token_hex(32))
    sessions = ray_folder.session_directory(state.directory)
    assert sessions.is_relative_to("/tmp") and not sessions.is_relative_to(tmp_path)
    try:
        ray_nodes.start(state, deployed, {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"}, print)
        _submit(url, deployed.token)
        eventually(lambda: running(JOB))
        assert ray_nodes.running_jobs(state) == [JOB]
        nodes = state.processes()
        assert len(nodes) == 3
        for node in nodes:
            os.kill(node.pid, signal.SIGKILL)
        eventually(lambda: not state.processes())
    finally:
        ray_nodes.stop(state)

    assert not running(JOB, str(sessions))
    assert [pid for node in nodes for pid in processes.in_session(node.pid)] == []
    assert not sessions.exists()


def _submit(url: str, token: str) -> None:
    body = {"entrypoint": JOB, "entrypoint_resources": {"driver": 0.01}}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/api/jobs/", json.dumps(body).encode(), headers)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        assert answer.status == 200
