"""The requests behind waiting: plain calls to Google's APIs and to the cluster, as the user who runs pulumi.

Clients are imported inside the functions: most commands, and the program itself, talk to nobody, and the imports take a
second.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from oasis_stack.facts.names import CLOUD_PLATFORM_SCOPE

if TYPE_CHECKING:
    import requests
    from google.auth.credentials import Credentials

REQUEST_SECONDS = 30

ACCESS_TOKEN = "GOOGLE_OAUTH_ACCESS_TOKEN"
"""Variable with a token that the provider takes before all other credentials, and the waits too
(hashicorp/terraform-provider-google 2026-08-21, provider reference, `access_token`)."""

_PROBES = {
    "artifactregistry.googleapis.com": ("", "v1/projects/{project}/locations"),
    "cloudbuild.googleapis.com": ("", "v1/projects/{project}/builds"),
    "cloudresourcemanager.googleapis.com": ("", "v1/projects/{project}"),
    "compute.googleapis.com": ("compute/v1/", "projects/{project}/global/networks"),
    "container.googleapis.com": ("", "v1/projects/{project}/locations/-/clusters"),
    "iam.googleapis.com": ("", "v1/projects/{project}/serviceAccounts"),
    # Of an account that is none: an API that is on answers something else than that it is off.
    "billingbudgets.googleapis.com": ("", "v1/billingAccounts/000000-000000-000000/budgets"),
    "secretmanager.googleapis.com": ("", "v1/projects/{project}/secrets"),
    "serviceusage.googleapis.com": ("", "v1/projects/{project}/services/compute.googleapis.com"),
    "storage.googleapis.com": ("storage/v1/", "b?project={project}"),
}
"""Of each API that `up` calls, what gcloud's variable for its address ends in, and a question that it can answer before
anything exists (the APIs' REST references)."""

GKE_PREFIXES = ("k8s", "gke-")
"""How GKE names the firewall rules, endpoint groups and forwarding rules that it makes in the cluster's network
(hashicorp/terraform-provider-google issues 5948 and 7637)."""


GKE_AGGREGATED = ("networkEndpointGroups", "forwardingRules", "subnetworks", "addresses")
"""Collections of all regions and zones in which they are, with the subnet `gke-<cluster>-<hash>-pe-subnet` of the
control plane's private endpoint and its address (terraform-google-modules/terraform-google-kubernetes-engine issue
2411)."""


_DEFINITIONS = ("apiextensions.k8s.io", "v1", "customresourcedefinitions")
_CLUSTER_ROLES = ("rbac.authorization.k8s.io", "v1", "clusterroles")


class WaitError(Exception):
    """The awaited state did not come in time."""


class RequestRefused(Exception):
    """The other side will not answer this however often it is asked: no credentials, no permission, a bad request."""


class NotAnswering(Exception):
    """A failure that may pass: too many requests, a server error, no connection."""


class Unreachable(NotAnswering):
    """No connection to the cluster's API server at all."""


@dataclass(frozen=True)
class ObjectKind:
    """A kind of object that has a namespace, and which of its objects are meant."""

    group: str
    """API group."""
    version: str
    """Version of it that is asked for."""
    plural: str
    """Name in paths, as `rayjobs`."""
    label: str = ""
    """Key of a label: only objects that carry it, whatever its value."""


class KubernetesClient:
    """The few requests that waiting needs, authenticated as the kubeconfig says."""

    def __init__(self, kubeconfig: str) -> None:
        """`kubeconfig` is JSON."""
        from kubernetes import client, config

        known = json.loads(kubeconfig)
        if token := os.environ.get(ACCESS_TOKEN):
            known["users"] = [{"name": user["name"], "user": {"token": token}} for user in known["users"]]
        api = config.new_client_from_config_dict(known, persist_config=False)
        self._custom, self._core = client.CustomObjectsApi(api), client.CoreV1Api(api)

    def definition(self, name: str) -> dict[str, Any]:
        """The CustomResourceDefinition of this name; empty where the cluster has none."""
        return self._call(self._custom.get_cluster_custom_object, *_DEFINITIONS, name) or {}

    def define(self, definition: dict[str, Any]) -> None:
        """Make a CustomResourceDefinition, or replace the one of its name.

        Not by apply, which notes the owner of each of some ten thousand fields.
        """
        metadata = definition["metadata"]
        if present := self.definition(metadata["name"]):
            version = {"resourceVersion": present["metadata"]["resourceVersion"]}
            body = {**definition, "metadata": {**metadata, **version}}
            self._call(self._custom.replace_cluster_custom_object, *_DEFINITIONS, metadata["name"], body=body)
        else:
            self._call(self._custom.create_cluster_custom_object, *_DEFINITIONS, body=definition)

    def objects(self, kind: ObjectKind) -> list[dict[str, Any]]:
        """Every object of a kind in all namespaces; none where the cluster does not know the kind."""
        listing = self._custom.list_cluster_custom_object
        selected = {"label_selector": kind.label} if kind.label else {}
        answer = self._call(listing, kind.group, kind.version, kind.plural, **selected)
        return answer["items"] if answer else []

    def remove(self, kind: ObjectKind, namespace: str, name: str) -> None:
        """Delete an object; it stays visible until what it owns is gone, pods above all."""
        delete = self._custom.delete_namespaced_custom_object
        self._call(delete, kind.group, kind.version, namespace, kind.plural, name, propagation_policy="Foreground")

    def load_balancers(self) -> list[dict[str, Any]]:
        """Services of type LoadBalancer. Each keeps a finalizer until Google has removed its forwarding rule."""
        answer = self._call(self._core.list_service_for_all_namespaces, _preload_content=False)
        return [item for item in json.loads(answer.data)["items"] if item["spec"].get("type") == "LoadBalancer"]

    def remove_aggregated_roles(self, release: str) -> None:
        """Delete the ClusterRoles of a Helm release whose rules Kubernetes fills in from others."""
        selected = f"app.kubernetes.io/instance={release}"
        answer = self._call(self._custom.list_cluster_custom_object, *_CLUSTER_ROLES, label_selector=selected)
        for role in answer["items"] if answer else ():
            if role.get("aggregationRule"):
                self._call(self._custom.delete_cluster_custom_object, *_CLUSTER_ROLES, role["metadata"]["name"])

    def volumes(self) -> list[dict[str, Any]]:
        """All PersistentVolumes."""
        answer = self._call(self._core.list_persistent_volume, _preload_content=False)
        return json.loads(answer.data)["items"] if answer else []

    def remove_service(self, namespace: str, name: str) -> None:
        """Delete a Service."""
        self._call(self._core.delete_namespaced_service, name, namespace)

    def _call(self, request: Callable[..., Any], *arguments: str, **options: Any) -> Any:
        """The answer, or None where the object or its kind does not exist."""
        import urllib3
        from kubernetes.client.exceptions import ApiException

        try:
            return request(*arguments, _request_timeout=REQUEST_SECONDS, **options)
        except ApiException as failure:
            if failure.status == 404:
                return None
            if failure.status in (401, 403):
                raise RequestRefused(
                    f"the cluster answers {failure.status} {failure.reason} about {' '.join(arguments) or 'services'}. "
                    "Check that gke-gcloud-auth-plugin is on PATH, run `gcloud auth application-default login`, and "
                    'compare your roles with the table in docs/cloud.md ("Who may do what").'
                ) from failure
            raise NotAnswering(f"the cluster answers {failure.status} {failure.reason}") from failure
        except (urllib3.exceptions.HTTPError, OSError) as failure:
            raise Unreachable(f"the cluster does not answer ({type(failure).__name__})") from failure


def fetch(url: str) -> bytes:
    """The content of an address that needs no login.

    Raises:
        RequestRefused: the server will not give it.
        NotAnswering: the request may succeed later.
    """
    import requests

    try:
        response = requests.get(url, timeout=REQUEST_SECONDS)
    except requests.RequestException as failure:
        raise NotAnswering(f"{url} does not answer ({type(failure).__name__})") from failure
    if response.status_code >= 500 or response.status_code == 429:
        raise NotAnswering(f"{url} answers {response.status_code}")
    if response.status_code != 200:
        raise RequestRefused(f"{url} answers {response.status_code}. Check the address.")
    return response.content


def google_api(service: str, default: str) -> str:
    """Base address of a Google API, with a slash at its end; gcloud's own variable for it wins (`gcloud config`)."""
    return os.environ.get(f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}", default).rstrip("/") + "/"


def google_list(project: str, url: str, key: str = "items") -> Iterator[dict[str, Any]]:
    """Everything that a list method of a Google API answers: all pages, and all scopes of an aggregated list.

    Raises:
        RequestRefused: no credentials or no permission.
        NotAnswering: the request may succeed later.
    """
    for answer in pages(lambda parameters: google_get(project, url, parameters)):
        found = answer.get(key, [])
        if isinstance(found, dict):  # aggregated: {scope: {kind: [...]}}
            for scope in found.values():
                yield from (item for value in scope.values() if isinstance(value, list) for item in value)
        else:
            yield from found


def pages(ask: Callable[[Mapping[str, str]], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every page of a list of Google's; `ask` is given the parameters that the next one takes."""
    token = ""
    while True:
        answer = ask({"pageToken": token} if token else {})
        yield answer
        token = answer.get("nextPageToken", "")
        if not token:
            return


def google_get(project: str, url: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    """What a method of a Google API answers; nothing for what does not exist. Raises as `google_list`."""
    answer = google_answer(project, url, parameters)
    if answer.status_code == 404:
        return {}
    if answer.status_code != 200:
        raise RequestRefused(
            f"{url} answers {answer.status_code}: {answer.text[:500]}. See the table of roles in docs/cloud.md."
        )
    return answer.json()


def made_by_gke(project: str, network: str) -> list[str]:
    """Everything that GKE made in a network and has not removed yet, as `<collection>/<name>`."""
    base = google_api("compute", "https://compute.googleapis.com/compute/v1/")
    listings = ("global/firewalls", *(f"aggregated/{last}" for last in GKE_AGGREGATED))
    made = [
        (last_part(listing), item)
        for listing in listings
        for item in google_list(project, f"{base}projects/{project}/{listing}")
        if item["name"].startswith(GKE_PREFIXES)
    ]
    # An internal address names its subnet alone.
    subnets = {item["name"] for kind, item in made if kind == "subnetworks" and last_part(item["network"]) == network}
    return [
        f"{kind}/{item['name']}"
        for kind, item in made
        if last_part(item.get("network", "")) == network or last_part(item.get("subnetwork", "")) in subnets
    ]


def peered_worker_pools(project: str, region: str, network: str) -> list[str]:
    """Build worker pools that use a network's peering."""

    def peered(pool: Mapping[str, Any]) -> str:
        return last_part(pool.get("privatePoolV1Config", {}).get("networkConfig", {}).get("peeredNetwork", ""))

    base = google_api("cloudbuild", "https://cloudbuild.googleapis.com/")
    pools = google_list(project, f"{base}v1/projects/{project}/locations/{region}/workerPools", "workerPools")
    return [pool["name"] for pool in pools if peered(pool) == network]


def last_part(path: str) -> str:
    """The name at the end of a resource's path."""
    return path.rpartition("/")[2]


def google_says_disabled(api: str, project: str) -> bool:
    """True if an API refuses a request because it is not enabled; any other answer means that it is.

    Raises:
        RequestRefused: no credentials.
        NotAnswering: the request may succeed later.
    """
    if api not in _PROBES:
        return False
    base, path = _PROBES[api]
    service = api.partition(".")[0]
    url = google_api(service, f"https://{api}/{base}") + path.format(project=project)
    return says_disabled(google_answer(project, url))


def google_time(project: str, url: str) -> float:
    """Unix time by Google's clock, in whole seconds, from the answer to a question, whatever it says.

    Raises:
        RequestRefused: no credentials.
        NotAnswering: the request may succeed later.
    """
    return parsedate_to_datetime(google_answer(project, url).headers["Date"]).timestamp()


def says_disabled(answer: requests.Response) -> bool:
    """True for the refusal of an API that is not enabled."""
    # SERVICE_DISABLED is google.rpc.ErrorInfo's reason; storage and compute, which are older, say accessNotConfigured.
    return answer.status_code == 403 and ("SERVICE_DISABLED" in answer.text or "accessNotConfigured" in answer.text)


def google_credentials(project: str) -> Credentials:
    """The caller's application default credentials, or the token in `ACCESS_TOKEN`, ready for use.

    Args:
        project: its quota is taken.

    Raises:
        RequestRefused: there are none.
        NotAnswering: the request may succeed later.
    """
    import google.auth
    import google.auth.credentials
    import google.auth.exceptions
    import google.oauth2.credentials
    from google.auth.transport.requests import Request

    with _credentials_asked():
        if token := os.environ.get(ACCESS_TOKEN):
            found = google.oauth2.credentials.Credentials(token=token)
        else:
            try:
                found, _ = google.auth.default(scopes=[CLOUD_PLATFORM_SCOPE])
            except OSError as failure:  # of their file: a folder, or another user's
                raise google.auth.exceptions.DefaultCredentialsError(failure) from failure
        if isinstance(found, google.auth.credentials.CredentialsWithQuotaProject):
            # Otherwise Google also asks whether the API is on in the project that the credentials come from.
            found = found.with_quota_project(project)
        if not found.valid:
            found.refresh(Request())
        return found


def google_answer(
    project: str,
    url: str,
    parameters: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    credentials: Credentials | None = None,
) -> requests.Response:
    """The answer to a GET, or to a POST of `body`, whatever it says.

    Raises:
        RequestRefused: no credentials.
        NotAnswering: the request may succeed later.
    """
    import requests
    from google.auth.transport.requests import AuthorizedSession

    try:
        with _credentials_asked():
            session = AuthorizedSession(credentials or google_credentials(project))
            verb = "GET" if body is None else "POST"
            answer = session.request(verb, url, params=parameters, json=body, timeout=REQUEST_SECONDS)
    except requests.RequestException as failure:
        raise NotAnswering(f"{url} does not answer ({type(failure).__name__})") from failure
    if answer.status_code == 429 or answer.status_code >= 500:
        raise NotAnswering(f"{url} answers {answer.status_code}")
    return answer


@contextlib.contextmanager
def _credentials_asked() -> Iterator[None]:
    import google.auth.exceptions

    try:
        yield
    except google.auth.exceptions.TransportError as failure:
        raise NotAnswering(f"no access token yet ({failure})") from failure
    except google.auth.exceptions.GoogleAuthError as failure:
        raise RequestRefused(
            f"no Google credentials: {str(failure).rstrip('.')}. Run `gcloud auth application-default login`."
        ) from failure


def until_none(subject: str, remaining: Callable[[], Sequence[str]], minutes: float, remedy: str) -> None:
    """Ask `remaining` for what is still missing (or still there) until it answers with nothing.

    Raises:
        WaitError: after `minutes`, naming what remains, and `remedy`.
        RequestRefused: at once, where asking again would not help.
    """
    start, pause = time.monotonic(), 0.1
    told, told_at = [""], start
    while True:
        try:
            left = list(remaining())
        except NotAnswering as failure:
            left = [str(failure)]
        if not left:
            return
        now = time.monotonic()
        if now - start >= minutes * 60:
            raise WaitError(f"{subject}: after {minutes:g} minutes still {', '.join(left)}. {remedy}")
        if left != told or now - told_at >= 60:
            told, told_at = left, now
            say(f"{subject}: {', '.join(left)} ({now - start:.0f} s of at most {minutes:g} min)")
        time.sleep(min(pause, start + minutes * 60 - now))
        pause = min(pause * 1.5, 5.0)


def say(text: str) -> None:
    """Show progress."""
    # The engine shows a provider's standard error as progress; `pulumi.log` has no engine to talk to in that process.
    print(text, file=sys.stderr, flush=True)
