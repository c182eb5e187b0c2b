"""Follows a job by polling, never by a stream: output that a broken connection loses is requested again.

Ray's own command takes a broken log stream for the end of the job (ray-project/ray issues 51601, 57002). Here the job's
status decides, and reading of the log continues from the end of the last complete line.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import math
import secrets
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from workloads import run_name
from workloads.cluster import stack
from workloads.cluster.capacity import WAITING
from workloads.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    AuthError,
    CapacityError,
    PlaceError,
    UsageError,
    WorkloadError,
    WorkloadFailedError,
    first_line,
)
from workloads.jobs import pending
from workloads.jobs.dashboard import Dashboard
from workloads.jobs.entry_point import DRIVER_RESOURCES
from workloads.reporting import progress

PATIENCE_SECONDS = 180.0
"""How long the dashboard may be out of reach before following ends; the job itself continues."""

STOP_SECONDS = 60.0
"""How long a job may take to stop before we exit: twice Ray's wait (RAY_JOB_STOP_WAIT_TIME_S) before SIGKILL."""

OURS = "python -m workloads"
"""Start of the command of a job that runs a command of this package."""

_END_WAITING = """
import asyncio, sys
import ray
from ray.dashboard.modules.job import common
from ray.job_submission import JobStatus

async def end(job):
    records = common.JobInfoStorageClient(ray._raylet.GcsClient(address=ray.get_runtime_context().gcs_address))
    name = common.JOB_ACTOR_NAME_TEMPLATE.format(job_id=job)
    actor = ray.get_actor(name, namespace=common.SUPERVISOR_ACTOR_RAY_NAMESPACE)
    if await records.get_status(job) == JobStatus.PENDING:
        await records.put_status(job, JobStatus.STOPPED)  # else Ray calls it failed
        ray.kill(actor)

ray.init()
asyncio.run(end(sys.argv[1]))
"""
"""Ends a job that waits for its place, from within Ray, and with it the job's request to the autoscaler.

Ray stops a job by asking the actor that runs its command, which has not started yet, and does not delete a job that has
not ended (ray 2.60, job_manager.py, `stop_job` and `delete_job`); nothing else in its HTTP API reaches an actor."""

_START_TIMEOUT = "RAY_JOB_START_TIMEOUT_SECONDS"  # Ray names it in its verdict on a job that found no place in time
_LEAST_PAUSE_SECONDS = 1.0
_AWAY_SECONDS = 2.0  # a connection that returns within this time is not reported
_START_SECONDS = 3.0  # a job that has its place begins within this time, and then a stop reaches it
_RECORD_SECONDS = 2.0  # Ray, which looks at a job every second until it has seen its end, writes a missing record anew
_SILENCE_SECONDS = 10.0  # a job that starts within this time is not reported; later, one line per interval
_PAUSE_PER_FETCH = 10.0  # a log is fetched whole, so the longer that takes, the less often it is done
_MOST_PAUSE_SECONDS = 30.0  # a fetch over a connection that was lost for minutes must not cause an hour's silence
_LOG_SECONDS = 10.0  # a node that is up returns the log of an ended job within this time
_ANSWER_SECONDS = 30.0  # a dashboard that is up begins to answer within this time
_LONG_ANSWER_SECONDS = 120.0  # or, given a package or asked for a log, once it has stored or read it whole

Answer = TypeVar("Answer")


class _Client(JobSubmissionClient):
    """Ray's own client with a timeout; without one it would wait for ever: a port-forward that has lost its connection
    to the cluster, for example because a laptop slept, may still accept requests."""

    def _do_request(self, method: str, endpoint: str, **given: Any) -> Any:
        whole = method == "PUT" or endpoint.endswith("/logs")
        longest = _LONG_ANSWER_SECONDS if whole else _ANSWER_SECONDS
        # Only for the answer: sending a working directory may take as long as it needs.
        return super()._do_request(method, endpoint, **given, timeout=(None, longest))


class Jobs:
    """A stack's Jobs API, over a connection that may break."""

    def __init__(self, dashboard: Dashboard, lost: Callable[[], bool] = lambda: False) -> None:
        """Nothing is asked yet.

        Args:
            dashboard: the connection to it.
            lost: called when the connection breaks: whether it is pointless to try again.
        """
        # Messages about the packing of a job's files, and their names, are of no use to the user.
        for name in ("ray.dashboard.modules.dashboard_sdk", "ray._private.runtime_env.packaging"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self.stack = dashboard.stack
        self._dashboard = dashboard
        self._lost = lost
        self._client: _Client | None = None
        self._until = math.inf

    def ask(self, question: Callable[[JobSubmissionClient], Answer]) -> Answer:
        """Repeat a question to the Jobs API until it is answered.

        Args:
            question: safe to repeat.

        Raises:
            PlaceError: the dashboard stayed out of reach.
            AuthError: Ray no longer accepts the token.
            RuntimeError: any other refusal by Ray, with its HTTP status.
        """
        began = time.monotonic()
        deadline = min(began + PATIENCE_SECONDS, self._until)
        tell_at = began + _AWAY_SECONDS
        while True:
            try:
                return question(self._connected())
            except AuthenticationError as error:  # in Ray not a RuntimeError
                raise refused(error) from error
            except (OSError, PlaceError) as error:  # requests' errors are OSErrors
                self._client = None
                if time.monotonic() > deadline or self._lost():
                    away = time.monotonic() - began
                    raise PlaceError(
                        f"Ray's dashboard has been out of reach for {away:.0f} s: {first_line(error)}",
                        "The job goes on without you; attach to it again when the connection is back.",
                    ) from error
                if time.monotonic() > tell_at:
                    tell_at = time.monotonic() + _SILENCE_SECONDS
                    tell(f"Ray's dashboard is out of reach; asking again for {deadline - time.monotonic():.0f} s more")
                time.sleep(_LEAST_PAUSE_SECONDS)

    def stop(self, submission_id: str) -> bool:
        """Have a job stopped, including one that waits for its place; from here on, it and every answer about it have
        `STOP_SECONDS`.

        Returns:
            False if Ray knows no job with this id.

        Raises:
            PlaceError: the dashboard stayed out of reach.
            AuthError, WorkloadFailedError: Ray refuses.
        """
        self._until = time.monotonic() + STOP_SECONDS
        try:
            self.ask(lambda client: client.stop_job(submission_id))
        except RuntimeError as error:
            if _is_unknown(error):
                return False
            raise refused(error) from error
        given = time.monotonic() + _START_SECONDS
        while not self.given_up and self.details(submission_id).status == JobStatus.PENDING:
            if time.monotonic() >= given:
                self._end_waiting(submission_id)
                break
            time.sleep(0.5)
        return True

    def _end_waiting(self, submission_id: str) -> None:
        tell(
            "the job still waits for its resources, where Ray's stop does not reach it: a small job on the head ends it"
        )
        name = f"stop-{secrets.token_hex(4)}"
        command = shlex.join(["python", "-c", _END_WAITING, submission_id])
        wanted: dict[str, Any] = {
            "entrypoint": command,
            "submission_id": name,
            "entrypoint_resources": DRIVER_RESOURCES,
        }
        # The other job's status tells whether it worked.
        with contextlib.suppress(RuntimeError):  # also if it was submitted, and the answer was lost
            self.ask(lambda client: client.submit_job(**wanted))
        with contextlib.suppress(RuntimeError, WorkloadError):
            self.until_stopped(name)
            for _ in range(5):  # until Ray no longer knows it
                time.sleep(_RECORD_SECONDS)
                self.ask(lambda client: client.delete_job(name))

    def listed(self) -> list[JobDetails]:
        """Ray's records of all jobs, and of drivers that connected by hand.

        Raises:
            PlaceError: the dashboard stayed out of reach.
            AuthError, WorkloadFailedError: Ray refuses.
        """
        try:
            return self.ask(lambda client: client.list_jobs())
        except RuntimeError as error:
            raise refused(error) from error

    def until_stopped(self, submission_id: str) -> JobDetails:
        """Wait until a job that was told to stop has stopped.

        Raises:
            WorkloadFailedError: it has not stopped within `STOP_SECONDS`.
        """
        while not (details := self.details(submission_id)).status.is_terminal():
            if self.given_up:
                if details.status == JobStatus.PENDING:
                    remedy = "It waits for its resources, and the job that should end it did not: stop it again."
                else:
                    remedy = f"`python -m workloads jobs logs {submission_id}` shows what it does; stop it again."
                raise WorkloadFailedError(f"job {submission_id} has not stopped within {STOP_SECONDS:.0f} s.", remedy)
            time.sleep(0.5)
        return details

    @property
    def given_up(self) -> bool:
        """True if the time of a job that was told to stop is over."""
        return time.monotonic() >= self._until

    def _connected(self) -> _Client:
        if self._client is None:
            self._client = _Client(self._dashboard.address(), headers=self._dashboard.headers)
        return self._client

    def details(self, submission_id: str) -> JobDetails:
        """Ray's record of a job.

        Raises:
            UsageError: Ray knows no job with this id.
            PlaceError: the dashboard stayed out of reach.
            AuthError, WorkloadFailedError: Ray refuses.
        """
        try:
            return self.ask(lambda client: _details(client, submission_id))
        except RuntimeError as error:
            if _is_unknown(error):
                raise UsageError(
                    f"Ray knows no job {submission_id}.",
                    "`python -m workloads jobs list` shows those it knows; a restarted head has forgotten the others.",
                ) from error
            raise refused(error) from error

    def log(self, submission_id: str) -> str | None:
        """The whole log of a job's driver; empty while it has none, and None if its node does not return it."""
        try:
            return self.ask(lambda client: _log(client, submission_id))
        except RuntimeError:  # the agent that has the file is not up yet, or busy, or its node is gone
            return None

    def whole_log(self, submission_id: str) -> str | None:
        """The log of an ended job, as in `log`; requested again if its node does not return it at once."""
        deadline = time.monotonic() + _LOG_SECONDS
        while (log := self.log(submission_id)) is None and time.monotonic() < deadline:
            time.sleep(_LEAST_PAUSE_SECONDS)
        return log


@dataclass
class Follower:
    """Shows a job's log as it grows, until the job ends."""

    jobs: Jobs
    submission_id: str
    results_uri: str = ""
    """Address of the results, as the job reported it."""
    _shown: int = 0
    _waits: bool = False

    def run(self) -> JobDetails:
        """Follow until the job has ended and all its output is shown, or it has not stopped in time when told to."""
        told = started = time.monotonic()
        said = ""
        while True:
            # Status first: if it says that the job has ended, a log read after that is complete.
            details = self.jobs.details(self.submission_id)
            began = time.monotonic()
            ended = details.status.is_terminal()
            log = self.jobs.whole_log(self.submission_id) if ended else self.jobs.log(self.submission_id)
            self._show(log or "", whole=ended)
            if ended and (problem := missing_log(details, log, self._shown)):
                tell(problem)
            if ended or self.jobs.given_up:
                return details
            if began - told > _SILENCE_SECONDS and (details.status == JobStatus.PENDING or self._waits):
                told = began
                reason = pending.describe(self.jobs.stack, self.jobs.stack.environment.ray_cluster_name)
                if details.status == JobStatus.PENDING:
                    why = " ".join(filter(None, (details.message, installing(details), reason)))
                    tell(f"the job has not started for {began - started:.0f} s: {why}")
                elif reason not in ("", said):
                    said = reason
                    tell(reason)
            pause = _PAUSE_PER_FETCH * (time.monotonic() - began)
            time.sleep(min(max(_LEAST_PAUSE_SECONDS, pause), _MOST_PAUSE_SECONDS))

    def _show(self, log: str, whole: bool) -> None:
        # A log shorter than what was shown is a failed fetch, not a new log.
        end = len(log) if whole else log.rfind("\n") + 1
        if end <= self._shown:
            return
        for line in log[self._shown : end].splitlines(keepends=True):
            self._shown += len(line)  # before it is shown, so that a Ctrl-C meanwhile does not show it again
            record = progress.parse(line)
            self._waits = record is not None and str(record.get("text", "")).startswith(WAITING)
            if record is None:
                print(line.rstrip("\r\n"), flush=True)
            else:
                self.results_uri = record.get("results_uri") or self.results_uri
                progress.emit(record)


def installing(details: JobDetails) -> str:
    """A message that Ray does not give while a job has not started: it may be installing packages, or failing to.

    Ray tries three times, each as long as pip and its own retries take, before it gives the job the reason (ray 2.60,
    `RUNTIME_ENV_RETRY_TIMES` in runtime_env_consts.py); the output of each try is in a file as soon as the try ends.

    Args:
        details: Ray's record of the job.
    """
    kinds = [kind for kind in ("pip", "uv", "conda") if kind in (details.runtime_env or {})]
    if not kinds:
        return ""
    return (
        f"Once it has its place, the packages that its runtime environment names under {' and '.join(kinds)} are "
        "installed, tried three times before the job fails; runtime_env_setup-*.log, on the Logs page of Ray's "
        "dashboard, says how it goes."
    )


def missing_log(details: JobDetails, log: str | None, shown: int = 0) -> str:
    """Why no more of a job's log is shown; empty if all of it is. Ray itself begins each log with a line.

    Args:
        details: Ray's record of the job.
        log: its log, as last read.
        shown: characters already shown of earlier reads.
    """
    if log or not details.driver_agent_http_address:
        return ""
    node = urlsplit(details.driver_agent_http_address).hostname
    what = "the end of the output" if shown else "the output"
    return f"{what} of job {details.submission_id} is not shown: node {node}, which ran it, no longer gives its log"


def show_log(jobs: Jobs, submission_id: str) -> None:
    """Print a job's log so far, its records as text, or why there is none.

    Raises:
        UsageError: Ray knows no job of that id.
    """
    details = jobs.details(submission_id)
    log = jobs.log(submission_id)
    for line in io.StringIO(log or ""):  # split only at line ends: a progress bar's \r and the like stay as they are
        print(progress.shown(line.removesuffix("\n")))
    if problem := missing_log(details, log):
        tell(problem)


def again(args: argparse.Namespace, name: str) -> str:
    """The command that follows a job."""
    return f"python -m workloads jobs attach {name}{stack.flags(args)}"


def detached(args: argparse.Namespace, name: str) -> int:
    """Leave a job that was just submitted; only its name goes to standard output."""
    print(name)
    print(f"follow it with `{again(args, name)}`", file=sys.stderr)
    return EXIT_OK


def tell(text: str) -> None:
    """Print one sentence about the submission apart from the job's output, which has standard output to itself."""
    progress.emit({"event": "note", "text": text}, sys.stderr)


def add_results_argument(group: Any) -> None:
    """The argument for the folder of results."""
    group.add_argument(
        "--results",
        type=Path,
        default=Path(".oasis/results"),
        metavar="DIR",
        help="where the job's results are copied (%(default)s)",
    )


def fetch_results(follower: Follower, directory: Path) -> None:
    """Copy a job's result files to this machine, or say where they are.

    The address comes from the job's log, which anyone who writes to it could forge: so nothing is read from outside the
    stack's runs, and nothing is written outside the folder.

    Args:
        follower: follower of an ended job; nothing happens if the job named no folder in a bucket.
        directory: parent of a folder with the run's name, which gets the files.
    """
    uri, runs = follower.results_uri, follower.jobs.stack.environment.runs_uri.rstrip("/")
    if not uri.startswith("gs://"):
        return
    try:
        from workloads.storage.folders import locate

        if runs and not uri.startswith(f"{runs}/"):
            raise UsageError(f"they are not below {runs}.", "Copy them with `gcloud storage cp`.")
        name = _run_name(uri)
        run_name.check("the run's name", name)
        folder, target = locate(uri), (directory / name).resolve()
        for file in folder.files():
            if not (target / file).resolve().is_relative_to(target):
                tell(f"{file} is not copied: it would lie outside of {target}")
                continue
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            (target / file).write_bytes(folder.read(file))
        progress.note(f"results are in {directory / name}, copied from {uri}")
    except (WorkloadError, ImportError, OSError) as error:
        progress.note(f"results are in {uri}; they were not copied here: {error}")


def _run_name(uri: str) -> str:
    """The run's name: the last part of the address, or the one before it if results have a folder of their own."""
    parts = uri.rstrip("/").split("/")
    return parts[-2] if parts[-1] == "results" else parts[-1]


def exit_code(details: JobDetails) -> int:
    """The driver's own exit code; a job that never ran its driver has failed, a stopped one was interrupted.

    Args:
        details: Ray's record of an ended job.
    """
    if details.status == JobStatus.SUCCEEDED:
        return EXIT_OK
    if details.status == JobStatus.STOPPED:
        return EXIT_INTERRUPTED
    code = details.driver_exit_code
    if not code and _START_TIMEOUT in (details.message or ""):
        print(f"job {details.submission_id} never started: {details.message}", file=sys.stderr)
        return CapacityError.exit_code
    if not code:
        print(f"job {details.submission_id} failed: {(details.message or '').strip()}", file=sys.stderr)
        return WorkloadFailedError.exit_code
    print(f"job {details.submission_id} ended with exit code {code}{whose(details.entrypoint)}", file=sys.stderr)
    return code if code > 0 else 128 - code  # a signal, as shells report it


def whose(entrypoint: str) -> str:
    """Remark on the exit code of a job whose command is not ours: there 3 need not mean infeasible."""
    ours = entrypoint.startswith(f"{OURS} ")
    return "" if ours else ", its command's own: not one of those that `python -m workloads --help` lists"


def _details(client: JobSubmissionClient, submission_id: str) -> JobDetails:
    try:
        return client.get_job_info(submission_id)
    except RuntimeError as error:
        # The head is too busy, or a proxy in front of it answered: this says nothing about the job.
        if str(error).startswith("Request failed with status code 5"):
            raise ConnectionError(first_line(error)) from error
        raise


def _log(client: JobSubmissionClient, submission_id: str) -> str:
    try:
        return client.get_job_logs(submission_id)
    except requests.ReadTimeout as error:
        client.get_version()  # fails too if the head is out of reach
        raise RuntimeError("the node of the job's driver does not answer") from error


def _is_unknown(error: RuntimeError) -> bool:
    """Whether a refusal says that there is no such job; the status number alone may be part of a job's name."""
    return "status code 404" in str(error)


def refused(error: Exception) -> AuthError | WorkloadFailedError:
    """Message on a refusal by Ray's Jobs API."""
    if isinstance(error, AuthenticationError):
        return AuthError(f"Ray refuses the token: {first_line(error)}", "Check --stack and --context.")
    return WorkloadFailedError(f"Ray refuses: {first_line(error)}", "The dashboard's Jobs page may say more.")
