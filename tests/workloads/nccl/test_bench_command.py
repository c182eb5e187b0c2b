"""What `bench` does with what it is asked and with what it measured: refused early, kept, and never a false success."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from ray.exceptions import RayActorError, RayError

from tests.support.bench_results import conditions
from tests.support.command_line import CommandLine
from tests.support.processes import python
from tests.support.stub_kubectl import OUTPUTS
from tests.workloads.nccl.test_bandwidth import row
from workloads.cluster import session
from workloads.cluster.session import Place as WhereRayIs
from workloads.errors import PlaceError, WorkloadFailedError
from workloads.nccl import gate
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.ranks import driver, failures, kept_logs
from workloads.nccl.ranks.failures import RankPlace
from workloads.nccl.ranks.rank import Layout, Sample
from workloads.nccl.results import records, report
from workloads.nccl.results.measured import Measured
from workloads.storage import folders as storage
from workloads.storage.folders import locate

CONDITIONS = conditions(1, gpus=2)


class Cluster:
    """A cluster that 'measures' what it is told to; no Ray is started."""

    def __init__(self) -> None:
        self.rows = [row(ranks=2)]
        self.conditions = replace(CONDITIONS, backend="gloo", machine_type="", accelerator="")
        self.logs: dict[int, str] = {}
        self.asked: dict[str, Any] = {}

    def run(self, layout: Layout, plan: Any, rounds: Any, sizes: Any, **rest: Any) -> list[Measured]:
        self.asked = {"layout": layout, "plan": plan, "rounds": rounds, "sizes": sizes, **rest}
        found = []
        for stage in (stage for stages in rounds for stage in stages):
            rest["begin"](stage, self.conditions)
            for one in self.rows:
                rest["show"](stage, one)
            rows = tuple(self.rows)
            found.append(Measured(stage=stage, conditions=self.conditions, rows=rows, links=(), logs=self.logs))
        return found


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    cluster = Cluster()
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(driver, "run", cluster.run)
    monkeypatch.setattr(session, "connect", lambda *_, **__: contextlib.nullcontext())
    return cluster


@pytest.fixture
def stack(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Inside a job of a stack with GPU nodes."""
    place = WhereRayIs(address="127.0.0.1:1", environment=OUTPUTS)
    monkeypatch.setattr(session, "prepare", lambda _: place)
    monkeypatch.setattr(storage, "locate", lambda at: locate(str(at).replace("gs:/", str(tmp_path))))


def test_a_right_result_is_exit_code_0_and_a_wrong_one_6_and_the_table_that_shows_it_is_kept(
    measured: Cluster, tmp_path: Path, cli: CommandLine
) -> None:
    cli("bench", "--results", str(tmp_path), "--name", "good")
    forms = {file.suffix for file in (tmp_path / "good").iterdir()}
    assert forms == {".txt", ".jsonl", ".csv", ".png", ".svg"}
    measured.rows.append(row(ranks=2, wrong=3))
    printed = cli("bench", "--results", str(tmp_path), "--name", "bad", code=6)
    assert "6 elements" in printed.err
    assert "# Out of bounds values : 6 FAILED" in printed.out
    assert "# Out of bounds values : 6 FAILED" in (tmp_path / "bad" / "all_reduce.txt").read_text()


def test_a_fabric_that_is_not_what_the_stack_promised_is_exit_code_9_after_everything_is_kept(
    measured: Cluster, stack: None, tmp_path: Path, cli: CommandLine
) -> None:
    measured.conditions = replace(CONDITIONS, nodes=2, ranks=2, node_of_rank=(0, 1))
    measured.logs = dict.fromkeys(range(2), "a:1:2 [0] NCCL INFO Using network Socket\n")
    printed = cli("bench", "--stages", "all", "--results", str(tmp_path), "--name", "slow", code=9)
    assert "The fabric is not as it must be" in printed.err and "all:" in printed.err
    assert (tmp_path / "slow" / "all_reduce.txt").exists()


def test_results_of_that_name_and_collective_are_neither_overwritten_nor_taken_for_new_ones(
    measured: Cluster, tmp_path: Path, cli: CommandLine
) -> None:
    words = ["bench", "--results", str(tmp_path), "--name", "once"]
    cli(*words)
    before, measured.asked = (tmp_path / "once" / "all_reduce.jsonl").read_bytes(), {}
    assert f"{tmp_path / 'once'} holds results of all_reduce already" in cli(*words, code=2).err
    assert measured.asked == {} and (tmp_path / "once" / "all_reduce.jsonl").read_bytes() == before
    cli(*words, "--op", "broadcast")
    stopped = before.replace(b'"stopped": ""', b'"stopped": "rank 3 hung"')
    assert stopped != before
    (tmp_path / "once" / "all_reduce.jsonl").write_bytes(stopped)
    cli(*words)


DIED = "Rank 1 of 'all', on node 0 (a/1) died: lost"


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (WorkloadFailedError(DIED, "Run again."), 5, DIED),
        (RayError("gone"), 5, "Ray failed: gone"),
        (KeyboardInterrupt(), 130, "Interrupted."),
    ],
)
def test_a_failure_and_ctrl_c_lose_neither_the_stages_before_them_nor_nccl_s_logs(
    measured: Cluster,
    stack: None,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cli: CommandLine,
    end: BaseException,
    code: int,
    said: str,
) -> None:
    def fail(layout: Layout, plan: Any, rounds: Any, sizes: Any, **rest: Any) -> list[Measured]:
        logs = cast(Any, SimpleNamespace(read=lambda stages: {"all": {0: "zero\n", 1: "one\n"}}))
        with driver._explained(measured.run(layout, plan, rounds[:1], sizes, **rest), rounds[1], logs):
            raise end

    monkeypatch.setattr(driver, "run", fail)
    printed = cli("bench", "--results", str(tmp_path), "--name", "lost", code=code)
    assert said.lower().rstrip(".") in printed.err.lower()
    assert f"the stages that were finished written to {tmp_path / 'lost'}" in printed.out
    read = records.read((tmp_path / "lost" / "all_reduce.jsonl").read_bytes(), "here")
    assert [one.stage.name for one in read.measured] == ["node 0", "node 1"] and read.stopped == said
    assert (tmp_path / "lost" / "logs" / "all_reduce-all-rank1.log").read_text() == "one\n"


def test_where_nothing_can_be_kept_the_failure_itself_is_still_what_is_told(
    measured: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: CommandLine
) -> None:
    def fail(*_: Any, **__: Any) -> list[Measured]:
        (tmp_path / "results" / "lost").touch()  # where the folder would be
        stopped = driver.StoppedError(DIED, "Run again.")
        stopped.logs = {"all": {0: "zero\n"}}
        raise stopped

    monkeypatch.setattr(driver, "run", fail)
    printed = cli("bench", "--results", str(tmp_path / "results"), "--name", "lost", code=5)
    assert "Rank 1 of 'all'" in printed.err and "nothing of it could be kept: " in printed.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--op", "all_gather", "--sizes", "128:1M"], "128 B cannot be divided among 16 ranks for all_gather"),
        (
            ["--op", "all_to_all", "--algo", "ring"],
            "NCCL has no all_to_all with it. Leave it out: NCCL has only one algorithm",
        ),
        (["--op", "all_gather", "--algo", "tree"], "with it. Leave it out, or give one of ring, nvls."),
        (["--op", "broadcast", "--algo", "nvls"], "with it. Leave it out, or give one of ring."),
        (
            ["--stages", "all", "--algo", "nvls"],
            "NCCL has it within a node only, and no stage that was asked for is there.",
        ),
        (
            ["--nodes", "1", "--algo", "nvlstree"],
            "NCCL has it between nodes only, and no stage that was asked for is there.",
        ),
    ],
)
def test_what_the_collective_cannot_do_on_these_nodes_is_refused_before_they_are_waited_for(
    measured: Cluster, stack: None, cli: CommandLine, arguments: list[str], words: str
) -> None:
    assert words in " ".join(cli("bench", *arguments, code=2).err.split())
    assert measured.asked == {}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--sizes", "64MB"], 2, "64MB"),
        (["--sizes", "1:2"], 2, "Start --sizes at 4"),
        (["--name", "../up"], 2, "--name is '../up'; a name has up to 63 of"),
        (["--nodes", "0"], 2, "--nodes is 0"),
        (["--warmup", "0"], 2, "--warmup"),
        (["--algo", "ring"], 2, "--algo ring forces an algorithm of NCCL"),
        (["--nodes", "2"], 3, "an embedded Ray is one node"),
        (["--backend", "nccl"], 8, "torch sees none on this machine"),
        (["--results", "/dev/null", "--name", "b"], 8, "cannot write probe to /dev/null/b/write-test"),
    ],
)
def test_bad_input_is_answered_before_anything_starts(
    measured: Cluster, monkeypatch: pytest.MonkeyPatch, cli: CommandLine, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert words in cli("bench", *arguments, code=code).err
    assert measured.asked == {}


def test_without_a_stack_nccl_takes_this_machine_s_gpus_and_asks_how_many_a_node_elsewhere_has(
    measured: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cli: CommandLine
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    words = ["bench", "--backend", "nccl", "--results", str(tmp_path)]
    cli(*words)
    assert measured.asked["layout"] == Layout(nodes=1, ranks_per_node=4, gpus_per_node=4)
    assert "on nodes of 4 GPUs" in cli(*words, "--ranks-per-node", "5", code=2).err
    elsewhere = [*words, "--address", "127.0.0.1:1"]
    assert "Give --ranks-per-node" in cli(*elsewhere, code=2).err
    cli(*elsewhere, "--ranks-per-node", "5")
    assert measured.asked["layout"] == Layout(nodes=2, ranks_per_node=5, gpus_per_node=5)


def test_nccl_is_refused_on_a_stack_without_gpus_and_more_nodes_than_it_can_have_too(
    measured: Cluster, monkeypatch: pytest.MonkeyPatch, cli: CommandLine
) -> None:
    cpus = replace(OUTPUTS, gpus_per_node=0, rdma_nics=0, machine_type="", accelerator="", gpu_max_nodes=0)
    monkeypatch.setattr(session, "prepare", lambda _: WhereRayIs(address="127.0.0.1:1", environment=cpus))
    assert "this stack has no GPU nodes" in cli("bench", "--backend", "nccl", code=8).err
    monkeypatch.setattr(session, "prepare", lambda _: WhereRayIs(address="127.0.0.1:1", environment=OUTPUTS))
    cli("bench", "--nodes", str(OUTPUTS.gpu_max_nodes + 1), code=3)
    cli("bench", "--ranks-per-node", str(OUTPUTS.gpus_per_node + 1), code=2)
    assert measured.asked == {}


def test_without_sizes_cpus_are_measured_to_64_mib_and_sizes_asked_for_are_not_shortened(
    measured: Cluster, cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "write", lambda *_: [])
    results = ["--name", "a"]
    for arguments, last, shorten in (([], 64 << 20, True), (["--sizes", "1K:16G:2"], 16 << 30, False)):
        cli("bench", *results, *arguments)
        assert (measured.asked["sizes"][-1], measured.asked["shorten"]) == (last, shorten)


def test_on_a_stack_s_gpus_the_whole_ladder_is_climbed_and_on_cpus_all_ranks_at_once(
    measured: Cluster, cli: CommandLine, stack: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stages() -> list[str]:
        return [stage.name for stages in measured.asked["rounds"] for stage in stages]

    monkeypatch.setattr(report, "write", lambda *_: [])
    results = ["--name", "a"]
    gpus = OUTPUTS.gpus_per_node
    cli("bench", *results)
    assert stages() == ["node 0", "node 1", "all", "nodes 0+1, ring"]
    assert measured.asked["layout"] == Layout(nodes=2, ranks_per_node=gpus, gpus_per_node=gpus)
    assert (measured.asked["sizes"][-1], measured.asked["shorten"]) == (16 << 30, True)
    cli("bench", *results, "--op", "all_gather")  # has no tree that hides the wire
    assert stages() == ["node 0", "node 1", "all"]
    cli("bench", *results, "--stages", "all", "--algo", "tree")
    assert measured.asked["rounds"] == ((Stage(name="all", nodes=(0, 1), algorithm="TREE"),),)
    for algorithm, left in (("nvlstree", ["all"]), ("nvls", ["node 0", "node 1"])):
        cli("bench", *results, "--algo", algorithm)
        assert stages() == left
    cli("bench", *results, "--backend", "gloo", "--average", "--dtype", "half")
    assert stages() == ["all"]
    assert measured.asked["layout"].backend == "gloo"
    assert (measured.asked["plan"].average, measured.asked["plan"].dtype) == (True, "half")


def test_a_dry_run_says_what_would_be_measured_and_asked_for_and_where_each_value_came_from(
    measured: Cluster, stack: None, cli: CommandLine
) -> None:
    said = json.loads(cli("bench", "--op", "broadcast", "--dry-run", "--json").out)
    settings = {name: (one["value"], one["origin"]) for name, one in said["settings"].items()}
    assert settings["op"] == ("broadcast", "flag --op")
    assert settings["nodes"] == (2, "default")
    assert settings["stages"] == ("node 0, node 1, all", "default")
    assert settings["rounds"] == (2, "default")
    assert settings["sizes"][0].startswith("1 KiB, 2 KiB") and settings["sizes"][0].endswith("16 GiB")
    assert said["request"]["strategy"] == "STRICT_SPREAD"
    assert (
        said["request"]["bundles"] == [{"CPU": float(OUTPUTS.gpus_per_node), "GPU": float(OUTPUTS.gpus_per_node)}] * 2
    )
    assert measured.asked == {}


def test_help_teaches_and_needs_neither_ray_nor_torch() -> None:
    program = (
        "import sys; from workloads.nccl import command; import argparse;"
        "parser = argparse.ArgumentParser('bench', formatter_class=argparse.RawDescriptionHelpFormatter);"
        "command.add_bench_arguments(parser); print(parser.format_help());"
        "sys.exit(bool({'ray', 'torch', 'matplotlib'} & set(sys.modules)))"
    )
    done = python("-c", program)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr
    for words in ("examples:", "nccl-tests -a 3", "bench compare", "bench predict", "--average", "ends with 0"):
        assert words.lower() in done.stdout.lower()


@pytest.mark.parametrize(
    ("nodes", "shorten", "last"),
    [((0, 1), True, (4, 8, 16)), ((0, 1), False, (2, 4, 8, 16)), ((0, 1, 2), True, (2, 4, 8, 16))],
)
def test_of_pairs_the_largest_sizes_alone_are_measured_unless_sizes_were_asked_for(
    nodes: tuple[int, ...], shorten: bool, last: tuple[int, ...]
) -> None:
    stage = Stage(name="some", nodes=nodes)
    facts = {
        "host": "a",
        "device": "cpu",
        "accelerator": "",
        "versions": {},
        "variables": {},
        "room": 1 << 40,
        "own_calls": False,
    }
    ranks: Any = SimpleNamespace(
        layout=Layout(nodes=3, ranks_per_node=1, gpus_per_node=0),
        plan=replace(gate.PLAN, links=False),
        stages=(stage,),
        join=lambda: [[facts] * len(nodes)],
        measure=lambda size, in_place: [[Sample(seconds=1, iterations=1, wrong=0, calls=())] * len(nodes)],
        ask=lambda method: None,
        logs=SimpleNamespace(read=lambda stages: {"some": {}}),
    )
    sizes = [size << 30 for size in (2, 4, 8, 16)]
    (found,) = driver._measured(ranks, sizes, shorten, None, lambda *_: None, lambda *_: None)
    assert tuple(row.size >> 30 for row in found.rows) == last


def test_different_versions_on_two_nodes_are_one_message_that_names_both() -> None:
    stage = Stage(name="all", nodes=(0, 1))
    places = [RankPlace(stage, 0, 0, "a/1234"), RankPlace(stage, 1, 1, "b/5678")]
    same = {"torch": "2.15.0", "cuda": "13.2", "nccl": "2.30.7", "python": "3.11.9"}
    driver.check_versions([same, same | {"python": "3.12.1"}], places)
    driver.check_versions([{"torch": "2.15.0"}, {"torch": "2.15.0"}], places)
    with pytest.raises(PlaceError) as refusal:
        driver.check_versions([same, same | {"nccl": "2.26.6"}], places)
    message = str(refusal.value)
    assert "Different nccl on two nodes: 2.30.7 on node 0 (a/1234), 2.26.6 on node 1 (b/5678)" in message


def test_a_dead_rank_is_blamed_for_those_it_left_hanging_and_named_with_its_node() -> None:
    stage = Stage(name="all", nodes=(0, 1))
    places = [RankPlace(stage, rank, rank // 2, f"Host-{rank // 2}/1234") for rank in range(4)]
    torn, died = RuntimeError("Connection closed by peer\nmore"), RayActorError()
    with pytest.raises(WorkloadFailedError, match=r"^Rank 2 of 'all', on node 1 \(Host-1/1234\) died: ") as refusal:
        failures.raise_failure({0: torn, 2: died}, [1, 3], places, late=False)
    assert refusal.value.__cause__ is died
    silent = r"^Rank 0 of 'all', on node 0 \(Host-0/1234\) failed: Connection closed by peer Silent since: rank 3 of"
    with pytest.raises(WorkloadFailedError, match=silent):
        failures.raise_failure({0: torn}, [3], places, late=False)
    with pytest.raises(PlaceError, match="its own words"):
        failures.raise_failure({0: torn, 1: PlaceError("its own words", "")}, [], places, late=False)


def test_a_rank_that_hangs_is_named_and_not_those_that_gave_up_waiting_for_it() -> None:
    stage = Stage(name="all", nodes=(0, 1))
    places = [RankPlace(stage, rank, rank // 2, f"host-{rank // 2}/1234", pid=70 + rank) for rank in range(4)]
    aborted = {rank: RayActorError() for rank in (0, 1, 3)}  # as torch's watchdog ends a process on NCCL
    hung = r"^No answer from rank 2 of 'all', on node 1 \(host-1/1234, process 72\) when the ranks that waited for it"
    with pytest.raises(failures.HungError, match=hung):
        failures.raise_failure(aborted, [2], places, late=True)
    with pytest.raises(WorkloadFailedError, match=r"^Rank 0 .* died: .* Silent since: rank 1 of .*; rank 2 .*; rank 3"):
        failures.raise_failure({0: RayActorError()}, [1, 2, 3], places, late=True)  # nobody knows who


class SlowStart:
    """Ray, and the clock, while ranks start: each process dies after so many seconds, or is never heard of."""

    def __init__(self, deaths: dict[int, float]) -> None:
        self.deaths = deaths
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def wait(self, waiting: list[int], timeout: float) -> tuple[list[int], list[int]]:
        known = {rank: self.deaths[rank] for rank in waiting if rank in self.deaths}
        self.now = min([self.now + timeout, *known.values()])
        done = [rank for rank, moment in known.items() if moment <= self.now]
        return done, [rank for rank in waiting if rank not in done]

    def get(self, rank: int) -> None:
        raise RayActorError()


@pytest.mark.parametrize(
    ("deaths", "said", "when"),
    [
        ({0: 400.0, 1: 401.0}, r"^Rank 0 of 'all', on node 0 \(a\) died: ", 400),
        ({}, r"^No answer from rank 0 of .*; rank 2 of 'all', on node 2 \(c\) within 600 s\.", 600),
    ],
)
def test_a_slow_start_is_no_hang_however_much_longer_it_takes_than_a_collective_may(
    deaths: dict[int, float], said: str, when: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = SlowStart(deaths)
    monkeypatch.setattr(failures, "ray", ray)
    monkeypatch.setattr(failures, "time", ray)
    stage = Stage(name="all", nodes=(0, 1, 2))
    actors: list[Any] = [SimpleNamespace(arrive=SimpleNamespace(remote=lambda rank=rank: rank)) for rank in range(3)]
    places = [RankPlace(stage, rank, rank, "abc"[rank]) for rank in range(3)]
    layout = Layout(nodes=3, ranks_per_node=1, gpus_per_node=1)
    with pytest.raises(WorkloadFailedError, match=said) as raised:
        driver.StageRanks(layout, gate.PLAN, (stage,), actors, places, logs=cast(Any, None)).join()
    assert not isinstance(raised.value, failures.HungError)
    assert (ray.now, gate.PLAN.timeout_seconds) == (when, 60)


def test_why_a_process_died_is_told_and_not_only_that_it_did() -> None:
    words = "The actor died unexpectedly before finishing this task.\n\tpid: 7\nThe actor is dead because its worker {}"
    error = RayActorError(error_msg=words.format("process has died. Worker exit type: SYSTEM_ERROR"))
    assert (
        kept_logs.death(error)
        == "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
    )
    assert kept_logs.death(RuntimeError("one\ntwo")) == "one"
