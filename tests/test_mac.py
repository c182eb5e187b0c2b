"""What a laptop with macOS is for: the commands that reach a stack, small runs here, and a sentence about the rest.

A Python on Linux stands in for it, without what only Linux has; the packages' own builds for macOS are not here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from tests.support.processes import python, usual_variables
from tests.support.stub_kubectl import OUTPUTS
from tests.support.waiting import eventually
from workloads.cluster import run_beat
from workloads.cluster.stack import DeployedStack
from workloads.errors import UsageError
from workloads.jobs.dashboard import Dashboard
from workloads.storage.folders import locate

MAC = """
import os, signal, socket, sys, types
import psutil, torch  # whose builds for macOS ask nothing of these
sys.platform = "darwin"
linux = {
    os: "sched_getaffinity memfd_create pidfd_open posix_fadvise copy_file_range fdatasync pipe2 O_DIRECT O_PATH",
    signal: "SIGRTMIN SIGRTMAX SIGPWR sigtimedwait sigwaitinfo",
    socket: "AF_NETLINK AF_PACKET SO_PEERCRED SOCK_CLOEXEC SOCK_NONBLOCK TCP_USER_TIMEOUT TCP_KEEPIDLE",
}
for module, names in linux.items():
    for name in names.split():
        vars(module).pop(name, None)

def hidden(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith(("/proc", "/sys/", "/dev/shm")):
        raise FileNotFoundError(2, "No such file or directory", arguments[0])

sys.addaudithook(hidden)
from oasis_stack.__main__ import main as stack
from workloads.__main__ import COMMANDS, main as work
from workloads.nccl.ranks.rank import Rank
for name in COMMANDS:
    try:
        work([name, "--help"])
    except SystemExit as ended:
        assert not ended.code, name
assert Rank._free_bytes(types.SimpleNamespace(_device=torch.device("cpu"))) > 0
assert stack(["plan", "--stack", "local"]) == 0
assert work(["train", "--dry-run"]) == 0
work(["doctor"])
sys.exit(work(["sweep", "--data", "synthetic", "--space", *sys.argv[1:]]))
"""


@pytest.mark.thorough
def test_on_a_mac_a_client_s_commands_run_and_what_wants_linux_says_so(tmp_path: Path) -> None:
    (space := tmp_path / "space.yaml").write_text("seed: [1, 2]\n")
    places = ("--storage", str(tmp_path / "runs"), "--results", str(tmp_path / "results"))
    # As if Ray were imported after the first command, as it is where each has a process of its own.
    variables = usual_variables(GOOGLE_APPLICATION_CREDENTIALS="/none", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
    done = python("-c", MAC, str(space), *places, env=variables)
    assert done.returncode == 8, done.stdout + done.stderr
    assert "error: a search needs Linux" in done.stderr
    for said in ("forked-workers False", "shared memory only Linux has /dev/shm", "listeners only Linux says in /proc"):
        assert said in " ".join(done.stdout.split())


def test_on_a_mac_two_commands_never_train_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(run_beat, "BEAT_SECONDS", 0.2)
    folder = locate(str(tmp_path))
    with run_beat.alone(folder, "a", "first", print, embedded=True):
        eventually(lambda: run_beat._beat(folder))
        with (
            pytest.raises(UsageError, match="by attempt first"),
            run_beat.alone(folder, "a", "second", print, embedded=True),
        ):
            pass


def test_on_a_mac_a_port_forward_that_ends_by_itself_as_a_command_does_is_no_failure() -> None:
    dashboard = Dashboard(DeployedStack(environment=OUTPUTS, token="", kubectl=("kubectl",)))
    child = dashboard._child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)

    def killpg(*_: int) -> None:
        child.communicate()  # closes its input, and waits for its end
        raise PermissionError(1, "Operation not permitted")

    with mock.patch.object(os, "killpg", side_effect=killpg) as asked:
        dashboard.close()
    assert asked.called and dashboard._child is None
