"""Which job holds GPUs, as a real Ray tells it. It only counts them, so that there need be none."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from emulator.machine.state import CHECKOUT

pytestmark = pytest.mark.ray

HOLDERS = ("Actor.remote()", "task.remote()", "placement_group([{'GPU': 1}])")

JOB = """
import sys, time, ray
from ray.util import placement_group
ray.init(logging_level="error")
@ray.remote(num_gpus=1)
class Actor: pass
@ray.remote(num_gpus=1)
def task(): time.sleep(600)
held = eval(sys.argv[1])
time.sleep(600)
"""

WATCH = """
import faulthandler, shlex, sys, time, ray
from dataclasses import replace
from pathlib import Path
from ray.job_submission import JobSubmissionClient
from tests.support.stub_kubectl import OUTPUTS
from tests.support.waiting import eventually
from workloads.cluster.stack import DeployedStack
from workloads.idle import stack_jobs
from workloads.idle.holders import GpuPod, Holder

faulthandler.dump_traceback_later(400, exit=True)  # where it waits for Ray is then on standard error
here = ray.init(num_cpus=2, num_gpus=8, include_dashboard=True, _temp_dir=sys.argv[1], logging_level="error")
# As `ray start` does. Without it Ray starts a job on any Ray of this machine (its get_ray_address_from_environment).
Path(sys.argv[1], "ray_current_cluster").write_text(here.address_info["gcs_address"])
environment = replace(OUTPUTS, ray_dashboard_url=f"http://{here.dashboard_url}", ray_dashboard_command="")
stack = DeployedStack(environment=environment, token="", kubectl=("kubectl",))
address = ray.nodes()[0]["NodeManagerAddress"]
pod = GpuPod(name="gpu", node="n", address=address, gpus=8, began=0.0, queued=False)
whole = Holder(kind="RayCluster", namespace="ray", name="oasis", uid="", pods=(pod,))
client = JobSubmissionClient(environment.ray_dashboard_url)

def submitted(words):
    try:
        return client.submit_job(entrypoint=words)
    except RuntimeError as error:  # the part of Ray that starts jobs comes up last
        print(error, file=sys.stderr)
        return ""

def holds(job, held):
    assert not client.get_job_status(job).is_terminal(), client.get_job_logs(job)
    found = stack_jobs.split(whole, stack)
    if [(one.kind, one.name) for one in found] != [("job", job)]:
        return False
    submitted, began = client.get_job_info(job).start_time / 1000, found[0].began
    # Of an actor Ray's state API tells no time; of the others it does, and they come after the driver's own start.
    assert began == submitted if held.startswith("Actor") else submitted < began < time.time(), (submitted, began)
    return True

for held in sys.argv[3:]:
    while not (job := submitted(shlex.join([sys.executable, "-c", sys.argv[2], held]))):
        time.sleep(1)
    eventually(lambda: holds(job, held))
    client.stop_job(job)
    eventually(lambda: [one.remark for one in stack_jobs.split(whole, stack)] == [stack_jobs.GIVEN_BACK])
    print(held, flush=True)
"""


def test_a_job_holds_the_gpus_of_its_actors_tasks_and_placement_groups_until_it_is_stopped() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "OASIS_", "PYTEST_"))}
    own |= {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # so that it listens on loopback alone
    quiet = {**own, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "NO_PROXY": "*", "no_proxy": "*"}
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # short: it is in the paths of Ray's sockets
        done = subprocess.run(
            [sys.executable, "-c", WATCH, folder, JOB, *HOLDERS],
            env=quiet,
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [*HOLDERS]
