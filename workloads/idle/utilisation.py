"""Utilisation of each GPU of a stack's cluster in the last minutes, as GKE wrote it into Cloud Monitoring.

This reads GKE's own metric, not DCGM's, which the stack turns on as well: the labels of GKE's metric always name the
pod, those of DCGM's exporter sometimes do not (NVIDIA/dcgm-exporter issue 342). It fetches every sample rather than
their maximum, so that missing samples are noticed.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from workloads.environment import ClusterEnvironment
from workloads.errors import AuthError, PlaceError, first_line

DUTY_CYCLE = "kubernetes.io/container/accelerator/duty_cycle"
"""Percent of the last 10 s in which a GPU was at work, a whole number from 0 to 100, of each GPU of each container,
with the resource `k8s_container` (Google Cloud documentation, "GKE system metrics"). SYSTEM_COMPONENTS turns it on."""

SAMPLE_SECONDS = 60.0
"""How often GKE takes it (the same page)."""

ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_MONITORING"
"""gcloud's own variable for another address of the API."""

_HOST = "monitoring.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/monitoring.read"
_ANSWER_SECONDS = 30


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """What was seen of one GPU while a container had it."""

    busiest: int
    """Percent, of the busiest sample."""
    samples: int
    """How many there are."""


def look(environment: ClusterEnvironment, began: float, ended: float) -> dict[tuple[str, str], list[Gpu]]:
    """The GPUs of each pod, by its namespace and name, as far as there are samples of them.

    Args:
        environment: of a stack, or of a team, whose namespace alone is asked about then.
        began: Unix time.
        ended: likewise.

    Raises:
        AuthError: there are no credentials, or they do not suffice.
        PlaceError: the API is off, or does not answer in full.
    """
    labels = {"cluster_name": environment.cluster_name, "location": environment.region}
    if environment.team:
        labels["namespace_name"] = environment.team
    wanted = [f'metric.type = "{DUTY_CYCLE}"', *(f'resource.labels.{key} = "{of}"' for key, of in labels.items())]
    interval = {"interval.startTime": _written(began), "interval.endTime": _written(ended)}
    values: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
    for series in _all(environment.project, {"filter": " AND ".join(wanted), **interval}):
        of = series["resource"]["labels"]
        # A page is so many points (the REST reference, `pageSize`), so a series may go on in the next one.
        which = json.dumps([series["metric"], of], sort_keys=True)
        points = [int(point["value"].get("int64Value", 0)) for point in series["points"]]
        values[of["namespace_name"], of["pod_name"], which] += points
    found: defaultdict[tuple[str, str], list[Gpu]] = defaultdict(list)
    for (namespace, pod, _), seen in values.items():
        found[namespace, pod].append(Gpu(busiest=max(seen), samples=len(seen)))
    return found


def _all(project: str, parameters: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Every time series that a question finds (Cloud Monitoring's REST reference, `projects.timeSeries.list`)."""
    session, token = _session(project), ""
    while True:
        answer = _answer(session, project, {**parameters, **({"pageToken": token} if token else {})})
        if answer.get("executionErrors") or answer.get("unreachable"):
            raise PlaceError(
                "Cloud Monitoring gave only part of its answer, which is not enough to judge by.", "Ask again."
            )
        yield from answer.get("timeSeries", ())
        token = answer.get("nextPageToken", "")
        if not token:
            return


def _session(project: str) -> Any:
    import google.auth
    from google.auth.credentials import CredentialsWithQuotaProject
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession

    try:
        credentials, _ = google.auth.default(scopes=[_SCOPE])
    except (GoogleAuthError, OSError) as error:  # the latter of their file: a folder, or another user's
        raise _no_credentials(error) from error
    if isinstance(credentials, CredentialsWithQuotaProject):
        # Otherwise Google also asks whether the API is on in the project that the credentials come from.
        credentials = credentials.with_quota_project(project)
    return AuthorizedSession(credentials)


def _answer(session: Any, project: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    import requests
    from google.auth.exceptions import GoogleAuthError

    address = os.environ.get(ENDPOINT_VARIABLE, f"https://{_HOST}").rstrip("/")
    url = f"{address}/v3/projects/{project}/timeSeries"
    try:
        response = session.get(url, params=parameters, timeout=_ANSWER_SECONDS)
        answer = response.json() if response.status_code == 200 else {}
    except GoogleAuthError as error:
        raise _no_credentials(error) from error
    except requests.RequestException as error:
        raise PlaceError(
            f"{_HOST} does not answer: {type(error).__name__}.", "Check the network; ask again."
        ) from error
    if response.status_code not in (200, 404):  # the latter of a metric that nothing was ever written of
        raise _refusal(project, response.status_code, response.text)
    return answer


def _refusal(project: str, status: int, text: str) -> AuthError | PlaceError:
    if status == 403 and "SERVICE_DISABLED" in text:  # google.rpc.ErrorInfo's reason
        return PlaceError(
            f"The API {_HOST} is off in project {project}, which GKE writes its metrics into.",
            f"`gcloud services enable {_HOST} --project {project}`, and ask again.",
        )
    if status in (401, 403):
        return AuthError(
            f"You may not read the metrics of project {project}: {_said(text)}",
            f"Ask for roles/monitoring.viewer on {project}, which holds monitoring.timeSeries.list.",
        )
    return PlaceError(f"{_HOST} answers {status}: {_said(text)}", "Ask again.")


def _no_credentials(error: Exception) -> AuthError:
    return AuthError(
        f"There are no Google credentials to read metrics with: {first_line(error)}",
        "Run `gcloud auth application-default login`.",
    )


def _said(text: str) -> str:
    """The message of Google's error JSON, or the answer's beginning where it is none."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text[:200]


def _written(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
