"""The ways in which a workload can end, each with its exit code: a failure becomes a number and two sentences.

Raised anywhere (also in a Ray worker, so every class pickles), caught once, by the command line.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

EXIT_OK = 0
EXIT_INTERRUPTED = 130
"""128 + SIGINT, as POSIX shells report a command that Ctrl-C ended; SIGTERM ends one in the same way."""


class WorkloadError(Exception):
    """A failure with a cause the user can read and a next step the user can take."""

    exit_code: int = 5

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


class LostProcessError(PlaceError):
    """A helper process of a rank was killed, usually for lack of memory; a run is retried at any time, unlike after any
    other PlaceError."""


class FabricError(WorkloadError):
    """The network between the GPUs is not what the stack promised: no gIB, no GPUDirect RDMA, a slow node or NIC."""

    exit_code = 9


class BudgetError(WorkloadError):
    """What the run may cost is spent; its newest checkpoint is kept."""

    exit_code = 10


def first_line(error: BaseException) -> str:
    """An exception's message, in one line; the name of its type where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A question that follows what was wrong; empty where no known word is near."""
    nearest = difflib.get_close_matches(word, list(known), n=1, cutoff=0.75)
    return f"; did you mean {nearest[0]}?" if nearest else ""
