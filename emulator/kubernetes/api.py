"""JSON access to a Kubernetes API server by apiVersion and kind, for the processes that play GKE and the kubelets.

Objects stay plain dictionaries, so that a caller can later compare them with the fields that it sent.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import urllib3

from kubernetes.client import ApiClient, ApiException, Configuration
from kubernetes.config import load_kube_config_from_dict
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from kubernetes.dynamic.resource import Resource

Body = dict[str, Any]

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"


def is_true(live: Body, condition: str) -> bool:
    """True if a live object's status says that a condition holds."""
    conditions = live.get("status", {}).get("conditions") or []
    return any(entry["type"] == condition and entry["status"] == "True" for entry in conditions)


class ApiError(Exception):
    """The API server refused a call; carries the server's message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class KindNotServedError(Exception):
    """The API server does not know a kind (yet): its CRD is missing."""

    def __init__(self, api_version: str, kind: str) -> None:
        super().__init__(f'no matches for kind "{kind}" in version "{api_version}"')


class UnreachableError(Exception):
    """No API server answers at the kubeconfig's address."""


class Api:
    """One API server. The kinds that it serves are cached until one is asked for that the cache lacks."""

    def __init__(self, kubeconfig: Mapping[str, Any]) -> None:
        configuration = Configuration()
        without, authorities = _authorities(kubeconfig)
        load_kube_config_from_dict(without, client_configuration=configuration, persist_config=False)
        configuration.ca_cert_data, configuration.proxy = authorities or None, None
        configuration.retries, configuration.connection_pool_maxsize = False, 32
        self._client = ApiClient(configuration)
        self._lock = threading.Lock()

    @cached_property
    def _dynamic(self) -> DynamicClient:
        # The client caches served kinds in a file, by default a temporary one; this path prevents that.
        return DynamicClient(self._client, cache_file="/dev/null/none")

    def kind(self, api_version: str, kind: str) -> Resource:
        """The API resource of a kind. Raises KindNotServedError."""
        prefix = "apis" if "/" in api_version else "api"  # otherwise it would look for core kinds in every group
        with self._lock, _refusals():
            try:
                return self._dynamic.resources.get(prefix=prefix, api_version=api_version, kind=kind)
            except ResourceNotFoundError:
                raise KindNotServedError(api_version, kind) from None

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Body | None:
        """The object, or None. Raises KindNotServedError."""
        return self._unless_gone("GET", self.kind(api_version, kind).path(name, namespace))

    def list(self, api_version: str, kind: str, namespace: str | None = None, **query: str) -> list[Body]:
        """Objects of a kind, in all namespaces unless one is named. Raises KindNotServedError."""
        answer = self.request("GET", self.kind(api_version, kind).path(namespace=namespace), query=query)
        return [{"apiVersion": api_version, "kind": kind, **item} for item in answer["items"]]

    def apply(self, body: Body, manager: str, *, force: bool = False, dry_run: bool = False) -> Body:
        """Server-side apply with strict field validation.

        Raises:
            ApiError: refused; 409 when another manager owns a field and `force` is not set.
            KindNotServedError: the kind is not served.
        """
        query = {"fieldManager": manager, "fieldValidation": "Strict", "force": str(force).lower()}
        if dry_run:
            query["dryRun"] = "All"
        return self.request("PATCH", self._path(body), query=query, body=body, content_type=_APPLY)

    def create(self, body: Body) -> Body:
        """Make an object. Raises ApiError 409 if it exists."""
        path = self.kind(body["apiVersion"], body["kind"]).path(namespace=body["metadata"].get("namespace"))
        return self.request("POST", path, body=body)

    def merge(self, target: Body, patch: Body, subresource: str = "") -> Body | None:
        """Merge-patch an object (`subresource="status"` for its status); None if it is gone."""
        path = self._path(target) + (f"/{subresource}" if subresource else "")
        return self._unless_gone("PATCH", path, patch, _MERGE)

    def delete(self, target: Body, propagation: str = "Background", **options: object) -> bool:
        """Request an object's deletion; False if it was already gone."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation, **options}
        return self._unless_gone("DELETE", self._path(target), body) is not None

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
        content_type: str = _JSON,
    ) -> Body:
        """One call. Raises ApiError, or UnreachableError when nobody answers."""
        with _refusals():
            return self._dynamic.request(
                method,
                path,
                body=body,
                query_params=[*(query or {}).items()],
                content_type=content_type,
                serializer=lambda _, answer: answer,
                _request_timeout=60,
            )

    def _unless_gone(self, method: str, path: str, body: Body | None = None, content_type: str = _JSON) -> Body | None:
        """Call the API about an object; None if there is no such object."""
        try:
            return self.request(method, path, body=body, content_type=content_type)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _path(self, body: Body) -> str:
        metadata = body["metadata"]
        kind = self.kind(body["apiVersion"], body["kind"])
        return kind.path(metadata["name"], metadata.get("namespace", "default"))


def _authorities(kubeconfig: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The kubeconfig without its embedded certificate authorities, which its loader would leave in files; and those."""
    without = copy.deepcopy(dict(kubeconfig))
    found = [entry["cluster"].pop("certificate-authority-data", "") for entry in without.get("clusters") or ()]
    return without, "\n".join(base64.b64decode(data).decode() for data in found if data)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Turn the client's exceptions into this module's."""
    try:
        yield
    except urllib3.exceptions.HTTPError as error:
        raise UnreachableError(f"the Kubernetes API server does not answer: {error}") from None
    except ApiException as error:
        if not error.status:
            raise UnreachableError(f"the Kubernetes API server does not answer: {error.reason}") from None
        text = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body)
        try:
            status = json.loads(text)
        except ValueError:
            status = {}
        message = status.get("message") or f"{error.status}: {text}"
        raise ApiError(error.status, str(status.get("reason", "")), message) from None
