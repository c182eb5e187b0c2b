"""Submission from a laptop: finding the stack, the way to its dashboard, and a job followed over a bad connection."""

from __future__ import annotations

import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from ray._private import ray_constants

from tests.support import stub_kubectl
from tests.support.command_line import CommandLine
from tests.support.fake_ray import TOKEN, FakeRay, lines_of_job, press_ctrl_c_once
from tests.support.loopback import Reply
from tests.support.processes import write_program
from tests.support.stub_kubectl import OUTPUTS
from tests.support.waiting import eventually
from workloads import __main__ as command_line
from workloads.cluster.stack import CHECKOUT, DeployedStack
from workloads.emulated import ENDPOINT_VARIABLE
from workloads.errors import PlaceError
from workloads.jobs import follow, submit, working_dir
from workloads.jobs.dashboard import Dashboard
from workloads.storage import folders


def test_a_job_is_shown_once_line_by_line_and_its_exit_code_is_ours(ray: FakeRay, cli: CommandLine) -> None:
    ray.exit_code = 42
    ray.lines.append('{"event": "step", "loss": 0.5}')  # its own, whatever ours are called
    said = cli("submit", "--", "python3", "hello world.py", code=42)
    assert said.out.splitlines() == ray.lines
    assert ray.submitted["entrypoint"] == "python3 'hello world.py'"
    assert ray.submitted["entrypoint_resources"] == {"driver": 0.01}
    assert not ray.submitted.get("entrypoint_num_cpus")


def test_an_exit_code_of_another_program_is_not_taken_for_one_of_ours(ray: FakeRay, cli: CommandLine) -> None:
    ray.exit_code = 3
    for command, own in ((["ls"], True), (["bench"], False)):
        ray.submitted.clear()
        last = cli("submit", "--", *command, code=3).err.splitlines()[-1]
        assert "ended with exit code 3" in last and ("its command's own" in last) is own


def test_a_job_whose_driver_never_ran_has_failed(ray: FakeRay, cli: CommandLine) -> None:
    ray.exit_code, ray.message = -1, "its runtime environment could not be set up"
    assert "failed: its runtime environment could not be set up" in cli("submit", "--", "true", code=5).err


@pytest.mark.parametrize("share", [0.1, 0.3, pytest.param(0.5, marks=pytest.mark.thorough)])
def test_a_connection_that_breaks_loses_no_line_and_repeats_none(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], share: float
) -> None:
    follower = follow.Follower(_jobs(ray), "x")
    ray.broken = share
    assert follow.exit_code(follower.run()) == 0
    assert capsys.readouterr().out.splitlines() == ray.lines


def test_a_log_that_is_not_given_at_once_when_the_job_ends_is_asked_for_again(
    ray: FakeRay, capsys: pytest.CaptureFixture[str]
) -> None:
    ray.lines += ["line 8, the last, which comes as the job ends"]
    ray.refusals = 2
    follow.Follower(_jobs(ray), "x").run()
    assert capsys.readouterr().out.splitlines() == ray.lines


def test_the_end_of_a_log_that_is_not_given_is_said_to_be_missing(
    ray: FakeRay, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_LOG_SECONDS", 0.2)
    ray.lines += ["line 8, the last, which comes as the job ends"]
    ray.refusals = 1000
    follow.Follower(_jobs(ray), "x").run()
    printed = capsys.readouterr()
    assert printed.out.splitlines() == ray.lines[:-1]
    assert "the end of the output of job x is not shown: node 10.0.0.1, which ran it, no longer" in printed.err


def test_a_fetch_that_took_minutes_is_followed_by_the_next_within_half_a_minute(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    clock = SimpleNamespace(monotonic=count(0, 60).__next__, sleep=pauses.append)
    monkeypatch.setattr(follow, "time", clock)
    follow.Follower(_jobs(ray), "x").run()
    assert max(pauses) == 30


def test_our_own_commands_take_the_package_along_and_report_as_json(ray: FakeRay, cli: CommandLine) -> None:
    ray.lines = [json.dumps({"event": "note", "text": "hello from the job"}), "10%\r20%"]
    assert "hello from the job" in cli("submit", "--", "bench", "--nodes", "2").out.splitlines()
    assert cli("jobs", "logs", "last").out == "hello from the job\n10%\r20%\n"
    assert ray.submitted["entrypoint"] == "python -m workloads bench --nodes 2"
    assert ray.submitted["runtime_env"]["env_vars"]["OASIS_PROGRESS"] == "json"
    assert ray.submitted["runtime_env"]["working_dir"].startswith("gcs://")


def test_a_program_on_the_command_line_may_be_longer_than_a_path(ray: FakeRay, cli: CommandLine) -> None:
    command = ["python3", "-c", "print(1)\n" * 1000]
    cli("submit", "--", *command)
    assert ray.submitted["entrypoint"] == shlex.join(command)


@pytest.mark.parametrize(
    ("uri", "said", "copied"),
    [
        ("gs://test-runs/mine/results", "/c is not copied: it would lie outside of ", ["mine/a.txt"]),
        ("gs://test-runs/../results", "the run's name is '..'", []),
        ("gs://elsewhere/mine", "they are not below gs://test-runs. ", []),
    ],
)
def test_what_a_log_says_of_results_writes_nothing_outside_of_the_run_s_folder(
    ray: FakeRay,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    uri: str,
    said: str,
    copied: list[str],
) -> None:
    left = SimpleNamespace(files=lambda: ["../../b.txt", "/c", "a.txt"], read=lambda _: b"x")
    monkeypatch.setattr(folders, "locate", lambda _: left)
    ray.lines = [json.dumps({"event": "note", "text": "done", "results_uri": uri})]
    follower = follow.Follower(_jobs(ray), "x")
    follower.run()
    follow.fetch_results(follower, tmp_path / "here" / "results")
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    found = [file for file in (tmp_path / "here").rglob("*") if file.is_file()]
    assert [str(file.relative_to(tmp_path / "here" / "results")) for file in found] == copied


def test_what_gpu_nodes_cost_is_said_of_a_job_that_may_bring_some_up(ray: FakeRay, cli: CommandLine) -> None:
    costs = "each GPU node that it has added costs up to 51.40 USD an hour at list price"

    def told(*words: str) -> str:
        ray.submitted.clear()
        return cli("submit", *words).err

    assert costs in told("--", "bench", "--nodes", "2")
    assert "all 4 that the stack can have, 205.60 USD" in told("--num-gpus", "1", "--", "python3", "x.py")
    assert costs not in told("--", "python3", "x.py")
    assert costs not in told("--", "doctor")
    ray.kubectl_knows(replace(OUTPUTS, gpu_node_hour_usd=""))
    assert "the price of its GPU nodes is not known in us-central1: run `make prices`" in told("--", "train")


def test_a_detached_job_leaves_its_id_on_stdout_and_how_to_attach_on_stderr(ray: FakeRay, cli: CommandLine) -> None:
    printed = cli("submit", "--detach", "--context", "far away", "--", "sleep", "100")
    assert printed.out.split() == [ray.submitted["submission_id"]]
    assert f"jobs attach {printed.out.strip()} --context 'far away'" in printed.err


def test_a_working_directory_is_uploaded_without_what_nobody_wants_in_a_job_or_may_be_secret_unless_it_is_asked_for(
    ray: FakeRay, tmp_path: Path, cli: CommandLine
) -> None:
    folder = tmp_path / "project"
    wanted = ["job.py", "src/data/loader.py", "kept.tar", "src/key.py", "src/ca.pem", "src/certifi/cacert.pem"]
    unwanted = [".git/HEAD", ".env", "a.ckpt", "data/1.jpg", "my-venv/pyvenv.cfg", "my-venv/bin/python", "src/b.pt"]
    unwanted += ["ignored/c.txt", "own.bin"]
    secret = [".aws/credentials", ".env.local", ".netrc", "src/.pypirc", "src/service-account-p.json", "src/tls.key"]
    for name in (*wanted, *unwanted, *secret):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    (folder / ".gitignore").write_text("ignored\n")
    environment = tmp_path / "env.yaml"
    environment.write_text("env_vars: {A: b}\nexcludes: ['*.bin', '!kept.tar', '!ca.pem']\n")
    arguments = ["--working-dir", str(folder), "--runtime-env", str(environment), "--env", "C=d=e"]
    said = cli("submit", *arguments, "--", "python", "job.py").err
    variables = ray.submitted["runtime_env"]["env_vars"]
    assert (variables["A"], variables["C"]) == ("b", "d=e")
    assert _uploaded(ray) == {*wanted, ".gitignore"}
    here = ".aws, .env, .env.local, .git, .netrc, a.ckpt, data, ignored, my-venv, own.bin"
    nested = "src/.pypirc, src/service-account-p.json, src/tls.key"
    assert "7 files" in said and f"left out: {here}, {nested}" in said


def test_a_working_directory_that_is_too_large_is_refused_with_the_names_of_what_makes_it_large(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(working_dir, "LIMIT_BYTES", 5_000)
    (tmp_path / "images").mkdir()
    for name in ("images/1.jpg", "images/2.jpg", "video.mp4"):
        (tmp_path / name).write_bytes(bytes(2_000))
    said = cli("submit", "--working-dir", str(tmp_path), "--", "true", code=2).err
    assert "images 4.0 kB, video.mp4 2.0 kB" in said and ".rayignore" in said
    assert not ray.submitted and not ray.packages


@pytest.mark.parametrize("queue", [[], ["--queue"]])
def test_a_file_that_no_archive_takes_is_named(
    ray: FakeRay, tmp_path: Path, cli: CommandLine, queue: list[str]
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "café.py").touch()
    (folder / os.fsdecode("café.txt".encode("latin-1"))).touch()
    said = cli("submit", *queue, "--working-dir", str(folder), "--", "true", code=2).err
    assert "names are not UTF-8: caf\\udce9.txt" in said and ".py" not in said


def test_the_limit_is_what_ray_s_jobs_api_takes() -> None:
    assert ray_constants.DASHBOARD_CLIENT_MAX_SIZE == working_dir.LIMIT_BYTES


def test_a_file_that_one_of_our_commands_names_travels_with_it(ray: FakeRay, cli: CommandLine, tmp_path: Path) -> None:
    space, key = tmp_path / "space.yaml", tmp_path / "key"
    for file in (space, key):
        file.write_text("learning_rate: [0.1, 0.2]\n")
    cli("submit", "--", "sweep", f"--space={space}", "--data", str(space), "--wandb-key-file", str(key))
    words = ray.submitted["entrypoint"].split()
    assert words[4:] == ["--space=arguments/space.yaml", "--data", "arguments/space.yaml", "--wandb-key-file", str(key)]
    assert {"arguments/space.yaml", "workloads/jobs/submit.py", "workloads/convnext/learning/model.py"} <= _uploaded(
        ray
    )
    assert not any("key" in name.split("/") for name in _uploaded(ray))


def test_what_the_command_takes_is_asked_for_by_ray_s_own_parameters(ray: FakeRay, cli: CommandLine) -> None:
    arguments = ["--entrypoint-num-cpus", "2", "--resources", '{"GPU": 1, "memory": 1e9}']
    cli("submit", *arguments, "--", "true")
    asked = {name: value for name, value in ray.submitted.items() if name.startswith("entrypoint_") and value}
    assert asked == {"entrypoint_num_cpus": 2, "entrypoint_num_gpus": 1, "entrypoint_memory": 1_000_000_000}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--entrypoint-resources", '{"CPU": 1000}'],
        ["--num-gpus", "9"],
        ["--num-cpus", "201"],
        ["--resources", '{"driver": 1, "CPU": 1}'],
        ["--ray-job", "--resources", '{"TPU": 1}'],
    ],
)
def test_what_no_node_can_ever_have_is_refused_at_once(ray: FakeRay, arguments: list[str], cli: CommandLine) -> None:
    said = cli("submit", *arguments, "--", "true", code=3).err
    assert "worker group cpu: up to 4 x 8 CPU" in said and "worker group gpu: up to 2 x 200 CPU, 8 GPU" in said
    assert not ray.submitted and not ray.ray_jobs()


@pytest.mark.thorough
@pytest.mark.parametrize("packages", ["", "uv: [tomli]"])
def test_a_wait_says_why_and_ends_with_the_exit_code_for_capacity(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, packages: str
) -> None:
    (tmp_path / "env.yaml").write_text(packages)
    condition = {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available"}
    pod = {
        "metadata": {"name": "gpu-1", "uid": "1", "labels": {"ray.io/group": "gpu"}},
        "status": {"phase": "Pending", "conditions": [condition]},
    }
    ray.kubectl_knows(pods=[pod])
    monkeypatch.setattr(follow, "_SILENCE_SECONDS", 0)
    ray.pending, ray.exit_code, ray.message = 3, -1, "configured by RAY_JOB_START_TIMEOUT_SECONDS."
    arguments = ["--runtime-env", str(tmp_path / "env.yaml"), "--num-gpus", "8"]
    said = cli("submit", *arguments, "--", "true", code=4).err
    assert "0/2 nodes are available" in said
    assert ("packages that its runtime environment names under uv are installed" in said) == bool(packages)


def test_an_answer_to_a_submission_that_was_lost_is_not_a_second_submission(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, lost = FakeRay.answer, []

    def lose_one(fake: FakeRay, method: str, path: str, body: bytes) -> Reply:
        answered = answer(fake, method, path, body)
        if method == "POST" and path == "/api/jobs/" and not lost:
            lost.append(path)
            return None
        return answered

    monkeypatch.setattr(FakeRay, "answer", lose_one)
    cli("submit", "--", "true")
    assert lost


def test_where_the_url_does_not_answer_a_port_forward_on_loopback_is_made_and_ended(
    ray: FakeRay, cli: CommandLine
) -> None:
    dead = replace(OUTPUTS, ray_dashboard_url="http://127.0.0.1:1")
    stub_kubectl.install(ray.folder, dead, TOKEN, ray.port)
    cli("submit", "--", "true")
    assert len(ray.forwards()) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("nohup", [False, True])
def test_a_terminal_that_is_closed_ends_the_port_forward_and_not_the_job(ray: FakeRay, nohup: bool) -> None:
    ray.deaf = True
    dead = replace(OUTPUTS, ray_dashboard_url="http://127.0.0.1:1")
    stub_kubectl.install(ray.folder, dead, TOKEN, ray.port)
    # Tests that are run under `nohup` hand on that SIGHUP is ignored.
    begun_by = ["nohup"] if nohup else ["env", "--default-signal=HUP"]
    command = [*begun_by, sys.executable, "-m", "workloads", "submit", "--", "sleep", "100"]
    with subprocess.Popen(
        command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as client:
        try:
            assert client.stdout is not None and client.stdout.readline() == "line 0\n"
            client.send_signal(signal.SIGHUP)
            if nohup:
                assert client.stdout.readline() == "line 1\n" and client.poll() is None
            else:
                assert client.wait(30) == -signal.SIGHUP
        finally:
            client.terminate()
    assert ray.submitted and ray.stopped == nohup
    assert ray.forwards()
    eventually(lambda: not any(map(psutil.pid_exists, ray.forwards())))


def test_somebody_else_s_ray_at_the_url_is_passed_by(ray: FakeRay, cli: CommandLine) -> None:
    other = FakeRay()
    other.token = "another"
    try:
        at_other = replace(OUTPUTS, ray_dashboard_url=other.url)
        stub_kubectl.install(ray.folder, at_other, TOKEN, ray.port)
        cli("submit", "--", "true")
    finally:
        other.close()
    assert ray.submitted and not other.submitted


def test_a_refused_token_is_an_authentication_failure(ray: FakeRay, cli: CommandLine) -> None:
    ray.token = "renewed"
    assert "refuses the stack's token" in cli("submit", "--", "true", code=7).err


def test_a_secret_that_may_not_be_read_and_a_cluster_without_a_stack_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("PATH", stub_kubectl.install(tmp_path, OUTPUTS, token=""))
    assert "is forbidden" in cli("jobs", "list", code=7).err
    monkeypatch.setenv("PATH", stub_kubectl.install(tmp_path, None, TOKEN))
    assert "pulumi up" in cli("jobs", "list", code=8).err
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert "kubectl is not installed" in cli("status", code=8).err


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ("error: You must be logged in to the server (Unauthorized)", 7),
        ("error: You must be logged in to the server (the server has asked for the client to provide credentials)", 7),
        # Also for want of a network: a command that waits goes on waiting.
        (
            "Unable to connect to the server: getting credentials: exec: executable gke-gcloud-auth-plugin failed with "
            "exit code 1",
            8,
        ),
    ],
)
@pytest.mark.parametrize("asked", ["configmaps", "secret"])
def test_a_login_that_has_expired_is_told_from_a_missing_right(
    ray: FakeRay, cli: CommandLine, answer: str, code: int, asked: str
) -> None:
    ray.kubectl_refuses(f"*{asked}*", answer)
    said = cli("jobs", "list", code=7 if asked == "secret" else code).err
    assert "gcloud auth login" in said and "Give --stack" not in said and "ask for the right" not in said


def pulumi_says(folder: Path, values: object, before: str = "") -> None:
    """A program `pulumi` beside kubectl, which does what is `before` and prints the values."""
    write_program(folder / "pulumi", f"{before}\ncat <<'END'\n{json.dumps(values)}\nEND")


def test_with_a_stack_kubectl_must_point_at_the_same_cluster(tmp_path: Path, ray: FakeRay, cli: CommandLine) -> None:
    at = replace(OUTPUTS, ray_dashboard_url=ray.url)
    pulumi_says(tmp_path, {**vars(at), "gpus_per_node": 8.0, "kubeconfig": "[secret]"})
    cli("submit", "--stack", "dev", "--", "true")
    pulumi_says(tmp_path, {**vars(at), "cluster_name": "the-other-one"})
    assert "get_credentials_command --stack dev" in cli("submit", "--stack", "dev", "--", "true", code=2).err


def test_with_a_stack_rights_in_its_namespace_are_enough_and_without_one_that_is_said(
    tmp_path: Path, ray: FakeRay, cli: CommandLine
) -> None:
    pulumi_says(tmp_path, vars(replace(OUTPUTS, ray_dashboard_url=ray.url)))
    ray.kubectl_refuses("*--all-namespaces*", "Error from server (Forbidden): configmaps")
    cli("submit", "--stack", "dev", "--", "true")
    assert "Give --stack, which needs rights" in cli("submit", "--", "true", code=7).err


def test_a_stack_that_pulumi_does_not_know_is_told_from_a_pulumi_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setenv("PATH", f"{stub_kubectl.install(tmp_path, OUTPUTS, TOKEN)}{os.pathsep}/usr/bin:/bin")
    assert "pulumi is not installed.\nInstall it." in cli("submit", "--stack", "loacl", "--", "true", code=8).err
    # What 3.259 answers, and its exit status.
    missing = """[ $4 = ls ] || { echo "error: no stack named 'loacl' found" >&2; exit 6; }"""
    pulumi_says(tmp_path, [{"name": "dev"}, {"name": "local"}], missing)
    told = cli("submit", "--stack", "loacl", "--", "true", code=2).err
    assert "no stack loacl, but dev, local; did you mean local?" in told and "nstall" not in told


def dry_run(cli: CommandLine, *words: str) -> dict[str, Any]:
    """What `submit --dry-run --json` says: each setting with its origin, the rest as it is."""
    found = json.loads(cli("submit", "--dry-run", "--json", *words).out)
    return found | {name: (one["value"], one["origin"]) for name, one in found["settings"].items()}


def test_a_dry_run_says_what_a_job_would_use_and_who_says_so_and_submits_nothing(
    tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    # Whoever may read the ConfigMap, and not the token, may ask.
    ray.kubectl_knows(token="")
    words = ["--", "train", "--recipe", "imagenet_a3_ultra", "--workers", "16", "--run", "first"]
    found = dry_run(cli, *words)
    told = "the stack's ConfigMap oasis-environment"
    assert (found["recipe"], found["workers"]) == (
        ("imagenet_a3_ultra", "flag --recipe"),
        ("16", "flag --workers"),
    )
    assert (found["require-fabric"], found["storage"]) == ((True, told), ("gs://test-runs/first", told))
    assert (found["model"][1], found["rdma-nics"]) == ("recipe imagenet_a3_ultra", (8, told))
    assert found["address"] == ("RayCluster oasis", "where the job runs")
    assert found["request"] == {"bundles": [{"CPU": 1, "GPU": 1}] * 16, "strategy": "PACK"}
    pulumi_says(tmp_path, vars(OUTPUTS))
    found = dry_run(cli, "--stack", "dev", "--ray-job", *words)
    assert (found["storage"], found["rdma-nics"]) == (("gs://test-runs/first", "stack dev"), (8, "stack dev"))
    assert found["address"] == ("a cluster of its own", "where the job runs")
    printed = cli("submit", "--dry-run", *words)
    assert "not submitted: `python -m workloads train --recipe" in printed.err and "0.01 driver" in printed.err
    assert "asked of Ray: 16 x [1 GPU, 1 CPU], placed PACK\nnothing was started" in printed.out
    assert not ray.submitted and not ray.packages and not ray.ray_jobs()
    assert "emulated" not in printed.err
    monkeypatch.setenv(ENDPOINT_VARIABLE, "http://127.0.0.1:1")
    assert "its emulated nodes have no GPU: CPU workers run there" in cli("submit", "--dry-run", *words).err


def test_a_dry_run_of_each_command_of_ours_and_of_any_other_program_has_the_stack_s_values(
    tmp_path: Path, ray: FakeRay, cli: CommandLine
) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("batch_size: [16, 64]\n")
    commands = {
        "train": ["train"],
        "tune": ["tune", "--samples", "2", "--space", str(space)],
        "sweep": ["sweep", "--space", str(space)],
        "bench": ["bench", "--nodes", "4"],
    }
    assert set(commands) == {name for name, command in command_line.COMMANDS.items() if command.explains}
    assert set(commands) < set(submit.OWN_COMMANDS)
    told = "the stack's ConfigMap oasis-environment"
    for name, command in commands.items():
        found = dry_run(cli, "--", *command)
        assert found["gpus-per-node"] == (8, told)
        assert sum(bundle["GPU"] for bundle in found["request"]["bundles"]) == (32 if name == "bench" else 8)
        assert len(found.get("trials", ())) == (2 if "--space" in command else 0)
    for command, entrypoint in (
        (["python3", "a b.py"], "python3 'a b.py'"),
        (["digits", "--to", "gs://x"], "python -m workloads digits --to gs://x"),
    ):
        found = dry_run(cli, "--", *command)
        assert (found["entrypoint"], found["gpus-per-node"]) == ((entrypoint, "the command"), (8, told))
        assert found["request"]["bundles"] == [{"driver": 0.01}]
    assert not ray.submitted


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["train", "--workers", "0"], 2, "--workers is 0"),
        (["bench", "--nodes", "5"], 3, "5"),
        (["bench", "predict"], 2, "bench predict needs no cluster"),
        (["tune", "--space", "/nowhere.yaml"], 2, "/nowhere.yaml cannot be read"),
    ],
)
def test_a_dry_run_refuses_what_the_job_would_refuse(
    ray: FakeRay, cli: CommandLine, words: list[str], code: int, said: str
) -> None:
    assert said in cli("submit", "--dry-run", "--", *words, code=code).err
    assert not ray.submitted


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no command"),
        (["--"], "no command"),
        (["--working-dir", "/nowhere", "--", "true"], "/nowhere"),
        (["--runtime-env", "/nowhere.yaml", "--", "true"], "/nowhere.yaml"),
        (["--entrypoint-resources", "driver=1", "--", "true"], "driver=1"),
        (["--entrypoint-resources", '{"driver": "1"}', "--", "true"], "--resources"),
        (["--num-cpus", "-1", "--", "true"], "--num-cpus is -1"),
        (["--num-cpus", "1", "--resources", '{"CPU": 1}', "--", "true"], "asked for by --num-cpus and by --resources"),
        (["--env", "1A=b", "--", "true"], "1A=b"),
        (["--env", "NOT_SET_ANYWHERE", "--", "true"], "NOT_SET_ANYWHERE"),
        (["--ray-job", "--start-timeout", "0", "--", "true"], "--start-timeout is 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_submitted(
    ray: FakeRay, cli: CommandLine, arguments: list[str], words: str
) -> None:
    assert words in cli("submit", *arguments, code=2).err
    assert not ray.submitted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train --recipe digit", "there is no recipe 'digit'; there are digits_laptop"),
        ("tune --space a.yaml --recipe digit", "there is no recipe 'digit'"),
        ("runs lst", "invalid choice: 'lst'"),
        ("train --recpie x", "workloads train: error: unrecognized arguments: --recpie x; did you mean --recipe?"),
        ("train --set label_smoothin=0", "did you mean label_smoothing?"),
        ("train --workers 0", "--workers is 0"),
        ("bench --nodes 0", "--nodes is 0."),
        ("sweep --space {space}", "learning_rat is not a field of the configuration (did you mean learning_rate?)"),
        ("tune --space nowhere.yaml", "--space nowhere.yaml cannot be read"),
    ],
)
@pytest.mark.parametrize("queue", [[], ["--queue"]])
def test_what_our_own_command_refuses_is_refused_before_there_is_a_job(
    ray: FakeRay, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str, said: str, queue: list[str]
) -> None:
    (tmp_path / "space.yaml").write_text("learning_rat: [0.1, 0.2]\n")
    command = words.format(space=tmp_path / "space.yaml").split()
    with pytest.raises(SystemExit, match="2"):
        raise SystemExit(command_line.main(["submit", *queue, "--", *command]))
    assert said in capsys.readouterr().err
    assert not ray.submitted and not ray.packages


def test_what_only_the_job_can_see_is_left_to_it(ray: FakeRay, cli: CommandLine) -> None:
    for words in ("tune --space /data/space.yaml", "train --max-usd 5", "train --require-fabric", "bench predict"):
        ray.submitted.clear()
        cli("submit", "--", *words.split())
        assert ray.submitted["entrypoint"] == f"python -m workloads {words}"


def test_when_tells_what_is_expected_of_the_nodes_that_the_job_may_get_and_submits_nothing(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: CommandLine
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))

    def told(*words: str) -> str:
        return cli("submit", "--stack", "local", "--when", *words).out

    ladder, queue = told("--", "train"), told("--queue", "--nodes", "2", "--", "train")
    assert "Google was asked nothing: no Google credentials" in ladder and "no Google credentials" in queue
    assert ("order" in ladder, "order" in queue) == (True, False)
    assert told("--", "ls") == "ls asks for no GPU node, so it waits for none\n"
    assert "--when is without --stack" in cli("submit", "--when", "--", "train", code=2).err
    said = cli("submit", "--stack", "nowhere", "--when", "--", "train", code=2).err
    assert "there is no stack file Pulumi.nowhere.yaml" in said
    assert not ray.submitted


def test_any_other_program_is_run_and_one_that_looks_like_our_own_is_asked_about(
    ray: FakeRay, cli: CommandLine
) -> None:
    assert "trian is not a command of this package, so the job runs a program of that name; did you mean train?" in (
        cli("submit", "--", "trian", "--recpie", "x").err
    )
    assert ray.submitted["entrypoint"] == "trian --recpie x"


def test_a_command_of_ours_that_is_spelled_out_takes_this_package_along_too(ray: FakeRay, cli: CommandLine) -> None:
    cli("submit", "--", "python3", "-m", "workloads", "digits", "--to", "gs://b")
    assert ray.submitted["entrypoint"] == "python -m workloads digits --to gs://b"
    assert "working_dir" in ray.submitted["runtime_env"]


@pytest.mark.parametrize("kind", [[], ["--ray-job"]])
def test_a_folder_that_takes_no_results_is_refused_before_anything_is_submitted(
    ray: FakeRay, tmp_path: Path, cli: CommandLine, kind: list[str]
) -> None:
    (tmp_path / "file").touch()
    said = cli("submit", *kind, "--results", str(tmp_path / "file" / "a"), "--", "bench", code=8).err
    assert f"cannot write results to {tmp_path}/file/a: Not a directory." in said
    assert not ray.submitted


@pytest.mark.parametrize(("folder", "package"), [("project", "theirs"), (".", "ours")])
def test_what_a_runtime_environment_names_is_looked_for_beside_its_file_first(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, folder: str, package: str
) -> None:
    here = tmp_path / "checkout"
    for name, content in (("project", "theirs"), ("checkout", "ours")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "requirements.txt").write_text(f"{content}==1.0")
    (tmp_path / folder / "job.py").touch()
    (tmp_path / folder / "env.yaml").write_text("{working_dir: ., pip: requirements.txt}")
    monkeypatch.chdir(here)
    said = cli("submit", "--runtime-env", f"../{folder}/env.yaml", "--", "python", "job.py").err
    assert ("pip: requirements.txt is not in" in said) == (package == "ours")
    assert "job.py" in _uploaded(ray) and f"{package}==1.0" in str(ray.submitted["runtime_env"]["pip"])


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "env_vars: [A]", "\x00"])
def test_a_runtime_environment_that_is_none_is_refused(
    ray: FakeRay, tmp_path: Path, text: str, cli: CommandLine
) -> None:
    (tmp_path / "env.yaml").write_text(text)
    assert "env.yaml" in cli("submit", "--runtime-env", str(tmp_path / "env.yaml"), "--", "true", code=2).err
    assert not ray.submitted


def test_a_secret_is_refused_wherever_it_is_named_and_its_value_is_not_shown(
    ray: FakeRay, tmp_path: Path, cli: CommandLine
) -> None:
    (tmp_path / "env.yaml").write_text("env_vars: {EPOCHS: '3', WANDB_API_KEY: hidden}\n")
    for words in (["--runtime-env", str(tmp_path / "env.yaml")], ["--env", "WANDB_API_KEY=hidden"]):
        said = cli("submit", *words, "--", "true", code=2).err
        assert "variable WANDB_API_KEY looks like a secret" in said and "hidden" not in said
    assert not ray.submitted


@pytest.mark.parametrize(
    ("words", "usage", "said"),
    [
        ("train --recpie x", "train", "unrecognized arguments: --recpie x; did you mean --recipe?"),
        ("tune --space a --trials 3", "tune", "unrecognized arguments: --trials 3"),
        ("submit --nothing -- train", "submit", "unrecognized arguments: --nothing"),
        ("jobs list --stak local", "jobs list", "unrecognized arguments: --stak local; did you mean --stack?"),
        ("jobs --stak=local", "jobs list", "unrecognized arguments: --stak=local; did you mean --stack?"),
        ("runs gc --kep 3", "runs gc", "did you mean --keep?"),
        ("bench compare a b --other", "bench compare", "unrecognized arguments: --other"),
        ("trian --recipe x", "", "(choose from 'doctor', 'train', "),
        ("trian", "", "did you mean train?"),
        ("--nothing train", "", "unrecognized arguments: --nothing"),
    ],
)
def test_an_unknown_word_is_answered_with_the_usage_of_the_command_that_was_typed(
    words: str, usage: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        command_line.main(words.split())
    text = capsys.readouterr().err
    assert text.startswith(f"usage: python -m workloads {usage} ".replace("  ", " "))
    assert f"python -m workloads {usage}".strip() + ": error: " in text
    assert said in text


def test_jobs_without_an_action_lists_them(ray: FakeRay, cli: CommandLine) -> None:
    for words in (["jobs"], ["jobs", "--context", "test"]):
        assert "on the stack's cluster" in cli(*words).out


def test_which_stack_is_said_on_either_side_of_the_action(
    ray: FakeRay, cli: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (["--context", "test", "logs", "none"], ["logs", "--context", "test", "none"]):
        assert "line 0" in cli("jobs", *words).out
    for option in ("--context", "--team"):
        with pytest.raises(SystemExit):
            command_line.main(["jobs", option, "test", "lgos", "none"])
        assert "invalid choice: 'lgos'" in (told := capsys.readouterr().err) and "did you mean logs?" in told
    with pytest.raises(SystemExit):
        command_line.main(["jobs", "--help"])
    assert "ACTION" in capsys.readouterr().out


def _uploaded(ray: FakeRay) -> set[str]:
    [package] = ray.packages
    return {name for name in zipfile.ZipFile(io.BytesIO(package)).namelist() if not name.endswith("/")}


def _jobs(ray: FakeRay) -> follow.Jobs:
    environment = replace(OUTPUTS, ray_dashboard_url=ray.url, ray_dashboard_command="")
    return follow.Jobs(Dashboard(DeployedStack(environment=environment, token=TOKEN, kubectl=("kubectl",))))


@pytest.mark.parametrize("taken", [True, False])
def test_ctrl_c_before_ray_s_answer_stops_what_ray_may_have_taken(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, taken: bool
) -> None:
    hand_in = submit.hand_in

    def interrupted(jobs: follow.Jobs, job: submit.Job) -> None:
        if taken:
            hand_in(jobs, job)
        raise KeyboardInterrupt

    monkeypatch.setattr(submit, "hand_in", interrupted)
    said = cli("submit", "--", "sleep", "100", code=130).err
    assert bool(ray.stopped) == taken
    assert ("Ray had not taken it yet" in said) == (not taken)


@pytest.mark.parametrize(
    ("path", "status", "words", "code", "said"),
    [
        ("/stop", 500, ["jobs", "stop", "x"], 5, "Ray refuses: Request failed with status code 500"),
        ("/stop", 403, ["jobs", "stop", "x"], 7, "Ray refuses the token"),
        ("/stop", 500, ["submit", "--", "sleep", "100"], 5, "was left running; follow it with `python -m workloads"),
        ("/nodes?", 503, ["status"], 8, "Ray's dashboard does not answer /nodes: 503"),
        ("/api/jobs/", 500, ["status"], 5, "Ray refuses: Request failed with status code 500"),
        ("/api/jobs/", 500, ["jobs", "list"], 5, "Ray refuses: Request failed with status code 500"),
    ],
)
def test_an_error_of_ray_s_dashboard_is_told_in_words(
    ray: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    cli: CommandLine,
    path: str,
    status: int,
    words: list[str],
    code: int,
    said: str,
) -> None:
    press_ctrl_c_once(monkeypatch)  # where a job is followed
    ray.failing[path] = status
    assert said in cli(*words, code=code).err


@pytest.mark.thorough
def test_a_job_that_does_not_stop_is_left_after_its_time_with_a_word(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    ray.deaf = True
    monkeypatch.setattr(follow, "STOP_SECONDS", 0.5)
    press_ctrl_c_once(monkeypatch)
    assert "it has not stopped" in cli("submit", "--", "sleep", "100", code=130).err
    assert ray.stopped
    stop = ["jobs", "stop", ray.submitted["submission_id"]]
    assert "shows what it does; stop it again" in cli(*stop, code=5).err
    ray.pending = 1000
    monkeypatch.setattr(follow, "STOP_SECONDS", 5.0)  # two answers have to come within it
    monkeypatch.setattr(follow, "_START_SECONDS", 0.0)
    said = cli(*stop, code=5).err
    assert "a small job on the head ends it" in said
    assert "has not stopped within" in said and "It waits for its resources" in said


def test_a_dashboard_that_is_gone_while_a_job_stops_is_not_waited_for_longer(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "STOP_SECONDS", 0.5)
    jobs = _jobs(ray)
    jobs.stop("x")
    ray.broken = 1.0
    with pytest.raises(PlaceError, match="out of reach for"):
        follow.Follower(jobs, "x").run()


def test_a_dashboard_that_is_gone_is_said_to_be_asked_again(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follow, "_AWAY_SECONDS", 0.0)
    monkeypatch.setattr(follow, "PATIENCE_SECONDS", 1.5)
    jobs = _jobs(ray)
    ray.broken = 1.0
    with pytest.raises(PlaceError, match="out of reach for"):
        jobs.details("x")
    said = capsys.readouterr().err
    assert said.count("Ray's dashboard is out of reach; asking again for ") == 1


def test_an_answer_that_comes_no_more_is_asked_for_anew(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    answer, over, silent = ray.answer, threading.Event(), [True]

    def stay_silent_once(method: str, path: str, body: bytes) -> Reply:
        if path == "/api/jobs/x" and silent and silent.pop():
            over.wait(10)
            return 403, "too late"
        return answer(method, path, body)

    monkeypatch.setattr(ray, "answer", stay_silent_once)
    monkeypatch.setattr(follow, "_ANSWER_SECONDS", 0.5)
    assert _jobs(ray).details("x").submission_id == "x"
    over.set()


def test_a_node_that_does_not_give_its_job_s_log_keeps_nobody_from_following_it(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, over = ray.answer, threading.Event()

    def stay_silent(method: str, path: str, body: bytes) -> Reply:
        if path.endswith("/logs"):
            over.wait(10)
        return answer(method, path, body)

    monkeypatch.setattr(ray, "answer", stay_silent)
    monkeypatch.setattr(follow, "_LONG_ANSWER_SECONDS", 0.5)
    assert _jobs(ray).log("x") is None
    over.set()


@pytest.mark.parametrize("status", [500, 503])
def test_a_head_that_is_too_busy_to_look_for_a_job_is_asked_again(
    ray: FakeRay, cli: CommandLine, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    answer, busy = ray.answer, [True] * 3

    def be_busy(method: str, path: str, body: bytes) -> Reply:
        if path.startswith("/api/jobs/sleep-") and not path.endswith("/logs") and busy:
            return status, f"{busy.pop()}: out of order"
        return answer(method, path, body)

    monkeypatch.setattr(ray, "answer", be_busy)
    assert lines_of_job(cli("submit", "--", "sleep", "1").out) == ray.lines
    assert not busy


def test_the_token_is_in_no_text_of_a_stack_no_output_and_nothing_that_the_job_is_given(
    ray: FakeRay, cli: CommandLine
) -> None:
    assert TOKEN not in repr(DeployedStack(environment=OUTPUTS, token=TOKEN, kubectl=("kubectl",)))
    printed = cli("submit", "--", "bench")
    assert ray.submitted["entrypoint"] == "python -m workloads bench"
    assert TOKEN not in printed.out + printed.err + json.dumps(ray.submitted)
    assert TOKEN not in os.environ.values()
