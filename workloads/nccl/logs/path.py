"""Parser of one rank's NCCL log: network, NICs, channels, plugins, algorithms, errors. Pure, no verdicts.

The forms of the lines are those of NCCL's source, 2.18.1 to 2.30.7 (github.com/NVIDIA/nccl; src/init.cc, src/graph,
src/plugin, src/transport), and of the gIB, HPC-X and aws-ofi plugins as their logs are published.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from workloads.nccl.logs import faults
from workloads.nccl.logs.faults import LoggedError

_LINE = re.compile(
    r"(?:(?P<host><\w+>|[^\s:>)\]]+):[^\s:]+:[^\s:]+ \[\s*\d+\s*\] )?(?:\S+:\d+ (?:\(\w+\) )?)?"
    r"NCCL (?:INFO|WARN) +(?P<text>.*)"
)
"""`host:pid:tid [device] NCCL INFO text`, whatever a launcher writes before it; WARN names its place in the source."""

_VERSION = re.compile(r"NCCL version (\d+\.\d+[\w.+-]*)")
_NETWORK = re.compile(r"Using network (.+)")
_RANKS = re.compile(r"comm \S+ rank \d+ n[rR]anks (\d+)(?: nNodes (\d+))?")
_NIC_LIST = re.compile(r"NET/(?!Plugin)([^\s:]+) ?: ?Using (?=\[\d+\])(.*)")
_NIC = re.compile(r"\[(\d+)\]\s?([^\s:/]+):\d+/(\w+)")
_GPU_DIRECT = re.compile(r"NET/(.+?) ?: GPU Direct RDMA (Enabled|Disabled) for HCA (\d+) '([^']+)'")
_CHANNEL = re.compile(
    r"(?:Channel|Ring) \d+(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])? (?:\[(?:send|receive)\] )?via (.+)"
)
_NET_TRANSPORT = re.compile(r"NET/([^/]+)/(\d+)(?:\(\d+\))?(/GDRDMA)?")
_MULTICAST = re.compile(r"NVLS multicast support is (not )?available")
_CHANNELS = re.compile(r"(\d+) coll channels, (?:\d+ collnet channels, )?(\d+) nvls channels")
_CHOICE = re.compile(r"(\d+) Bytes -> Algo (\w+) proto (\w+)(?:.*?channel\{Lo\.\.Hi\}=\{(\d+)\.\.(\d+)\})?")
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
"""By number, as NCCL before 2.25 logs them (src/include/nccl_common.h)."""
_PROTOCOLS = ("LL", "LL128", "SIMPLE")

_NET_PLUGIN = re.compile(
    r"NET/Plugin ?: Loaded net plugin (.+?) \(v\d+\)|P2P plugin (\S+)"
    r"|Successfully loaded external (?:network )?plugin (\S+)"
)
_NO_NET_PLUGIN = re.compile(
    r"NET/Plugin ?: ?.*(?:No plugin found|Could not find: ?libnccl-net|using internal|Using internal)", re.IGNORECASE
)
_PLUGIN_VERSION = re.compile(
    r"Initializing (gIB) v(\S+)|Initializing network (\S+), version: (\S+)|(?:Initializing|Using) (aws-ofi-nccl) (\S+)"
)
_TUNER = re.compile(r"TUNER/Plugin: Using (?:tuner plugin )?(?!internal)(\S+)|Using tuner plugin: '(\S+)'")
_NO_TUNER = re.compile(r"TUNER/Plugin: .*(?:using internal tuner|Using internal tuner|Could not find)")


@dataclass(kw_only=True)
class Nic:
    """One RDMA NIC as one rank sees it."""

    index: int
    """NCCL's number, the one in `via NET/gIB/3`."""
    name: str = ""
    """Device, `mlx5_3`; empty where no line names it."""
    link: str = ""
    """`RoCE` or `IB`; empty where no line says."""
    gpu_direct: bool | None = None
    """Whether GPUDirect RDMA is enabled for it; None where no line says."""
    channels: int = 0
    """This rank's channels over it, both ways."""
    staged: int = 0
    """Of those, the ones that go through host memory."""

    @property
    def direct(self) -> bool | None:
        """True if all that is known of it is GPUDirect RDMA: the use by its channels outweighs its capability."""
        return self.staged == 0 if self.channels else self.gpu_direct


@dataclass(kw_only=True)
class RankLog:
    """One rank's log, parsed. If the log says nothing, a field keeps its default."""

    recognised: int = 0
    """Lines that are NCCL's own."""
    host: str = ""
    version: str = ""
    """NCCL's version, `2.27.7+cuda12.9`; only rank 0 writes it before 2.26."""
    network: str = ""
    """NCCL's name: `gIB`, `IB`, `IBext_v8`, `Socket`, `AWS Libfabric`."""
    ranks: int = 0
    nodes: int = 0
    """Nodes of the communicator; NCCL writes it since 2.20."""
    nics: dict[int, Nic] = field(default_factory=dict)
    network_channels: dict[str, list[bool]] = field(default_factory=dict)
    """Network -> whether GPUDirect RDMA is used, for each of this rank's channels to other nodes."""
    local_channels: dict[str, int] = field(default_factory=dict)
    """`P2P`, `SHM` -> channels to ranks on the same node."""
    plugin: str = ""
    """External network plugin that was loaded."""
    plugin_version: str = ""
    plugin_missing: bool = False
    tuner: str = ""
    """External tuner plugin that was loaded."""
    tuner_missing: bool = False
    nvls: bool | None = None
    """Whether NVLink SHARP has channels, or, where that is not said, whether multicast is available."""
    channels: int = 0
    """Channels of collectives."""
    choices: list[Choice] = field(default_factory=list)
    """What NCCL chose for each call that it logged."""
    faults: tuple[LoggedError, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Choice:
    """NCCL's choice for one collective call."""

    size: int
    """Bytes."""
    algorithm: str
    protocol: str
    channels: int
    """Number of channels; 0 if the log does not say."""


def read(text: str) -> RankLog:
    """Read one rank's log; any other text gives a RankLog with `recognised` 0."""
    log = RankLog(faults=faults.in_text(text))
    for host, line in _lines(text):
        log.recognised += 1
        log.host = log.host or host
        for reader in (_read_start, _read_plugins, _read_nics, _read_channel, _read_nvls, _read_choice):
            reader(log, line)
    return log


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Host and text of each line that is NCCL's."""
    for line in text.splitlines():
        if match := _LINE.search(line):
            yield match["host"] or "", match["text"].strip()
        elif match := _VERSION.match(line.strip()):
            yield "", match[0]


def _read_start(log: RankLog, line: str) -> None:
    if match := _VERSION.match(line):
        log.version = log.version or match[1]
    elif match := _NETWORK.fullmatch(line):
        log.network = match[1]
    elif match := _RANKS.search(line):
        log.ranks, log.nodes = int(match[1]), int(match[2] or log.nodes)


def _read_plugins(log: RankLog, line: str) -> None:
    if match := _NET_PLUGIN.search(line):
        # The file's name comes after the plugin's own.
        log.plugin = log.plugin or next(filter(None, match.groups()))
    elif _NO_NET_PLUGIN.search(line):
        log.plugin_missing = True
    elif match := _PLUGIN_VERSION.search(line):
        name, version = filter(None, match.groups())
        log.plugin, log.plugin_version = name, version
    if match := _TUNER.search(line):
        log.tuner = match[1] or match[2]
    elif _NO_TUNER.search(line):
        log.tuner_missing = True


def _read_nics(log: RankLog, line: str) -> None:
    if match := _NIC_LIST.search(line):
        for index, name, link in _NIC.findall(match[2]):
            nic = log.nics.setdefault(int(index), Nic(index=int(index)))
            nic.name, nic.link = name, link
    elif match := _GPU_DIRECT.search(line):
        log.network = log.network or match[1]
        # A socket has no GPUDirect RDMA to lose, and its interfaces are no RDMA NICs.
        if "socket" not in match[1].lower():
            nic = log.nics.setdefault(int(match[3]), Nic(index=int(match[3])))
            nic.name, nic.gpu_direct = match[4], match[2] == "Enabled"


def _read_channel(log: RankLog, line: str) -> None:
    match = _CHANNEL.search(line)
    if match is None:
        return
    transport = match[3]
    if net := _NET_TRANSPORT.match(transport):
        direct = net[3] is not None
        log.network_channels.setdefault(net[1], []).append(direct)
        log.network = log.network or net[1]
        if "socket" not in net[1].lower():
            nic = log.nics.setdefault(int(net[2]), Nic(index=int(net[2])))
            nic.channels += 1
            nic.staged += not direct
    else:
        kind = "SHM" if "SHM" in transport or "shared memory" in transport else transport.partition("/")[0]
        log.local_channels[kind] = log.local_channels.get(kind, 0) + 1


def _read_nvls(log: RankLog, line: str) -> None:
    if match := _CHANNELS.search(line):
        log.channels, log.nvls = int(match[1]), int(match[2]) > 0
    elif (match := _MULTICAST.search(line)) and log.nvls is None:
        log.nvls = match[1] is None


def _read_choice(log: RankLog, line: str) -> None:
    if match := _CHOICE.search(line):
        channels = int(match[5]) - int(match[4]) + 1 if match[4] else 0
        log.choices.append(
            Choice(
                size=int(match[1]),
                algorithm=_named(match[2], _ALGORITHMS),
                protocol=_named(match[3], _PROTOCOLS),
                channels=channels,
            )
        )


def _named(word: str, names: tuple[str, ...]) -> str:
    """NCCL's name of an algorithm or protocol that a log gives by number or by name."""
    if word.isdigit():
        return names[int(word)] if int(word) < len(names) else word
    return word.upper()
