"""NCCL's own calls against its header and its library, and a rank that makes them out of place and nowhere else."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.metadata import files
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.support import gloo
from workloads.errors import WorkloadFailedError
from workloads.nccl.definitions.collectives import ROOT, Seat
from workloads.nccl.definitions.data_pattern import DTYPES
from workloads.nccl.ranks import own_calls
from workloads.nccl.ranks.own_calls import DATA_TYPES, Communicator
from workloads.nccl.ranks.rank import Layout, Rank

COUNT = 1024


@pytest.fixture(scope="module")
def header() -> str:
    """nccl.h of the library that torch has loaded."""
    (found,) = (one for one in files("nvidia-nccl-cu13") or () if one.name == "nccl.h")
    return found.read_text()


def test_the_element_types_are_nccl_s(header: str) -> None:
    numbers = {name: int(number) for name, number in re.findall(r"\bnccl(\w+)\s*=\s*(\d+)", header)}
    assert set(DATA_TYPES) == set(DTYPES.values())
    assert {str(one): number for one, number in DATA_TYPES.items()} == {
        f"torch.{name.lower()}": numbers[name] for name in ("Int32", "Float16", "Float32", "Bfloat16")
    }
    assert (numbers["Sum"], numbers["Success"], ROOT) == (0, 0, 0)


@pytest.mark.parametrize(("function", "role"), [("ncclAllReduce", "ncclRedOp_t op"), ("ncclBroadcast", "int root")])
def test_the_arguments_are_in_the_order_of_nccl_s_prototype(header: str, function: str, role: str) -> None:
    (arguments,) = re.findall(rf"\bncclResult_t\s+{function}\(([^)]*)\)", header)
    assert [" ".join(one.split()) for one in arguments.split(",")] == [
        "const void* sendbuff",
        "void* recvbuff",
        "size_t count",
        "ncclDataType_t datatype",
        role,
        "ncclComm_t comm",
        "cudaStream_t stream",
    ]


@pytest.mark.parametrize("op", ["all_reduce", "broadcast"])
def test_what_nccl_refuses_ends_with_its_own_words(op: str) -> None:
    source, target = torch.zeros(COUNT), torch.ones(COUNT)
    with pytest.raises(WorkloadFailedError, match="of 1024 elements failed: invalid argument"):
        Communicator(0).calls[op](source, target)
    assert target.equal(torch.ones(COUNT))


def test_torch_still_shows_the_communicator_of_a_process_group() -> None:
    assert callable(getattr(dist.ProcessGroupNCCL, "_comm_ptr", None))


def test_a_rank_makes_nccl_s_own_calls_out_of_place_alone_and_without_a_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[bool] = []

    def own(source: Tensor, target: Tensor) -> None:
        made.append(bool((source == target).all()))
        target.copy_(source)

    monkeypatch.setattr(
        own_calls, "communicator", lambda device: SimpleNamespace(calls={"all_reduce": own, "broadcast": own})
    )
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # else `join` says so, to every process after this test as well
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    plan = replace(gloo.plan(iterations=5, blocking=True), warmup=3)
    rank = Rank(Seat(rank=0, ranks=1, stride=1), Layout(nodes=1, ranks_per_node=1, gpus_per_node=0), plan, log={})
    joined = rank.join(*rank.open(), 0)
    try:
        assert joined["own_calls"] is True
        assert rank.measure(4 * COUNT, in_place=True).wrong == 0 and not made
        assert rank.measure(4 * COUNT, in_place=False).wrong == 0
    finally:
        rank.leave()
    assert len(made) == 2 + 3 + 5 + 5  # both checks, the warm-up, back to back, one by one
    assert (made[0], made[-1]) == (False, False)  # the checks: nothing had copied the source
