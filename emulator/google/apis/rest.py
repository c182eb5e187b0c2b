"""Google's REST APIs on the emulated cloud: finds a call's method, checks whether it may be made, and answers it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from emulator.google import faults, operations
from emulator.google.apis import (
    artifactregistry,
    billing,
    cloudbuild,
    cloudkms,
    cloudresourcemanager,
    compute,
    container,
    iam,
    monitoring,
    secretmanager,
    servicenetworking,
    serviceusage,
    storage,
)
from emulator.google.cloud import Cloud
from emulator.google.collection import Body, Call, Collection, unnumbered
from emulator.google.discovery import Method, admitted, methods_at
from emulator.google.errors import CloudError, RefusedCall, in_googles_words
from emulator.google.permissions import permission_of, require_permission
from emulator.google.scope import project_number

_APIS = (
    artifactregistry,
    billing,
    cloudbuild,
    cloudkms,
    cloudresourcemanager,
    compute,
    container,
    iam,
    monitoring,
    secretmanager,
    servicenetworking,
    serviceusage,
    storage,
)

COLLECTIONS: Mapping[str, Collection] = {name: one for api in _APIS for name, one in api.COLLECTIONS.items()}
"""The collections that are served, by Google's ids, except operations."""

_OF_THE_CALLERS_PROJECT = frozenset(
    {"cloudbilling.googleapis.com", "cloudresourcemanager.googleapis.com", "serviceusage.googleapis.com"}
)
"""Services that a project's creator calls before any API of the project is enabled: they must be enabled in the
caller's own project ("About the quota project"), and are assumed to be."""


class GoogleApis:
    """The APIs. Each call is one transaction."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud

    def answer(
        self,
        verb: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any],
        principal: str = "",
        quota_project: str = "",
    ) -> Body | None:
        """The answer to a call, or None if its path belongs to no API that is served here.

        Args:
            verb: GET, POST, ...
            path: as it was sent.
            query: decoded parameters.
            body: JSON of the request; empty for none.
            principal: who calls.
            quota_project: id of the project whose quota the call uses, if the call names one.

        Raises:
            RefusedCall: Google's refusal.
        """
        found = list(methods_at(verb, path))
        for method, names in found:
            collection = _collection_of(method)
            handler = getattr(collection, f"do_{_snake(method.name)}", None)
            if collection is None or handler is None or not self._is_meant(method, path):
                continue
            fault = faults.meet(self._cloud, method.id, changes=method.changes)
            faults.before(fault)
            try:
                with self._cloud.transaction():
                    call = Call(
                        cloud=self._cloud,
                        method=method,
                        names=names,
                        query={_camel(key): value for key, value in query.items()},
                        principal=principal,
                        quota_project=quota_project,
                        sent=body,
                        name=self._name(method, path),
                    )
                    answer = self._answered(collection, handler, call)
            except CloudError as error:
                raise in_googles_words(error) from error
            faults.after(fault)
            return answer
        if found:
            raise RefusedCall(501, f"the emulated Google does not serve {found[0][0].id}", "notImplemented")
        return None

    def _is_meant(self, method: Method, path: str) -> bool:
        """False for another API's operation at the same path; Google's APIs are told apart by their hosts."""
        if not method.collection.endswith("perations"):
            return True
        found = self._cloud.find(operations.KIND, self._name(method, path))
        return found is None or found.body["api"] == method.document.api

    def _answered(self, collection: Collection, handler: Callable[[Call], Body], call: Call) -> Body:
        """The handler's answer to a call that may be made. Raises RefusedCall."""
        method = call.method
        call = replace(call, project=collection.project(call))
        if call.project:
            self._note(call.project)
            if method.document.host not in _OF_THE_CALLERS_PROJECT:
                serviceusage.require_api(self._cloud, method.document, call.project)
        if permission := permission_of(method):
            require_permission(call, permission, collection.full_name(call))
        call = replace(call, body=admitted(method, call.sent))
        return _page(collection, call, handler(call))

    def _name(self, method: Method, path: str) -> str:
        """The name path in a URL's path, with the project's number replaced by its id."""
        name = unquote(path.removeprefix(method.document.base))
        if ":" in method.template:
            name = name.rpartition(":")[0]
        return unnumbered(self._cloud, name)

    def _note(self, project: str) -> None:
        path = f"projects/{project}"
        if self._cloud.find("resourcemanager/project", path) is None:
            self._cloud.put("resourcemanager/project", path, {"projectId": project, "number": project_number(project)})


def _page(collection: Collection, call: Call, answer: Body) -> Body:
    """The page of a list that the caller asked for, with the token for the next one (AIP-158)."""
    size = int(call.query.get("pageSize") or call.query.get("maxResults") or 0)
    found = answer.get(collection.items)
    if call.method.name != "list" or not isinstance(found, list) or not (size or "pageToken" in call.query):
        return answer
    token = call.query.get("pageToken") or "0"
    if not token.isdecimal() or size < 0:
        raise RefusedCall(400, "Invalid value for page size or page token.", "invalid")
    start, items = int(token), list[Any](found)
    end = start + size if size else len(items)
    more = {"nextPageToken": str(end)} if end < len(items) else {}
    return {**answer, collection.items: items[start:end], **more}


def _camel(name: str) -> str:
    """A parameter's name as in the documents; Google also accepts its protobuf name, with underscores."""
    return re.sub(r"_([a-z])", lambda found: found[1].upper(), name)


def _snake(name: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", name).lower()


def _collection_of(method: Method) -> Collection | None:
    if method.collection.endswith("perations"):
        return COLLECTIONS.get(method.collection) or _Operations()
    return COLLECTIONS.get(method.collection)


class _Operations(Collection):
    """The long-running operations of every API that has no form of its own for them."""

    kind = operations.KIND

    def do_get(self, call: Call) -> Body:
        return operations.get(call.cloud, call.name)

    def do_wait(self, call: Call) -> Body:
        return operations.get(call.cloud, call.name.removesuffix("/wait"))  # it may end before the operation does
