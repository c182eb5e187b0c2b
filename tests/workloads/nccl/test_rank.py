"""One rank of the benchmark: on the device that the layout says, and in a process group that stays on one interface."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
import torch
import torch.distributed as dist
from torch.cuda import nccl

from tests.support import gloo, namespaces
from tests.support.processes import python
from workloads.errors import PlaceError
from workloads.nccl.definitions.collectives import Seat
from workloads.nccl.logs import debug_log
from workloads.nccl.ranks import node_facts
from workloads.nccl.ranks.rank import Layout, Rank


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
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    layout = Layout(nodes=1, ranks_per_node=1, gpus_per_node=0)
    rank = Rank(Seat(rank=0, ranks=1, stride=1), layout, gloo.plan(), log={})
    found = rank.arrive()
    joined = rank.join(*rank.open(), 0)
    try:
        assert dist.get_backend() == "gloo"
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert rank.measure(4096, in_place=False).wrong == 0
    finally:
        rank.leave()
    assert (found["backend"], joined["device"], joined["accelerator"]) == ("gloo", "cpu", "")
    assert found["pid"] == os.getpid() and "NCCL_DEBUG_FILE" not in os.environ
    assert joined["room"] > 4096
    assert "nccl" not in found["versions"]
    assert node_facts.describe("gloo")["variables"]["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.parametrize(("visible", "index"), [("", 3), ("0,1,2,3", 3), ("5,3", 1)])
def test_a_rank_s_gpu_is_the_one_that_ray_gave_it_counted_among_the_visible_ones(
    gpus: None, monkeypatch: pytest.MonkeyPatch, visible: str, index: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert node_facts.assigned_gpu() == index


def test_a_rank_that_sees_one_gpu_of_eight_is_refused_before_nccl_crawls(
    gpus: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(PlaceError, match=r"needs 8 GPUs on node .*/01234567; torch sees 1 .*CUDA_VISIBLE_DEVICES=3"):
        node_facts.check_gpus(8)
    node_facts.check_gpus(1)


def test_the_version_of_nccl_is_that_of_the_library_which_is_loaded() -> None:
    major, minor, patch = (int(part) for part in node_facts.nccl_version().split("."))
    assert (major, minor, patch) == nccl.version()[:3]  # nothing here puts another one before torch's own


def test_another_gib_on_a_node_is_another_version(tmp_path: Path) -> None:
    plugin = tmp_path / "libnccl-net.so"
    assert node_facts.plugin_digest(plugin) == ""
    plugin.write_bytes(b"one")
    first = node_facts.plugin_digest(plugin)
    plugin.write_bytes(b"two")
    assert len(first) == 12 and node_facts.plugin_digest(plugin) != first


def test_a_rank_of_nccl_is_told_where_its_log_is_kept_before_nccl_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    (log,) = debug_log.Keeper().open(1, debug_log.PATH)
    for name in log:
        monkeypatch.setenv(name, "")  # restored afterwards
    layout = Layout(nodes=1, ranks_per_node=1, gpus_per_node=1)
    Rank(Seat(rank=0, ranks=1, stride=1), layout, gloo.plan(), log)
    assert os.environ["NCCL_DEBUG_FILE"].startswith(f"/proc/{os.getpid()}/fd/")
    assert os.environ["NCCL_DEBUG"] == "INFO"


def test_a_log_outlives_who_writes_it_and_has_no_name_that_could_be_left_behind() -> None:
    keeper = debug_log.Keeper()
    first, second = (log["NCCL_DEBUG_FILE"] for log in keeper.open(2, debug_log.PATH))
    # as NCCL opens it, and as a rank may end
    writer = "import os, sys; log = open(sys.argv[1], 'w'); log.write('a\\nb\\n'); log.flush(); os.abort()"
    assert subprocess.run([sys.executable, "-c", writer, second], check=False).returncode == -signal.SIGABRT
    assert keeper.read() == ["", "a\nb\n"]
    assert not Path(first).resolve().exists()
    assert len(keeper.open(3, debug_log.CHOICES)) == 3
    assert keeper.read() == [""] * 3


PROGRAM = """
import os, sys
from tests.support import gloo
from workloads.cluster import process_group
from workloads.nccl.definitions.collectives import Seat
from workloads.nccl.ranks.rank import Layout, Rank
class Told(Rank):
    def open(self):
        self._listener = process_group.listen(address)
        port = self._listener.getsockname()[1]
        print(port, flush=True)
        return port
number, address = int(sys.argv[1]), sys.argv[2]
rank = Told(Seat(rank=number, ranks=2, stride=1), Layout(nodes=2, ranks_per_node=1, gpus_per_node=0), gloo.plan(), {})
port = rank.open() if number == 0 else int(sys.stdin.readline())
rank.join(address, port, 0)
sample = rank.measure(1 << 16, in_place=True)
rank.leave()
print(os.environ["GLOO_SOCKET_IFNAME"], sample.wrong, sample.seconds > 0)
"""


@pytest.mark.thorough
def test_two_ranks_measure_between_two_network_namespaces_over_the_interface_that_joins_them() -> None:
    with contextlib.ExitStack() as stack:
        first, second, address, interface = stack.enter_context(_two_networks())
        ranks = []
        for rank, inside in enumerate((first, second)):
            command = [*inside, sys.executable, "-c", PROGRAM, str(rank), address]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
            stack.callback(process.kill)
            ranks.append(process)
        assert ranks[0].stdout is not None
        port = ranks[0].stdout.readline()
        said = [_said(ranks[1], port), _said(ranks[0])]
        assert [out.split() for out, _ in said] == [[interface, "0", "True"]] * 2, said


def _said(rank: subprocess.Popen[str], given: str | None = None) -> tuple[str, str]:
    """Output and messages of a rank; of one that waits for a failed one, too, as the other's then say why."""
    try:
        return rank.communicate(given, timeout=60)
    except subprocess.TimeoutExpired:
        rank.kill()
        return rank.communicate()


@contextlib.contextmanager
def _two_networks() -> Iterator[tuple[list[str], list[str], str, str]]:
    """Words before a command that runs it in one of two network namespaces, the first one's address, the interface.

    Where this machine lets nobody make them, or lacks util-linux or iproute2, both are its own, and the interface is
    the loopback one.
    """
    new = namespaces.apart("net")
    if not new or not all(map(shutil.which, ("nsenter", "ip"))):
        yield [], [], "127.0.0.1", "lo"
        return
    with contextlib.ExitStack() as stack:
        holders: list[subprocess.Popen[str]] = []

        def hold(command: list[str]) -> list[str]:
            holder = subprocess.Popen(
                [*command, "sh", "-c", "echo; read end"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            stack.callback(holder.communicate)
            stack.callback(holder.kill)
            holders.append(holder)
            assert holder.stdout is not None
            user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
            return ["nsenter", f"--target={holder.pid}", *user, "--net"] if holder.stdout.readline() else []

        first = hold(new)
        second = hold([*first, "unshare", "--net"]) if first else []
        if not second:
            yield [], [], "127.0.0.1", "lo"
            return
        other = str(holders[1].pid)
        for inside, words in (
            (first, ["link", "add", "joined", "type", "veth", "peer", "name", "joined", "netns", other]),
            (first, ["address", "add", "10.77.0.1/24", "dev", "joined"]),
            (second, ["address", "add", "10.77.0.2/24", "dev", "joined"]),
            *((inside, ["link", "set", name, "up"]) for inside in (first, second) for name in ("lo", "joined")),
        ):
            subprocess.run([*inside, "ip", *words], check=True, capture_output=True)
        yield first, second, "10.77.0.1", "joined"


NCCL = """
import torch, torch.distributed as dist
from datetime import timedelta
from torch.distributed import distributed_c10d as c10d
from workloads.cluster import process_group
dist.init_process_group = lambda *_, **__: dist.Backend._ensure_backend_registered("nccl")
listener = process_group.listen("127.0.0.1")
address, port = listener.getsockname()
process_group.join(0, 1, address, port, listener, timedelta(seconds=60), torch.device("cuda", 0))
print(dist.Backend._plugins["NCCL"].creator_fn.__name__)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("chosen", "made_by"), [("", "_create_nccl_process_group"), ("1", "_create_nccl2_process_group")]
)
def test_nccl_is_the_implementation_that_was_timed_unless_the_user_chooses(chosen: str, made_by: str) -> None:
    own = {name: value for name, value in os.environ.items() if name != "TORCH_DIST_USE_NCCL2"}
    environment = own | ({"TORCH_DIST_USE_NCCL2": chosen} if chosen else {})
    done = python("-c", NCCL, env=environment, timeout=300)
    assert done.stdout.strip() == made_by, done.stderr
