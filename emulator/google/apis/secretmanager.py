"""Secret Manager: secrets, their versions and payloads, and who may read them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import google_crc32c

from emulator.google.cloud import Cloud, CloudObject, Use, timestamp
from emulator.google.collection import Body, Call, Collection, last, numbered, require
from emulator.google.errors import RefusedCall
from emulator.google.permissions import Testable

SECRET, VERSION = "secretmanager/secret", "secretmanager/version"


class Secrets(Testable):
    """`projects/p/secrets/s`."""

    kind = SECRET
    items = "secrets"
    id_parameter = "secretId"

    def admit(self, call: Call, name: str, body: Mapping[str, Any], before: CloudObject | None) -> None:
        secret = name.partition("/secrets/")[2]
        require("[A-Za-z0-9_-]{1,255}", secret, "secret_id", "1-255 letters, digits, dashes and underscores")

    def filled(self, call: Call, name: str, body: Body) -> Body:
        return {"createTime": timestamp(call.cloud.now()), "etag": '"1"'}

    def shown(self, call: Call, found: CloudObject) -> Body:
        return {"name": numbered(found.name), **found.body}

    def do_list(self, call: Call) -> Body:
        answer = super().do_list(call)
        return {**answer, "totalSize": len(answer.get("secrets", []))}

    def do_add_version(self, call: Call) -> Body:
        secret = self.found(call)
        data = _payload(call.body.get("payload", {}))
        number = max((_number(one) for one in _versions(call.cloud, secret.name)), default=0) + 1
        body = {"state": "ENABLED", "payload": base64.b64encode(data).decode(), "etag": f'"{number}"'}
        part = Use(kind=SECRET, name=secret.name, relation="part-of")
        made = call.cloud.create(VERSION, f"{secret.name}/versions/{number}", body, [part])
        return _shown_version(made)

    def found(self, call: Call) -> CloudObject:
        return _secret(call.cloud, call.name)


class Versions(Collection):
    """`projects/p/secrets/s/versions/<number, or latest>`."""

    kind = VERSION
    items = "versions"

    def do_list(self, call: Call) -> Body:
        found = _versions(call.cloud, _secret(call.cloud, call.name.removesuffix("/versions")).name)[::-1]
        return {"versions": [_shown_version(one) for one in found], "totalSize": len(found)}

    def shown(self, call: Call, found: CloudObject) -> Body:
        return _shown_version(found)

    def found(self, call: Call) -> CloudObject:
        name, _, version = call.name.rpartition("/versions/")
        secret = _secret(call.cloud, name)
        found = _versions(call.cloud, secret.name)
        if version == "latest":
            if not found:
                message = f"Secret [{numbered(secret.name)}] not found or has no versions."
                raise RefusedCall(404, message, "notFound")
            return max(found, key=_number)
        one = call.cloud.find(VERSION, call.name)
        if one is None:
            raise RefusedCall(404, f"Secret Version [{numbered(call.name)}] not found.", "notFound")
        return one

    def do_access(self, call: Call) -> Body:
        one = self.found(call)
        if one.body["state"] != "ENABLED":
            state = f"Secret Version [{numbered(one.name)}] is in {one.body['state']} state."
            raise RefusedCall(400, state, "failedPrecondition")
        checksum = str(google_crc32c.value(base64.b64decode(one.body["payload"])))
        return {"name": numbered(one.name), "payload": {"data": one.body["payload"], "dataCrc32c": checksum}}

    def do_enable(self, call: Call) -> Body:
        return self._turned(call, {"state": "ENABLED"})

    def do_disable(self, call: Call) -> Body:
        return self._turned(call, {"state": "DISABLED"})

    def do_destroy(self, call: Call) -> Body:
        gone = {"state": "DESTROYED", "destroyTime": timestamp(call.cloud.now()), "payload": ""}
        return self._turned(call, gone)

    def _turned(self, call: Call, change: Mapping[str, Any]) -> Body:
        found = self.found(call)
        if found.body["state"] == "DESTROYED":
            state = f"Secret Version [{numbered(found.name)}] is in DESTROYED state."
            raise RefusedCall(400, state, "failedPrecondition")
        return _shown_version(call.cloud.put(VERSION, found.name, {**found.body, **change}))


def _secret(cloud: Cloud, name: str) -> CloudObject:
    found = cloud.find(SECRET, name)
    if found is None:
        raise RefusedCall(404, f"Secret [{numbered(name)}] not found.", "notFound")
    return found


def _versions(cloud: Cloud, secret: str) -> list[CloudObject]:
    return cloud.list(VERSION, f"{secret}/")


def _number(version: CloudObject) -> int:
    return int(last(version.name))


def _payload(given: Mapping[str, Any]) -> bytes:
    try:
        data = base64.b64decode(given.get("data", ""), validate=False)
    except binascii.Error:
        raise RefusedCall(400, "payload.data is not base64", "badRequest") from None
    if not data:
        raise RefusedCall(400, "The secret payload must not be empty.", "badRequest")
    sent = given.get("dataCrc32c")
    if sent is not None and int(sent) != google_crc32c.value(data):
        raise RefusedCall(400, "Checksum mismatch: payload.data_crc32c is not that of payload.data.", "badRequest")
    return data


def _shown_version(found: CloudObject) -> Body:
    body = {key: value for key, value in found.body.items() if key != "payload"}
    return {"name": numbered(found.name), "createTime": found.created, **body}


COLLECTIONS = {
    "secretmanager.projects.secrets": Secrets(),
    "secretmanager.projects.secrets.versions": Versions(),
}
