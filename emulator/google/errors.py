"""What an operation on the emulated cloud can fail with; `http_errors` says the same in Google's words."""

from __future__ import annotations


class CloudError(Exception):
    """An operation on the emulated cloud that cannot be."""


class NotFoundError(CloudError):
    """There is no such object."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name!r} does not exist in the emulated cloud")
        self.kind, self.name = kind, name


class AlreadyExistsError(CloudError):
    """An object of that kind and name is there already."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name!r} already exists in the emulated cloud")
        self.kind, self.name = kind, name


class InUseError(CloudError):
    """The object cannot go: others use it."""

    def __init__(self, kind: str, name: str, users: list[tuple[str, str]]) -> None:
        super().__init__(f"{kind} {name!r} is in use by {', '.join(f'{k} {n!r}' for k, n in users)}")
        self.kind, self.name, self.users = kind, name, users
