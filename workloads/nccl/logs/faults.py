"""The errors in NCCL's and the kernel's logs: their meaning, and advice. Pure.

Sources, by letter in the table: G Google, "Collect and understand NCCL/gIB logs for troubleshooting"
(docs.cloud.google.com/ai-hypercomputer/docs/nccl/collect-and-understand, 2026-04-06); N NVIDIA, NCCL user guide,
"Troubleshooting"; a number is a thread of github.com/NVIDIA/nccl; S NCCL's source, 2.30.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from workloads.nccl.logs import xids
from workloads.nccl.logs.remedies import ENVIRONMENT, INSTALLER, KERNEL_LOG, REPLACE_NODE, SAME_IMAGE
from workloads.nccl.logs.xids import Severity

_OTHER_RANK = "Look for the rank that failed first, by time: this one only saw its peer go."


@dataclass(frozen=True, kw_only=True)
class LoggedError:
    """One error in a log."""

    name: str
    """`Xid 79`, `RDMA completion error 12`, `ncclRemoteError`."""
    meaning: str
    remedy: str
    severity: Severity
    """A warning is tolerable: the job can still be correct and fast."""
    device: str = ""
    """PCI address of the GPU or name of the NIC, if the line has one."""
    follows: bool = False
    """Whether the end of another rank alone may cause it."""

    @property
    def of_another(self) -> bool:
        """True if it only shows that a peer has failed."""
        return self.remedy == _OTHER_RANK

    def __str__(self) -> str:
        where = f" on {self.device}" if self.device else ""
        return f"{self.name}{where}: {self.meaning}. {self.remedy}"


def _known(
    pattern: str, name: str, meaning: str, remedy: str, severity: Severity = "error", follows: bool = False
) -> tuple[re.Pattern[str], LoggedError]:
    """An error, and the pattern of a line that reports it."""
    follows = follows or remedy == _OTHER_RANK
    error = LoggedError(name=name, meaning=meaning, remedy=remedy, severity=severity, follows=follows)
    return re.compile(pattern), error


_WARNINGS = (
    # G: link flaps and the like; N: IBV_WC_RETRY_EXC_ERR, the peer did not answer. 1405, 1814.
    _known(r"Got completion .*(?:error |status=\D*)12\b", "RDMA completion error 12",
           "the peer's NIC did not answer within NCCL_IB_TIMEOUT and its retries: its process is gone, or a link flaps",
           f"Look for a rank that failed first. If there is none: {REPLACE_NODE}", follows=True),
    # 707, 1052: IBV_WC_LOC_PROT_ERR with GPUDirect RDMA.
    _known(r"Got completion .*(?:error |status=\D*)4\b", "RDMA completion error 4",
           "the NIC may not read or write the GPU's memory: GPUDirect RDMA fails between driver, NIC and PCIe",
           f"Confirm with NCCL_NET_GDR_LEVEL=LOC, which goes through host memory. {REPLACE_NODE}"),
    # 1814: IBV_WC_WR_FLUSH_ERR.
    _known(r"Got completion .*(?:error |status=\D*)5\b", "RDMA completion error 5",
           "a request was flushed after another had failed", "Act on the completion error before it.", follows=True),
    _known(r"Got completion ", "RDMA completion error", "a transfer over RDMA failed", REPLACE_NODE),
    # G: errno 61.
    _known(r"ibv_modify_qp failed .*(?:No data available|\b61\b)", "ibv_modify_qp 61",
           "this node's table of RDMA addresses (GIDs) is broken, or NCCL_IB_GID_INDEX is wrong",
           f"Run /usr/local/gib/scripts/show_gids.sh: four entries for each NIC, two of them IPv4. {REPLACE_NODE}"),
    # G: errno 22.
    _known(r"ibv_modify_qp failed .*(?:Invalid argument|\b22\b)", "ibv_modify_qp 22",
           "the peer's table of RDMA addresses is broken, or NCCL_IB_GID_INDEX, NCCL_IB_TC or NCCL_IB_FIFO_TC is wrong",
           f"Look for ibv_modify_qp 61 on another node and act on that. {ENVIRONMENT}"),
    # G: errno 110; 2013: rails that do not reach each other.
    _known(r"ibv_modify_qp failed .*(?:timed out|\b110\b)", "ibv_modify_qp 110",
           "two NICs do not reach each other", f"Check that NCCL_CROSS_NIC is 0. {ENVIRONMENT} Then: {REPLACE_NODE}"),
    # N, "Runtime and MPI issues": containers have little pinned memory by default; nccl-tests 206: so said ibv_reg_mr.
    # Linux, drivers/infiniband/core/umem.c: CAP_IPC_LOCK is above the limit.
    _known(r"ibv_\w+ failed .*Cannot allocate memory", "RDMA out of memory",
           "a NIC could not pin memory, mostly because the container's limit of locked memory (memlock) is low",
           "Look at `kubectl -n NAMESPACE exec POD -- sh -c 'ulimit -l'`: it has to be unlimited, or the container "
           "needs the capability IPC_LOCK (with Docker: --ulimit memlock=-1)."),
    # nccl-tests 185 (Network is unreachable), 925 (No such device).
    _known(r"ibv_\w+ failed", "RDMA setup failed", "a NIC refused a call of NCCL's",
           f"{ENVIRONMENT} Then: {REPLACE_NODE}"),
    # AI-Hypercomputer/gpu-recipes 5; S from 2.27 on: Failed to initialize any NET plugin.
    _known(r"network \S+ not found|Failed to initialize any NET plugin", "network plugin missing",
           "NCCL_NET names a plugin that could not be loaded", INSTALLER),
    # G, S.
    _known(r"Message truncated|Mismatched NCCL version|NCCL version mismatch", "versions differ",
           "ranks run different versions of NCCL or of its plugin", SAME_IMAGE),
    # S: 2.30.
    _known(r"mixed local Net device counts", "NICs differ", "nodes see different numbers of NICs",
           f"Compare /sys/class/infiniband on the nodes. {REPLACE_NODE}"),
    # G: the guest config checker ends the job on one and not on the other.
    _known(r"mismatch enforced", "gIB refuses a setting", "a variable of NCCL is not what gIB demands", ENVIRONMENT),
    _known(r"mismatch recommended", "gIB advises a setting", "a variable of NCCL is not what gIB recommends",
           ENVIRONMENT, "warning"),
    _known(r"GUEST_CONFIG_CHECKER_CONFIG_FILE", "gIB has no configuration", "gIB's checker found no guest_config.txtpb",
           f"{ENVIRONMENT} {INSTALLER}"),
    _known(r"No NCCL_TUNER_CONFIG_PATH", "tuner has no configuration", "NCCL uses its own choices of algorithm",
           ENVIRONMENT, "warning"),
    # 1562, 1672, NVIDIA/DCGM 304; S.
    _known(r"NVLink SHARP \(NVLS\)|transport/nvls\.cc", "NVLS failed",
           "the node's NVSwitch fabric refused multicast: Fabric Manager or a link is in a bad state",
           f"NCCL_NVLS_ENABLE=0 gets by at three quarters of the speed. {REPLACE_NODE}"),
    # 1232, and S.
    _known(r"[Cc]onnection closed by|Connection reset|Broken pipe", "connection lost",
           "a peer closed its connection", _OTHER_RANK),
    _known(r"no socket interface found|No interface found", "no interface",
           "NCCL_SOCKET_IFNAME names none that is there", ENVIRONMENT),
    _known(r"Connection refused|No route to host|[Cc]onnect to .* failed", "peer out of reach",
           "the nodes do not reach each other over TCP", "Look at network policies and firewalls between the nodes."),
    # S: src/enqueue.cc.
    _known(r"no algorithm/protocol available", "no algorithm",
           "settings leave NCCL no way for this collective, type or number of nodes",
           "Unset NCCL_ALGO and NCCL_PROTO; with `bench`, leave --algo out."),
    _known(r"Duplicate GPU detected", "one GPU twice", "two ranks use the same GPU",
           "Give each rank its own, as --ranks-per-node does."),
    _known(r"shared memory", "shared memory", "/dev/shm is too small or full", "Raise the pod's /dev/shm."),
    # 531, 969.
    _known(r"collective mismatch|posted incorrect receive", "collectives differ",
           "ranks called different collectives, sizes or settings", f"{ENVIRONMENT} {SAME_IMAGE}"),
    _known(r"Cuda failure", "CUDA error", "a CUDA call failed inside NCCL",
           f"Look in the kernel log for an Xid: {KERNEL_LOG}"),
    # 487: it costs speed at most, which the thresholds judge.
    _known(r"Could not find a path for pattern", "topology", "NCCL found no ideal path between GPUs and NICs",
           "Compare the node's topology with a healthy one.", "warning"),
)  # fmt: skip

_LINES = (
    # What torch and Ray print of NCCL's result codes (S, nccl.h), and torch's watchdog.
    _known(r"\bncclSystemError\b", "ncclSystemError", "a call to the system or a driver failed",
           "The last NCCL WARN of the same rank says which.", follows=True),
    _known(r"\bncclRemoteError\b|remote process exit", "ncclRemoteError",
           "a peer exited, or the network between them failed", _OTHER_RANK),
    _known(r"\bncclInternalError\b", "ncclInternalError", "NCCL failed inside",
           "The last NCCL WARN of the same rank says where."),
    _known(r"\bncclInvalidUsage\b", "ncclInvalidUsage", "ranks disagree, two share a GPU, or a setting is wrong",
           "The last NCCL WARN of the same rank says which."),
    _known(r"\bncclUnhandledCudaError\b", "ncclUnhandledCudaError", "a CUDA call failed inside NCCL",
           f"Look in the kernel log of the node for an Xid: {KERNEL_LOG}"),
    _known(r"[Ww]atchdog caught collective operation timeout", "collective timeout",
           "a rank waited in a collective until the limit: another never entered it, or the network stalled",
           "The rank that did not time out is the one to look at.", follows=True),
    # PyTorch, c10/cuda/CUDAMiscFunctions.cpp: the traceback may be another call's. xids.py: the driver's Xid is 31.
    _known(r"CUDA error: an illegal memory access", "illegal memory access",
           "a CUDA kernel of the program read or wrote outside its memory, and each later call fails alike",
           "Run again with CUDA_LAUNCH_BLOCKING=1, so that the traceback names the call. If only one node has it, look "
           f"in its kernel log for an Xid: {KERNEL_LOG}"),
    # G: the mount of gIB is missing; NCCL goes on over TCP.
    _known(r"couldn't open config directory '/usr/local/gib", "gIB not mounted",
           "/usr/local/gib is not mounted, and NCCL falls back to TCP", INSTALLER),
    # G and gpu-recipes 5: the image is older than the plugin.
    _known(r"version `GLIBC_[\d.]+' not found", "image too old", "the image's glibc is older than the plugin needs",
           "Build on a newer base image: gIB needs glibc 2.29, its latest releases 2.34."),
)  # fmt: skip

_ENDS = (
    _known(
        r"OutOfMemoryError|CUDA out of memory",
        "GPU out of memory",
        "the rank needed more memory than its GPU has",
        "Train with a smaller batch_size, or look for what else uses the GPU.",
    ),
    _known(
        r"oom-kill|Out of memory: Killed process|OOMKilled|SIGKILL|signal 9\b|exit code:? 137\b",
        "killed",
        "the process was killed from outside, mostly because its node or pod was out of memory",
        "Look at the pod's last state (`kubectl -n NAMESPACE describe pod POD`); use fewer or smaller loaders.",
    ),
    _known(
        r"Segmentation fault|SIGSEGV|signal 11\b|SIGABRT|signal 6\b",
        "crash",
        "compiled code of the program or a library failed",
        "Run again with PYTHONFAULTHANDLER=1 to see where.",
    ),
    _known(
        r"(?:^|[\])] ?|: )(?:\w+\.)*(?!Ray|Dist|Worker|Training)\w*(?:Error|Exception)(?:: |$)",
        "Python error",
        "the rank's own program failed",
        "Mend what the line names; the traceback above it says where.",
    ),
)
"""Ends of a rank's own program; these are not errors of NCCL, whose lines may contain the same words."""

PROGRAM_ENDS = frozenset(error.name for _, error in _ENDS)
"""Names of those ends."""

_PEER = re.compile(r"nccl|gloo|connection (?:closed|reset)", re.IGNORECASE)
"""An exception that only passes on what happened to another rank."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
_BUS = re.compile(r"NVRM: (?:.*?([0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.\d)?).*)?fallen off the bus")
_WARN = re.compile(r"(\S*:\d+ (?:\(\w+\) )?)?NCCL WARN (.+)")
_DEVICE = re.compile(r"(?:\bhca |\bon dev )(\w+)")


def in_text(text: str) -> tuple[LoggedError, ...]:
    """The errors of a log of NCCL, of a worker or of the kernel, in the order of their first lines, each once."""
    return tuple(dict.fromkeys(fault for line in by_line(text) for fault in line))


def by_line(text: str) -> Iterator[tuple[LoggedError, ...]]:
    """The errors of each line of such a log; mostly none."""
    before = ""
    for line in text.splitlines():
        # torch quotes NCCL's last warning so, without what NCCL writes before it.
        quoted = [_of_warning(line.strip())] if before.rstrip().endswith("Last error:") else []
        yield (*_in_line(line), *quoted)
        before = line


def of_program(line: str) -> LoggedError | None:
    """The end of a rank's own program that a line reports; None if it reports none."""
    if _PEER.search(line):
        return None
    return next(_matching(_ENDS, line), None)


def advice(text: str) -> str:
    """Advice on the errors in a text, as sentences; empty if it contains no known error."""
    return " ".join(
        str(fault) for fault in in_text(text) if fault.severity == "error" and fault.name != UNKNOWN_WARNING
    )


def origins(logs: Mapping[int, str]) -> dict[int, tuple[LoggedError, ...]]:
    """The ranks whose logs show a failure of their own, and the failures; ranks that only lost a peer are left out.

    Args:
        logs: log of each rank.
    """
    errors = {
        rank: tuple(fault for fault in in_text(text) if fault.severity == "error" and not fault.of_another)
        for rank, text in logs.items()
    }
    return {rank: found for rank, found in errors.items() if found}


UNKNOWN_WARNING = "NCCL warning"
"""Name of a WARN line that is not in the table."""


def _in_line(line: str) -> Iterator[LoggedError]:
    if match := _XID.search(line):
        yield of_xid(int(match[2]), match[1])
    elif match := _BUS.search(line):
        yield of_xid(79, match[1] or "")
    if match := _WARN.search(line):
        # Its place in NCCL's source is part of what tells one warning from another.
        yield _of_warning(f"{match[1] or ''}{match[2]}".strip())
    yield from _matching(_LINES, line)


def of_xid(code: int, device: str) -> LoggedError:
    """Meaning of an Xid.

    Args:
        code: its number.
        device: PCI address of the GPU.
    """
    xid = xids.XIDS.get(code, xids.UNKNOWN)
    severity, remedy = xids.ACTIONS[xid.action]
    return LoggedError(name=f"Xid {code}", meaning=xid.meaning, remedy=remedy, severity=severity, device=device)


def _of_warning(text: str) -> LoggedError:
    remedy = "If the job fails or is slow, start here."
    unknown = LoggedError(name=UNKNOWN_WARNING, meaning=text.rstrip("."), remedy=remedy, severity="warning")
    return next(_matching(_WARNINGS, text), unknown)


def _matching(known: Iterable[tuple[re.Pattern[str], LoggedError]], line: str) -> Iterator[LoggedError]:
    """The known errors in a line, with the device that it names."""
    device = _DEVICE.search(line)
    for pattern, error in known:
        if pattern.search(line):
            yield replace(error, device=device[1] if device else "")
