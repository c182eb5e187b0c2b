"""The diagnosis of a rank's failure: which rank caused it when several fail, fall silent, or wait for each other."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from workloads.errors import WorkloadError, WorkloadFailedError, first_line
from workloads.nccl.definitions.stages import Stage
from workloads.nccl.logs import faults
from workloads.nccl.ranks.kept_logs import death

_AFTERMATH_SECONDS = 5.0
"""How long to wait for others after a first failure: the rank that died is reported after those that it left hanging.
"""

_GIVING_UP_SECONDS = 15.0
"""The same if ranks may have given up waiting for one that hangs, which each does by its own clock."""


@dataclass(frozen=True)
class RankPlace:
    """The node and process of one rank of a round, for messages that name it."""

    stage: Stage
    rank: int
    node: int
    host: str
    """Host name and Ray's node id."""
    pid: int = 0
    """Process id there, by which Ray names its logs; 0 before it has started."""

    def __str__(self) -> str:
        process = f", process {self.pid}" if self.pid else ""
        return f"rank {self.rank} of {self.stage.name!r}, on node {self.node} ({self.host}{process})"


class HungError(WorkloadFailedError):
    """Ranks gave no answer while they met in a collective."""


def answers(
    futures: Sequence[ray.ObjectRef[Any]], places: Sequence[RankPlace], limit: float, patience: float
) -> list[Any]:
    """The results of all ranks; the first failure of any ends the wait for the others, which would hang without it.

    Args:
        futures: one for each rank.
        places: places of the same ranks.
        limit: time limit in seconds.
        patience: seconds after which a rank gives up waiting for another in a collective. On NCCL its process ends.
            Infinite if none waits for another.

    Raises:
        WorkloadError: a rank's own error.
        WorkloadFailedError: a rank died, failed or gave no answer; says which, and on which node. A HungError only
            where ranks may wait for each other.
    """
    waiting, failed = list(futures), dict[int, BaseException]()
    began, late = time.monotonic(), False
    deadline = began + limit
    while waiting and (left := deadline - time.monotonic()) > 0:
        done, waiting = ray.wait(waiting, timeout=left)
        for future in done:
            if (error := _error(future)) is not None:
                if not failed:
                    late = time.monotonic() - began >= patience
                    deadline = time.monotonic() + (_GIVING_UP_SECONDS if late else _AFTERMATH_SECONDS)
                failed[futures.index(future)] = error
        if not late and any(isinstance(error, RayActorError | WorkloadError) for error in failed.values()):
            break
    silent = [futures.index(future) for future in waiting]
    if failed:
        raise_failure(failed, silent, places, late)
    if silent:
        kind = HungError if patience < math.inf else WorkloadFailedError
        raise _no_answer(kind, silent, places, f"within {limit:.0f} s")
    return ray.get(list(futures))


def _error(future: ray.ObjectRef[Any]) -> BaseException | None:
    try:
        ray.get(future)
    except RayTaskError as error:
        return error.cause or error
    except RayError as error:
        return error
    return None


def raise_failure(
    failed: Mapping[int, BaseException], silent: Sequence[int], places: Sequence[RankPlace], late: bool
) -> NoReturn:
    """Raise the failure that explains the others: a rank's own message, else a hang, a death, or the first one.

    Args:
        failed: failures by place, in the order in which they were reported; at least one.
        silent: places that gave no answer.
        places: places of all ranks.
        late: whether ranks may have given up waiting for another, so that the one that hangs is not among `failed`.
    """
    for error in failed.values():
        if isinstance(error, WorkloadError):
            raise error from None
    if late and 0 < len(silent) < len(failed):
        raise _no_answer(HungError, silent, places, "when the ranks that waited for it in a collective gave up")
    dead = [index for index, error in failed.items() if isinstance(error, RayActorError)]
    index = (dead or list(failed))[0]
    error = failed[index]
    reason = death(error) if index in dead else first_line(error)
    told = silent and (late or not dead)
    others = f" Silent since: {'; '.join(str(places[other]) for other in silent)}." if told else ""
    raise WorkloadFailedError(
        f"R{str(places[index])[1:]} {'died' if dead else 'failed'}: {reason}{others}",
        f"{faults.advice(str(error))} The other ranks were ended. The node's log (`python -m workloads status`, the "
        "dashboard) has more; run again.".lstrip(),
    ) from error


def _no_answer(
    kind: type[WorkloadFailedError], silent: Sequence[int], places: Sequence[RankPlace], when: str
) -> WorkloadFailedError:
    return kind(
        f"No answer from {'; '.join(str(places[index]) for index in silent)} {when}.",
        "All ranks were ended. Look at those nodes (`python -m workloads status`, the dashboard); run again.",
    )
