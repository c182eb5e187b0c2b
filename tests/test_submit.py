"""Submission from a laptop: finding the stack, the way to its dashboard, and a job followed over a bad connection."""

from __future__ import annotations

import http.server
import json
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests import stub_kubectl
from tests.stub_kubectl import OUTPUTS
from workloads import __main__ as command_line
from workloads import follow
from workloads.errors import PlaceError

TOKEN = "a-token-of-this-test-alone"


class FakeRay:
    """The part of Ray's Jobs API that a submission uses, with a job whose log grows, over a connection that breaks."""

    def __init__(self) -> None:
        self.token = TOKEN
        self.lines = [f"line {number}" for number in range(8)]
        self.exit_code = 0
        self.broken = 0.0
        self.chance = random.Random(0)
        self.submitted: dict[str, Any] = {}
        self.stopped = False
        self.deaf = False
        self._polls = 0
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def port(self) -> int:
        return self._server.server_address[1]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, Any]:
        if path == "/api/version":
            return 200, {"version": "4", "ray_version": "2.60.0", "ray_commit": "x", "session_name": "x"}
        if path.startswith("/api/packages/"):
            return (404, "") if method == "GET" else (200, {})
        if path == "/api/jobs/" and method == "POST":
            self.submitted = json.loads(body)
            return 200, {"job_id": "x", "submission_id": self.submitted["submission_id"]}
        if path.endswith("/stop"):
            self.stopped = True
            return 200, {"stopped": True}
        if path.endswith("/logs"):
            shown = self.lines[: 2 * self._polls] if not self._ended else self.lines
            return 200, {"logs": "".join(f"{line}\n" for line in shown) + ("" if self._ended else "half a li")}
        if path.startswith("/api/jobs/"):
            self._polls += 1
            return 200, self._details()
        return 404, "no such path"

    @property
    def _ended(self) -> bool:
        return (self.stopped or self._polls > 4) and not self.deaf

    def _details(self) -> dict[str, Any]:
        status = "RUNNING"
        if self._ended:
            status = "STOPPED" if self.stopped else "FAILED" if self.exit_code else "SUCCEEDED"
        return {
            "type": "SUBMISSION",
            "submission_id": self.submitted.get("submission_id", "x"),
            "status": status,
            "entrypoint": "x",
            "message": "",
            "driver_exit_code": self.exit_code if self._ended else None,
        }

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        ray = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _reply(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if ray.chance.random() < ray.broken:
                    self.close_connection = True
                    return
                if self.headers.get("Authorization") != f"Bearer {ray.token}":
                    status, answer = 403, "Forbidden"
                else:
                    status, answer = ray.answer(self.command, self.path, body)
                content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.send_header("Content-Type", "application/json")
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = _reply

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRay]:
    """A stack whose dashboard answers at its URL, and a kubectl that knows it."""
    fake = FakeRay()
    at = replace(OUTPUTS, ray_dashboard_url=f"http://127.0.0.1:{fake.port}")
    monkeypatch.setenv("PATH", stub_kubectl.install(tmp_path, at, TOKEN, fake.port))
    monkeypatch.setattr(follow, "_LEAST_PAUSE_SECONDS", 0.05)
    yield fake
    fake.close()


def test_a_job_is_shown_once_line_by_line_and_its_exit_code_is_ours(
    ray: FakeRay, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.exit_code = 42
    assert command_line.main(["submit", "--", "python3", "hello world.py"]) == 42
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("line")]
    assert shown == ray.lines
    assert ray.submitted["entrypoint"] == "python3 'hello world.py'"
    assert ray.submitted["entrypoint_resources"] == {"driver": 0.01}
    assert not ray.submitted.get("entrypoint_num_cpus")


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_a_connection_that_breaks_loses_no_line_and_repeats_none(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], share: float
) -> None:
    follower = follow.Follower(_jobs(ray), "x")
    ray.broken = share
    assert follow.exit_code(follower.run()) == 0
    assert capsys.readouterr().out.splitlines() == ray.lines


def test_our_own_commands_take_the_package_along_and_report_as_json(
    ray: FakeRay, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.lines = [json.dumps({"event": "note", "text": "hello from the job"})]
    assert command_line.main(["submit", "--", "bench", "--nodes", "2"]) == 0
    assert "hello from the job" in capsys.readouterr().out.splitlines()
    assert ray.submitted["entrypoint"] == "python -m workloads bench --nodes 2"
    assert ray.submitted["runtime_env"]["env_vars"]["OASIS_PROGRESS"] == "json"
    assert ray.submitted["runtime_env"]["working_dir"].startswith("gcs://")


def test_a_detached_job_leaves_its_id_on_stdout_and_how_to_attach_on_stderr(
    ray: FakeRay, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["submit", "--detach", "--context", "far away", "--", "sleep", "100"]) == 0
    printed = capsys.readouterr()
    assert printed.out.split() == [ray.submitted["submission_id"]]
    assert f"jobs attach {printed.out.strip()} --context 'far away'" in printed.err


def test_a_working_directory_is_uploaded_without_what_nobody_wants_in_a_job(ray: FakeRay, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print(1)\n")
    environment = tmp_path / "env.yaml"
    environment.write_text("env_vars: {A: b}\nexcludes: ['*.ckpt']\n")
    arguments = ["--working-dir", str(tmp_path), "--runtime-env", str(environment)]
    assert command_line.main(["submit", *arguments, "--", "python", "job.py"]) == 0
    assert ray.submitted["runtime_env"]["env_vars"]["A"] == "b"
    assert {".venv/", ".git/", "*.ckpt"} <= set(ray.submitted["runtime_env"]["excludes"])


def test_where_the_url_does_not_answer_a_port_forward_on_loopback_is_made_and_ended(
    tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = replace(OUTPUTS, ray_dashboard_url="http://127.0.0.1:1")
    monkeypatch.setenv("PATH", stub_kubectl.install(tmp_path, dead, TOKEN, ray.port))
    assert command_line.main(["submit", "--", "true"]) == 0
    [forward] = stub_kubectl.forwards(tmp_path)
    assert not Path(f"/proc/{forward}").exists()


def test_somebody_else_s_ray_at_the_url_is_passed_by(
    tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FakeRay()
    other.token = "another"
    try:
        at_other = replace(OUTPUTS, ray_dashboard_url=f"http://127.0.0.1:{other.port}")
        monkeypatch.setenv("PATH", stub_kubectl.install(tmp_path, at_other, TOKEN, ray.port))
        assert command_line.main(["submit", "--", "true"]) == 0
    finally:
        other.close()
    assert ray.submitted and not other.submitted


def test_a_refused_token_is_an_authentication_failure(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ray.token = "renewed"
    assert command_line.main(["submit", "--", "true"]) == 7
    assert "refuses the stack's token" in capsys.readouterr().err
    assert not any(Path(f"/proc/{pid}").exists() for pid in stub_kubectl.forwards(tmp_path))


def test_a_secret_that_may_not_be_read_and_a_cluster_without_a_stack_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", stub_kubectl.install(tmp_path, OUTPUTS, token=""))
    assert command_line.main(["jobs", "list"]) == 7
    assert "is forbidden" in capsys.readouterr().err
    monkeypatch.setenv("PATH", stub_kubectl.install(tmp_path, None, TOKEN))
    assert command_line.main(["jobs", "list"]) == 8
    assert "pulumi up" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert command_line.main(["status"]) == 8
    assert "kubectl is not installed" in capsys.readouterr().err


def test_with_a_stack_kubectl_must_point_at_the_same_cluster(
    tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at = replace(OUTPUTS, ray_dashboard_url=f"http://127.0.0.1:{ray.port}")
    pulumi = tmp_path / "pulumi"

    def outputs(values: dict[str, Any]) -> None:
        pulumi.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps(values)}\nEND\n")
        pulumi.chmod(0o755)

    outputs({**vars(at), "gpus_per_node": 8.0, "kubeconfig": "[secret]"})
    assert command_line.main(["submit", "--stack", "dev", "--", "true"]) == 0
    outputs({**vars(at), "cluster_name": "the-other-one"})
    assert command_line.main(["submit", "--stack", "dev", "--", "true"]) == 2
    assert "get_credentials_command --stack dev" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no command"),
        (["--"], "no command"),
        (["--working-dir", "/nowhere", "--", "true"], "/nowhere"),
        (["--runtime-env", "/nowhere.yaml", "--", "true"], "/nowhere.yaml"),
        (["--entrypoint-resources", "driver=1", "--", "true"], "driver=1"),
        (["--entrypoint-resources", '{"driver": "1"}', "--", "true"], "--entrypoint-resources"),
    ],
)
def test_bad_input_is_refused_before_anything_is_submitted(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert command_line.main(["submit", *arguments]) == 2
    assert words in capsys.readouterr().err
    assert not ray.submitted


def test_the_help_names_every_command_and_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["--help"])
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in command_line.COMMANDS)
    assert all(f"{code} " in text for code in (0, 2, 3, 4, 5, 6, 7, 8, 130))


def _jobs(ray: FakeRay) -> follow.Jobs:
    from workloads.dashboard import Dashboard
    from workloads.stack import Stack

    environment = replace(OUTPUTS, ray_dashboard_url=f"http://127.0.0.1:{ray.port}", ray_dashboard_command="")
    return follow.Jobs(Dashboard(Stack(environment=environment, token=TOKEN, kubectl=("kubectl",))))


def test_a_job_that_does_not_stop_is_left_after_its_time_with_a_word(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.deaf = True
    monkeypatch.setattr(follow, "STOP_SECONDS", 0.5)
    pressed: list[bool] = []
    show = follow.Follower._show

    def press_once(follower: follow.Follower, log: str, whole: bool) -> None:
        if not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        show(follower, log, whole)

    monkeypatch.setattr(follow.Follower, "_show", press_once)
    assert command_line.main(["submit", "--", "sleep", "100"]) == 130
    assert ray.stopped
    assert "it has not stopped" in capsys.readouterr().err
    assert command_line.main(["jobs", "stop", ray.submitted["submission_id"]]) == 5
    assert "has not stopped within" in capsys.readouterr().err


def test_a_dashboard_that_is_gone_while_a_job_stops_is_not_waited_for_longer(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "STOP_SECONDS", 0.5)
    jobs = _jobs(ray)
    jobs.stop("x")
    ray.broken = 1.0
    with pytest.raises(PlaceError, match="out of reach for"):
        follow.Follower(jobs, "x").run()


def test_the_token_is_in_no_text_of_a_stack_no_output_and_nothing_that_the_job_is_given(
    ray: FakeRay, capsys: pytest.CaptureFixture[str]
) -> None:
    from workloads.stack import Stack

    assert TOKEN not in repr(Stack(environment=OUTPUTS, token=TOKEN, kubectl=("kubectl",)))
    assert command_line.main(["submit", "--", "bench"]) == 0
    printed = capsys.readouterr()
    assert ray.submitted["entrypoint"] == "python -m workloads bench"
    assert TOKEN not in printed.out + printed.err + json.dumps(ray.submitted)
    assert TOKEN not in os.environ.values()
