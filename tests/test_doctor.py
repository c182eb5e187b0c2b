"""What the doctor calls unfit, and what it says does not apply."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stub_kubectl import OUTPUTS
from workloads import __main__ as command_line
from workloads import doctor, listeners
from workloads.doctor import Finding, Place

LAPTOP = Place(environment=None, variables={}, gpus=0)
GPU_WORKER = Place(environment=OUTPUTS, variables={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "x"}, gpus=8)


def finding(place: Place, check: str) -> Finding:
    """The outcome of one check, the others left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(doctor, "CHECKS", {check: doctor.CHECKS[check]})
        [found] = doctor.examine(place)
    return found


def test_a_gpu_worker_without_gib_is_unfit_and_with_it_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "GIB_DIRECTORY", str(tmp_path))
    found = finding(GPU_WORKER, "gib")
    assert found.outcome == "failed"
    assert "libnccl-net" in found.found and "nccl-rdma-installer" in found.remedy
    for name in ("lib64/libnccl-net_internal.so", "scripts/set_nccl_env.sh"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    assert finding(GPU_WORKER, "gib").outcome == "ok"


@pytest.mark.parametrize(
    ("place", "check"),
    [
        (LAPTOP, "gib"),
        (replace(GPU_WORKER, gpus=0), "gib"),
        (LAPTOP, "gpus"),
        (LAPTOP, "authentication"),
        (LAPTOP, "runs bucket"),
        (replace(LAPTOP, variables={"KUBERNETES_SERVICE_HOST": "10.0.0.1"}), "listeners"),
    ],
)
def test_a_check_that_does_not_apply_says_so_instead_of_passing(place: Place, check: str) -> None:
    assert finding(place, check).outcome == "not here"


@pytest.mark.parametrize(
    ("variables", "outcome"),
    [
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "x"}, "ok"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/x"}, "ok"),
        ({"RAY_AUTH_MODE": "token"}, "failed"),
        ({"RAY_AUTH_TOKEN": "x"}, "failed"),
        ({}, "failed"),
    ],
)
def test_a_cluster_without_token_authentication_is_unfit(variables: dict[str, str], outcome: str) -> None:
    assert finding(replace(GPU_WORKER, variables=variables), "authentication").outcome == outcome


def test_one_failed_check_makes_the_exit_code_8_and_every_check_is_one_json_object(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unfit(place: Place) -> str:
        raise doctor.Unfit("found this", "do that")

    monkeypatch.setattr(doctor, "CHECKS", {"python": doctor.CHECKS["python"], "torch": unfit})
    assert command_line.main(["doctor", "--json"]) == 8
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(record["check"], record["outcome"]) for record in found] == [("python", "ok"), ("torch", "failed")]
    assert found[1]["remedy"] == "do that"


@pytest.mark.parametrize("command", ["train", "bench"])
def test_an_image_without_torch_sends_to_make_image_with_exit_code_8(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_line, "find_spec", lambda name: None if name == "torch" else object())
    assert command_line.main([command]) == 8
    assert "make image" in capsys.readouterr().err


def test_the_kernel_s_listeners_are_read_in_both_address_families() -> None:
    lines = {
        "0: 0100007F:1F90 00000000:0000 0A 0:0 00:0 00000000 0 0 4711 1": ("127.0.0.1", 8080, True),
        "0: 00000000:18EB 00000000:0000 0A 0:0 00:0 00000000 0 0 4711 1": ("0.0.0.0", 6379, False),
        "0: 0000000000000000FFFF00000100007F:0016 0:0 0A 0:0 00:0 0 0 0 4711 1": ("127.0.0.1", 22, True),
        "0: 00000000000000000000000000000000:0016 0:0 0A 0:0 00:0 0 0 0 4711 1": ("::", 22, False),
    }
    for line, (address, port, loopback) in lines.items():
        parsed = listeners.parse(line)
        assert parsed is not None
        assert (parsed[0], str(parsed[1]), parsed[2], parsed[1].is_loopback) == ("4711", address, port, loopback)
    assert listeners.parse("0: 0100007F:1F90 0100007F:0016 01 0:0 00:0 00000000 0 0 4711 1") is None
    assert listeners.parse("  sl  local_address rem_address   st tx_queue rx_queue") is None
