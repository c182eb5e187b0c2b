"""What `python -m workloads jobs` does with a stand-alone RayJob: its log, its end, following it again.

As long as its cluster is there, by the Jobs API as with any job; before and after, by what KubeRay says of it.
"""

from __future__ import annotations

import argparse
import sys

from workloads.cluster.stack import DeployedStack
from workloads.errors import EXIT_INTERRUPTED, EXIT_OK, AuthError, PlaceError
from workloads.jobs import ray_job, results
from workloads.jobs.dashboard import reach
from workloads.jobs.follow import Follower, Jobs, exit_code, show_log, tell
from workloads.jobs.ray_job import OwnCluster
from workloads.jobs.ray_job_status import Status, pods

ATTACH_SECONDS = 1800.0
"""How long a RayJob that was not submitted yet is waited for by whoever attaches to it."""


def logs(deployed: DeployedStack, status: Status, args: argparse.Namespace) -> int:
    """Print the log so far; of an ended job whose cluster is gone, what KubeRay kept of it."""
    if not status.job and not status.over:
        print(f"{status.name} has not begun: {pods(deployed, status.cluster)}", file=sys.stderr)
        return EXIT_OK
    try:
        with reach(deployed.of_cluster(status.cluster)) as dashboard:
            show_log(Jobs(dashboard), status.name)
    except (AuthError, PlaceError):
        if not status.over:
            raise
        print(f"the cluster of {status.name} is gone, and its log with it; KubeRay kept:", file=sys.stderr)
        print(status.message)
    return EXIT_OK


def stop(deployed: DeployedStack, status: Status, args: argparse.Namespace) -> int:
    """Stop the job if it runs, and have its cluster removed in any case."""
    if status.over:
        print(f"{status.name} had ended already")
        return EXIT_OK
    if status.phase != "Running":
        ray_job.remove(deployed, status.name)
        return EXIT_OK
    own = OwnCluster(deployed.of_cluster(status.cluster), deployed, status.name)
    with reach(own.stack, young=True) as dashboard:
        jobs = Jobs(dashboard)
        jobs.stop(status.name)
        details = jobs.until_stopped(status.name)
    own.release(interrupted=True)
    print(f"{status.name} {details.status.value.lower()}")
    return EXIT_OK


def attach(deployed: DeployedStack, status: Status, args: argparse.Namespace) -> int:
    """Follow the job and return its exit code; Ctrl-C leaves it running."""
    if status.over:
        logs(deployed, status, args)
        if status.ending:
            tell(status.ending)
        return status.exit_code
    try:
        own = ray_job.await_cluster(deployed, status.name, ATTACH_SECONDS, ("Running",))
        with reach(own.stack, young=True) as dashboard:
            cluster = own.stack.environment.ray_cluster_name
            follower = Follower(Jobs(dashboard), status.name, lambda: pods(deployed, cluster))
            details = follower.run()
    except KeyboardInterrupt:
        print(f"\ndetached; job {status.name} goes on")
        return EXIT_INTERRUPTED
    except (AuthError, PlaceError):
        code = ray_job.ended_unseen(deployed, status.name)
        if code is None:
            raise
        return code
    results.fetch(follower.results_uri, args.results)
    own.release(interrupted=False)
    return exit_code(details)
