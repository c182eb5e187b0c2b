"""Training on a real Ray, embedded and on loopback: interrupted, killed, losing a worker, and still one run."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from emulator.google.cloud import Cloud
from emulator.google.http_message import Request
from emulator.rest.cloud_server import CloudServer
from tests.cluster.ray_processes import Nodes, headed
from tests.emulator.google import make_bucket
from tests.support.processes import begun, command, descendants, python, usual_variables
from tests.support.waiting import eventually, read_rest, read_until
from workloads.checkpoints.store import CheckpointStore
from workloads.convnext.images import digits
from workloads.reporting import cost
from workloads.reporting.history import history, parse
from workloads.storage.folders import EMULATOR_VARIABLE, locate

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]


def run_python(*words: str, directory: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Python, which starts a Ray of its own, run to its end in a folder, with these variables beside the usual ones."""
    return python(*words, cwd=directory, env=usual_variables(PYTHONPATH=str(ROOT)) | variables)


@dataclass(frozen=True)
class Bench:
    """A place to train in: data, runs and results of one test."""

    directory: Path

    @property
    def data(self) -> Path:
        return self.directory / "digits"

    def start(self, run: str, *flags: str, **variables: str) -> subprocess.Popen[str]:
        """`python -m workloads train`, as a user would start it."""
        places = ["--storage", str(self.directory / "runs"), "--results", str(self.directory / "results")]
        command = ["-m", "workloads", "train", "--run", run, "--data", str(self.data), *places, *flags]
        return begun(*command, env=usual_variables(**variables), process_group=0)

    def checkpoints(self, run: str) -> list[str]:
        return CheckpointStore(locate(self.directory / "runs" / run / "checkpoints"), 3).committed()

    def resumed(self, run: str) -> list[str | None]:
        """Where each attempt at the run went on, as its stored history has it."""
        records = history(locate(self.directory / "runs" / run))
        return [record["name"] for record in records if record["event"] == "resumed"]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    digits.write(str(tmp_path / "digits"), lambda _: None)
    yield Bench(tmp_path)


@pytest.mark.parametrize(
    ("end", "number"),
    [
        pytest.param(os.kill, signal.SIGINT, id="ctrl-c"),
        pytest.param(os.kill, signal.SIGTERM, id="kill"),
        pytest.param(os.killpg, signal.SIGTERM, id="timeout"),  # it signals the whole group, Ray's processes too
    ],
)
def test_an_end_asked_for_twice_is_answered_at_once_and_leaves_no_process_and_no_folder(
    bench: Bench, end: Callable[[int, int], None], number: int
) -> None:
    with tempfile.TemporaryDirectory() as temporary:  # a short one: the paths of Ray's sockets are limited
        run = bench.start("twice", "--epochs", "20", TMPDIR=temporary)
        read_until(run, "starting Ray Train for 2 CPU workers")
        started = descendants(run.pid)
        end(run.pid, number)
        read_until(run, "ending ")
        end(run.pid, number)
        said = read_rest(run)

        assert run.returncode == 130, said
        assert "interrupted; the same command with --run twice begins anew: there is no checkpoint yet" in said
        assert said.count("interrupted") == 1
        assert "Traceback" not in said and "***" not in said  # Ray's native code begins its stack traces so
        assert list(Path(temporary).glob("oasis-*")) == []
        eventually(lambda: not any(map(psutil.pid_exists, started)))


def test_ctrl_c_ends_a_run_whose_output_nobody_reads_any_more(bench: Bench) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        run = bench.start("unread", "--epochs", "400", TMPDIR=temporary)
        read_until(run, "begun on 2 workers")
        started = descendants(run.pid)
        assert run.stdout is not None
        run.stdout.close()
        run.send_signal(signal.SIGINT)

        assert run.wait(timeout=400) == 141
        assert list(Path(temporary).glob("oasis-*")) == []
        eventually(lambda: not any(map(psutil.pid_exists, started)))


def until(condition: Callable[[], object], process: subprocess.Popen[str], seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"ended early with {process.returncode}:\n{process.communicate()[0]}"
        if time.monotonic() > deadline:
            process.send_signal(signal.SIGINT)
            raise AssertionError(f"it took too long:\n{process.communicate(timeout=60)[0]}")
        time.sleep(0.1)


def survivors(family: dict[int, str], seconds: float = 60) -> dict[int, str]:
    """Those that have not ended after that time, but for Ray's agents, which seek their killed raylet for 60 s."""
    agents = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
    watched = {pid: line for pid, line in family.items() if line and not line.startswith(agents)}
    deadline = time.monotonic() + seconds
    while left := {pid: line for pid, line in watched.items() if command(pid) == line}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    return left


def test_a_run_survives_a_killed_driver_and_a_killed_worker_and_reaches_95_percent(bench: Bench) -> None:
    first = bench.start("digits")
    until(lambda: bench.checkpoints("digits"), first)
    family = descendants(first.pid)
    first.kill()
    first.communicate(timeout=400)
    assert survivors(family) == {}

    before = bench.checkpoints("digits")[-1]
    second = bench.start("digits", OASIS_SUBMITTED_WITH="--ray-job")  # on nodes of its own
    until(lambda: bench.checkpoints("digits")[-1] > before, second)
    workers = [pid for pid, line in descendants(second.pid).items() if "RayTrainWorker" in line]
    assert len(workers) == 2
    # They get as much of the processors as what else computes here.
    assert {os.getpriority(os.PRIO_PROCESS, pid) for pid in workers} == {os.getpriority(os.PRIO_PROCESS, 0)}
    os.kill(workers[1], signal.SIGKILL)
    said, _ = second.communicate(timeout=400)
    assert second.returncode == 0, said
    assert bench.resumed("digits")[:2] == [None, before]
    assert "going on from the newest checkpoint" in said

    results = bench.directory / "results" / "digits"
    summary = json.loads((results / "summary.json").read_text())
    assert summary["val/accuracy"] >= 0.98
    assert (summary["steps"], summary["workers"], summary["backend"]) == (16 * 23, 2, "gloo")
    history = [json.loads(line) for line in (results / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in history if record["event"] == "epoch"] == list(range(1, 17))
    assert (results / "curve.png").read_bytes().startswith(b"\x89PNG")
    kept = bench.directory / "runs" / "digits"
    assert sorted(path.name for path in kept.iterdir()) == ["checkpoints", "journal", "results"]
    for name in ("curve.png", "metrics.jsonl", "summary.json", "table.txt"):
        assert (kept / "results" / name).read_bytes() == (results / name).read_bytes()
    assert len(bench.checkpoints("digits")) <= 3
    of_second, after_kill = cost.stays(locate(kept))[-2:]
    assert of_second.ended <= after_kill.began < of_second.ended + 1, "what a restart takes is paid for, once"


def test_a_run_stops_with_a_checkpoint_when_its_budget_is_spent_and_goes_on_with_a_higher_one(bench: Bench) -> None:
    price = {"OASIS_NODE_HOUR_USD": "3600"}  # one USD a second
    flags = ("--epochs", "400", "--workers", "2")

    run = bench.start("dear", *flags, "--max-usd", "25", **price)
    said, _ = run.communicate(timeout=400)
    assert run.returncode == 10, said
    assert re.search(r"the run has cost the 25\.00 USD of --max-usd, at step \d+; its checkpoint is saved", said)
    folder = locate(bench.directory / "runs" / "dear")
    [stay] = cost.stays(folder)
    assert (stay.workers, stay.nodes) == (2, 1)
    kept = bench.checkpoints("dear")[-1]

    again = bench.start("dear", *flags, "--max-usd", "25", **price)
    said, _ = again.communicate(timeout=400)
    assert again.returncode == 10, said
    assert "run dear has cost" in said and "starting Ray" not in said

    alone = {**price, "OASIS_SUBMITTED_WITH": "--queue --nodes 1"}
    more = bench.start("dear", "--epochs", "1", "--workers", "2", "--max-usd", "10000", **alone)
    said, _ = more.communicate(timeout=400)
    assert more.returncode == 0, said
    assert bench.resumed("dear")[-1] == kept
    first, second = cost.stays(folder)
    assert first == stay and second.began > first.ended
    trained = json.loads((bench.directory / "results" / "dear" / "summary.json").read_text())["seconds"]
    assert second.ended - second.began > trained, "nodes that are the job's alone are paid for since Ray is up there"


def test_train_as_the_page_gives_it_trains_on_the_digits_in_an_empty_folder_and_shows_its_table(tmp_path: Path) -> None:
    (line,) = re.findall(
        r"^\.venv/bin/python -m (workloads train) +#", (ROOT / "docs" / "training.md").read_text(), re.MULTILINE
    )
    variables = {"OASIS_DATA_MOUNT": str(tmp_path / "no-mount")}
    done = run_python("-m", *line.split(), "--epochs", "2", directory=tmp_path, **variables)
    assert done.returncode == 0, done.stderr
    mount = tmp_path / ".oasis" / "data"
    assert f"there is no {tmp_path}/no-mount/digits: training on" in done.stdout
    assert len(list(mount.glob("digits/*/*/*.png"))) == 1797
    (results,) = (tmp_path / ".oasis" / "results").iterdir()
    table = (results / "table.txt").read_text().partition("\n\n")[2]
    # Rows and charts, as they stand in the terminal; a chart is of Braille patterns, the first of which has no dot.
    assert "val acc" in table and re.search("[\u2801-\u28ff]", table)
    assert table.rstrip() in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [".oasis"]


SLOW_DATA = """
import argparse, dataclasses, json, sys
from pathlib import Path
from workloads.cluster import session
place = session.prepare()
from workloads.convnext.run import train
parser = argparse.ArgumentParser()
train.add_train_arguments(parser)
words = ["--run", "slow", "--data", "gs://data/digits", "--epochs", "1", "--workers", "2"]
run = dataclasses.replace(train.plan(parser.parse_args(words), place), collective_timeout=float(sys.argv[1]))
with session.connect(place, cpus=2):
    from workloads.convnext.run import driver
    driver.fit(run)
print(run.journal.read_text())
"""


def test_a_node_whose_copy_of_the_data_takes_longer_than_a_collective_may_fails_no_other(tmp_path: Path) -> None:
    timeout, asked = 8.0, threading.Event()

    def slow(request: Request) -> None:
        """The first worker that lists the data waits for it, and the other does not."""
        if "/b/data/o" in request.path and not asked.is_set():
            asked.set()
            time.sleep(timeout + 12)

    cloud = Cloud(tmp_path / "google")
    server = CloudServer(cloud, 0)
    server.apis = (slow, *server.apis)
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        make_bucket(cloud, "data")
        digits.write(str(cloud.directory / "buckets" / "data" / "digits"), lambda _: None, sharded=True)
        google = f"http://127.0.0.1:{server.server_address[1]}"
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        variables = {EMULATOR_VARIABLE: google, "OASIS_SCRATCH_MOUNT": str(scratch)}
        done = run_python("-c", SLOW_DATA, str(timeout), directory=tmp_path, **variables)
    finally:
        server.shutdown()
        serving.join()
    assert done.returncode == 0, done.stderr
    assert asked.is_set()
    told = parse(done.stdout)
    assert [record["step"] for record in told if record["event"] == "resumed"] == [0]
    assert [record["text"] for record in told if "lost rank" in record.get("text", "")] == []


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """One node of two CPUs, for the drivers of all tests below."""
    with headed({"RAY_worker_niceness": "0"}, lambda _: ["--num-cpus=2"]) as found:
        found.wait_for(1)
        yield found


LEASES = """
from workloads.cluster import run_lock as lease
from workloads.errors import UsageError
with lease.hold("/runs/one", "one"):
    try:
        with lease.hold("/runs/one", "one", patience_seconds=1):
            print("held twice")
    except UsageError as error:
        print(error.problem)
with lease.hold("/runs/one", "one"):
    print("held again")
"""


def test_a_run_has_one_driver_at_a_time(nodes: Nodes) -> None:
    said = ["run one is being trained by another job of this cluster.", "held again"]
    assert nodes.python(LEASES).splitlines() == said


def test_more_workers_than_a_ray_without_autoscaler_has_are_refused_at_once(nodes: Nodes, tmp_path: Path) -> None:
    time.sleep(11)  # nodes that have just joined may be followed by others
    words = ["--run", "big", "--data", "synthetic", "--workers", "3:8", "--wandb", "off", "--address", nodes.address]
    places = ["--storage", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    done = nodes.command("-m", "workloads", "train", *words, *places)
    assert done.returncode == 3, done.stdout + done.stderr
    never = (
        "This cluster can never give 3 workers with 1 CPU: 2 of them up, and it has no autoscaler that could add one."
    )
    assert never in done.stderr
    assert "waiting for" not in done.stdout


BUSY = """
import subprocess, sys
from ray.util.placement_group import placement_group
ray.get(placement_group([{"CPU": 2}]).ready())
sys.exit(subprocess.run([sys.executable, "-m", "workloads", "train", *sys.argv[1:]]).returncode)
"""


def test_workers_whose_places_others_hold_are_waited_for_and_given_up_with_exit_4(nodes: Nodes, tmp_path: Path) -> None:
    words = ["--run", "late", "--data", "synthetic", "--wandb", "off", "--timeout", "5", "--address", nodes.address]
    places = ["--storage", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    done = nodes.run(BUSY, *words, *places)
    assert done.returncode == 4, done.stdout + done.stderr
    assert "waiting for 2 workers with 1 CPU: 2 of them up; waited" in done.stdout
    assert "s: 2 workers with 1 CPU; the nodes are there and busy." in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


ABSENT = """
import json, random, sys
from pathlib import Path
from workloads.cluster import session
place = session.prepare(sys.argv[1])
from benchmarks.kill_runs import trials as kill_trials, work as kill_work
from workloads.convnext.run.train import IMPORTS
bench = kill_trials.Bench(Path(sys.argv[2]))
kill_work.write_images(bench.data)
with session.connect(place, imports=IMPORTS):
    print(json.dumps(kill_trials.absent_rank(bench, "absent", 10.0, random.Random(0))))
"""


def test_a_rank_that_stays_away_from_a_collective_costs_its_timeout_and_a_restart(nodes: Nodes, tmp_path: Path) -> None:
    done = nodes.command("-c", ABSENT, nodes.address, str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["missing"], found["repeated"], found["orphans"]) == (0, 0, 0)
    # Which rank the others wait for, where it is, and where they are.
    told = [record.get("text", "") for file in tmp_path.rglob("journal/*.jsonl") for record in parse(file.read_text())]
    stay = r"in _stay_away of benchmarks, called by \w+ \(workloads/convnext/\S+:\d+\)"
    who = r"no progress for \d+ s: (.*; )?rank 1 \(\S+, process \d+\) is "
    assert any(re.match(who + stay, text) for text in told), told
    assert any(re.search(r"rank 0 \(\S+, process \d+\) is in \w+ of torch, called by", text) for text in told), told


GROWING = """
import json, sys
from pathlib import Path
from workloads.cluster import session
place = session.prepare(sys.argv[1])
import ray
from ray.util.placement_group import placement_group, remove_placement_group
from benchmarks.kill_runs import trials as kill_trials, work as kill_work
from workloads.convnext.run import driver
from workloads.convnext.run.train import IMPORTS
driver.RESIZE_SECONDS = 2.0
bench = kill_trials.Bench(Path(sys.argv[2]))
kill_work.write_images(bench.data)
run = bench.run("growing", bench.config(epochs=30, checkpoint_seconds=600.0), workers=2, least=1)
seen = kill_trials.RunObservation(Path(f"{run.folder.path}-observed"))
with session.connect(place, imports=IMPORTS):
    taken = placement_group([{"CPU": 1}])
    ray.get(taken.ready())

    def give_back():
        kill_trials.until(lambda: len(seen.lines()) > 10)
        remove_placement_group(taken)

    with kill_trials.in_background(give_back):
        driver.fit(run, work=kill_work.observed)
first, second = seen.attempts()
print(json.dumps({
    "worlds": [seen.first(attempt)["world"] for attempt in (first, second)],
    "resumed": seen.first(second)["step"] - 1,
    **seen.exactness(30, kill_work.IMAGES),
}))
"""


def test_an_elastic_run_grows_when_there_is_room_and_saves_before(nodes: Nodes, tmp_path: Path) -> None:
    done = nodes.command("-c", GROWING, nodes.address, str(tmp_path))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["worlds"] == [1, 2]
    # No interval was over: but for the checkpoint before the change, all beyond the first step would be redone.
    assert found["resumed"] > 1
    assert (found["missing"], found["repeated"]) == (0, 0)
