"""Errors of operations on the emulated cloud, and the form in which Google's REST APIs report them."""

from __future__ import annotations


class CloudError(Exception):
    """An operation on the emulated cloud failed."""


class NotFoundError(CloudError):
    """There is no such object."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name!r} does not exist in the emulated cloud")
        self.kind, self.name = kind, name


class AlreadyExistsError(CloudError):
    """An object of that kind and name already exists."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name!r} already exists in the emulated cloud")
        self.kind, self.name = kind, name


class InUseError(CloudError):
    """The object cannot be deleted: others use it."""

    def __init__(self, kind: str, name: str, users: list[tuple[str, str]]) -> None:
        super().__init__(f"{kind} {name!r} is in use by {', '.join(f'{k} {n!r}' for k, n in users)}")
        self.kind, self.name, self.users = kind, name, users


class RefusedCall(CloudError):
    """Google's refusal of a call."""

    def __init__(self, code: int, message: str, reason: str) -> None:
        super().__init__(f"googleapi: Error {code}: {message}, {reason}")
        self.code, self.message, self.reason = code, message, reason


# How Compute Engine names a resource type in "... is already being used by ...".
_COMPUTE_LABELS = {
    "compute/address": "address",
    "compute/network": "network",
    "compute/subnetwork": "subnetwork",
    "compute/router": "router",
    "compute/globalAddress": "address",
}


def in_googles_words(error: CloudError) -> RefusedCall:
    """The refusal that Google gives when an object is missing, already exists, or is in use."""
    match error:
        case RefusedCall():
            return error
        case NotFoundError(kind="iam/serviceAccount", name=name):
            return RefusedCall(400, f"Service account {name.rsplit('/', 1)[-1]} does not exist.", "badRequest")
        case NotFoundError(kind="storage/bucket"):
            return RefusedCall(404, "The specified bucket does not exist.", "notFound")
        case NotFoundError(kind=kind, name=name) if kind.startswith("compute/"):
            return RefusedCall(404, f"The resource '{name}' was not found", "notFound")
        case NotFoundError(kind=kind, name=name) if kind.startswith("container/"):
            return RefusedCall(404, f"Not found: {name}.", "notFound")
        case NotFoundError(name=name):
            return RefusedCall(404, f"Resource '{name}' was not found.", "notFound")
        case AlreadyExistsError(kind="storage/bucket"):
            message = "Your previous request to create the named bucket succeeded and you already own it."
            return RefusedCall(409, message, "conflict")
        case AlreadyExistsError(kind=kind, name=name) if kind.startswith("compute/"):
            return RefusedCall(409, f"The resource '{name}' already exists", "alreadyExists")
        case AlreadyExistsError(name=name):
            return RefusedCall(409, f"Already exists: {name}", "alreadyExists")
        case InUseError(kind=kind, name=name, users=users) if kind in _COMPUTE_LABELS:
            label, user = _COMPUTE_LABELS[kind], users[0][1]
            message = f"The {label} resource '{name}' is already being used by '{user}'"
            return RefusedCall(400, message, "resourceInUseByAnotherResource")
        case InUseError(name=name, users=users):
            return RefusedCall(400, f"Resource '{name}' is in use by '{users[0][1]}'", "failedPrecondition")
    return RefusedCall(500, str(error), "backendError")
