"""One rank of the benchmark: on the device that the layout says, and in a process group that stays on one interface."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest
import ray
import torch
import torch.distributed as dist

from workloads import process_group
from workloads.nccl import host
from workloads.nccl.collectives import ALL_REDUCE
from workloads.nccl.measure import Participant, Plan

PLAN = Plan(collective=ALL_REDUCE, dtype="float", warmup=1, iterations=2, seconds=0.1, timeout_seconds=30)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that says it has GPUs, the third of which Ray gave to this rank."""
    context = SimpleNamespace(get_accelerator_ids=lambda: {"GPU": ["3"]}, get_node_id=lambda: "0123456789")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)


def test_a_layout_on_cpus_is_measured_on_cpus_with_gloo_though_the_machine_has_gpus(
    gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "")
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    device = host.device(gpus_per_node=0)
    rank = Participant(0, 1, device, PLAN)
    listener = process_group.listen("127.0.0.1")
    rank.join("127.0.0.1", listener.getsockname()[1], listener)
    try:
        assert dist.get_backend() == "gloo"
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert rank.measure(4096, in_place=False).wrong == 0
        assert rank.room() > 4096
    finally:
        rank.leave()
    found = host.describe(device)
    assert (found["backend"], found["accelerator"]) == ("gloo", "")
    assert "nccl" not in found["versions"]
    assert found["variables"]["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize(("visible", "index"), [("", 3), ("0,1,2,3", 3), ("5,3", 1)])
def test_a_rank_takes_the_gpu_that_ray_gave_it_counted_among_the_visible_ones(
    gpus: None, monkeypatch: pytest.MonkeyPatch, visible: str, index: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert host.device(gpus_per_node=8) == torch.device("cuda", index)
