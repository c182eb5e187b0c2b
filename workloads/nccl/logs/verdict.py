"""The verdict over all ranks' NCCL logs: the path that NCCL took, and what is wrong with it. Pure.

A log may contradict the promise of gIB with GPUDirect RDMA, or another rank; each problem says what to do. It fails
closed: if RDMA was promised, anything that a log does not show counts as missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from workloads.nccl.logs import path
from workloads.nccl.logs.path import Nic, RankLog
from workloads.nccl.logs.remedies import ENVIRONMENT, INSTALLER, REPLACE_NODE, SAME_IMAGE
from workloads.nccl.logs.xids import Severity

Path = Literal["gib-gdr", "gib-host", "ib-gdr", "ib-host", "socket", "nvlink", "shm", "none", "mixed", "unknown"]
"""`gdr` is GPUDirect RDMA, `host` goes through host memory; `nvlink` is GPU to GPU within a node (NVLink or PCIe),
`none` has nothing to transfer, `unknown` is a network unknown to this module, or a log that does not say."""

_BETWEEN_NODES = frozenset({"gib-gdr", "gib-host", "ib-gdr", "ib-host", "socket", "mixed"})
"""Known paths to other nodes."""

WORDS: dict[Path, str] = {
    "gib-gdr": "gIB with GPUDirect RDMA",
    "gib-host": "gIB through host memory, without GPUDirect RDMA",
    "ib-gdr": "NCCL's own IB with GPUDirect RDMA, not gIB",
    "ib-host": "NCCL's own IB through host memory, without GPUDirect RDMA",
    "socket": "TCP sockets",
    "nvlink": "within the node, GPU to GPU",
    "shm": "within the node, through host memory",
    "none": "nothing to transfer",
    "mixed": "different paths on different ranks",
    "unknown": "a path that the log does not show",
}

_GPU_DIRECT = (
    "Let set_nccl_env.sh set NCCL_NET_GDR_LEVEL, and check that the driver gives DMA-BUF to containers. On one node "
    f"alone: {REPLACE_NODE}"
)
_TUNER = "Let set_nccl_env.sh set NCCL_TUNER_CONFIG_PATH, with /usr/local/gib/lib64 in LD_LIBRARY_PATH."
_SUBSYSTEMS = "Run with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH,ENV,TUNING."


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict of all ranks' logs together."""

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
    problems: tuple[Diagnosis, ...]

    @property
    def ok(self) -> bool:
        """True if nothing is wrong except warnings."""
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


@dataclass(frozen=True, kw_only=True)
class NicState:
    """One RDMA NIC of one node, over all ranks there."""

    node: str
    index: int
    """NCCL's number, the one in `via NET/gIB/3`."""
    name: str
    """Device, `mlx5_3`; empty where no line names it."""
    link: str
    """`RoCE` or `IB`; empty where no line says."""
    gpu_direct: bool | None
    """None where no log says."""
    channels: int
    """Channels to other nodes over it."""

    @property
    def label(self) -> str:
        """Its name."""
        return f"NIC {self.name or self.index}"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """One problem, and what to do about it."""

    severity: Severity
    """A warning leaves the job right, and fast as far as the log shows."""
    problem: str
    remedy: str
    ranks: tuple[int, ...] = ()
    node: str = ""
    nic: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.remedy}"

    @property
    def text(self) -> str:
        """The fault, with its place in front."""
        ranks = f"rank{'s' * (len(self.ranks) > 1)} {_numbers(self.ranks)}" if self.ranks else ""
        where = ", ".join(filter(None, [f"node {self.node}" if self.node else "", self.nic, ranks]))
        return f"{where}: {self.problem}" if where else self.problem


def read(logs: Mapping[int, str], nics: int, promised: bool, hosts: Mapping[int, str] | None = None) -> Verdict:
    """Read the logs of one communicator's ranks.

    Args:
        logs: rank -> NCCL's log with NCCL_DEBUG=INFO; empty if NCCL was not used, as on gloo.
        nics: RDMA NICs that each node must show; 0 does not count them.
        promised: whether gIB with GPUDirect RDMA must carry the traffic between nodes. False for one node alone.
        hosts: rank -> its host, if known from elsewhere.
    """
    ranks = {rank: path.read(text) for rank, text in sorted(logs.items())}
    for rank, log in ranks.items():
        log.host = (hosts or {}).get(rank) or log.host
    paths: dict[int, Path] = {rank: _path_of(log) for rank, log in ranks.items()}
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
        channels=(largest.channels if largest else 0) or max((log.channels for log in ranks.values()), default=0),
        nvls=_everywhere(log.nvls for log in ranks.values()),
        nics=states,
        problems=_problems(ranks, paths, states, nics, promised),
    )


def _path_of(log: RankLog) -> Path:
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
    """The path of all ranks. A rank without a connection of its own to another node says nothing about that path."""
    between = paths & _BETWEEN_NODES
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


def _first(values: Iterable[str]) -> str:
    return next(filter(None, values), "")


def _everywhere(values: Iterable[bool | None]) -> bool | None:
    known = [value for value in values if value is not None]
    return all(known) if known else None


def _problems(
    ranks: Mapping[int, RankLog], paths: Mapping[int, Path], nics: Iterable[NicState], count: int, promised: bool
) -> tuple[Diagnosis, ...]:
    """All problems, each once, with all ranks that it concerns.

    Args:
        ranks: every rank's log.
        paths: the path that each rank's log shows.
        nics: NICs of all nodes.
        count: RDMA NICs that each node must show; 0 does not count them.
        promised: whether gIB with GPUDirect RDMA must carry what goes between nodes.
    """
    found = [*_differences(ranks, paths), *_faults(ranks)]
    if promised:
        found += [*_broken(ranks, paths), *_missing_nics(list(nics), count, bool(ranks))]
    merged: dict[Diagnosis, set[int]] = {}
    for problem in found:
        merged.setdefault(replace(problem, ranks=()), set()).update(problem.ranks)
    return tuple(replace(problem, ranks=tuple(sorted(ranks))) for problem, ranks in merged.items())


def _broken(ranks: Mapping[int, RankLog], paths: Mapping[int, Path]) -> Iterator[Diagnosis]:
    """Broken promises, by the rank whose log shows something else or nothing."""
    if not ranks:
        yield _error("There is no NCCL log, so nothing shows gIB: gloo, or a run that wrote none.", _SUBSYSTEMS)
    # The ranks of a node share its NICs: one of them may have no connection of its own to other nodes.
    carried = {log.host for rank, log in ranks.items() if paths[rank] == "gib-gdr"}
    for rank, log in ranks.items():
        taken = paths[rank]
        shared = bool(log.local_channels) and log.host in carried and log.network in ("", "gIB")
        for text, remedy in _contradictions(log, taken, shared):
            yield _error(text, remedy, rank, log.host)
        if log.tuner_missing and not log.tuner and taken == "gib-gdr":
            text = "gIB's tuner was not loaded."
            yield Diagnosis(severity="warning", problem=text, remedy=_TUNER, ranks=(rank,), node=log.host)


def _contradictions(log: RankLog, taken: Path, shared: bool) -> Iterator[tuple[str, str]]:
    if not log.recognised:
        yield "Its log is empty or not NCCL's.", _SUBSYSTEMS
    elif taken == "gib-host":
        yield "gIB goes through host memory: not all channels have GPUDirect RDMA.", _GPU_DIRECT
    elif taken in _BETWEEN_NODES - {"gib-gdr"} or (taken == "unknown" and log.network not in ("", "gIB")):
        words = f"the network {log.network}" if taken == "unknown" else WORDS[taken]
        why = "; it found no network plugin" if log.plugin_missing and not log.plugin else ""
        yield f"NCCL took {words} where gIB was promised{why}.", INSTALLER
    elif taken in ("nvlink", "shm", "none") and not shared:
        yield "Its log shows no connection to another node.", "Check NCCL_HOSTID, and that the log is a whole one."
    elif taken == "unknown" and not shared:
        yield "Its log does not show which path was taken.", _SUBSYSTEMS


def _missing_nics(nics: list[NicState], count: int, logs: bool) -> Iterator[Diagnosis]:
    if count and logs and not nics:
        yield _error("No log lists an RDMA NIC.", INSTALLER)
    for node in dict.fromkeys(nic.node for nic in nics):
        found = [nic for nic in nics if nic.node == node]
        if len(found) < count:
            names = ", ".join(nic.name or str(nic.index) for nic in found)
            text = f"{len(found)} of {count} RDMA NICs appear in the logs: {names}."
            yield _error(
                text, f"Compare /sys/class/infiniband in the pod with a healthy node. {REPLACE_NODE}", node=node
            )
        for nic in found:
            if nic.gpu_direct is False:
                yield _error("It works without GPUDirect RDMA.", _GPU_DIRECT, node=node, nic=nic.label)


def _differences(ranks: Mapping[int, RankLog], paths: Mapping[int, Path]) -> Iterator[Diagnosis]:
    """Ranks that differ from most of the others."""
    aspects: list[tuple[str, Callable[[int], str]]] = [
        ("path", lambda rank: paths[rank] if paths[rank] in _BETWEEN_NODES else ""),
        ("network", lambda rank: ranks[rank].network),
        ("NCCL version", lambda rank: ranks[rank].version),
        ("plugin version", lambda rank: ranks[rank].plugin_version),
    ]
    for aspect, value in aspects:
        values = {rank: value(rank) for rank in ranks if value(rank)}
        usual = max(sorted(set(values.values())), key=list(values.values()).count, default="")
        for rank, found in values.items():
            if found != usual:
                text = f"Its {aspect} is {found}; that of most ranks is {usual}."
                yield _error(text, f"{SAME_IMAGE} {ENVIRONMENT}", rank, ranks[rank].host)


def _faults(ranks: Mapping[int, RankLog]) -> Iterator[Diagnosis]:
    for rank, log in ranks.items():
        for fault in log.faults:
            yield Diagnosis(
                severity=fault.severity,
                problem=f"{fault.name}: {fault.meaning}.",
                remedy=fault.remedy,
                ranks=(rank,),
                node=log.host,
                nic=fault.device,
            )


def _error(problem: str, remedy: str, rank: int | None = None, node: str = "", nic: str = "") -> Diagnosis:
    ranks = () if rank is None else (rank,)
    return Diagnosis(severity="error", problem=problem, remedy=remedy, ranks=ranks, node=node, nic=nic)


def _numbers(numbers: tuple[int, ...]) -> str:
    """`0-3, 7` of ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
