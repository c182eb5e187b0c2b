"""The ways a workload can end, each with its exit code: where a failure becomes a number and two sentences.

Raised anywhere (also in a Ray worker, so every class pickles), caught once, by the command line.
"""

from __future__ import annotations

from typing import ClassVar

EXIT_OK = 0
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as POSIX shells report a command that Ctrl-C ended."""


class WorkloadError(Exception):
    """A failure with a cause the user can read and a next step the user can take."""

    exit_code: ClassVar[int] = 5

    def __init__(self, problem: str, remedy: str) -> None:
        """Keep both sentences.

        Args:
            problem: what was wrong, with which value, and what is allowed.
            remedy: what to do next.
        """
        super().__init__(problem, remedy)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


class UsageError(WorkloadError):
    """The request itself cannot be carried out: unknown name, missing path, a batch larger than the data."""

    exit_code = 2


class InfeasibleError(WorkloadError):
    """The cluster could never give what was asked for, however long one waited."""

    exit_code = 3


class CapacityError(WorkloadError):
    """The cluster could give it, but did not in time."""

    exit_code = 4


class WorkloadFailedError(WorkloadError):
    """The workload started and failed."""

    exit_code = 5


class DataIntegrityError(WorkloadError):
    """Bytes are not what they should be: a truncated image, a damaged checkpoint, a wrong collective result."""

    exit_code = 6


class AuthError(WorkloadError):
    """A key, a token or a permission is missing or refused."""

    exit_code = 7


class PlaceError(WorkloadError):
    """The place lacks what the workload needs: no torch in the image, no Ray at the address, a bucket out of reach."""

    exit_code = 8


class FabricError(WorkloadError):
    """The network between GPUs is not the one the stack promises."""

    exit_code = 9


KINDS: dict[str, type[WorkloadError]] = {
    kind.__name__: kind
    for kind in (
        UsageError,
        InfeasibleError,
        CapacityError,
        WorkloadFailedError,
        DataIntegrityError,
        AuthError,
        PlaceError,
        FabricError,
    )
}
"""By class name, for an error that crossed a process boundary as plain data."""


def to_record(error: WorkloadError) -> dict[str, str]:
    """The error as plain data; `from_record` reads it back."""
    return {"kind": type(error).__name__, "problem": error.problem, "remedy": error.remedy}


def from_record(record: dict[str, str]) -> WorkloadError:
    """The error that `to_record` wrote; an unknown kind reads as a plain failure."""
    return KINDS.get(record["kind"], WorkloadFailedError)(record["problem"], record["remedy"])
