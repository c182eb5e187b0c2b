"""`python -m oasis_stack`, with stand-ins for pulumi, gcloud, docker and kubectl that keep how they were called."""

from __future__ import annotations

import getpass
import io
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from emulator import __main__ as emulator_command_line
from oasis_stack import __main__ as command_line
from oasis_stack.command_line import external_program, image, stack_file
from tests.support.processes import python
from tests.support.program import deploy_stack

OUTPUTS = {
    "project": "some-project",
    "region": "us-central1",
    "image_repository": "us-central1-docker.pkg.dev/some-project/oasis-docker",
    "docker_index": "us-central1-docker.pkg.dev/some-project/oasis-docker-virtual",
    "python_index_url": "https://us-central1-python.pkg.dev/some-project/oasis-python-virtual/simple/",
    "image_build_worker_pool": "projects/some-project/locations/us-central1/workerPools/build",
    "image_builder": "oasis-image-builder@some-project.iam.gserviceaccount.com",
    "image_build_bucket": "some-project-oasis-build",
    "ray_namespace": "ray",
    "ray_cluster_name": "oasis",
    "wandb_secret": "projects/some-project/secrets/oasis-wandb",
    "ray_dashboard_url": "http://127.0.0.1:8265",
    "ray_dashboard_command": "kubectl --namespace ray port-forward service/oasis-head-svc 8265:8265",
    "kubeconfig": "{}",
}
DIGEST = "sha256:" + "0a" * 32
DESCRIBED = json.dumps({"image_summary": {"digest": DIGEST}})


@dataclass
class Programs:
    """What the stand-ins were asked, and what they answer."""

    calls: list[list[str]] = field(default_factory=list)
    stdin: list[str | None] = field(default_factory=list)
    environments: list[dict[str, str]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    """First words of a command line to its output; an int is an exit status."""

    def run(
        self, arguments: list[str], environment: dict[str, str] | None, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        self.calls.append(list(arguments))
        self.stdin.append(stdin)
        self.environments.append({**os.environ, **(environment or {})})
        line = " ".join(arguments)
        found = max((known for known in self.answers if known in line), key=len, default=None)
        answer = "" if found is None else self.answers[found]
        status, text = (answer, "refused") if isinstance(answer, int) else (0, answer)
        return subprocess.CompletedProcess(arguments, status, text, "it broke" if status else "")

    def called(self, words: str) -> list[list[str]]:
        return [call for call in self.calls if words in " ".join(call)]


def _kubectl(version: str) -> str:
    return json.dumps({"clientVersion": {"gitVersion": version}})


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Programs:
    answers = {"stack output": json.dumps(OUTPUTS), "stack export": "{}", "kubectl version": _kubectl("v1.31.0")}
    made = Programs(answers=answers)
    monkeypatch.setattr(external_program, "run", made.run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    for name in ("PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"):
        monkeypatch.delenv(name, raising=False)
    return made


@pytest.fixture(autouse=True)
def without_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`plan` must not ask the Google of whoever runs the tests."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))


@dataclass
class CommandLine:
    """`python -m oasis_stack` in a folder with a copy of the dev stack."""

    folder: Path
    programs: Programs
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> int:
        return command_line.main(arguments, self.folder)

    @property
    def file(self) -> Path:
        """The stack's."""
        return self.folder / "Pulumi.dev.yaml"

    def append(self, lines: str) -> None:
        with self.file.open("a") as file:
            file.write(lines)

    def said(self) -> str:
        """On standard output, since the last look at either."""
        return self.capsys.readouterr().out

    def complained(self) -> str:
        """On standard error, since the last look at either."""
        return self.capsys.readouterr().err


@pytest.fixture
def fresh(tmp_path: Path, programs: Programs, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """As after the checkout."""
    shutil.copy(stack_file.ROOT / "Pulumi.yaml", tmp_path)
    shutil.copy(stack_file.find("dev"), tmp_path)
    shutil.copy(stack_file.ROOT / image.LOCK, tmp_path)
    return CommandLine(tmp_path, programs, capsys)


@pytest.fixture
def run(fresh: CommandLine) -> CommandLine:
    """The stack has been initialised, as far as the file shows it."""
    stack_file.fill(fresh.file, ("config", "gcp:project"), "some-project")
    return fresh


def typed(monkeypatch: pytest.MonkeyPatch, text: str, terminal: bool = False) -> None:
    """Have standard input hold this."""
    stdin = io.StringIO(text)
    monkeypatch.setattr(stdin, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", stdin)


def test_plan_shows_settings_addresses_ladder_resources_and_destroy_order_and_calls_nothing(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(["plan", "--stack", "local"]) == 0

    text = capsys.readouterr().out
    lines = {" ".join(line.split()) for line in text.splitlines()}
    assert "oasis:gpu.machine_type a3-ultragpu-8g file" in lines
    assert "oasis:ray.dashboard_port 8265 default" in lines
    assert "oasis:wandb_api_key - default" in lines
    assert "rdma-7 (8192) 10.129.0.0/19 RDMA NIC of the GPU nodes" in lines
    assert "1. gpu-flex-start: 0 to 2 nodes, 16 GPUs" in lines
    assert "3. gpu-queued: 0 to 2 nodes, 16 GPUs, for queued jobs only" in lines
    assert "auto_repair=false" in text and "max_run_duration=604800s" in text
    assert "PREEMPTIBLE-NVIDIA-H200-GPUS-per-project-region: 48" in text
    assert {"rdma: RdmaNetwork", "compute.Subnetwork x 9: rdma-gvnic, ..., rdma-rdma-7"} <= lines
    made = sum(found.custom for found in deploy_stack(stack_file.config(stack_file.ROOT / "Pulumi.local.yaml")))
    assert f"Resources: {made} in 19 components" in text
    order = text[text.index("Order of `pulumi destroy`") :]
    assert order.index("RayCluster") < order.index("container.Cluster") < order.index("wait.NetworkFree")
    assert order.rstrip().endswith("storage.Bucket data, storage.Bucket runs")
    assert programs.calls == []


def test_a_command_that_does_not_run_the_program_imports_neither_its_sdks_nor_ray() -> None:
    words = ("-m", "oasis_stack", "plan", "--settings-only", "--stack", "local")
    done = python("-X", "importtime", *words, check=True)
    assert "Ladder of a3-ultragpu-8g" in done.stdout and "Resources" not in done.stdout
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "oasis_stack.settings.settings" in imported
    assert not {
        name for name in imported if name.split(".")[0] in ("pulumi_gcp", "pulumi_kubernetes", "kubernetes", "ray")
    }


def test_an_encrypted_key_is_named_and_not_shown(fresh: CommandLine) -> None:
    fresh.append("  gcp:project: some-project\n  oasis:wandb_api_key:\n    secure: v1:abc\n")

    assert fresh("plan") == 0

    text = fresh.said()
    assert "(encrypted)" in text and "v1:abc" not in text


def test_a_limit_on_the_price_ends_what_would_cost_more_and_nothing_else(run: CommandLine) -> None:
    run.append("  oasis:cost:\n    max_hourly_usd: 1\n")

    for command in ("plan", "preview", "up"):
        assert run(command) == 2
        told = run.capsys.readouterr()
        assert "oasis:cost.max_hourly_usd is 1" in told.err
        assert all(words in told.out for words in ("at most", "Order of `pulumi destroy`")) == (command == "plan")
    assert run("preflight") == 1
    assert "NO  oasis:cost.max_hourly_usd is 1; allowed: at least " in run.said()
    assert run.programs.calls == []
    run.programs.answers["kubectl"] = 1
    assert run("destroy", "--yes") == 0
    assert run.programs.calls[-1][3] == "destroy"


def test_an_unknown_flag_is_answered_with_the_usage_of_the_command_that_was_typed(capsys: Any) -> None:
    for program, main in (("oasis_stack", command_line.main), ("emulator", emulator_command_line.main)):
        with pytest.raises(SystemExit, match="2"):
            main(["up", "--nothing"])
        said = capsys.readouterr().err
        assert said.startswith(f"usage: python -m {program} up ")
        assert f"python -m {program} up: error: unrecognized arguments: --nothing" in said
    with pytest.raises(SystemExit, match="2"):
        emulator_command_line.main(["upp"])
    assert "'env', 'down')" in capsys.readouterr().err  # and not what only the shell's `pulumi` calls


def test_a_missing_program_is_answered_with_how_to_install_it(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    hints = {
        "init": ["cloud.google.com/sdk", "pulumi.com/docs/install"],
        "secret": ["cloud.google.com/sdk", "pulumi.com/docs/install"],
        "dashboard": ["gcloud components install kubectl", "gke-gcloud-auth-plugin"],
        "image": ["cloud.google.com/sdk", "pulumi.com/docs/install"],
        "restart": ["gcloud components install kubectl", "gke-gcloud-auth-plugin"],
        "preview": ["pulumi.com/docs/install", "gcloud components install gke-gcloud-auth-plugin"],
        "up": ["pulumi.com/docs/install", "gcloud components install gke-gcloud-auth-plugin"],
        "destroy": ["pulumi.com/docs/install", "gcloud components install gke-gcloud-auth-plugin"],
    }
    for command, expected in hints.items():
        assert run(command) == 1
        said = run.complained()
        assert all(hint in said for hint in expected), said
    assert run.programs.calls == []


def test_init_makes_bucket_key_and_stack_and_fills_the_file(fresh: CommandLine) -> None:
    fresh.programs.answers |= {"describe": 1, "stack export": 1, "get-value project": "some-project\n"}
    before = fresh.file.read_text()

    assert fresh("init") == 0

    bucket = "gs://some-project-oasis-state"
    (made,) = fresh.programs.called("buckets create")
    assert bucket in made and "--uniform-bucket-level-access" in made and "--public-access-prevention" in made
    assert fresh.programs.called(f"buckets update {bucket} --versioning")
    assert fresh.programs.called("kms keyrings create oasis") and fresh.programs.called(
        "kms keys create dev --purpose encryption"
    )
    (stack,) = fresh.programs.called("stack init")
    key = "projects/some-project/locations/us-central1/keyRings/oasis/cryptoKeys/dev"
    assert stack[-3:] == ["dev", "--secrets-provider", f"gcpkms://{key}"]
    assert fresh.programs.environments[fresh.programs.calls.index(stack)]["PULUMI_BACKEND_URL"] == bucket
    after = fresh.file.read_text()
    assert set(after.splitlines()) - set(before.splitlines()) == {
        "  gcp:project: some-project",
        f"  oasis:state_backend: {bucket}",
    }
    assert [line for line in after.splitlines() if line in before.splitlines()] == before.splitlines()
    assert bucket in fresh.said()


def test_init_again_makes_nothing_and_leaves_the_file_alone(fresh: CommandLine) -> None:
    fresh.programs.answers |= {"get-value project": "some-project\n"}
    assert fresh("init") == 0
    before = fresh.file.read_bytes()
    fresh.programs.calls.clear()

    assert fresh("init") == 0

    assert fresh.file.read_bytes() == before
    assert not [call for call in fresh.programs.calls if "create" in call or call[-4:-3] == ["init"]]


@pytest.mark.parametrize("chosen", ["(unset)", "", "My Project"])
def test_init_without_a_project_makes_nothing(fresh: CommandLine, chosen: str) -> None:
    fresh.programs.answers |= {"get-value project": chosen}

    assert fresh("init") == 1

    assert "gcloud config set project" in fresh.complained()
    assert not fresh.programs.called("enable") and not fresh.programs.called("create")


def test_init_does_not_move_a_stack_to_another_project(fresh: CommandLine) -> None:
    assert fresh("init", "--project", "some-project") == 0
    assert fresh("init", "--project", "other-project") == 1
    assert "names project some-project" in fresh.complained()
    # gcloud's own project may be another one by now.
    fresh.programs.answers |= {"get-value project": "other-project\n"}
    fresh.programs.calls.clear()
    assert fresh("init") == 0
    assert fresh.programs.calls and "other-project" not in str(fresh.programs.calls)


@pytest.mark.parametrize(
    ("name", "words"),
    [("local", "make demo"), ("my.stack", "letters, digits, _ and -"), ("s" * 64, "1 to 63")],
)
def test_init_refuses_a_stack_whose_name_cannot_be(fresh: CommandLine, name: str, words: str) -> None:
    shutil.copy(fresh.file, fresh.folder / f"Pulumi.{name}.yaml")

    assert fresh("init", "--stack", name, "--project", "some-project") == 1

    said = fresh.complained()
    assert f"stack {name} " in said and words in said
    assert fresh.programs.calls == []


def test_before_init_the_missing_project_is_all_that_is_said(fresh: CommandLine) -> None:
    for command in ("plan", "preview", "up", "destroy", "destroy-plan", "image"):
        assert fresh(command) == 2
        said = fresh.complained()
        assert "1 setting needs a change" in said and "gcp:project is missing" in said and "make init" in said
    assert fresh.programs.calls == []


@pytest.mark.parametrize("command", ["init", "preview", "up", "destroy", "image", "restart", "dashboard", "secret"])
def test_the_shell_of_an_emulated_cloud_does_nothing_about_another_stack(
    run: CommandLine, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:1")

    assert run(command) == 1

    assert "this shell is of the emulated cloud, whose stack is local: nothing was done about dev." in run.complained()
    assert run.programs.calls == []
    assert run("plan", "--settings-only") == 0


@pytest.mark.parametrize("command", ["preview", "up", "destroy", "image", "restart", "dashboard", "secret"])
def test_a_passphrase_that_is_missing_is_named_before_pulumi_starts(run: CommandLine, command: str) -> None:
    run.append("encryptionsalt: v1:abc\n")

    assert run(command) == 1

    assert "PULUMI_CONFIG_PASSPHRASE_FILE" in run.complained()
    assert not run.programs.called("pulumi")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"PULUMI_CONFIG_PASSPHRASE": ""}, "encryptionsalt: v1:abc\n"),
        ({"PULUMI_CONFIG_PASSPHRASE_FILE": "/some/file"}, "secretsprovider: passphrase\n"),
        ({}, "secretsprovider: gcpkms://key\nencryptedkey: abc\n"),
    ],
)
def test_a_passphrase_that_is_given_or_not_needed_is_not_asked_for(
    run: CommandLine, given: dict[str, str], written: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    run.append(written)

    assert run("up") == 0

    assert run.programs.calls[-1][:6] == ["pulumi", "--cwd", str(run.folder), "up", "--stack", "dev"]


def test_without_a_terminal_to_agree_on_it_is_said_how_to_agree_beforehand(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.programs.answers["kubectl get"] = json.dumps({"items": []})
    for command in ("up", "destroy"):
        words = f"To agree beforehand: python -m oasis_stack {command} --stack dev --yes"
        for terminal, given, said in ((False, [], True), (False, ["--yes"], False), (True, [], False)):
            typed(monkeypatch, "", terminal)
            run(command, *given)
            assert (words in run.said()) is said


def test_a_key_that_stands_twice_ends_every_command_with_both_lines_before_anything_is_called(run: CommandLine) -> None:
    path = run.file
    lines = path.read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if line.strip() == "min_nodes: 1")
    path.write_text("\n".join([*lines[: first + 1], "      min_nodes: 2", *lines[first + 1 :]]))

    for command in ("plan", "init", "preview", "up", "destroy", "image", "secret", "dashboard", "restart"):
        assert run(command) == 2, command
        said = run.complained()
        assert f"oasis:cluster.system_pool.min_nodes stands on lines {first + 1} and {first + 2}" in said, command
    assert not run.programs.calls


def test_an_exclusion_that_has_passed_is_legal_and_noted(run: CommandLine) -> None:
    for key, value in (("start", "2020-01-01T00:00:00Z"), ("end", "2020-03-01T00:00:00Z")):
        stack_file.set_value(run.file, ("config", "oasis:cluster", "maintenance_exclusion", key), value)

    for command in ("plan", "preview", "up"):
        assert run(command) == 0
        assert "ended at 2020-03-01T00:00:00Z" in run.said()


def test_image_builds_with_cloud_build_and_writes_tag_and_digest(run: CommandLine) -> None:
    run.programs.answers |= {
        "images describe": DESCRIBED,
        "rev-parse --short HEAD": "abc1234\n",
    }

    assert run("image") == 0

    (build,) = run.programs.called("builds submit")
    assert build[3] == str(run.folder)
    for option, value in (
        ("--config", str(run.folder / "workloads" / "image" / "cloudbuild.yaml")),
        ("--worker-pool", OUTPUTS["image_build_worker_pool"]),
        ("--service-account", f"projects/some-project/serviceAccounts/{OUTPUTS['image_builder']}"),
        ("--gcs-source-staging-dir", "gs://some-project-oasis-build/source"),
        ("--region", "us-central1"),
    ):
        assert build[build.index(option) + 1] == value
    ray: Any = stack_file.config(run.file)["oasis:ray"]
    tag = rf"{re.escape(ray['version'])}-\d{{8}}-\d{{6}}-abc1234"
    assert re.fullmatch(rf"{re.escape(OUTPUTS['image_repository'])}/ray:{tag}@{DIGEST}", ray["image"])
    assert f"_TAG={ray['image'].rpartition('@')[0].rpartition(':')[2]}" in " ".join(build)
    assert run.programs.called("images describe")[0][5] == ray["image"].rpartition("@")[0]
    said = run.said()
    assert said.index("pulumi up -s dev") < said.index("restart --stack dev")
    assert run("plan") == 0


def test_an_image_of_another_ray_than_the_locked_one_is_not_built(run: CommandLine) -> None:
    stack_file.set_value(run.file, ("config", "oasis:ray", "version"), "2.99.0")

    assert run("image") == 1

    said = run.complained()
    assert "oasis:ray.version is 2.99.0" in said and image.LOCK in said
    assert run.programs.calls == []


def test_an_unpacked_archive_without_a_commit_is_tagged_by_time_alone(run: CommandLine) -> None:
    run.programs.answers |= {"images describe": DESCRIBED, "rev-parse": 128}

    assert run("image") == 0

    ray: Any = stack_file.config(run.file)["oasis:ray"]
    assert re.search(r":2\.\d+\.\d+-\d{8}-\d{6}@sha256:", ray["image"])


@pytest.mark.parametrize("builder", ["docker", "podman"])
def test_image_builds_locally_without_the_token_in_an_argument(run: CommandLine, builder: str) -> None:
    reference = f"{OUTPUTS['image_repository']}/ray@{DIGEST}"
    run.programs.answers |= {
        "print-access-token": "t0ken\n",
        "image inspect": json.dumps(["other@sha256:1", reference]),
    }

    assert run("image", "--builder", builder) == 0

    assert not [call for call in run.programs.calls if "t0ken" in " ".join(call)]
    login = run.programs.called(f"{builder} login")[0]
    assert run.programs.stdin[run.programs.calls.index(login)] == "t0ken"
    build = run.programs.called(f"{builder} build")[0]
    assert build[build.index("--file") + 1] == str(run.folder / "workloads" / "image" / "Dockerfile")
    assert build[-1] == str(run.folder)
    # What GKE's nodes run, whatever machine builds.
    assert build[build.index("--platform") + 1] == "linux/amd64"
    ray: Any = stack_file.config(run.file)["oasis:ray"]
    tagged, _, digest = ray["image"].partition("@")
    assert run.programs.called(f"{builder} push")[0][-1] == tagged == build[build.index("--tag") + 1]
    assert digest == DIGEST


@pytest.mark.parametrize(
    ("builder", "failing", "said"),
    [
        ("cloud-build", "builds submit", ""),
        ("cloud-build", "images describe", ""),
        ("docker", "docker build", "the build failed"),
        ("docker", "docker push", "was built, but could not be pushed"),
    ],
)
def test_a_build_that_fails_writes_nothing(run: CommandLine, builder: str, failing: str, said: str) -> None:
    before = run.file.read_bytes()
    run.programs.answers |= {"images describe": DESCRIBED, "print-access-token": "t0ken\n", failing: 1}

    assert run("image", "--builder", builder) == 1

    assert said in run.complained()
    assert run.file.read_bytes() == before


def test_image_before_the_first_up_says_so(run: CommandLine) -> None:
    run.programs.answers["stack output"] = json.dumps({"project": "some-project"})
    assert run("image") == 1
    assert "pulumi up -s dev" in run.complained()


def test_a_secret_travels_by_standard_input_alone(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, "hunter2\n")

    assert run("secret") == 0

    (add,) = run.programs.called("secrets versions add")
    assert add[-4:] == ["--project", "some-project", "--data-file", "-"] and "oasis-wandb" in add
    assert run.programs.stdin[run.programs.calls.index(add)] == "hunter2"
    said = run.capsys.readouterr()
    assert "hunter2" not in said.out + said.err + json.dumps(run.programs.calls) + json.dumps(run.programs.environments)


@pytest.mark.parametrize("value", ["", "\n", "one\ntwo\n"])
def test_a_secret_that_is_no_line_is_not_stored(run: CommandLine, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    typed(monkeypatch, value)
    assert run("secret") == 1
    assert not run.programs.called("versions add")


def test_no_secret_is_stored_after_ctrl_d(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    def ctrl_d(prompt: str) -> str:
        raise EOFError

    typed(monkeypatch, "", terminal=True)
    monkeypatch.setattr(getpass, "getpass", ctrl_d)
    assert run("secret") == 1
    assert "nothing was stored" in run.complained() and not run.programs.called("versions add")


def test_a_failing_program_says_why_without_the_secret(run: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    run.programs.answers["versions add"] = 1
    typed(monkeypatch, "hunter2")

    assert run("secret") == 1

    said = run.complained()
    assert "it broke" in said and "hunter2" not in said


def test_the_dashboard_is_forwarded_with_the_stacks_own_kubeconfig(run: CommandLine) -> None:
    assert run("dashboard") == 0

    assert run.programs.calls[-1] == OUTPUTS["ray_dashboard_command"].split()
    kubeconfig = run.programs.environments[-1]["KUBECONFIG"]
    assert kubeconfig != os.environ.get("KUBECONFIG") and not Path(kubeconfig).exists()


def test_a_kubectl_whose_port_forward_would_hang_is_named_before_it_does(run: CommandLine) -> None:
    run.programs.answers["kubectl version"] = _kubectl("v1.30.9-gke.1")

    assert run("dashboard") == 1

    said = run.complained()
    assert "kubectl is v1.30.9-gke.1" in said and "1.31 or later" in said and "gcloud components install" in said
    assert not run.programs.called("port-forward")


def test_destroy_first_lists_what_runs_and_what_stays(run: CommandLine, ray_pods: list[str]) -> None:
    job = {"kind": "RayJob", "metadata": {"namespace": "ray", "name": "mine"}}
    over = {**job, "metadata": {"namespace": "ray", "name": "over"}, "status": {"jobDeploymentStatus": "Complete"}}
    inner = {"kind": "Service", "metadata": {"namespace": "ray", "name": "inner"}, "spec": {"type": "ClusterIP"}}
    outer = {"kind": "Service", "metadata": {"namespace": "ray", "name": "outer"}, "spec": {"type": "LoadBalancer"}}
    gpu = {"metadata": {"labels": {"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}}}
    run.programs.answers |= {
        "kubectl get": json.dumps({"items": [job, over, inner, outer]}),
        "kubectl get nodes": json.dumps({"items": [gpu, {"metadata": {"labels": {}}}]}),
    }

    assert run("destroy-plan") == 0
    listed = run.said()
    assert not run.programs.called("pulumi --cwd") or not run.programs.called(" destroy ")
    assert run("destroy", "--yes") == 0

    assert "RayJob ray/mine" in listed and "Service ray/outer" in listed
    assert "ray/inner" not in listed and "ray/over" not in listed
    assert "2 nodes, 1 of them with GPUs" in listed
    assert "RayCluster ray/oasis: raysubmit_1 RUNNING python -m workloads train" in listed
    stays = [line for line in listed.partition("Stays:")[2].splitlines() if ".keep)" in line]
    assert len(stays) == 3 and all(line.endswith("set adopt: true in its section for the next up") for line in stays)
    assert "gs://some-project-oasis-data" in listed and "gs://some-project-oasis-runs" in listed
    assert run.programs.calls[-1] == ["pulumi", "--cwd", str(run.folder), "destroy", "--stack", "dev", "--yes"]


@pytest.mark.parametrize("section", ["data", "runs", "registry", "wandb"])
def test_nothing_is_destroyed_that_the_stack_file_keeps_and_the_last_up_did_not_nor_the_other_way_round(
    run: CommandLine, section: str
) -> None:
    resources = [
        {"urn": one.urn, "type": one.type, "inputs": one.inputs, "retainOnDelete": one.retain_on_delete}
        for one in deploy_stack(stack_file.config(run.file))
    ]
    state = json.dumps({"deployment": {"resources": resources}})
    run.programs.answers |= {"stack export": state, "kubectl get": json.dumps({"items": []})}
    assert run("destroy", "--yes") == 0 and run.programs.called(" destroy ")
    run.programs.calls.clear()

    kept = f"oasis:{section}:\n    keep: true" in run.file.read_text()
    now, was = json.dumps(not kept), json.dumps(kept)
    here = rf"(?<=oasis:{section}:\n    keep: ){was}"
    run.file.write_text(re.sub(here, now, run.file.read_text()).replace("oasis:name: oasis", "oasis:name: changed"))
    for command in (["destroy-plan"], ["destroy", "--yes"]):
        assert run(*command) == 1
        told = f"oasis:{section}.keep is {now} in the stack file, and was {was} in the last `pulumi up`\n"
        complained = run.complained()
        assert told in complained
        assert ", and the last `pulumi up` made some-project-oasis-runs\n" in complained
    assert not run.programs.called(" destroy ")


def test_nothing_is_destroyed_by_a_state_that_cannot_be_read_and_what_hides_it_is_removed_first(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{run.folder}")
    hidden = run.folder / ".pulumi" / "stacks" / "oasis" / "dev.json.attrs"
    hidden.parent.mkdir(parents=True)
    hidden.touch()
    run.programs.answers |= {"stack export": 1, "kubectl get": json.dumps({"items": []})}

    assert run("destroy-plan") == 0 and hidden.exists()
    assert run("destroy", "--yes") == 1

    assert "stack export" in run.complained()
    assert not hidden.exists() and not run.programs.called(" destroy ")


HEAD = {
    "metadata": {"name": "oasis-head-1", "labels": {"ray.io/node-type": "head"}},
    "spec": {"containers": [{"name": "ray-head", "image": "old@sha256:1"}]},
    "status": {"phase": "Running"},
}


@pytest.fixture
def ray_pods(programs: Programs) -> list[str]:
    programs.answers |= {
        "kubectl get pods": json.dumps({"items": [HEAD]}),
        "kubectl exec": "raysubmit_1 RUNNING python -m workloads train\n",
    }
    return ["kubectl", "delete", "pods", "--namespace", "ray", "--selector", "ray.io/cluster=oasis"]


def test_restart_lists_pods_and_jobs_and_then_deletes_the_pods_of_that_cluster_alone(
    run: CommandLine, ray_pods: list[str]
) -> None:
    assert run("restart", "--yes") == 0

    said = run.said()
    assert "head oasis-head-1, Running, image old@sha256:1" in said
    assert "raysubmit_1 RUNNING python -m workloads train" in said
    assert run.programs.calls[-1] == ray_pods
    assert run.programs.called("kubectl exec")[0][2:5] == ["--namespace", "ray", "oasis-head-1"]
    assert all(environment["KUBECONFIG"] for environment in run.programs.environments[-3:])


@pytest.mark.parametrize(
    ("terminal", "answer", "status"), [(True, "", 0), (True, "\n", 0), (True, "no", 0), (False, "y", 1)]
)
def test_restart_deletes_nothing_without_consent(
    run: CommandLine, terminal: bool, answer: str, status: int, ray_pods: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, answer, terminal)  # the first ends without a line, as Ctrl-D does

    assert run("restart") == status

    said = run.capsys.readouterr()
    assert "nothing was deleted" in said.out + said.err and ray_pods not in run.programs.calls
    assert terminal or "--yes" in said.err


def test_restart_asks_on_a_terminal_and_needs_no_answer_of_the_head(
    run: CommandLine, ray_pods: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run.programs.answers["kubectl exec"] = 1
    typed(monkeypatch, "y\n", terminal=True)

    assert run("restart") == 0

    assert "not known" in run.said()
    assert run.programs.calls[-1] == ray_pods


def test_restart_without_pods_deletes_nothing(run: CommandLine) -> None:
    run.programs.answers["kubectl get pods"] = json.dumps({"items": []})

    assert run("restart") == 0

    assert "has no pods" in run.said() and not run.programs.called("kubectl delete")


def test_destroy_goes_on_when_the_cluster_does_not_answer(run: CommandLine) -> None:
    run.programs.answers["kubectl get"] = 1

    assert run("destroy") == 0

    assert "not known" in run.said()
    assert run.programs.calls[-1][3] == "destroy"


BUCKET = {"type": "gcp:storage/bucket:Bucket", "urn": "urn::Bucket::data", "inputs": {"name": "some-project-data"}}
ACCOUNT = {
    "type": "gcp:serviceaccount/account:Account",
    "urn": "urn::Account::nodes",
    "inputs": {"accountId": "oasis-nodes", "project": "some-project"},
}
STANDING = {**BUCKET, "urn": "urn::Bucket::runs", "id": "some-project-runs", "outputs": {"location": "US"}}
MADE_UP = {**BUCKET, "urn": "urn::Bucket::build", "inputs": {"name": "build-4f6a01c", "__defaults": ["name"]}}


@dataclass
class PulumiWithAState:
    """Pulumi with the state of one stack in a folder: its first `up` fails."""

    run: CommandLine
    backend: Path
    state: dict[str, Any]
    lost: list[dict[str, Any]]
    """What `up` fails to make although it is there; with none it succeeds."""
    cut_off: int | type[BaseException] = 0
    """What becomes of the first refresh: an exit status, or what is raised."""
    outputs: dict[str, dict[str, str] | None] = field(default_factory=dict)
    """What a refresh reads, by id; None: there is no such thing."""
    op: str = "create"
    """What fails."""
    holder: int = 0
    """Process of the lock that an interrupted refresh leaves; 0: one that is gone."""

    def __call__(self, arguments: list[str], *others: Any) -> subprocess.CompletedProcess[str]:
        folder = self.backend / ".pulumi/locks/organization/oasis/dev"
        if arguments[3:4] == ["cancel"]:
            shutil.rmtree(folder)
        elif folder.exists():
            return subprocess.CompletedProcess(arguments, 255, "", "the stack is currently locked by 1 lock(s)")
        status = self._refreshed(folder) if "refresh" in arguments else 0
        if "--event-log" in arguments and self.lost:
            events = [{"resOpFailedEvent": {"metadata": {"op": self.op, "new": one}}} for one in self.lost]
            Path(arguments[arguments.index("--event-log") + 1]).write_text("\n".join(map(json.dumps, events)))
            self.lost, status = [], 255
        if arguments[3:5] == ["stack", "import"]:
            self.state = json.loads(others[-1])
            self.state["deployment"].pop("pending_operations", None)  # as Pulumi does
            standing = [one["urn"] for one in _resources(self.state) if not one.get("delete")]
            assert len(standing) == len(set(standing)), "Pulumi refuses such a state"
        self.run.programs.answers["stack export"] = json.dumps(self.state)
        done = self.run.programs.run(arguments, *others)
        return subprocess.CompletedProcess(arguments, status, done.stdout, done.stderr) if status else done

    def names(self) -> list[str]:
        return [one["urn"].rpartition("::")[2] for one in _resources(self.state)]

    def _refreshed(self, folder: Path) -> int:
        cut_off, self.cut_off = self.cut_off, 0
        if isinstance(cut_off, type):  # `subprocess.run` then kills Pulumi, whose lock stays
            with subprocess.Popen(["true"]) as gone:
                gone.wait()
            held = {
                "pid": self.holder or gone.pid,
                "username": getpass.getuser(),
                "hostname": socket.gethostname(),
                "timestamp": "now",
            }
            folder.mkdir(parents=True)
            (folder / "1.json").write_text(json.dumps(held))
            raise cut_off
        if not cut_off:
            read = [(one, self.outputs.get(one["id"], {})) for one in _resources(self.state)]
            there = [{"outputs": outputs, **one} for one, outputs in read if outputs is not None]
            self.state["deployment"]["resources"] = there
        return cut_off


@pytest.fixture
def pulumi(run: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PulumiWithAState:
    made = PulumiWithAState(run, tmp_path / "state", {"deployment": {"resources": [STANDING]}}, [])
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{made.backend}")
    monkeypatch.setattr(external_program, "run", made)
    return made


@pytest.mark.parametrize(
    ("resource", "outputs", "answer", "asked", "taken"),
    [
        (BUCKET, {"timeCreated": "2999-01-01T00:00:00Z"}, None, False, True),
        (BUCKET, {"timeCreated": "2020-01-01T00:00:00Z"}, "y", False, False),
        (ACCOUNT, {}, "y", True, True),
        (ACCOUNT, {}, "", True, False),
        (ACCOUNT, {}, None, False, False),
    ],
    ids=["made since", "made before", "agreed", "Enter", "no terminal"],
)
def test_what_another_may_have_made_is_taken_over_if_google_or_the_terminal_says_that_it_is_ours(
    run: CommandLine,
    pulumi: PulumiWithAState,
    monkeypatch: pytest.MonkeyPatch,
    resource: dict[str, Any],
    outputs: dict[str, str],
    answer: str | None,
    asked: bool,
    taken: bool,
) -> None:
    identity = "some-project-data" if resource is BUCKET else "oasis-nodes@some-project.iam.gserviceaccount.com"
    questions = list[str]()
    pulumi.lost, pulumi.outputs = [resource], {identity: outputs}
    monkeypatch.setattr("sys.stdin.isatty", lambda: answer is not None)
    monkeypatch.setattr("builtins.input", lambda question: questions.append(question) or answer)

    assert run("up") == (0 if taken else 255)

    assert [one["id"].endswith(identity) for one in _resources(pulumi.state)] == [False, *[True] * taken]
    assert [identity in question for question in questions] == [True] * asked


@pytest.mark.parametrize(
    "made", ["2999-01-01T00:00:00Z", "2020-01-01T00:00:00Z", None], ids=["ours", "another's", "not"]
)
def test_what_a_failed_replacement_was_to_replace_goes_only_if_there_is_another_of_ours_in_its_place(
    run: CommandLine, pulumi: PulumiWithAState, made: str | None
) -> None:
    pulumi.state = {"deployment": {"resources": [{**BUCKET, "id": "before", "outputs": {}}]}}
    pulumi.lost, pulumi.op = [BUCKET], "create-replacement"
    pulumi.outputs = {"some-project-data": {"timeCreated": made} if made else None}

    is_ours = made is not None and made > "2026"
    assert run("up") == (0 if is_ours else 255)

    left = [(one["id"], one.get("delete", False)) for one in _resources(pulumi.state)]
    assert left == ([("before", True), ("some-project-data", False)] if is_ours else [("before", False)])


@pytest.mark.parametrize(
    ("refresh", "answer", "status"),
    [
        (0, KeyboardInterrupt, 130),
        (0, EOFError, 0),
        (255, None, 1),
        (KeyboardInterrupt, None, 130),
    ],
    ids=["Ctrl-C at the question", "Ctrl-D at the question", "a failed refresh", "Ctrl-C during the refresh"],
)
def test_what_another_may_have_made_is_in_no_state_however_the_decision_is_cut_off(
    run: CommandLine,
    pulumi: PulumiWithAState,
    monkeypatch: pytest.MonkeyPatch,
    refresh: int | type[BaseException],
    answer: type[BaseException] | None,
    status: int,
) -> None:
    pulumi.lost, pulumi.cut_off = [ACCOUNT, MADE_UP], refresh

    def asked(_question: str) -> str:
        assert answer
        raise answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", asked)

    assert run("up") == status

    assert pulumi.names() == ["runs", "build"]


def test_a_state_that_cannot_be_put_back_is_said_with_what_to_do(run: CommandLine, pulumi: PulumiWithAState) -> None:
    pulumi.lost, pulumi.cut_off, pulumi.holder = [ACCOUNT], KeyboardInterrupt, os.getpid()

    assert run("up") == 1

    complaint = run.complained()
    assert "currently locked" in complaint and f"pulumi state delete -s dev '{ACCOUNT['urn']}'" in complaint


def test_what_was_decided_before_ctrl_c_counts(
    run: CommandLine, pulumi: PulumiWithAState, monkeypatch: pytest.MonkeyPatch
) -> None:
    another = {**ACCOUNT, "urn": "urn::Account::jobs", "inputs": {"accountId": "jobs", "project": "some-project"}}
    pulumi.lost = [ACCOUNT, another, BUCKET]
    pulumi.outputs = {"some-project-data": {"timeCreated": "2999-01-01T00:00:00Z"}}
    answers: Iterator[str] = iter(["y"])

    def asked(_question: str) -> str:
        for answer in answers:
            return answer
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", asked)

    assert run("up") == 130

    assert pulumi.names() == ["runs", "nodes", "data"]


def test_a_killed_run_is_asked_about_again_after_a_refresh_that_failed(
    run: CommandLine, pulumi: PulumiWithAState
) -> None:
    pulumi.state["deployment"]["pending_operations"] = [{"type": "creating", "resource": ACCOUNT}]
    pulumi.cut_off = 255

    assert run("up") == 1
    assert pulumi.names() == ["runs", "nodes"], "what was being made is forgotten"
    assert run("up") == 0

    assert [call[3] for call in run.programs.calls if {"refresh", "up"} & set(call)] == ["refresh", "refresh", "up"]
    assert all("outputs" in one for one in _resources(pulumi.state))


def _resources(state: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = state["deployment"]["resources"]
    return found


def test_pulumi_uses_the_backend_of_the_stack_file_unless_the_caller_names_one(
    run: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack_file.fill(run.file, ("config", "oasis:state_backend"), "gs://ours")

    assert run("up") == 0
    assert run.programs.environments[-1]["PULUMI_BACKEND_URL"] == "gs://ours"
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///theirs")
    assert run("preview", "--yes") == 0
    assert run.programs.calls[-1][3:] == ["preview", "--stack", "dev"]  # Pulumi's takes no --yes
    assert run.programs.environments[-1]["PULUMI_BACKEND_URL"] == "file:///theirs"


COMMANDS = (
    "plan",
    "prices",
    "init",
    "preview",
    "up",
    "destroy",
    "destroy-plan",
    "image",
    "restart",
    "secret",
    "dashboard",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_says_what_it_needs(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        command_line.main([command, "--help"])
    text = capsys.readouterr().out
    assert re.search(r"Needs |Nothing is changed", text)
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_build_files_take_what_the_command_gives(run: CommandLine) -> None:
    folder = stack_file.ROOT / image.FOLDER
    run.programs.answers |= {
        "images describe": DESCRIBED,
        "image inspect": json.dumps([f"{OUTPUTS['image_repository']}/ray@{DIGEST}"]),
    }
    assert run("image") == 0
    assert run("image", "--builder", "docker") == 0

    submitted = run.programs.called("builds submit")[0]
    given = {pair.partition("=")[0] for pair in submitted[submitted.index("--substitutions") + 1].split(",")}
    wanted = set(re.findall(r"\$\{(_[A-Z_]+)\}", (folder / "cloudbuild.yaml").read_text()))
    assert given == wanted
    built = run.programs.called("docker build")[0]
    arguments = {value.partition("=")[0] for option, value in itertools.pairwise(built) if option == "--build-arg"}
    dockerfile = (folder / "Dockerfile").read_text()
    # But for the base image, which Dockerfile itself names.
    assert arguments == set(re.findall(r"^ARG ([A-Z_]+)", dockerfile, re.MULTILINE)) - {"BASE"}
    assert "id=python_index_token" in dockerfile
