"""A stand-alone RayJob: a cluster like the stack's own, made for one job by KubeRay and removed with it.

In KubeRay's InteractiveMode the command and its working directory come through the Jobs API, as on the stack's own
cluster, so kubectl access is enough; from `begin` on KubeRay watches the job itself, even if everyone else has left.
A job for Kueue's queue may begin hours later, with nobody there: KubeRay submits it itself, in its HTTPMode.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

from workloads.cluster.stack import DeployedStack
from workloads.environment import (
    CLUSTER_CONFIG_MAP,
    CLUSTER_KEY,
    DRAIN_SECONDS,
    DRAIN_VARIABLE,
    GRACE_SECONDS,
    MAX_RUN_VARIABLE,
    variable,
)
from workloads.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    AuthError,
    CapacityError,
    InfeasibleError,
    PlaceError,
    WorkloadError,
    WorkloadFailedError,
)
from workloads.jobs import pending
from workloads.jobs.follow import tell, whose
from workloads.jobs.job import Job
from workloads.jobs.paid_nodes import GPU

NAME_LENGTH = 40
"""Longest name: KubeRay appends six characters for the cluster, and cuts a token's Secret at fifty (ray-operator
v1.6.2, controllers/ray/utils/util.go, CheckName)."""

KEPT_SECONDS = 600
"""How long KubeRay keeps an ended job's cluster, and with it the log, for a user who lost the connection; a user who
follows the job to its end has it removed at once."""

REMOVAL_SECONDS = 90.0
"""Longest wait for the removal of a cluster: KubeRay polls every 3 s, and a head may take 30 s to end."""

ATTACH_SECONDS = 1800.0
"""How long a user who attaches to a RayJob waits for it to be submitted."""

OVER = ("Complete", "Failed", "ValidationFailed")
"""KubeRay's final states of a RayJob."""

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Label that tells Kueue which jobs are its own, and in which LocalQueue each waits."""

PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
"""Label with a job's priority, for Kueue (kubernetes-sigs/kueue v0.19.2, pkg/controller/constants/constants.go)."""

_COMPUTE_CLASS = "cloud.google.com/compute-class"
_QUEUED_NODE = {"key": "cloud.google.com/gke-queued", "operator": "Exists", "effect": "NoSchedule"}
"""Toleration of the taint on nodes that GKE provides for a queued job alone."""

_EXIT_CODE = re.compile(r"exit code (\d+)")
_LATE = "PreRunningDeadlineExceeded"
_POLL_SECONDS = 1.0
_PROGRESS_SECONDS = 10.0
_GRACE_SECONDS = 30.0  # beyond its deadline, for a slow operator; a dead one is not waited for


@dataclass(frozen=True, kw_only=True)
class Status:
    """KubeRay's report on a RayJob."""

    name: str
    command: str
    phase: str
    """Phase of the RayJob: Initializing, Waiting, Running, or one of `OVER`; empty before KubeRay has seen it."""
    job: str
    """Ray's status of the Ray job; empty before there is one."""
    cluster: str
    reason: str
    message: str
    began: str
    ended: str
    """Times as Kubernetes writes them; empty if there is none yet."""
    uid: str
    queue: str
    """Kueue's LocalQueue that has the job; empty for a job that Kueue does not manage."""
    suspended: bool
    """Whether it may not have a cluster at present."""
    working_dir: str
    """Address from which Ray fetches the job's working directory, if KubeRay submits the job; otherwise empty."""

    @property
    def held(self) -> bool:
        """True if it waits in Kueue's queue."""
        return bool(self.queue) and self.suspended and not self.over

    @property
    def over(self) -> bool:
        """True if its state is final."""
        return self.phase in OVER

    @property
    def exit_code(self) -> int:
        """Exit code of an ended job, as far as the object tells: Ray's message names the driver's own code."""
        if self.job == "SUCCEEDED":
            return EXIT_OK
        if self.job == "STOPPED":
            return EXIT_INTERRUPTED
        named = _EXIT_CODE.search(self.message)
        return int(named[1]) if named else WorkloadFailedError.exit_code


def find(stack: DeployedStack, name: str) -> Status | None:
    """A RayJob in the stack's namespace, or None."""
    body = stack.get("rayjob", name, "--ignore-not-found")
    return status_of(body) if body else None


def listed(stack: DeployedStack) -> list[Status]:
    """The RayJobs in the stack's namespace; none if the user may not list them."""
    try:
        return [status_of(item) for item in stack.get("rayjobs")["items"]]
    except (AuthError, PlaceError):
        return []


def spec_of_cluster(stack: DeployedStack) -> dict[str, Any]:
    """Spec of the stack's RayCluster, as the API server has it; for a team, the stored spec.

    Raises:
        PlaceError: there is none, or kubectl fails.
        AuthError: it may not be read.
    """
    if stack.environment.team:
        return json.loads(stack.get("configmap", CLUSTER_CONFIG_MAP)["data"][CLUSTER_KEY])
    return stack.get("raycluster", stack.environment.ray_cluster_name)["spec"]


def manifest(name: str, namespace: str, command: str, spec: dict[str, Any], deadline_seconds: int) -> dict[str, Any]:
    """The RayJob.

    Args:
        name: name of the RayJob and the job, at most `NAME_LENGTH` characters.
        namespace: the stack's, with the service account, the ConfigMap and the network policies.
        command: the command that will be submitted, for anyone who looks at the object.
        spec: spec of the stack's RayCluster, which provides image, mounts, account, token mode and eviction rules.
        deadline_seconds: time within which the job must begin; otherwise the cluster is removed.
    """
    cluster = _another(spec)
    for group in cluster.get("workerGroupSpecs") or ():
        if cluster.get("enableInTreeAutoscaling"):
            group.pop("replicas", None)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "submissionMode": "InteractiveMode",
            "entrypoint": command,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "preRunningDeadlineSeconds": deadline_seconds,
            "rayClusterSpec": cluster,
        },
    }


def queued_manifest(job: Job, stack: DeployedStack, spec: dict[str, Any], nodes: int) -> dict[str, Any]:
    """The RayJob of a fixed size that Kueue holds until all its nodes are there; KubeRay then submits the job itself.

    Args:
        job: job whose runtime environment holds only addresses, because nobody uploads anything.
        stack: stack with the queue.
        spec: spec of the stack's RayCluster, as for `manifest`.
        nodes: number of GPU nodes, each with one worker.

    Raises:
        PlaceError: the stack's RayCluster has no GPU workers.
    """
    # A team's priority has the team's name.
    priority = {PRIORITY_LABEL: stack.environment.team} if stack.environment.team else {}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {
            "name": job.name,
            "namespace": stack.environment.ray_namespace,
            "labels": {QUEUE_LABEL: stack.environment.gpu_queue, **priority},
        },
        "spec": {
            "submissionMode": "HTTPMode",
            "suspend": True,
            "jobId": job.name,
            "entrypoint": job.entrypoint,
            "metadata": job.metadata,
            "runtimeEnvYAML": yaml.safe_dump(job.runtime_env, sort_keys=False),
            **_entrypoint_fields(job),
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            "rayClusterSpec": _fixed(spec, nodes, stack.environment.gpu_queue_run_seconds),
        },
    }


def _another(spec: dict[str, Any]) -> dict[str, Any]:
    """Spec of a cluster like the stack's."""
    cluster = deepcopy(spec)
    # KubeRay refuses an upgrade strategy here; the current number of workers of the stack's cluster does not matter.
    for key in ("upgradeStrategy", "suspend", "managedBy"):
        cluster.pop(key, None)
    for group in cluster.get("workerGroupSpecs") or ():
        group.pop("scaleStrategy", None)
    return cluster


def _entrypoint_fields(job: Job) -> dict[str, Any]:
    given = job.demand.parameters()
    found = {"entrypointNumCpus": "entrypoint_num_cpus", "entrypointNumGpus": "entrypoint_num_gpus"}
    fields: dict[str, Any] = {field: given[name] for field, name in found.items() if name in given}
    if "entrypoint_resources" in given:
        fields["entrypointResources"] = json.dumps(given["entrypoint_resources"])
    return fields


def _fixed(spec: dict[str, Any], nodes: int, run_seconds: int) -> dict[str, Any]:
    """Spec of a cluster like the stack's with `nodes` GPU nodes, no other workers, and nothing that changes that."""
    cluster = _another(spec)
    for key in ("enableInTreeAutoscaling", "autoscalerOptions"):
        cluster.pop(key, None)
    # Google provides nodes for one set of equal pods, so there is one group.
    groups = [group for group in cluster.get("workerGroupSpecs") or () if _takes_gpus(group["template"]["spec"])]
    if not groups:
        raise PlaceError(
            "The stack's RayCluster has no group of GPU workers for a queued job to copy.",
            "Deploy the stack anew with `pulumi up`, or submit without --queue.",
        )
    group = groups[0]
    group.pop("idleTimeoutSeconds", None)
    group.update(replicas=nodes, minReplicas=nodes, maxReplicas=nodes)
    pod = group["template"]["spec"]
    # The class provides nodes for one pod at a time; these come through Kueue, whose flavour adds the pool's selector.
    pod["nodeSelector"] = {
        key: value for key, value in (pod.get("nodeSelector") or {}).items() if key != _COMPUTE_CLASS
    }
    others = [one for one in pod.get("tolerations") or () if one.get("key") != _COMPUTE_CLASS]
    pod["tolerations"] = [*others, _QUEUED_NODE]
    # They are not Spot nodes either, whatever else the stack has.
    pod["terminationGracePeriodSeconds"] = GRACE_SECONDS
    _set(pod, {MAX_RUN_VARIABLE: run_seconds, DRAIN_VARIABLE: DRAIN_SECONDS})
    cluster["workerGroupSpecs"] = [group]
    for template in (cluster["headGroupSpec"]["template"], group["template"]):
        _set(template["spec"], {variable("gpu_max_nodes"): nodes})  # those of the job, whatever the stack's ladder has
        _write_requests(template["spec"])
    return cluster


def _set(pod: dict[str, Any], values: Mapping[str, int]) -> None:
    """Set these variables in each container."""
    for container in pod["containers"]:
        known = [one for one in container.get("env") or () if one["name"] not in values]
        container["env"] = [*known, *({"name": name, "value": str(value)} for name, value in values.items())]


def _takes_gpus(pod: dict[str, Any]) -> bool:
    return any(GPU in (one.get("resources") or {}).get("limits", {}) for one in pod["containers"])


def _write_requests(pod: dict[str, Any]) -> None:
    """Set each container's requests as Kubernetes would derive them from its limits: Kueue counts them before that."""
    for container in (*pod["containers"], *(pod.get("initContainers") or ())):
        resources = container.get("resources") or {}
        if limits := resources.get("limits"):
            container["resources"] = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}


@dataclass
class OwnCluster:
    """The cluster of one RayJob."""

    stack: DeployedStack
    """The stack, with this cluster in place of its own."""
    parent: DeployedStack
    name: str
    begun: bool = False
    """Whether `begin` has succeeded, or may have."""

    def begin(self) -> None:
        """Tell KubeRay that the job of the RayJob's name runs; from here on it ends the cluster with the job."""
        patch(self.parent, self.name, {"jobId": self.name})
        self.begun = True

    def may_have_begun(self) -> bool:
        """Whether KubeRay may know of the job, which is also so if the answer to `begin` was lost or not awaited."""
        self.begun = self.begun or _may_have_begun(self.parent, self.name)
        return self.begun

    def release(self, interrupted: bool) -> None:
        """Have the cluster of an ended job removed now, and wait until it is gone.

        Args:
            interrupted: the job was told to stop; if it has not, the RayJob is deleted with cluster and job.
        """
        try:
            patch(self.parent, self.name, {"ttlSecondsAfterFinished": 0})
            if _until_gone(self.stack):
                tell(f"the job's cluster {self.stack.environment.ray_cluster_name} is removed")
            elif interrupted:
                remove(self.parent, self.name)
            else:
                told = self.parent.command("describe", "rayjob", self.name)
                tell(f"the job's cluster is still there; `{told}` may say why")
        except (WorkloadError, KeyboardInterrupt) as error:
            tell(f"KubeRay removes the job's cluster by itself; its end was not seen: {error or 'interrupted'}")


@contextmanager
def own_cluster(stack: DeployedStack, name: str, command: str, deadline_seconds: int) -> Iterator[OwnCluster]:
    """Create a RayJob and wait until its cluster is up; delete it if the job has not begun when the block fails.

    Raises:
        CapacityError: the cluster was not up in time.
        WorkloadFailedError: KubeRay refuses the RayJob.
    """
    body = manifest(name, stack.environment.ray_namespace, command, spec_of_cluster(stack), deadline_seconds)
    own: OwnCluster | None = None
    try:
        stack.ask("create", "--filename", "-", given=json.dumps(body))
        tell(f"RayJob {name} made; waiting for its own cluster")
        own = await_cluster(stack, name, deadline_seconds)
        yield own
    except BaseException:
        if not (own.may_have_begun() if own else _may_have_begun(stack, name)):
            remove(stack, name)
        raise


def await_cluster(
    stack: DeployedStack, name: str, patience_seconds: float, phases: Collection[str] = ("Waiting", "Running")
) -> OwnCluster:
    """Wait until a RayJob's cluster takes jobs.

    Args:
        stack: stack whose cluster is the model of the job's.
        name: name of the RayJob.
        patience_seconds: longest wait.
        phases: phases of the RayJob that end the wait.

    Raises:
        CapacityError: it does not within the time.
        WorkloadFailedError: the RayJob failed, or is gone.
    """
    began = told = time.monotonic()
    while True:
        try:
            status = find(stack, name)
        except PlaceError:  # the API server is moving, or the connection broke
            if time.monotonic() - began > patience_seconds + _GRACE_SECONDS:
                raise
            time.sleep(_POLL_SECONDS)
            continue
        if status is None:
            raise WorkloadFailedError(f"RayJob {name} was deleted while it was waited for.", "Submit it again.")
        if status.phase in phases:
            return OwnCluster(stack.of_cluster(status.cluster), stack, name)
        waited = time.monotonic() - began
        if status.reason == _LATE or waited > patience_seconds + _GRACE_SECONDS:
            pods = pending.describe(stack, status.cluster)
            seen = f"The cluster of RayJob {name} was not up within {waited:.0f} s; {pods}."
            if pending.never_fit(stack, status.cluster):
                raise InfeasibleError(seen, "No wait helps: it asks for more than any node of this stack has.")
            raise CapacityError(
                seen,
                "Wait longer with --start-timeout, or run without --ray-job on the stack's own cluster.",
            )
        if status.over:
            raise failure(stack, status)
        if time.monotonic() - told > _PROGRESS_SECONDS:
            told = time.monotonic()
            tell(f"waiting for the job's cluster for {waited:.0f} s; {pending.describe(stack, status.cluster)}")
        time.sleep(_POLL_SECONDS)


def failure(stack: DeployedStack, status: Status) -> WorkloadFailedError:
    """Message about a RayJob that ended before its job began."""
    return WorkloadFailedError(
        f"RayJob {status.name} failed: {status.reason} {status.message}".rstrip(),
        f"`{stack.command('describe', 'rayjob', status.name)}` may say more.",
    )


def ended_unseen(stack: DeployedStack, name: str) -> int | None:
    """Exit code of a job whose cluster is out of reach, if KubeRay saw its end; None while it continues."""
    status = find(stack, name)
    if status is None or not status.over:
        return None
    tell(f"RayJob {name} ended unobserved: {status.job or status.phase} {status.message}".rstrip())
    return conclude(status)


def conclude(status: Status) -> int:
    """Report the exit code of an ended job's driver, if it has one, and whose it is; returns the code."""
    if status.job == "FAILED" and _EXIT_CODE.search(status.message):
        tell(f"job {status.name} ended with exit code {status.exit_code}{whose(status.command)}")
    return status.exit_code


def delete(stack: DeployedStack, name: str) -> None:
    """Delete a RayJob, its cluster and the job on it, and wait until they are gone.

    Raises:
        AuthError: Kubernetes refuses.
        PlaceError: it does not answer, or they are still there after `REMOVAL_SECONDS`.
    """
    timeout = f"--timeout={REMOVAL_SECONDS:.0f}s"
    try:
        stack.ask("delete", "rayjob", name, "--ignore-not-found", "--cascade=foreground", timeout)
    except KeyboardInterrupt:
        tell(f"the end of RayJob {name} was not seen; `{deletion(stack, name)}` makes sure of it")
        raise
    except PlaceError as error:
        problem = f"RayJob {name} is still there: {error.problem}"
        raise PlaceError(problem, f"Delete it with `{deletion(stack, name)}`.") from error
    tell(f"RayJob {name} and its cluster are removed")


def remove(stack: DeployedStack, name: str) -> bool:
    """Like `delete`, for a command that ends anyway: reports a failure, raises none. False if they may still exist."""
    try:
        delete(stack, name)
        return True
    except WorkloadError as error:
        tell(str(error))
    except KeyboardInterrupt:  # `delete` has reported it
        pass
    return False


def deletion(stack: DeployedStack, name: str) -> str:
    """The command that removes a RayJob and everything that belongs to it."""
    return stack.command("delete", "rayjob", name, "--ignore-not-found")


def patch(stack: DeployedStack, name: str, spec: dict[str, Any]) -> None:
    """Change fields of a RayJob's spec."""
    stack.ask("patch", "rayjob", name, "--type", "merge", "--patch", json.dumps({"spec": spec}))


def _may_have_begun(stack: DeployedStack, name: str) -> bool:
    """True if the job may run according to KubeRay, or if KubeRay's word cannot be had."""
    try:
        return bool(stack.get("rayjob", name, "--ignore-not-found").get("spec", {}).get("jobId"))
    except WorkloadError as error:
        tell(
            f"RayJob {name} is left as it is, since its job may run: {error.problem} If it does not, KubeRay removes "
            f"its cluster when its time to start is over; `{deletion(stack, name)}` does so at once"
        )
        return True


def _until_gone(stack: DeployedStack) -> bool:
    cluster, deadline = stack.environment.ray_cluster_name, time.monotonic() + REMOVAL_SECONDS
    while stack.ask("get", "raycluster", cluster, "--ignore-not-found", "-o", "name").strip():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def status_of(body: dict[str, Any]) -> Status:
    """The status in a RayJob object."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    return Status(
        name=metadata["name"],
        command=str(spec.get("entrypoint") or ""),
        phase=str(status.get("jobDeploymentStatus") or ""),
        job=str(status.get("jobStatus") or ""),
        cluster=str(status.get("rayClusterName") or ""),
        reason=str(status.get("reason") or ""),
        message=str(status.get("message") or ""),
        began=str(status.get("startTime") or metadata.get("creationTimestamp") or ""),
        ended=str(status.get("endTime") or ""),
        uid=str(metadata.get("uid") or ""),
        queue=str((metadata.get("labels") or {}).get(QUEUE_LABEL) or ""),
        suspended=bool(spec.get("suspend")),
        working_dir=_working_dir(str(spec.get("runtimeEnvYAML") or "")),
    )


def _working_dir(runtime_env: str) -> str:
    try:
        return str((yaml.safe_load(runtime_env) or {}).get("working_dir") or "")
    except (yaml.YAMLError, AttributeError):  # a RayJob of another program, which KubeRay will refuse
        return ""
