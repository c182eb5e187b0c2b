"""The ranks of `benchmarks.one_gpu`, seen from their parent: started, given the same requests, and always ended."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from workloads.errors import WorkloadError, WorkloadFailedError

CHECKOUT = Path(__file__).resolve().parents[2]

START_SECONDS = 50.0
"""Minimum time allowed for a rank's start: it loads what this process has already loaded."""

AFTERMATH_SECONDS = 5.0
"""How long to wait for the other ranks after a first failure, to learn how each of them ended."""

KILL_SECONDS = 10.0
"""Longest wait for a killed process; one in the GPU's driver may take that long."""

WORDS = 12
"""How many of a rank's last lines are shown."""


@dataclass(frozen=True)
class _RankProcess:
    """One rank."""

    popen: subprocess.Popen[bytes]
    connection: Connection
    words: int
    """File descriptor of the file with its standard output and error."""

    def state(self) -> tuple[int, str]:
        """How it ended; more telling ways sort first."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(0.5)
        code = self.popen.returncode
        if code is None:
            return 1, "gave no answer"
        return (0, f"was ended by {signal.Signals(-code).name}") if code < 0 else (2, f"ended with status {code}")

    def last_words(self) -> list[str]:
        """Its last lines, without the addresses in torch's binary that make up most of an NCCL error."""
        text = os.pread(self.words, os.fstat(self.words).st_size, 0).decode(errors="replace")
        return [line for line in text.splitlines() if line.strip() and not line.startswith("frame #")][-WORDS:]


class Ranks:
    """The ranks of one process group: each request goes to all of them, and all must answer before the next."""

    def __init__(self, processes: Sequence[_RankProcess], limit: float) -> None:
        self._processes = processes
        self._limit = limit

    def ask(self, method: str, *arguments: object, limit: float = 0.0) -> list[Any]:
        """Call a method of every rank; returns the answers, by rank.

        Args:
            method: name of the method.
            arguments: its arguments.
            limit: seconds that the answers may take, if more than the limit of every request.

        Raises:
            WorkloadError: a rank raised it.
            WorkloadFailedError: a rank died or gave no answer; says how each ended, with its last words.
        """
        for one in self._processes:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is noticed below
                one.connection.send((method, *arguments))
        waiting = {one.connection: rank for rank, one in enumerate(self._processes)}
        answers: dict[int, Any] = {}
        deadline = time.monotonic() + max(self._limit, limit)
        while waiting and (left := deadline - time.monotonic()) > 0:
            for ready in wait(list(waiting), timeout=left):
                assert isinstance(ready, Connection)
                rank = waiting.pop(ready)
                try:
                    answers[rank] = ready.recv()
                except (EOFError, ConnectionResetError):
                    deadline = min(deadline, time.monotonic() + AFTERMATH_SECONDS)
        for answer in answers.values():
            if isinstance(answer, WorkloadError):
                raise answer
        if len(answers) < len(self._processes):
            raise self._failure(method, answers)
        return [answers[rank] for rank in range(len(self._processes))]

    def join(self) -> list[dict[str, Any]]:
        """Let the ranks meet; returns what each runs on."""
        arrived = self.ask("arrive", limit=START_SECONDS)
        joined = self.ask("join", *arrived[0]["meeting"], 0)
        return [{**before, **after} for before, after in zip(arrived, joined, strict=True)]

    def _failure(self, method: str, answered: Collection[int]) -> WorkloadFailedError:
        lost = {rank: one for rank, one in enumerate(self._processes) if rank not in answered}
        states = sorted((*one.state(), rank) for rank, one in lost.items())
        told = "; ".join(f"rank {rank} (process {lost[rank].popen.pid}) {state}" for _, state, rank in states)
        lines = [
            line
            for _, _, rank in states
            if (words := lost[rank].last_words())
            for line in (f"last words of rank {rank}:", *(f"    {word}" for word in words))
        ]
        return WorkloadFailedError(
            "\n".join([f"Asked to {method}: {told}.", *lines]),
            f"No rank is left running. Run it again; a size that takes longer than {self._limit:g} s needs another "
            "--timeout.",
        )


@contextlib.contextmanager
def started(backend: str, limit: float, logs: Sequence[Mapping[str, str]]) -> Iterator[Ranks]:
    """Ranks on this machine for the length of the block; none of them outlives it.

    Args:
        backend: `nccl` or `gloo`.
        limit: seconds that one answer may take.
        logs: NCCL's settings with which each rank writes its log; empty if it writes none.
    """
    with contextlib.ExitStack() as stack:
        processes = []
        for rank, log in enumerate(logs):
            ours, theirs = (stack.enter_context(end) for end in multiprocessing.Pipe())
            words = stack.enter_context(tempfile.TemporaryFile())
            # A rank that waits for another gives up before its parent does, as the rank's own error says more.
            arguments = (os.getpid(), theirs.fileno(), rank, len(logs), backend, limit * 2 / 3)
            popen = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.one_gpu_ranks.rank", *map(str, arguments)],
                cwd=CHECKOUT,
                env={**environment(rank), **log},
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=subprocess.STDOUT,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,  # the parent handles Ctrl-C
            )
            stack.callback(_end, popen)
            theirs.close()
            processes.append(_RankProcess(popen, ours, words.fileno()))
        yield Ranks(processes, limit)


def environment(rank: int) -> dict[str, str]:
    """Variables that make each rank a separate host to NCCL, which else refuses two on one GPU, with only sockets."""
    own = {"NCCL_HOSTID": f"one-gpu-rank-{rank}", "NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo"}
    # One thread, as Ray gives a rank.
    return {"OMP_NUM_THREADS": "1", **os.environ, **own}


def _end(popen: subprocess.Popen[bytes]) -> None:
    popen.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        popen.wait(KILL_SECONDS)
