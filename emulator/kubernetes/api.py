"""JSON access to a Kubernetes API server by apiVersion and kind, for the provider and for what plays GKE.

Objects stay plain dictionaries, since the fields a caller sent are what it must be able to compare with later.
"""

from __future__ import annotations

import base64
import copy
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlencode

import urllib3

from kubernetes.client import Configuration
from kubernetes.config import load_kube_config_from_dict

Body = dict[str, Any]

_APPLY = "application/apply-patch+yaml"
_MERGE = "application/merge-patch+json"
_JSON = "application/json"


class ApiError(Exception):
    """The API server refused; carries its own words."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


class KindNotServedError(Exception):
    """The API server knows no such kind (yet): its CRD is missing."""

    def __init__(self, api_version: str, kind: str) -> None:
        super().__init__(f'no matches for kind "{kind}" in version "{api_version}"')


class UnreachableError(Exception):
    """No API server answers at the kubeconfig's address."""


@dataclass(frozen=True)
class ResourceKind:
    """The API server's name for a kind in its paths."""

    prefix: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None, name: str | None) -> str:
        scope = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{self.prefix}{scope}/{self.plural}" + (f"/{name}" if name else "")


class Api:
    """One API server, with what it serves remembered until a kind is asked for that it did not have."""

    def __init__(self, kubeconfig: Mapping[str, Any]) -> None:
        self._configuration = Configuration()
        without, authorities = _authorities(kubeconfig)
        load_kube_config_from_dict(without, client_configuration=self._configuration, persist_config=False)
        self._pool = urllib3.PoolManager(
            maxsize=32,
            # No TLS context of ours: urllib3 loads these into a given one again at each connection, while handshakes of
            # other threads read it, which ends in a segmentation fault (urllib3/urllib3#3036).
            ca_cert_data=authorities or None,
            ca_certs=self._configuration.ssl_ca_cert,
            cert_file=self._configuration.cert_file,
            key_file=self._configuration.key_file,
        )
        self._kinds: dict[tuple[str, str], ResourceKind] = {}
        self._lock = threading.Lock()

    def kind(self, api_version: str, kind: str) -> ResourceKind:
        """The address of a kind. Raises KindNotServedError."""
        with self._lock:
            if (api_version, kind) not in self._kinds:
                self._discover(api_version)
            found = self._kinds.get((api_version, kind))
        if found is None:
            raise KindNotServedError(api_version, kind)
        return found

    def get(self, api_version: str, kind: str, name: str, namespace: str | None = None) -> Body | None:
        """The object, or None. Raises KindNotServedError."""
        try:
            return self.request("GET", self.kind(api_version, kind).path(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list(self, api_version: str, kind: str, namespace: str | None = None, **query: str) -> list[Body]:
        """Objects of a kind, of all namespaces unless one is named. Raises KindNotServedError."""
        answer = self.request("GET", self.kind(api_version, kind).path(namespace, None), query=query)
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
        """Make an object. Raises ApiError 409 if it is there."""
        metadata = body["metadata"]
        path = self.kind(body["apiVersion"], body["kind"]).path(metadata.get("namespace"), None)
        return self.request("POST", path, body=body)

    def merge(self, target: Body, patch: Body, subresource: str = "") -> Body | None:
        """Merge-patch an object (`subresource="status"` for its status); None if it is gone."""
        path = self._path(target) + (f"/{subresource}" if subresource else "")
        try:
            return self.request("PATCH", path, body=patch, content_type=_MERGE)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def delete(self, target: Body, propagation: str = "Background", **options: object) -> bool:
        """Ask for an object's deletion; False if it was gone already."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation, **options}
        try:
            self.request("DELETE", self._path(target), body=body)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

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
        headers = {"Accept": _JSON, "Content-Type": content_type}
        settings = cast(dict[str, dict[str, str]], self._configuration.auth_settings())
        if "BearerToken" in settings:  # the exec plugin's, renewed by the configuration when it expires
            headers["Authorization"] = settings["BearerToken"]["value"]
        try:
            response = self._pool.request(
                method,
                self._configuration.host + path + (f"?{urlencode(query)}" if query else ""),
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=60,
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise UnreachableError(f"the Kubernetes API server does not answer: {error}") from None
        if response.status >= 400:
            raise _refusal(response.status, response.data)
        return cast(Body, json.loads(response.data or b"{}"))

    def _path(self, body: Body) -> str:
        metadata = body["metadata"]
        kind = self.kind(body["apiVersion"], body["kind"])
        return kind.path(metadata.get("namespace", "default"), metadata["name"])

    def _discover(self, api_version: str) -> None:
        prefix = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
        try:
            served = self.request("GET", prefix)["resources"]
        except ApiError as error:
            if error.status == 404:
                return
            raise
        for entry in served:
            if "/" not in entry["name"]:  # `pods/log` and its like
                self._kinds[api_version, entry["kind"]] = ResourceKind(prefix, entry["name"], entry["namespaced"])


def _authorities(kubeconfig: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The kubeconfig without its embedded certificate authorities, which its loader would leave in files, and these."""
    without = copy.deepcopy(dict(kubeconfig))
    found = [entry["cluster"].pop("certificate-authority-data", "") for entry in without.get("clusters") or ()]
    return without, "\n".join(base64.b64decode(data).decode() for data in found if data)


def _refusal(code: int, data: bytes) -> ApiError:
    text = data.decode(errors="replace")
    try:
        status = json.loads(text)
    except ValueError:
        status = {}
    return ApiError(code, str(status.get("reason", "")), str(status.get("message") or f"{code}: {text}"))
