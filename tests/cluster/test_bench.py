"""The benchmark on two gloo nodes of a real Ray, and in this process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import Cluster
from tests.cluster.ray_processes import Nodes, headed
from tests.support.waiting import eventually, read_rest, read_until
from workloads.doctor import listeners
from workloads.nccl.logs import path
from workloads.nccl.results import records

pytestmark = pytest.mark.ray


def test_two_nodes_are_measured_alone_and_together_checked_and_reported_in_the_bucket_and_here(
    cluster: Cluster, tmp_path: Path
) -> None:
    arguments = ["--nodes", "2", "--sizes", "1K:1M:32", "--iterations", "5", "--stages", "nodes", "--name", "two-nodes"]
    done = cluster.run("submit", "--results", str(tmp_path), "--", "bench", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 nodes, 2 ranks, gloo on CPU" in done.stdout
    assert done.stdout.count("# Out of bounds values : 0 OK") == 3
    here, bucket = tmp_path / "two-nodes", cluster.bucket(cluster.environment.runs_uri) / "bench" / "two-nodes"
    for folder in (here, bucket):
        assert sorted(file.name for file in folder.iterdir()) == [
            f"all_reduce.{kind}" for kind in ("csv", "jsonl", "png", "svg", "txt")
        ]
    content = (here / "all_reduce.jsonl").read_bytes()
    assert content == (bucket / "all_reduce.jsonl").read_bytes()
    measured = {one.stage.name: one for one in records.read(content, "here").measured}
    assert [one.stage.nodes for one in measured.values()] == [(0,), (1,), (0, 1)]
    together = measured["all"]
    assert len(set(together.conditions.hosts)) == 2 and together.conditions.machine_type == ""
    assert together.conditions.hosts[1] == measured["node 1"].conditions.hosts[0]
    assert [row.size for row in together.rows] == [1 << 10, 1 << 15, 1 << 20]
    for row in together.rows:
        assert row.in_place.seconds > 0 and row.in_place.wrong == 0
        assert row.in_place.blocking is not None and row.in_place.blocking.calls == 5
    assert [link.ranks for link in together.links] == [(0, 1)]


def test_more_nodes_than_there_are_is_infeasible_and_leaves_the_nodes_free(cluster: Cluster) -> None:
    done = cluster.run("submit", "--", "bench", "--nodes", "3")
    assert done.returncode == 3, done.stdout + done.stderr
    assert "3 nodes with 1 CPU" in done.stdout
    eventually(lambda: cluster.run("status").stdout.count("0 of 1 CPU") == 2)


def test_a_node_that_dies_ends_the_benchmark_with_its_name_and_frees_the_others(cluster: Cluster) -> None:
    client, output = _measuring(cluster)
    ranks = cluster.processes("ray::Rank")
    assert len(ranks) == 2
    listening = list(listeners.of(ranks))
    assert listening and all(loopback for _, loopback in listening)
    victim = ranks[0]
    os.kill(victim, signal.SIGKILL)
    rest = read_rest(client)
    assert client.returncode == 5, output + rest
    assert re.search(rf"Rank \d of 'all', on node \d \(\S+/[0-9a-f]{{8}}, process {victim}\) died", rest), rest
    eventually(lambda: not cluster.processes("ray::Rank"))
    eventually(lambda: cluster.run("status").stdout.count("0 of 1 CPU") == 2)


def test_a_driver_that_is_killed_leaves_no_rank_and_no_node_held(cluster: Cluster) -> None:
    client, _ = _measuring(cluster)
    ranks = cluster.processes("ray::Rank")
    assert len(ranks) == 2
    job = cluster.processes("workloads bench --sizes")
    (driver,) = (pid for pid in job if "python" in psutil.Process(pid).name())  # its shell ends with it
    os.kill(driver, signal.SIGKILL)
    read_rest(client)
    assert client.returncode != 0
    eventually(lambda: not cluster.processes("ray::Rank"))
    eventually(lambda: cluster.run("status").stdout.count("0 of 1 CPU") == 2)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """One node of three CPUs, and of two GPUs by name."""
    with headed({}, lambda _: ["--num-cpus=3", "--num-gpus=2"]) as found:
        found.wait_for(1)
        yield found


LOGICAL_GPUS = """
import json, os
from workloads.cluster import capacity
from workloads.nccl.ranks import driver, node_facts
from workloads.nccl.ranks.rank import Layout

class Seen:
    def look(self):
        names = [name for name in os.environ if name.startswith(("CUDA_", "NCCL_", "NVIDIA_"))]
        return {name: os.environ[name] for name in names}, sorted(os.sched_getaffinity(0)), node_facts.assigned_gpu()

layout = Layout(nodes=1, ranks_per_node=2, gpus_per_node=2)
with capacity.hold([layout.bundle], 60, print) as group:
    actors = [ray.remote(Seen).options(**driver.options(group, 0, layout, "RING")).remote() for _ in range(2)]
    print(json.dumps(ray.get([actor.look.remote() for actor in actors])))
"""

TORCHRUN = """
import json, os
names = [name for name in os.environ if name.startswith(("CUDA_", "NCCL_", "NVIDIA_"))]
print(json.dumps([{name: os.environ[name] for name in names}, sorted(os.sched_getaffinity(0))]), flush=True)
"""


def test_nccl_finds_in_a_rank_what_it_finds_in_a_process_of_torchrun_and_no_masked_gpu(
    nodes: Nodes, tmp_path: Path
) -> None:
    program = tmp_path / "rank.py"
    program.write_text(TORCHRUN)
    launcher = ("-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=2")
    done = nodes.command(*launcher, str(program))
    assert done.returncode == 0, done.stdout + done.stderr
    torchrun = [json.loads(line) for line in done.stdout.splitlines()]
    ranks = json.loads(nodes.python(LOGICAL_GPUS).splitlines()[-1])
    assert len(torchrun) == len(ranks) == 2
    for (variables, affinity, _), (theirs, their_affinity) in zip(ranks, torchrun, strict=True):
        assert variables == theirs | {"NCCL_ALGO": "RING"}
        assert "CUDA_VISIBLE_DEVICES" not in variables
        assert affinity == their_affinity
    assert sorted(gpu for _, _, gpu in ranks) == [0, 1]


DYING = """
import json, os, signal, sys, time
from dataclasses import replace
from tests.support import gloo
from workloads.nccl.ranks import driver, node_facts
from workloads.nccl.ranks.rank import Layout, Rank, Sample
from workloads.nccl.definitions.stages import Stage

class Pretended(Rank):
    '''A rank on a GPU that is not there. Over the ring one of them fails in NCCL's own words, and the other waits.'''

    def arrive(self):
        return {**node_facts.describe("gloo"), "gpu": node_facts.assigned_gpu()}

    def open(self):
        return "127.0.0.1", 1

    def join(self, address, port, gpu):
        with open(os.environ["NCCL_DEBUG_FILE"], "w") as log:
            if "NET" in os.environ["NCCL_DEBUG_SUBSYS"]:
                log.write(f"node:1:2 [{self._seat.rank}] NCCL INFO Using network gIB\\n")
        return {"device": f"cuda:{gpu}", "accelerator": "none", "room": 1 << 30, "own_calls": False}

    def measure(self, size, in_place):
        self._write(size, dies=WITHIN == "measure")
        return Sample(seconds=1e-3, iterations=5, wrong=0, calls=())

    def call(self, size):
        self._write(size, dies=WITHIN == "call")

    def _write(self, size, dies):
        with open(os.environ["NCCL_DEBUG_FILE"], "a") as log:
            if "TUNING" in os.environ["NCCL_DEBUG_SUBSYS"]:
                log.write(f"node:1:2 [0] NCCL INFO AllReduce: {size} Bytes -> Algo TREE proto LL time 9.5\\n")
            if dies and os.environ.get("NCCL_ALGO") == "RING":
                log.write("node:1:2 [0] NCCL WARN " + WORDS[self._seat.rank] + "\\n")
                log.flush()
                both = os.path.join(FOLDER, "the other has written, too, within " + WITHIN)
                if self._seat.rank == 0:
                    open(both, "w").close()
                    time.sleep(600)
                while not os.path.exists(both):
                    time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGKILL)

    def leave(self):
        pass

FOLDER = sys.argv[1]
WORDS = (
    "socket.cc:1 Connection closed by remote peer",
    "NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_1",
)
driver.Rank = Pretended
rounds = [(Stage(name="all", nodes=(0,)),), (Stage(name="all, ring", nodes=(0,), algorithm="RING"),)]
for WITHIN in ("measure", "call"):
    said = []
    try:
        driver.run(
            Layout(nodes=1, ranks_per_node=2, gpus_per_node=2), replace(gloo.plan(), links=False), rounds,
            [1 << 20], shorten=False, wait_seconds=60, promise=None, say=said.append,
        )
    except driver.StoppedError as error:
        found = {
            "problem": error.problem, "remedy": error.remedy,
            "measured": {one.stage.name: dict(one.logs) for one in error.measured}, "logs": error.logs,
            "timed with": [one.conditions.variables["NCCL_DEBUG_SUBSYS"] for one in error.measured],
            "said": said,
        }
        print(json.dumps(found))
"""


def test_nccl_s_log_of_a_call_is_not_timed_and_that_of_a_dead_rank_names_the_one_that_failed_first(
    nodes: Nodes, tmp_path: Path
) -> None:
    said = nodes.python(DYING, str(tmp_path)).splitlines()
    timed, untimed = [json.loads(line) for line in said if line.startswith("{")]  # Ray tells of the dead ranks, too
    both = (timed, "all, ring", ["all"]), (untimed, "all, ring, untimed", ["all", "all, ring"])
    for found, stage, finished in both:
        assert re.match(rf"Rank 1 of '{stage}', on node 0 \(\S+, process \d+\) died", found["problem"])
        assert found["remedy"].startswith(
            f"In NCCL's log of rank 1 of '{stage}': RDMA completion error 12 on mlx5_1: the peer's NIC did not answer"
        )
        assert "rank 0" not in found["remedy"]
        assert "status=12" in found["logs"][stage]["1"] and "Connection closed" in found["logs"][stage]["0"]
        assert list(found["measured"]) == finished
        for subsystems in found["timed with"]:
            assert {"INIT", "NET"} <= set(subsystems.split(",")) and "TUNING" not in subsystems
        log = path.read(found["measured"]["all"]["1"])
        assert log.network == "gIB" and [(one.size, one.algorithm) for one in log.choices] == [(1 << 20, "TREE")]
        assert any(line.startswith("starting 2 ranks: all, untimed;") for line in found["said"])
        # What was timed before it died in another run is kept as it is.
        assert [path.read(found["measured"][stage]["1"]).network for stage in finished] == ["gIB"] * len(finished)


HANGING = """
import json, os, signal, sys
from dataclasses import replace
from tests.support import gloo
from tests.support.processes import descendants
from tests.support.waiting import eventually
from workloads.errors import WorkloadError
from workloads.nccl.ranks import driver
from workloads.nccl.ranks.rank import Layout, Rank
from workloads.nccl.definitions.stages import plan_rounds

class Hangs(Rank):
    '''One of these stops without a word, as a process does whose GPU or disk no longer answers.'''

    def measure(self, size, in_place):
        if self._seat.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().measure(size, in_place)

driver.Rank = Hangs
try:
    driver.run(
        Layout(nodes=1, ranks_per_node=3, gpus_per_node=0), replace(gloo.plan(), timeout_seconds=4.0),
        plan_rounds(1, "all", ring=False), [1 << 20],
        shorten=False, wait_seconds=60, promise=None, say=lambda line: None,
    )
except WorkloadError as error:
    print(json.dumps({"problem": error.problem, "code": error.exit_code}))
eventually(lambda: not any(line.startswith("ray::Hangs") for line in descendants(int(sys.argv[1])).values()), 30)
"""


def test_a_rank_that_hangs_is_named_and_not_those_that_wait_for_it_and_it_is_ended(nodes: Nodes) -> None:
    said = nodes.python(HANGING, str(nodes.head[-1].pid))
    (found,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    problem = found["problem"]
    assert re.match(r"No answer from rank 1 of 'all', on node 0 \(\S+, process \d+\) when the ranks", problem)
    assert found["code"] == 5


def _measuring(cluster: Cluster) -> tuple[subprocess.Popen[str], str]:
    """A benchmark that measures, and what it has said so far."""
    client = cluster.start("submit", "--", "bench", "--sizes", "64M", "--iterations", "2000")
    return client, read_until(client, "#wrong")
