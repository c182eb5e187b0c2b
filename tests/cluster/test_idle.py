"""Which job holds GPUs, as a real Ray tells it. It only counts them, so that there need be none."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from emulator.machine.state import State
from tests.cluster.ray_processes import Nodes, headed
from tests.support.stub_kubectl import OUTPUTS
from tests.support.waiting import eventually
from workloads.cluster.stack import DeployedStack
from workloads.idle import stack_jobs
from workloads.idle.holders import GpuPod, Holder
from workloads.jobs.dashboard import reach
from workloads.jobs.follow import Jobs

pytestmark = pytest.mark.ray

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

POD = GpuPod(name="gpu", node="n", address="127.0.0.1", gpus=8, began=0.0, queued=False)

WHOLE = Holder(kind="RayCluster", namespace="ray", name="oasis", uid="", pods=(POD,))


@pytest.fixture(scope="module")
def stack() -> Iterator[DeployedStack]:
    """A stack whose Ray is one node of this machine, with 8 GPUs by its count."""
    url = ""

    def options(ray: Nodes) -> list[str]:
        nonlocal url
        port = State(ray.folder / "ports").port("dashboard")
        url = f"http://127.0.0.1:{port}"
        return ["--num-cpus=2", "--num-gpus=8", "--include-dashboard=true", f"--dashboard-port={port}"]

    with headed({}, options) as ray:
        ray.wait_for(1)
        environment = replace(OUTPUTS, ray_dashboard_url=url, ray_dashboard_command="")
        yield DeployedStack(environment=environment, token=ray.variables["RAY_AUTH_TOKEN"], kubectl=("kubectl",))


@pytest.mark.parametrize("held", ["Actor.remote()", "task.remote()", "placement_group([{'GPU': 1}])"])
def test_a_job_holds_its_gpus_until_it_is_stopped(stack: DeployedStack, held: str) -> None:
    with reach(stack, young=True) as dashboard:
        jobs = Jobs(dashboard)
        job = _submitted(jobs, held)

        def holds() -> bool:
            details = jobs.details(job)
            assert not details.status.is_terminal(), jobs.log(job)
            found = stack_jobs.split(WHOLE, stack)
            if [(one.kind, one.name) for one in found] != [("job", job)]:
                return False
            submitted, began = (details.start_time or 0) / 1000, found[0].began or 0
            # Of an actor Ray's state API tells no time; of the others it does, and they come after the driver's start.
            expected = began == submitted if held.startswith("Actor") else submitted < began < time.time()
            assert expected, (submitted, began)
            return True

        eventually(holds)
        assert jobs.stop(job)
        eventually(lambda: [one.remark for one in stack_jobs.split(WHOLE, stack)] == [stack_jobs.GIVEN_BACK])


def _submitted(jobs: Jobs, held: str) -> str:
    """A job whose driver evaluates the expression, once the part of Ray that starts jobs is there, which comes last."""
    submission: list[str] = []

    def submit() -> bool:
        try:
            entrypoint = shlex.join([sys.executable, "-c", JOB, held])
            submission.append(jobs.ask(lambda client: client.submit_job(entrypoint=entrypoint)))
        except RuntimeError:
            return False
        return True

    eventually(submit)
    return submission[0]
