"""What the doctor calls unfit or doubtful, what it says does not apply, and the exit codes."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import google.auth
import pytest
from google.auth.credentials import AnonymousCredentials

from emulator.kubernetes import certificates
from oasis_stack.pod_specs import gib
from tests.support import loopback, namespaces, stub_kubectl
from tests.support.command_line import CommandLine
from tests.support.loopback import Reply, Request
from tests.support.processes import python, write_program
from tests.support.stub_kubectl import OUTPUTS
from tests.support.wandb_server import answering, silent
from workloads import __main__ as command_line
from workloads.cluster import stack as deployed
from workloads.doctor import access, cluster, dashboard, hardware, listeners, software
from workloads.doctor import command as doctor
from workloads.doctor.finding import Finding, Subject
from workloads.environment import API_SERVER_VARIABLE
from workloads.errors import AuthError, PlaceError
from workloads.jobs import forecast
from workloads.reporting.credentials import ENDPOINT_VARIABLE

LAPTOP = Subject(environment=None, variables={}, gpus=0)
GPU_WORKER = Subject(environment=OUTPUTS, variables={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "right"}, gpus=8)
KEY = "e2" * 20
NEW_IMAGE = r"(?s)make image.*pulumi up.*make restart"


def finding(place: Subject, check: str) -> Finding:
    """The outcome of one check."""
    return doctor.examine(check, doctor.CHECKS[check], place)


def by_token(statuses: Mapping[str | None, int]) -> Callable[[Request], Reply]:
    """Answers with a status by the Authorization header."""

    def answer(request: Request) -> Reply:
        given = request.headers.get("Authorization")
        return statuses.get(given, statuses["else"] if given else statuses[None]), ""

    return answer


def package(folder: Path, name: str, version: str, *requires: str) -> None:
    """An installed package, as far as its metadata goes."""
    directory = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    directory.mkdir(parents=True)
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    (directory / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {each}" for each in requires), ""]))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages in the place of those that are installed here."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_a_gpu_worker_without_gib_is_unfit_and_with_it_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "GIB_DIRECTORY", str(tmp_path))
    found = finding(GPU_WORKER, "gib")
    assert found.outcome == "fail"
    assert "libnccl-net" in found.found and "install-gib" in found.remedy
    for name in ("lib64/libnccl-net_internal.so", "scripts/set_nccl_env.sh", "configs/tuner_config_a3u.txtpb"):
        assert " lacks " in finding(GPU_WORKER, "gib").found
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert hardware.GIB_FILES == gib.FILES
    monkeypatch.setattr(hardware, "_RDMA_DEVICES", tmp_path / "infiniband")
    for nic in range(OUTPUTS.rdma_nics):
        assert f"{nic} of {OUTPUTS.rdma_nics} RDMA NICs" in finding(GPU_WORKER, "gib").found
        (tmp_path / "infiniband" / f"mlx5_{nic}").mkdir(parents=True)
    assert finding(GPU_WORKER, "gib").outcome == "ok"


@pytest.mark.parametrize(("usable", "outcome"), [(8, "ok"), (7, "fail")])
def test_each_gpu_of_a_node_must_be_usable(monkeypatch: pytest.MonkeyPatch, usable: int, outcome: str) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: usable)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    found = finding(GPU_WORKER, "gpus")
    assert found.outcome == outcome and str(usable) in found.found


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("The NVIDIA driver on your system is too old (found version 12020).\nPlease update"),
        OSError("libcudart.so.13: cannot open shared object file"),
        ImportError("libcudnn.so.9: cannot open shared object file"),
    ],
)
def test_a_torch_that_cannot_start_cuda_fails_its_check_and_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def start() -> str:
        raise error

    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("torch.cuda.get_device_name", start)
    found = finding(GPU_WORKER, "gpus")
    assert (found.outcome, str(error).partition("\n")[0] in found.found, "image" in found.remedy) == (
        "fail",
        True,
        True,
    )


@pytest.mark.parametrize(
    ("place", "check"),
    [
        (LAPTOP, "gib"),
        (replace(GPU_WORKER, gpus=0), "gib"),
        (LAPTOP, "gpus"),
        (LAPTOP, "authentication"),
        (LAPTOP, "runs bucket"),
        (LAPTOP, "data bucket"),
        (replace(LAPTOP, variables={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}), "listeners"),
    ],
)
def test_a_check_that_does_not_apply_says_so_instead_of_passing(place: Subject, check: str) -> None:
    assert finding(place, check).outcome == "not here"


@pytest.mark.parametrize(
    ("statuses", "outcome", "words"),
    [
        ({None: 401, "else": 403, "Bearer right": 200}, "ok", "neither a wrong one nor none"),
        ({None: 401, "else": 403}, "fail", "refuses our token"),
        ({None: 200, "else": 200}, "fail", "answers without a token"),
        ({None: 401, "else": 200}, "fail", "takes any token"),
        ({None: 401, "else": 403, "Bearer right": 503}, "warn", "answers 503 to the right token"),
    ],
)
def test_ray_must_take_the_right_token_and_no_other(statuses: dict[str | None, int], outcome: str, words: str) -> None:
    with loopback.answering(by_token(statuses)) as url:
        found = finding(replace(GPU_WORKER, environment=replace(OUTPUTS, ray_dashboard_url=url)), "authentication")
    assert (found.outcome, words in found.found) == (outcome, True), found
    assert found.authentication is (outcome == "fail")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"RAY_AUTH_MODE": "token"}, "without a token"),
        ({"RAY_AUTH_TOKEN": "x"}, "RAY_AUTH_MODE is ''"),
        ({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "x"}, "RAY_AUTH_MODE is 'disabled'"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/nowhere"}, "/nowhere cannot be read: No such file"),
    ],
)
def test_a_cluster_without_token_authentication_is_unfit(variables: dict[str, str], words: str) -> None:
    found = finding(replace(GPU_WORKER, variables=variables), "authentication")
    assert (found.outcome, words in found.found) == ("fail", True), found


@pytest.mark.parametrize("address", ["", "no address", "http://127.0.0.1:1"])
def test_a_dashboard_without_a_proper_address_does_not_answer(address: str) -> None:
    assert dashboard.ask(address, None) is None


@contextmanager
def greeting() -> Iterator[str]:
    """Address of a service that speaks no HTTP, for one question."""

    def greet(listener: socket.socket) -> None:
        with listener.accept()[0] as connection:
            connection.recv(1024)
            connection.sendall(b"220 mail.example.com\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(30)  # else a test whose question never comes would hang
        pool.submit(greet, listener)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_a_service_that_speaks_no_http_is_no_dashboard_and_no_wandb() -> None:
    with greeting() as url:
        assert dashboard.ask(url, None) is None
    with greeting() as url:
        assert wandb_at(url).outcome == "warn"


@pytest.mark.parametrize("address", ["10.1.2.3:6379", "ray://10.1.2.3:10001", "http://10.1.2.3:8265"])
def test_a_dashboard_is_looked_for_on_the_host_of_every_form_of_ray_s_address(address: str) -> None:
    found = dashboard.addresses(replace(LAPTOP, variables={"RAY_ADDRESS": address}))
    assert found == ["http://10.1.2.3:8265", "http://127.0.0.1:8265"]


def test_a_dashboard_out_of_reach_is_a_doubt_and_not_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "_status", lambda address, token: None)
    found = finding(
        replace(GPU_WORKER, variables={**GPU_WORKER.variables, "RAY_ADDRESS": "10.1.2.3:6379"}), "authentication"
    )
    assert found.outcome == "warn"
    assert "http://127.0.0.1:8265 or http://10.1.2.3:8265" in found.found


@pytest.mark.parametrize(
    ("said", "gpus", "outcome", "words"),
    [
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\n",
            8,
            "ok",
            "driver 580.65.06",
        ),
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Fri\nGCC version: 13.2.0",
            8,
            "fail",
            "needs R580",
        ),
        ("", 8, "fail", "does not say its version"),
        ("", 0, "ok", "no NVIDIA driver here"),
    ],
)
def test_a_driver_too_old_for_torch_s_cuda_is_found_before_torch_fails(
    installed: Path, monkeypatch: pytest.MonkeyPatch, said: str, gpus: int, outcome: str, words: str
) -> None:
    package(installed, "torch", "2.15.0", 'nvidia-nccl-cu13==2.30.7; platform_system == "Linux"')
    package(installed, "nvidia-nccl-cu13", "2.30.7")
    monkeypatch.setattr(software, "DRIVER_FILE", installed / "version")
    monkeypatch.setattr(software, "_nvidia_smi", lambda: "")
    if said:
        (installed / "version").write_text(said)
    found = finding(replace(GPU_WORKER, gpus=gpus), "cuda")
    assert (found.outcome, words in found.found) == (outcome, True), found


def test_without_the_kernel_s_file_nvidia_smi_says_the_driver_s_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software, "DRIVER_FILE", tmp_path / "none")
    program = write_program(tmp_path / "nvidia-smi", "echo 575.57.08\necho 575.57.08")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert software.driver_version() == "575.57.08"
    program.unlink()
    assert software.driver_version() is None


@pytest.mark.parametrize(
    ("others", "words"),
    [
        ([("nvidia-nccl-cu13", "2.30.7"), ("nvidia-nccl-cu12", "2.27.3")], "NCCL for CUDA 12 is installed over"),
        ([("nvidia-nccl-cu13", "2.28.0")], "NCCL 2.28.0 is installed; this torch was built with 2.30.7"),
    ],
)
def test_an_nccl_that_is_not_torch_s_is_unfit(installed: Path, others: list[tuple[str, str]], words: str) -> None:
    package(installed, "torch", "2.15.0", "nvidia-nccl-cu13==2.30.7")
    (installed / "interrupted-1.0.dist-info").mkdir()
    for name, version in others:
        package(installed, name, version)
    found = finding(GPU_WORKER, "cuda")
    assert (found.outcome, words in found.found) == ("fail", True), found


def test_a_torchvision_for_another_torch_is_unfit_before_it_is_imported(installed: Path) -> None:
    package(installed, "torch", "2.13.0+cpu")
    package(installed, "torchvision", "0.29.2", "numpy", "torch==2.15.0")
    found = finding(LAPTOP, "torch")
    assert found.outcome == "fail"
    assert found.found.endswith("this torchvision was built for torch 2.15.0")


def test_a_pair_whose_operator_fails_is_unfit(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package(installed, "torch", "2.15.0")
    package(installed, "torchvision", "0.29.2", "torch==2.15.0")
    for name, text in {
        "torch": "",
        "torchvision": "raise RuntimeError('operator torchvision::nms does not exist')",
    }.items():
        (installed / f"{name}.py").write_text(
            text
            or "def tensor(values): return Tensor()\nclass Tensor:\n    def new_tensor(self, values): return self\n"
        )
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = finding(LAPTOP, "torch")
    assert (found.outcome, "operator torchvision::nms does not exist" in found.found) == ("fail", True), found
    for name in ("torch", "torchvision"):
        sys.modules.pop(name, None)


def test_without_a_compiler_training_is_slower_and_not_impossible(tmp_path: Path) -> None:
    found = finding(replace(LAPTOP, variables={"PATH": str(tmp_path)}), "compiler")
    assert (found.outcome, "no C compiler and no C++ compiler" in found.found) == ("warn", True), found


def test_too_little_scratch_is_a_doubt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = replace(GPU_WORKER, variables={"OASIS_SCRATCH_MOUNT": str(tmp_path)})
    monkeypatch.setattr(hardware, "_LEAST_SCRATCH_BYTES", {True: 1 << 60, False: 1})
    found = finding(place, "scratch")
    assert found.outcome == "warn"
    assert str(tmp_path) in found.found
    assert finding(replace(place, gpus=0), "scratch").outcome == "ok"


def test_a_machine_whose_disks_take_no_file_has_no_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    def gettempdir() -> NoReturn:
        # As the library does; a limit on this process's files would reach what other tests left running in it.
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr(hardware, "tempfile", SimpleNamespace(gettempdir=gettempdir))
    found = finding(LAPTOP, "scratch")
    assert (found.outcome, "No usable temporary directory" in found.found) == ("fail", True), found


def wandb_at(url: str) -> Finding:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WANDB_API_KEY", KEY)
        return finding(replace(LAPTOP, variables={"WANDB_BASE_URL": url}), "wandb")


def test_a_wandb_key_is_tried_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    assert finding(LAPTOP, "wandb").outcome == "not here"
    with answering(200, {"data": {"viewer": {"id": "x"}}}) as (url, sent):
        assert wandb_at(url).outcome == "ok"
    assert [header.partition(" ")[0] for header in sent] == ["Basic"]
    for status, body in ((401, {}), (403, {}), (200, {"data": {"viewer": None}})):
        with answering(status, body) as (url, _):
            found = wandb_at(url)
        assert (found.outcome, found.authentication) == ("fail", True)
        assert KEY not in found.found
    with answering(500, {}) as (url, _):
        assert (wandb_at(url).outcome, "500" in wandb_at(url).found) == ("warn", True)
    certificates.write_all(tmp_path)
    (tls := ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)).load_cert_chain(
        tmp_path / "api-server.crt", tmp_path / "api-server.key"
    )
    with loopback.answering(lambda _: (200, {"data": {"viewer": {"id": "x"}}}), tls=tls) as url:
        assert wandb_at(url).outcome == "warn"
        monkeypatch.setattr("certifi.where", lambda: str(tmp_path / "ca.crt"))
        assert wandb_at(url).outcome == "ok"
    monkeypatch.setattr(access, "ANSWER_SECONDS", 0.2)
    with silent() as url:
        assert wandb_at(url).outcome == "warn"
    refused = wandb_at("http://wandb.example.com")
    assert (refused.outcome, "in the clear" in refused.found) == ("fail", True)
    monkeypatch.setenv("WANDB_API_KEY", "short")
    found = finding(LAPTOP, "wandb")
    assert (found.outcome, "5 characters" in found.found, found.authentication) == ("fail", True, True)


def test_a_key_that_a_stack_has_a_place_for_and_nobody_stored_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    place = replace(GPU_WORKER, environment=replace(OUTPUTS, wandb_secret="projects/p/secrets/wandb"))
    monkeypatch.setattr(google.auth, "default", lambda **_: (AnonymousCredentials(), "p"))
    body = {"error": {"code": 404, "status": "NOT_FOUND", "message": "has no versions"}}
    with loopback.answering(lambda _: (404, body)) as url:
        monkeypatch.setenv(ENDPOINT_VARIABLE, url)
        found = finding(place, "wandb")
    assert (found.outcome, "projects/p/secrets/wandb has no version" in found.found) == ("not here", True), found


def test_outside_a_cluster_the_stack_is_found_by_kubectl_as_submit_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def at(path: str) -> dict[str, Finding]:
        monkeypatch.setenv("PATH", path)
        place = replace(LAPTOP, variables={"PATH": path})
        return {check: finding(place, check) for check in ("stack", "runs bucket", "data bucket")}

    found = at(stub_kubectl.install(tmp_path, OUTPUTS, "token"))
    assert found["stack"].outcome == "ok"
    assert "kubectl leads to cluster oasis of project test-project in us-central1-a" in found["stack"].found
    for one in found.values():
        assert "`python -m workloads submit -- doctor`" in one.found and "no stack" not in one.found
    nothing = at(stub_kubectl.install(tmp_path, None, "token"))["stack"]
    assert (nothing.outcome, "no ConfigMap named oasis-environment" in nothing.found) == ("not here", True)
    without = at(str(tmp_path / "empty"))["stack"]
    assert (without.outcome, "no kubectl" in without.found) == ("not here", True)
    assert finding(GPU_WORKER, "stack").found == "this is cluster oasis of project test-project in us-central1-a"


def test_a_stack_of_another_version_fails_the_checks_that_need_it_and_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stub_kubectl.install(tmp_path, OUTPUTS, "token")
    monkeypatch.setattr(deployed, "_config_map", lambda *_: {"project": "p"})
    for check in ("stack", "nodes for pods"):
        found = finding(replace(LAPTOP, variables={"PATH": path}), check)
        assert (found.outcome, "pulumi up" in found.found) == ("fail", True), found


def test_a_bucket_that_may_not_be_looked_up_names_the_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    error = {"error": {"code": 403, "message": "ray lacks storage.buckets.get access", "status": "PERMISSION_DENIED"}}
    for status, body, words in ((403, error, "bucketViewer"), (404, {"error": {"code": 404}}, "pulumi up")):
        with answering(status, body) as (url, _):
            monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", url)
            for check in ("runs bucket", "data bucket"):
                found = finding(GPU_WORKER, check)
                assert (found.outcome, words in found.remedy) == ("fail", True), found
                assert found.authentication is (status == 403)


def test_a_login_that_is_refused_is_told_from_a_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
    login = {"type": "authorized_user", "client_id": "a", "client_secret": "b", "refresh_token": "c"}
    with loopback.answering(lambda _: (400, refusal)) as url:
        (tmp_path / "login.json").write_text(json.dumps({**login, "token_uri": url}))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "login.json"))
        found = finding(GPU_WORKER, "runs bucket")
    assert (found.outcome, found.authentication) == ("fail", True), found
    assert "gcloud auth application-default login" in found.remedy


def told(text: str) -> dict[str, str]:
    """What the doctor says and advises of each check that failed."""
    blocks = re.findall(r"^FAIL  (.{16})(.*\n(?: {22}.*\n)?)", text, re.MULTILINE)
    return {name.strip(): " ".join(said.split()) for name, said in blocks}


@pytest.mark.parametrize(
    ("name", "version", "requires", "check", "said"),
    [
        ("ray", "2.59.1", (), "ray", "Ray 2.59.1, where 2.60 is needed Install Ray 2.60, the cluster's own series."),
        (
            *("torchvision", "0.28.0", ("torch==2.14.0",), "torch"),
            "torchvision 0.28.0; this torchvision was built for torch 2.14.0 "
            "Install the pair of requirements-workloads.txt, both from the same index.",
        ),
    ],
)
def test_a_wrong_version_is_told_with_what_to_install_and_exit_code_8(
    name: str,
    version: str,
    requires: tuple[str, ...],
    check: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nothing_set: None,
    cli: CommandLine,
) -> None:
    package(tmp_path, name, version, *requires)
    monkeypatch.syspath_prepend(tmp_path)
    found = told(cli("doctor", code=8).out)
    assert list(found) == [check]
    assert found[check].endswith(said)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        ((200, {"ray_version": "2.60.7"}), 8, "Ray {here}, where the cluster at {url} has 2.60.7 Install ray==2.60.7;"),
        ((200, {"ray_version": metadata.version("ray")}), 0, ""),
        ((200, "another program's page"), 0, ""),
        ((401, {}), 0, ""),  # which `authentication` is about
    ],
)
def test_a_cluster_s_ray_of_another_version_is_told_with_both_and_exit_code_8(
    answer: Reply, code: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Request] = []

    def version(request: Request) -> Reply:
        asked.append(request)
        return answer

    monkeypatch.setattr(doctor, "CHECKS", {"ray": doctor.CHECKS["ray"]})
    with loopback.answering(version) as url:
        place = replace(GPU_WORKER, environment=replace(OUTPUTS, ray_dashboard_url=url))
        monkeypatch.setattr(doctor, "this_place", lambda variables: place)
        assert command_line.main(["doctor"]) == code
    found = told(capsys.readouterr().out)
    assert list(found) == (["ray"] if code else [])
    assert found.get("ray", "").startswith(said.format(here=metadata.version("ray"), url=url))
    assert [(request.path, request.headers["Authorization"]) for request in asked] == [("/api/version", "Bearer right")]


def test_a_stack_s_forecast_is_a_line_for_each_rung_and_only_a_wrong_stack_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    monkeypatch.setattr(doctor, "CHECKS", {"python": doctor.CHECKS["python"]})
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    for stack, code, said in (
        ("local", 0, "Google was asked nothing: no Google credentials"),
        ("nowhere", PlaceError.exit_code, "no stack file"),
    ):
        assert said in cli("doctor", "--stack", stack, code=code).out
    monkeypatch.setattr(forecast, "CHECKOUT", tmp_path)
    last = json.loads(cli("doctor", "--json", "--stack", "local").out.splitlines()[-1])
    assert (last["check"], last["outcome"]) == ("forecast", "warn")
    assert "No module named oasis_stack" in last["found"]


MISFIT = """
import subprocess, sys
program, address, small = sys.argv[1:]
if small:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", "/dev/shm"], check=True)
ray = subprocess.Popen([sys.executable, program, address], stdout=subprocess.PIPE)
try:
    assert ray.stdout.readline()
    code = subprocess.run([sys.executable, "-m", "workloads", "doctor"]).returncode
finally:
    ray.kill()
sys.exit(code)
"""

LISTENING = """
import socket, sys, time
server = socket.create_server((sys.argv[1], 0))
print(flush=True)
time.sleep(600)
"""


@pytest.mark.thorough
def test_a_ray_on_every_interface_and_a_small_dev_shm_are_told_with_what_to_do_and_exit_code_8(
    tmp_path: Path, nothing_set: None
) -> None:
    program = tmp_path / "ray" / "core" / "src" / "gcs_server"  # what tells a process of Ray's
    program.parent.mkdir(parents=True)
    program.write_text(LISTENING)
    apart = namespaces.apart("net", "mount")
    # Never on this machine itself: where it makes no namespaces, the same place is found fit.
    given = ["0.0.0.0", "small"] if apart else ["127.0.0.1", ""]
    done = python("-c", MISFIT, str(program), *given, within=apart, timeout=120)
    assert done.returncode == (8 if apart else 0), done.stdout + done.stderr
    found = told(done.stdout)
    assert list(found) == (["shared memory", "listeners"] if apart else [])
    if apart:
        assert found["shared memory"].startswith("/dev/shm has 8 MiB, at least 64 are needed Mount a memory-backed")
        assert re.fullmatch(
            r"a Ray on this machine listens beyond loopback: 0\.0\.0\.0:\d+ "
            r"End it, or start it with RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0\.",
            found["listeners"],
        )
        assert f"2 of {len(doctor.CHECKS)} checks failed" in done.stderr


@pytest.mark.parametrize(
    ("problems", "code"),
    [
        ([PlaceError("found this", "do that")], 8),
        ([AuthError("a token", "another")], 7),
        ([AuthError("a token", "another"), PlaceError("found this", "do that")], 8),
        ([], 0),
    ],
)
def test_the_exit_code_says_whether_a_key_or_something_else_is_missing(
    problems: list[PlaceError], code: int, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(problem: PlaceError) -> object:
        def check(place: Subject) -> str:
            raise problem

        return check

    checks = {f"check {number}": failing(problem) for number, problem in enumerate(problems)}
    monkeypatch.setattr(doctor, "CHECKS", {"python": doctor.CHECKS["python"], **checks})
    found = [json.loads(line) for line in cli("doctor", "--json", code=code).out.splitlines()]
    assert [record["outcome"] for record in found] == ["ok", *["fail"] * len(problems)]
    assert [record["remedy"] for record in found[1:]] == [problem.remedy for problem in problems]
    text = cli("doctor", code=code).out
    assert all(problem.remedy in text for problem in problems)


def test_the_doctor_runs_on_a_python_with_nothing_installed_and_says_what_is_missing() -> None:
    variables = {"PATH": os.environ["PATH"], "PYTHONNOUSERSITE": "1"}
    done = python("-S", "-m", "workloads", "doctor", "--json", env=variables, timeout=60)
    assert done.returncode == 8, done.stderr
    found = {record["check"]: record for record in map(json.loads, done.stdout.splitlines())}
    assert list(found) == list(doctor.CHECKS)
    for name in ("ray", "torch"):
        assert (found[name]["outcome"], found[name]["found"]) == ("fail", f"{name} is not installed")
        assert re.search(NEW_IMAGE, found[name]["remedy"])
    assert found["python"]["outcome"] == "ok"


@pytest.mark.parametrize("command", ["train", "bench"])
def test_an_image_without_torch_sends_to_make_image_with_exit_code_8(
    command: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "find_spec", lambda name: None if name == "torch" else object())
    assert "Run `make packages`" in cli(command, code=8).err
    monkeypatch.setenv(API_SERVER_VARIABLE, "10.0.0.1")  # in a pod
    assert re.search(NEW_IMAGE, cli(command, code=8).err)


def test_the_versions_here_are_those_the_doctor_wants() -> None:
    assert finding(LAPTOP, "ray").found == metadata.version("ray")
    assert finding(LAPTOP, "torch").outcome == "ok"
    assert finding(LAPTOP, "cuda").outcome == "ok"


def test_the_kernel_s_listeners_are_read_in_both_address_families() -> None:
    lines = {
        "0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 00000000 0 0 4711 1": ("127.0.0.1", 8080, True),
        "0: 00000000:18EB 00000000:0000 0A 0:0 00:0 00000000 0 0 4711 1": ("0.0.0.0", 6379, False),
        "0: 0000000000000000FFFF00000100007F:0016 0:0 0A 0:0 00:0 0 0 0 4711 1": ("127.0.0.1", 22, True),
        "0: 00000000000000000000000000000000:0016 0:0 0A 0:0 00:0 0 0 0 4711 1": ("::", 22, False),
    }
    for line, (address, port, local) in lines.items():
        parsed = listeners.parse(line)
        assert parsed is not None
        assert (parsed[0], str(parsed[1]), parsed[2], parsed[1].is_loopback) == ("4711", address, port, local)
    assert listeners.parse("0: 0100007F:1F90 0100007F:0016 01 0:0 00:0 00000000 0 0 4711 1") is None
    assert listeners.parse("  sl  local_address rem_address   st tx_queue rx_queue") is None


@pytest.mark.thorough
def test_a_listener_is_seen_while_the_process_opens_and_closes_other_descriptors() -> None:
    done = threading.Event()

    def churn() -> None:
        while not done.is_set():
            os.close(os.open(os.devnull, os.O_RDONLY))  # the lowest number, which is read before the listener's

    lower = os.open(os.devnull, os.O_RDONLY)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        os.close(lower)
        pool.submit(churn)
        try:
            found = [listeners.of([os.getpid()]) for _ in range(200)]
        finally:
            done.set()
        ours = (f"127.0.0.1:{server.getsockname()[1]}", True)
    assert all(ours in each for each in found)


@pytest.mark.parametrize(("version", "old"), [("v1.30.14-gke.2", True), ("v1.31.0", False), ("v2.0.0", False)])
def test_a_kubectl_whose_port_forward_the_dns_endpoint_refuses_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, old: bool
) -> None:
    write_program(tmp_path / "kubectl", f"""echo '{{"clientVersion": {{"gitVersion": "{version}"}}}}'""")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    finding = doctor.examine("kubectl", cluster.kubectl, replace(LAPTOP, variables={"PATH": str(tmp_path)}))
    assert finding.outcome == ("warn" if old else "ok")
    assert not old or (version in finding.found and "1.31" in finding.remedy)
