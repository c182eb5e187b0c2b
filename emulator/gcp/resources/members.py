"""One member of one role on one object: reads, changes and writes back the object's policy."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from emulator.gcp.resources.google_client import Body, GoogleClient
from emulator.gcp.resources.resource import fill
from emulator.google.errors import RefusedCall

_RETRIES = 8


@dataclass(frozen=True, kw_only=True)
class Member:
    """A resource type `...IAMMember`. Creating an existing member is no error."""

    object_input: str
    """Input that names the object."""
    object_template: str
    """Name path of the object, from the inputs."""
    path: str
    """Path of the object's policy, `{object}` and the verb (`getIamPolicy`) filled in."""
    form: Literal["verbs", "posts", "iam"] = "verbs"
    """How the policy is requested: GET `:getIamPolicy`; POST `:getIamPolicy`, with the version in the body or in the
    query; storage's GET and PUT of `iam`."""
    identity: str = ""
    """Prefix of Pulumi's id, if it is not the object's name path."""

    def create(self, google: GoogleClient, inputs: Mapping[str, Any]) -> str:
        """Add the member; returns its id."""
        name, role, member = self._parts(inputs)
        self._change(google, name, lambda members: members | {member}, role)
        return f"{fill(self.identity, inputs) if self.identity else name}/{role}/{member}"

    def read(self, google: GoogleClient, identity: str, given: Mapping[str, Any]) -> Body | None:
        """Outputs, or None if the member no longer holds the role."""
        found = re.fullmatch(r"(.+?)/((?:roles|projects/[^/]+/roles|organizations/[^/]+/roles)/[^/]+)/(.+)", identity)
        if found is None:
            raise ValueError(f"{identity!r} is not <object>/<role>/<member>")
        name = found[1] if not self.identity else self.object_template.format_map({self.object_input: found[1]})
        role, member = found[2], found[3]
        try:
            policy = self._policy(google, name)
        except RefusedCall as error:
            if error.code == 404:
                return None
            raise
        if not any(one["role"] == role and member in one["members"] for one in policy.get("bindings", [])):
            return None
        held = {self.object_input: found[1], "role": role, "member": member, "etag": policy["etag"]}
        return {**held, **given, "etag": policy["etag"]}

    def update(self, google: GoogleClient, identity: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        """Unused: every change replaces."""
        raise AssertionError(f"{identity} cannot be changed in place")

    def delete(self, google: GoogleClient, identity: str, outputs: Mapping[str, Any]) -> None:
        """Take the role from the member."""
        name, role, member = self._parts(outputs)
        self._change(google, name, lambda members: members - {member}, role)

    def _parts(self, inputs: Mapping[str, Any]) -> tuple[str, str, str]:
        return fill(self.object_template, inputs), str(inputs["role"]), str(inputs["member"])

    def _change(self, google: GoogleClient, name: str, change: Callable[[set[str]], set[str]], role: str) -> None:
        for attempt in range(_RETRIES):
            with google.alone(name):
                policy = self._policy(google, name)
                held = {one["role"]: set(one["members"]) for one in policy.get("bindings", [])}
                held[role] = change(held.get(role, set()))
                bindings = [{"role": key, "members": sorted(found)} for key, found in sorted(held.items()) if found]
                try:
                    self._write(google, name, {"bindings": bindings, "etag": policy["etag"], "version": 3})
                    return
                except RefusedCall as error:
                    if error.code != 409 or attempt == _RETRIES - 1:
                        raise
            time.sleep(0.1 * attempt)  # somebody else wrote it meanwhile

    def _at(self, name: str) -> str:
        """Path of an object's policy. A managed folder's name is itself a path, and so is escaped."""
        place, managed, folder = name.partition("/managedFolders/")
        return self.path.format(object=f"{place}{managed}{quote(folder, safe='')}")

    def _policy(self, google: GoogleClient, name: str) -> Body:
        path = self._at(name)
        match self.form:
            case "iam":
                return google.call("GET", f"{path}/iam", query={"optionsRequestedPolicyVersion": "3"})
            case "posts":
                return google.call("POST", f"{path}:getIamPolicy")
            case "verbs":
                return google.call("GET", f"{path}:getIamPolicy")

    def _write(self, google: GoogleClient, name: str, policy: Body) -> None:
        path = self._at(name)
        if self.form == "iam":
            google.call("PUT", f"{path}/iam", policy)
        else:
            google.call("POST", f"{path}:setIamPolicy", {"policy": policy})
