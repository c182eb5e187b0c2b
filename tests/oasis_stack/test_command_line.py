"""`python -m oasis_stack`, with stand-ins for pulumi, gcloud, docker and kubectl that keep how they were called."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from emulator import __main__ as emulator_command_line
from oasis_stack import __main__ as command_line
from oasis_stack.command_line import image, stack_file

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


@dataclass
class Programs:
    """What the stand-ins were asked, and what they answer."""

    calls: list[list[str]] = field(default_factory=list)
    stdin: list[str | None] = field(default_factory=list)
    environments: list[dict[str, str]] = field(default_factory=list)
    answers: dict[str, Any] = field(default_factory=dict)
    """First words of a command line to its output; an int is an exit status."""

    def run(self, arguments: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert not options.get("shell")
        self.calls.append(list(arguments))
        self.stdin.append(options.get("input"))
        self.environments.append(options["env"])
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
    made = Programs(answers={"stack output": json.dumps(OUTPUTS), "kubectl version": _kubectl("v1.31.0")})
    monkeypatch.setattr(subprocess, "run", made.run)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.delenv("PULUMI_BACKEND_URL", raising=False)
    return made


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a copy of the dev stack, for the commands that write."""
    shutil.copy(stack_file.find("dev"), tmp_path)
    shutil.copy(stack_file.ROOT / image.LOCK, tmp_path)
    return tmp_path


@pytest.fixture
def project(checkout: Path) -> None:
    """The stack has been initialised, as far as the file shows it."""
    stack_file.fill(checkout / "Pulumi.dev.yaml", ("config", "gcp:project"), "some-project")


@pytest.fixture
def run(checkout: Path) -> Callable[..., int]:
    return lambda *arguments: command_line.main(arguments, checkout)


def test_plan_shows_settings_addresses_and_ladder_and_calls_nothing(
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
    assert "auto_repair=false" in text and "max_run_duration=604800s" in text
    assert "PREEMPTIBLE-NVIDIA-H200-GPUS-per-project-region: 32" in text
    assert programs.calls == []


def test_plan_imports_neither_pulumi_engine_nor_cloud_providers() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-X", "importtime", "-c"),
            "from oasis_stack.__main__ import main; main(['plan', '--stack', 'local'])",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=stack_file.ROOT,
    )
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "oasis_stack.settings.settings" in imported
    assert not {
        name for name in imported if name.split(".")[0] in ("pulumi_gcp", "pulumi_kubernetes", "kubernetes", "ray")
    }


def test_an_encrypted_key_is_named_and_not_shown(run: Callable[..., int], checkout: Path, capsys: Any) -> None:
    with (checkout / "Pulumi.dev.yaml").open("a") as file:
        file.write("  gcp:project: some-project\n  oasis:wandb_api_key:\n    secure: v1:abc\n")

    assert run("plan") == 0

    text = capsys.readouterr().out
    assert "(encrypted)" in text and "v1:abc" not in text


def test_wrong_settings_end_a_command_before_it_calls_anything(
    run: Callable[..., int], programs: Programs, checkout: Path, capsys: Any
) -> None:
    with (checkout / "Pulumi.dev.yaml").open("a") as file:
        file.write("  oasis:nmae: x\n")

    for command in ("plan", "preview", "up", "destroy", "destroy-plan", "image"):
        assert run(command) == 2
        assert " Did you mean oasis:name?\n" in capsys.readouterr().err
    assert programs.calls == []


def test_a_stack_without_a_file_ends_with_usage(run: Callable[..., int], capsys: Any) -> None:
    assert run("plan", "--stack", "prod") == 2
    assert "Copy Pulumi.dev.yaml to Pulumi.prod.yaml" in capsys.readouterr().err


def test_an_unknown_flag_is_answered_with_the_usage_of_the_command_that_was_typed(capsys: Any) -> None:
    for program, main in (("oasis_stack", command_line.main), ("emulator", emulator_command_line.main)):
        with pytest.raises(SystemExit, match="2"):
            main(["up", "--nothing"])
        said = capsys.readouterr().err
        assert said.startswith(f"usage: python -m {program} up ")
        assert f"python -m {program} up: error: unrecognized arguments: --nothing" in said


def test_a_missing_program_is_answered_with_how_to_install_it(
    run: Callable[..., int], programs: Programs, project: None, monkeypatch: pytest.MonkeyPatch, capsys: Any
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
        said = capsys.readouterr().err
        assert all(hint in said for hint in expected), said
    assert programs.calls == []


def test_init_makes_bucket_key_and_stack_and_fills_the_file(
    run: Callable[..., int], programs: Programs, checkout: Path, capsys: Any
) -> None:
    programs.answers |= {"describe": 1, "stack export": 1, "get-value project": "some-project\n"}
    before = (checkout / "Pulumi.dev.yaml").read_text()

    assert run("init") == 0

    bucket = "gs://some-project-oasis-state"
    (made,) = programs.called("buckets create")
    assert bucket in made and "--uniform-bucket-level-access" in made and "--public-access-prevention" in made
    assert programs.called(f"buckets update {bucket} --versioning")
    assert programs.called("kms keyrings create oasis") and programs.called("kms keys create dev --purpose encryption")
    (stack,) = programs.called("stack init")
    key = "projects/some-project/locations/us-central1/keyRings/oasis/cryptoKeys/dev"
    assert stack[-3:] == ["dev", "--secrets-provider", f"gcpkms://{key}"]
    assert programs.environments[programs.calls.index(stack)]["PULUMI_BACKEND_URL"] == bucket
    after = (checkout / "Pulumi.dev.yaml").read_text()
    assert set(after.splitlines()) - set(before.splitlines()) == {
        "  gcp:project: some-project",
        f"  oasis:state_backend: {bucket}",
    }
    assert [line for line in after.splitlines() if line in before.splitlines()] == before.splitlines()
    assert bucket in capsys.readouterr().out


def test_init_again_makes_nothing_and_leaves_the_file_alone(
    run: Callable[..., int], programs: Programs, checkout: Path
) -> None:
    programs.answers |= {"get-value project": "some-project\n"}
    assert run("init") == 0
    before = (checkout / "Pulumi.dev.yaml").read_bytes()
    programs.calls.clear()

    assert run("init") == 0

    assert (checkout / "Pulumi.dev.yaml").read_bytes() == before
    assert not [call for call in programs.calls if "create" in call or call[-4:-3] == ["init"]]


@pytest.mark.parametrize("chosen", ["(unset)", "", "My Project"])
def test_init_without_a_project_makes_nothing(
    chosen: str, run: Callable[..., int], programs: Programs, capsys: Any
) -> None:
    programs.answers |= {"get-value project": chosen}

    assert run("init") == 1

    assert "gcloud config set project" in capsys.readouterr().err
    assert not programs.called("enable") and not programs.called("create")


def test_init_does_not_move_a_stack_to_another_project(
    run: Callable[..., int], programs: Programs, capsys: Any
) -> None:
    assert run("init", "--project", "some-project") == 0
    assert run("init", "--project", "other-project") == 1
    assert "names project some-project" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "words"),
    [("local", "make demo"), ("my.stack", "letters, digits, _ and -"), ("s" * 64, "1 to 63")],
)
def test_init_refuses_a_stack_whose_name_cannot_be(
    name: str, words: str, run: Callable[..., int], programs: Programs, checkout: Path, capsys: Any
) -> None:
    shutil.copy(checkout / "Pulumi.dev.yaml", checkout / f"Pulumi.{name}.yaml")

    assert run("init", "--stack", name, "--project", "some-project") == 1

    said = capsys.readouterr().err
    assert f"stack {name} " in said and words in said
    assert programs.calls == []


def test_before_init_the_missing_project_is_all_that_is_said(
    run: Callable[..., int], programs: Programs, capsys: Any
) -> None:
    for command in ("preview", "up", "destroy", "image"):
        assert run(command) == 2
        said = capsys.readouterr().err
        assert "1 setting needs a change" in said and "gcp:project is missing" in said and "make init" in said
    assert programs.calls == []


@pytest.mark.parametrize("command", ["preview", "up", "destroy", "image", "restart", "dashboard", "secret"])
def test_a_passphrase_that_is_missing_is_named_before_pulumi_starts(
    command: str,
    run: Callable[..., int],
    programs: Programs,
    project: None,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    for name in ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"):
        monkeypatch.delenv(name, raising=False)
    with (checkout / "Pulumi.dev.yaml").open("a") as file:
        file.write("encryptionsalt: v1:abc\n")

    assert run(command) == 1

    assert "PULUMI_CONFIG_PASSPHRASE_FILE" in capsys.readouterr().err
    assert not programs.called("pulumi")


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ({"PULUMI_CONFIG_PASSPHRASE": ""}, "encryptionsalt: v1:abc\n"),
        ({"PULUMI_CONFIG_PASSPHRASE_FILE": "/some/file"}, "secretsprovider: passphrase\n"),
        ({}, "secretsprovider: gcpkms://key\nencryptedkey: abc\n"),
    ],
)
def test_a_passphrase_that_is_given_or_not_needed_is_not_asked_for(
    given: dict[str, str],
    written: str,
    run: Callable[..., int],
    programs: Programs,
    project: None,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with (checkout / "Pulumi.dev.yaml").open("a") as file:
        file.write(written)

    assert run("up") == 0

    assert programs.calls[-1] == ["pulumi", "--cwd", str(checkout), "up", "--stack", "dev"]


def test_a_key_that_stands_twice_ends_every_command_with_both_lines_before_anything_is_called(
    run: Callable[..., int], programs: Programs, project: None, checkout: Path, capsys: Any
) -> None:
    path = checkout / "Pulumi.dev.yaml"
    lines = path.read_text().splitlines()
    first = next(index for index, line in enumerate(lines) if line.strip() == "min_nodes: 1")
    path.write_text("\n".join([*lines[: first + 1], "      min_nodes: 2", *lines[first + 1 :]]))

    for command in ("plan", "init", "preview", "up", "destroy", "image", "secret", "dashboard", "restart"):
        assert run(command) == 2, command
        said = capsys.readouterr().err
        assert f"oasis:cluster.system_pool.min_nodes stands on lines {first + 1} and {first + 2}" in said, command
    assert not programs.calls


def test_an_exclusion_that_has_passed_is_legal_and_noted(
    run: Callable[..., int], programs: Programs, project: None, checkout: Path, capsys: Any
) -> None:
    path = checkout / "Pulumi.dev.yaml"
    for key, value in (("start", "2020-01-01T00:00:00Z"), ("end", "2020-03-01T00:00:00Z")):
        stack_file.set_value(path, ("config", "oasis:cluster", "maintenance_exclusion", key), value)

    for command in ("plan", "preview", "up"):
        assert run(command) == 0
        assert "ended at 2020-03-01T00:00:00Z" in capsys.readouterr().out


def test_image_builds_with_cloud_build_and_writes_tag_and_digest(
    run: Callable[..., int], programs: Programs, project: None, checkout: Path, capsys: Any
) -> None:
    programs.answers |= {
        "images describe": json.dumps({"image_summary": {"digest": DIGEST}}),
        "rev-parse --short HEAD": "abc1234\n",
    }

    assert run("image") == 0

    (build,) = programs.called("builds submit")
    assert build[3] == str(checkout)
    for option, value in (
        ("--config", str(checkout / "workloads" / "image" / "cloudbuild.yaml")),
        ("--worker-pool", OUTPUTS["image_build_worker_pool"]),
        ("--service-account", f"projects/some-project/serviceAccounts/{OUTPUTS['image_builder']}"),
        ("--gcs-source-staging-dir", "gs://some-project-oasis-build/source"),
        ("--region", "us-central1"),
    ):
        assert build[build.index(option) + 1] == value
    ray: Any = stack_file.config(checkout / "Pulumi.dev.yaml")["oasis:ray"]
    tag = rf"{re.escape(ray['version'])}-\d{{8}}-\d{{6}}-abc1234"
    assert re.fullmatch(rf"{re.escape(OUTPUTS['image_repository'])}/ray:{tag}@{DIGEST}", ray["image"])
    assert f"_TAG={ray['image'].rpartition('@')[0].rpartition(':')[2]}" in " ".join(build)
    assert programs.called("images describe")[0][5] == ray["image"].rpartition("@")[0]
    said = capsys.readouterr().out
    assert said.index("pulumi up -s dev") < said.index("restart --stack dev")
    assert run("plan") == 0


def test_an_image_of_another_ray_than_the_locked_one_is_not_built(
    run: Callable[..., int], programs: Programs, project: None, checkout: Path, capsys: Any
) -> None:
    stack_file.set_value(checkout / "Pulumi.dev.yaml", ("config", "oasis:ray", "version"), "2.99.0")

    assert run("image") == 1

    said = capsys.readouterr().err
    assert "oasis:ray.version is 2.99.0" in said and image.LOCK in said
    assert programs.calls == []


def test_an_unpacked_archive_without_a_commit_is_tagged_by_time_alone(
    run: Callable[..., int], programs: Programs, project: None, checkout: Path
) -> None:
    programs.answers |= {"images describe": json.dumps({"image_summary": {"digest": DIGEST}}), "rev-parse": 128}

    assert run("image") == 0

    ray: Any = stack_file.config(checkout / "Pulumi.dev.yaml")["oasis:ray"]
    assert re.search(r":2\.\d+\.\d+-\d{8}-\d{6}@sha256:", ray["image"])


@pytest.mark.parametrize("builder", ["docker", "podman"])
def test_image_builds_locally_without_the_token_in_an_argument(
    builder: str, run: Callable[..., int], programs: Programs, project: None, checkout: Path
) -> None:
    reference = f"{OUTPUTS['image_repository']}/ray@{DIGEST}"
    programs.answers |= {"print-access-token": "t0ken\n", "image inspect": json.dumps(["other@sha256:1", reference])}

    assert run("image", "--builder", builder) == 0

    assert not [call for call in programs.calls if "t0ken" in " ".join(call)]
    login = programs.called(f"{builder} login")[0]
    assert programs.stdin[programs.calls.index(login)] == "t0ken"
    build = programs.called(f"{builder} build")[0]
    assert build[build.index("--file") + 1] == str(checkout / "workloads" / "image" / "Dockerfile")
    assert build[-1] == str(checkout)
    # What GKE's nodes run, whatever machine builds.
    assert build[build.index("--platform") + 1] == "linux/amd64"
    ray: Any = stack_file.config(checkout / "Pulumi.dev.yaml")["oasis:ray"]
    tagged, _, digest = ray["image"].partition("@")
    assert programs.called(f"{builder} push")[0][-1] == tagged == build[build.index("--tag") + 1]
    assert digest == DIGEST


@pytest.mark.parametrize("failing", ["builds submit", "images describe"])
def test_a_build_that_fails_writes_nothing(
    failing: str, run: Callable[..., int], programs: Programs, project: None, checkout: Path
) -> None:
    before = (checkout / "Pulumi.dev.yaml").read_bytes()
    programs.answers |= {"images describe": json.dumps({"image_summary": {"digest": DIGEST}}), failing: 1}

    assert run("image") == 1

    assert (checkout / "Pulumi.dev.yaml").read_bytes() == before


def test_image_before_the_first_up_says_so(
    run: Callable[..., int], programs: Programs, project: None, capsys: Any
) -> None:
    programs.answers["stack output"] = json.dumps({"project": "some-project"})
    assert run("image") == 1
    assert "pulumi up -s dev" in capsys.readouterr().err


def test_a_secret_travels_by_standard_input_alone(
    run: Callable[..., int], programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hunter2\n"))

    assert run("secret") == 0

    (add,) = programs.called("secrets versions add")
    assert add[-4:] == ["--project", "some-project", "--data-file", "-"] and "oasis-wandb" in add
    assert programs.stdin[programs.calls.index(add)] == "hunter2"
    said = capsys.readouterr()
    assert "hunter2" not in said.out + said.err + json.dumps(programs.calls) + json.dumps(programs.environments)


@pytest.mark.parametrize("value", ["", "\n", "one\ntwo\n"])
def test_a_secret_that_is_no_line_is_not_stored(
    value: str, run: Callable[..., int], programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(value))
    assert run("secret") == 1
    assert not programs.called("versions add")


def test_a_failing_program_says_why_without_the_secret(
    run: Callable[..., int], programs: Programs, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    programs.answers["versions add"] = 1
    monkeypatch.setattr(sys, "stdin", io.StringIO("hunter2"))

    assert run("secret") == 1

    said = capsys.readouterr().err
    assert "it broke" in said and "hunter2" not in said


def test_the_dashboard_is_forwarded_with_the_stacks_own_kubeconfig(run: Callable[..., int], programs: Programs) -> None:
    assert run("dashboard") == 0

    assert programs.calls[-1] == OUTPUTS["ray_dashboard_command"].split()
    kubeconfig = programs.environments[-1]["KUBECONFIG"]
    assert kubeconfig != os.environ.get("KUBECONFIG") and not Path(kubeconfig).exists()


def test_a_kubectl_whose_port_forward_would_hang_is_named_before_it_does(
    run: Callable[..., int], programs: Programs, capsys: Any
) -> None:
    programs.answers["kubectl version"] = _kubectl("v1.30.9-gke.1")

    assert run("dashboard") == 1

    said = capsys.readouterr().err
    assert "kubectl is v1.30.9-gke.1" in said and "1.31 or later" in said and "gcloud components install" in said
    assert not programs.called("port-forward")


def test_destroy_first_lists_what_runs_and_what_stays(
    run: Callable[..., int], programs: Programs, checkout: Path, capsys: Any
) -> None:
    stack_file.fill(checkout / "Pulumi.dev.yaml", ("config", "gcp:project"), "some-project")
    job = {"kind": "RayJob", "metadata": {"namespace": "ray", "name": "mine"}}
    inner = {"kind": "Service", "metadata": {"namespace": "ray", "name": "inner"}, "spec": {"type": "ClusterIP"}}
    outer = {"kind": "Service", "metadata": {"namespace": "ray", "name": "outer"}, "spec": {"type": "LoadBalancer"}}
    gpu = {"metadata": {"labels": {"cloud.google.com/gke-accelerator": "nvidia-h200-141gb"}}}
    programs.answers |= {
        "kubectl get": json.dumps({"items": [job, inner, outer]}),
        "kubectl get nodes": json.dumps({"items": [gpu, {"metadata": {"labels": {}}}]}),
    }

    assert run("destroy-plan") == 0
    listed = capsys.readouterr().out
    assert not programs.called("pulumi --cwd") or not programs.called(" destroy ")
    assert run("destroy", "--yes") == 0

    assert "RayJob ray/mine" in listed and "Service ray/outer" in listed and "ray/inner" not in listed
    assert "2 nodes, 1 of them with GPUs" in listed
    stays = [line for line in listed.partition("Stays:")[2].splitlines() if ".keep)" in line]
    assert len(stays) == 3 and all(line.endswith("set adopt: true in its section for the next up") for line in stays)
    assert "gs://some-project-oasis-data" in listed and "gs://some-project-oasis-runs" in listed
    assert programs.calls[-1] == ["pulumi", "--cwd", str(checkout), "destroy", "--stack", "dev", "--yes"]


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
    run: Callable[..., int], programs: Programs, ray_pods: list[str], capsys: Any
) -> None:
    assert run("restart", "--yes") == 0

    said = capsys.readouterr().out
    assert "head oasis-head-1, Running, image old@sha256:1" in said
    assert "raysubmit_1 RUNNING python -m workloads train" in said
    assert programs.calls[-1] == ray_pods
    assert programs.called("kubectl exec")[0][2:5] == ["--namespace", "ray", "oasis-head-1"]
    assert all(environment["KUBECONFIG"] for environment in programs.environments[-3:])


@pytest.mark.parametrize(("terminal", "answer", "status"), [(True, "", 0), (True, "no", 0), (False, "y", 1)])
def test_restart_deletes_nothing_without_consent(
    terminal: bool,
    answer: str,
    status: int,
    run: Callable[..., int],
    programs: Programs,
    ray_pods: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    stdin = io.StringIO(answer)  # the first ends without a line, as Ctrl-D does
    monkeypatch.setattr(stdin, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stdin", stdin)

    assert run("restart") == status

    said = capsys.readouterr()
    assert "nothing was deleted" in said.out + said.err and ray_pods not in programs.calls
    assert terminal or "--yes" in said.err


def test_restart_asks_on_a_terminal_and_needs_no_answer_of_the_head(
    run: Callable[..., int], programs: Programs, ray_pods: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    programs.answers["kubectl exec"] = 1
    stdin = io.StringIO("y\n")
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)

    assert run("restart") == 0

    assert "not known" in capsys.readouterr().out
    assert programs.calls[-1] == ray_pods


def test_restart_without_pods_deletes_nothing(run: Callable[..., int], programs: Programs, capsys: Any) -> None:
    programs.answers["kubectl get pods"] = json.dumps({"items": []})

    assert run("restart") == 0

    assert "has no pods" in capsys.readouterr().out and not programs.called("kubectl delete")


def test_destroy_goes_on_when_the_cluster_does_not_answer(
    run: Callable[..., int], programs: Programs, checkout: Path, capsys: Any
) -> None:
    stack_file.fill(checkout / "Pulumi.dev.yaml", ("config", "gcp:project"), "some-project")
    programs.answers["kubectl get"] = 1

    assert run("destroy") == 0

    assert "not known" in capsys.readouterr().out
    assert programs.calls[-1][3] == "destroy"


def test_pulumi_uses_the_backend_of_the_stack_file_unless_the_caller_names_one(
    run: Callable[..., int], programs: Programs, checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for keys, value in ((("config", "gcp:project"), "some-project"), (("config", "oasis:state_backend"), "gs://ours")):
        stack_file.fill(checkout / "Pulumi.dev.yaml", keys, value)

    assert run("up") == 0
    assert programs.environments[-1]["PULUMI_BACKEND_URL"] == "gs://ours"
    monkeypatch.setenv("PULUMI_BACKEND_URL", "file:///theirs")
    assert run("preview") == 0
    assert programs.environments[-1]["PULUMI_BACKEND_URL"] == "file:///theirs"


COMMANDS = ("plan", "init", "preview", "up", "destroy", "destroy-plan", "image", "restart", "secret", "dashboard")


def test_help_names_every_command(capsys: Any) -> None:
    with pytest.raises(SystemExit):
        command_line.main(["--help"])
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command}" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_says_what_it_needs(command: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        command_line.main([command, "--help"])
    text = capsys.readouterr().out
    assert re.search(r"Needs |Nothing is changed", text)
    assert all(len(line) <= 120 for line in text.splitlines())


def test_the_build_files_take_what_the_command_gives(
    run: Callable[..., int], programs: Programs, project: None
) -> None:
    folder = stack_file.ROOT / image.FOLDER
    programs.answers |= {
        "images describe": json.dumps({"image_summary": {"digest": DIGEST}}),
        "image inspect": json.dumps([f"{OUTPUTS['image_repository']}/ray@{DIGEST}"]),
    }
    assert run("image") == 0
    assert run("image", "--builder", "docker") == 0

    submitted = programs.called("builds submit")[0]
    given = {pair.partition("=")[0] for pair in submitted[submitted.index("--substitutions") + 1].split(",")}
    wanted = set(re.findall(r"\$\{(_[A-Z_]+)\}", (folder / "cloudbuild.yaml").read_text()))
    assert given == wanted
    built = programs.called("docker build")[0]
    arguments = {value.partition("=")[0] for option, value in itertools.pairwise(built) if option == "--build-arg"}
    dockerfile = (folder / "Dockerfile").read_text()
    # But for the base image, which Dockerfile itself names.
    assert arguments == set(re.findall(r"^ARG ([A-Z_]+)", dockerfile, re.MULTILINE)) - {"BASE"}
    assert "id=python_index_token" in dockerfile
