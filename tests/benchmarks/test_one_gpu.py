"""The benchmark of one GPU: as a command with gloo, with logs as NCCL writes them, and with ranks that are lost."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks import one_gpu
from benchmarks.harness.command import exit_code
from benchmarks.one_gpu_ranks import start as one_gpu_ranks
from emulator.machine import processes
from tests.support import bare_machine
from tests.support.waiting import eventually
from workloads.errors import WorkloadFailedError
from workloads.nccl.logs import debug_log
from workloads.nccl.ranks.rank import Sample

ROOT = Path(one_gpu.__file__).parents[1]
COMMAND = [sys.executable, "-m", "benchmarks.one_gpu", "--backend", "gloo"]

LOG = """\
a:{rank}1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0
a:{rank}1:1 [0] NCCL INFO Using network Socket
a:{rank}1:1 [0] NCCL INFO comm 0x55d00000 rank {rank} nRanks {ranks} nNodes {nodes} localRanks 1 localRank 0 MNNVL 0
"""
CHANNEL = "a:{rank}1:1 [0] NCCL INFO Channel 00/0 : {rank}[0] -> {other}[0] [send] via {transport}\n"
CHOICE = "a:{rank}1:1 [0] NCCL INFO AllReduce: {size} Bytes -> Algo RING proto LL channel{{Lo..Hi}}={{0..1}}\n"


@pytest.mark.thorough
def test_with_torch_alone_one_rank_and_two_are_measured_and_kept_with_what_makes_each_a_host(tmp_path: Path) -> None:
    results = tmp_path / "results" / "one_gpu.json"
    words = ["--ranks", "1", "2", "--sizes", "1K", "--results", str(results)]
    bare = bare_machine.variables(tmp_path, "torch")
    assert {"ray", "kubernetes", "cryptography", "google_crc32c", "yaml", "numpy"} <= {*bare["MISSING_MODULES"].split()}
    done = subprocess.run([*COMMAND, *words], cwd=ROOT, env=bare, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "# two ranks on a CPU, gloo on loopback" in done.stdout and "# Out of bounds values : 0 OK" in done.stdout
    figures = json.loads(results.read_text())
    assert figures["backend"] == "gloo" and figures["machine"]["gpu"] == "" and "torch" in figures["versions"]
    one, two = figures["runs"]
    places = [run["samples"][0][place] for run in (one, two) for place in ("out_of_place", "in_place")]
    assert [place["wrong"] for place in places] == [0] * 4
    assert [place["busbw"] > 0 for place in places] == [False, False, True, True]
    assert [len(place["rank_time_us"]) for place in places] == [1, 1, 2, 2]
    assert two["environment"]["devices"] == ["cpu", "cpu"] and two["verdict"] is None
    variables = two["variables of each rank"]
    assert [own["NCCL_HOSTID"] for own in variables] == ["one-gpu-rank-0", "one-gpu-rank-1"]
    assert {(own["NCCL_NET"], own["NCCL_SOCKET_IFNAME"]) for own in variables} == {("Socket", "lo")}


def test_nccl_without_a_gpu_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert exit_code(lambda: one_gpu.main([])) == 8
    printed = capsys.readouterr()
    assert printed.out == "" and len(printed.err.splitlines()) == 2 and "--backend gloo" in printed.err


def test_gloo_s_figures_never_take_the_place_of_a_gpu_s(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "one_gpu.json"
    kept.write_text(json.dumps({"backend": "nccl"}))
    assert exit_code(lambda: one_gpu.main(["--backend", "gloo", "--results", str(kept)])) == 2
    assert str(kept) in capsys.readouterr().err and kept.read_text() == '{"backend": "nccl"}'


class OnGpu:
    """Ranks that answer as on a GPU, and write what NCCL writes."""

    def __init__(self, logs: Sequence[Mapping[str, str]], said: Mapping[str, str]) -> None:
        self.logs, self.ranks, self.room = logs, len(logs), int(said.get("room", 4096))
        text, own = (LOG + CHANNEL, said) if self.ranks == 2 else (LOG, {"nodes": "1"})
        self.write("INIT", text, ranks=self.ranks, **own)

    def write(self, subsystem: str, text: str, **words: object) -> None:
        for rank, log in enumerate(self.logs):
            if subsystem in log["NCCL_DEBUG_SUBSYS"].split(","):
                with Path(log["NCCL_DEBUG_FILE"]).open("a") as file:
                    file.write(text.format(rank=rank, other=1 - rank, **words))

    def join(self) -> list[dict[str, Any]]:
        same = {"host": "a", "pid": 1, "versions": {"nccl": "2.28.9"}, "device": "cuda:0", "accelerator": "NVIDIA H200"}
        variables = [{**one_gpu_ranks.environment(rank), **log} for rank, log in enumerate(self.logs)]
        return [{**same, "variables": own, "room": self.room, "own_calls": False} for own in variables]

    def ask(self, method: str, *arguments: object) -> list[Sample]:
        if method in ("measure", "call"):
            self.write("TUNING", CHOICE, size=arguments[0])
        return [Sample(seconds=0.001, iterations=5, wrong=0, calls=(0.001,))] * self.ranks


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A machine with a GPU on which the ranks are OnGpu; what their logs say of two of them."""
    said = {"transport": "NET/Socket/0", "nodes": "2"}

    @contextlib.contextmanager
    def started(backend: str, limit: float, logs: Sequence[Mapping[str, str]]) -> Iterator[OnGpu]:
        yield OnGpu(logs, said)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(one_gpu_ranks, "started", started)
    return said


def test_on_a_gpu_the_path_is_read_from_the_logs_and_they_are_kept(
    on_gpu: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "one_gpu.json"
    words = ["--results", str(results), "--logs", str(tmp_path)]
    assert one_gpu.main(words) == 0
    printed = capsys.readouterr().out
    assert "# two ranks on one GPU, over sockets on loopback: " in printed and "says nothing of a fabric" in printed
    assert "# two ranks: Path taken           : socket" in printed
    one, two = json.loads(results.read_text())["runs"]
    assert (one["verdict"]["path"], two["verdict"]["path"]) == ("none", "socket")
    # Two ranks share the memory that each of them sees.
    assert [run["samples"][-1]["size"] for run in (one, two)] == [4096, 2048]
    logs = [tmp_path / "logs" / f"all_reduce-two-ranks-rank{rank}.log" for rank in range(2)]
    assert ["NET/Socket/0" in log.read_text() for log in logs] == [True, True]
    # NCCL's line of each call is of ranks that are not timed, one call a size.
    assert (one["verdict"]["algorithm"], two["verdict"]["algorithm"]) == ("RING", "RING")
    assert [log.read_text().count("Bytes ->") for log in logs] == [len(two["samples"])] * 2
    subsystems = [own["NCCL_DEBUG_SUBSYS"] for run in (one, two) for own in run["variables of each rank"]]
    assert not any("TUNING" in own for own in subsystems) and all("INIT" in own for own in subsystems)
    assert "# two ranks again, untimed" in printed

    on_gpu["room"] = str(64 << 30)
    assert one_gpu.main(words) == 0
    # Larger ones took two ranks on one GPU longer than a size may take.
    assert [run["samples"][-1]["size"] for run in json.loads(results.read_text())["runs"]] == [64 << 20] * 2

    on_gpu.update(transport="SHM/direct/direct", nodes="1")
    assert exit_code(lambda: one_gpu.main(words)) == 9
    assert "not the sockets that the figures are labelled with" in capsys.readouterr().err


def test_what_one_rank_measured_is_kept_where_two_fail(
    on_gpu: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = OnGpu.ask

    def ask(team: OnGpu, method: str, *arguments: object) -> list[Sample]:
        if team.ranks == 2:
            raise WorkloadFailedError("rank 1 gave no answer.", "Run it again.")
        return real(team, method, *arguments)

    monkeypatch.setattr(OnGpu, "ask", ask)
    results = tmp_path / "one_gpu.json"
    assert exit_code(lambda: one_gpu.main(["--results", str(results), "--logs", str(tmp_path)])) == 5
    assert [run["ranks"] for run in json.loads(results.read_text())["runs"]] == [1]


@pytest.mark.thorough
@pytest.mark.parametrize("subsystems", [debug_log.PATH, debug_log.CHOICES])
def test_a_rank_s_process_has_nccl_write_what_it_is_asked_for_and_makes_one_call(subsystems: str) -> None:
    logs = debug_log.Keeper().open(2, subsystems)
    with one_gpu_ranks.started("gloo", 60, logs) as team:
        facts = team.join()
        assert team.ask("call", 4096) == [None, None]
        team.ask("leave")
    assert [(own["variables"]["NCCL_DEBUG"], own["variables"]["NCCL_DEBUG_SUBSYS"]) for own in facts] == [
        ("INFO", subsystems)
    ] * 2


@contextlib.contextmanager
def measuring(*words: str) -> Iterator[tuple[subprocess.Popen[str], dict[int, int]]]:
    """The command while it measures between two ranks, and the process of each."""
    command = [*COMMAND, "--ranks", "2", "--sizes", "1K:64M:2", *words]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            assert any(re.match(r" +1024 ", line) for line in running.stdout)
            found = {}
            for pid in processes.descendants(running.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if host := psutil.Process(pid).environ().get("NCCL_HOSTID"):
                        found[int(host.removeprefix("one-gpu-rank-"))] = pid
            assert set(found) == {0, 1}
            yield running, found
        finally:
            running.kill()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGKILL, r"was ended by SIGKILL"), (signal.SIGSTOP, r"gave no answer")],
)
def test_a_rank_that_dies_or_hangs_ends_the_command_and_nothing_is_left(number: int, message: str) -> None:
    with measuring("--timeout", "15") as (running, ranks):
        os.kill(ranks[1], number)
        _, error = running.communicate(timeout=60)
        assert running.returncode == 5, error
        assert re.search(rf"rank 1 \(process {ranks[1]}\) {message}", error), error
        assert "last words of rank 0:" in error and "Traceback" not in error.partition("last words")[0]
        assert not any(map(psutil.pid_exists, ranks.values()))


@pytest.mark.thorough
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_command_that_is_ended_takes_its_ranks_with_it(number: int, code: int) -> None:
    with measuring() as (running, ranks):
        running.send_signal(number)
        _, error = running.communicate(timeout=60)
        assert running.returncode == code and "Traceback" not in error
        eventually(lambda: not any(map(processes.start_time, ranks.values())), 10)
