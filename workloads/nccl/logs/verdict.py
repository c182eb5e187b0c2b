"""Which path NCCL took, read from its own logs into one verdict over all ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from workloads.nccl.logs import path, promise
from workloads.nccl.logs.path import Choice, Nic, RankLog
from workloads.nccl.logs.promise import WORDS, NicState, Path, Problem


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What all ranks' logs together say."""

    path: Path
    network: str
    """NCCL's name of the network; several are joined by a comma."""
    version: str
    """Of NCCL."""
    plugin: str
    """External network plugin."""
    plugin_version: str
    tuner: str
    """External tuner; empty is NCCL's own."""
    algorithm: str
    """Of the largest call that was logged; empty where none was."""
    protocol: str
    channels: int
    """Of that call, or, where it does not say, of all collectives."""
    nvls: bool | None
    """Whether NVLink SHARP is at hand on every rank; None where no log says."""
    nics: tuple[NicState, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong but what may be lived with."""
        return not any(problem.severity == "error" for problem in self.problems)

    def line(self) -> str:
        """The verdict in one line."""
        carrying = sum(1 for nic in self.nics if nic.channels)
        parts = [
            self.network if self.path == "unknown" and self.network else WORDS[self.path],
            f"{carrying} of {len(self.nics)} NICs carry channels" if self.nics else "",
            f"{self.algorithm} {self.protocol}".strip(),
            f"{self.channels} channels" if self.channels else "",
            {True: "NVLS", False: "no NVLS", None: ""}[self.nvls],
            f"{self.plugin} {self.plugin_version}".strip(),
            f"NCCL {self.version}" if self.version else "",
        ]
        return ", ".join(filter(None, parts))

    def as_record(self) -> dict[str, Any]:
        """The verdict as plain data; a problem's text says where it is."""
        problems = [{**asdict(problem), "problem": problem.text} for problem in self.problems]
        return {"ok": self.ok, **asdict(self), "problems": problems}


def read(logs: Mapping[int, str], nics: int, promised: bool, hosts: Mapping[int, str] | None = None) -> Verdict:
    """Read the logs of one communicator's ranks.

    Args:
        logs: rank -> what NCCL wrote with NCCL_DEBUG=INFO; empty where NCCL had no part, as on gloo.
        nics: RDMA NICs that each node must show; 0 does not count them.
        promised: whether gIB with GPUDirect RDMA must carry what goes between nodes. False for one node alone.
        hosts: rank -> its host, where that is known from elsewhere.
    """
    ranks = {rank: path.read(text) for rank, text in sorted(logs.items())}
    for rank, log in ranks.items():
        log.host = (hosts or {}).get(rank) or log.host
    paths: dict[int, Path] = {rank: path_of(log) for rank, log in ranks.items()}
    states = tuple(_nics(ranks.values()))
    choices = [choice for log in ranks.values() for choice in log.choices]
    largest = max(choices, key=lambda choice: choice.size, default=None)
    return Verdict(
        path=_overall(set(paths.values())),
        network=", ".join(sorted({log.network for log in ranks.values() if log.network})),
        version=_first(log.version for log in ranks.values()),
        plugin=_first(log.plugin for log in ranks.values()),
        plugin_version=_first(log.plugin_version for log in ranks.values()),
        tuner=_first(log.tuner for log in ranks.values()),
        algorithm=largest.algorithm if largest else "",
        protocol=largest.protocol if largest else "",
        channels=_channels(ranks.values(), largest),
        nvls=_everywhere(log.nvls for log in ranks.values()),
        nics=states,
        problems=promise.problems(ranks, paths, states, nics, promised),
    )


def path_of(log: RankLog) -> Path:
    """The path that one rank's log shows."""
    if log.network_channels:
        return _one({_kind(network, all(direct)) for network, direct in log.network_channels.items()})
    if log.nodes == 1 or (log.nodes == 0 and (log.local_channels or log.ranks == 1)):
        if log.ranks == 1:
            return "none"
        return "shm" if "SHM" in log.local_channels else "nvlink" if log.local_channels else "unknown"
    known = [nic.gpu_direct for nic in log.nics.values() if nic.gpu_direct is not None]
    if known or "socket" in log.network.lower():
        return _kind(log.network, all(known))
    return "unknown"


def _kind(network: str, direct: bool) -> Path:
    if network == "gIB":
        return "gib-gdr" if direct else "gib-host"
    if network.startswith("IB"):
        return "ib-gdr" if direct else "ib-host"
    return "socket" if "socket" in network.lower() else "unknown"


def _overall(paths: set[Path]) -> Path:
    """A rank without a connection of its own to another node says nothing of the way between nodes."""
    between = paths & promise.BETWEEN_NODES
    if between:
        return _one(between)
    return "unknown" if "unknown" in paths else "shm" if "shm" in paths else "nvlink" if "nvlink" in paths else "none"


def _one(paths: set[Path]) -> Path:
    return next(iter(paths)) if len(paths) == 1 else "mixed"


def _nics(ranks: Iterable[RankLog]) -> Iterator[NicState]:
    found: dict[tuple[str, int], list[Nic]] = {}
    for log in ranks:
        for nic in log.nics.values():
            found.setdefault((log.host, nic.index), []).append(nic)
    for (node, index), seen in sorted(found.items()):
        yield NicState(
            node=node,
            index=index,
            name=_first(nic.name for nic in seen),
            link=_first(nic.link for nic in seen),
            gpu_direct=_everywhere(nic.direct for nic in seen),
            channels=sum(nic.channels for nic in seen),
        )


def _channels(ranks: Iterable[RankLog], largest: Choice | None) -> int:
    return (largest.channels if largest else 0) or max((log.channels for log in ranks), default=0)


def _first(values: Iterable[str]) -> str:
    return next(filter(None, values), "")


def _everywhere(values: Iterable[bool | None]) -> bool | None:
    known = [value for value in values if value is not None]
    return all(known) if known else None
