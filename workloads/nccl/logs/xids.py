"""NVIDIA's Xid catalogue for H100 and H200, and what each of its actions means on a GKE node. Pure.

Source: docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, "Resolution Bucket (Immediate Action)", as of
2025-10-29. A pod cannot reset a GPU, so every action beyond the job itself is one on the node.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from workloads.nccl.logs.remedies import KERNEL_LOG, REPLACE_GPU

Severity = Literal["error", "warning"]

_RESTART = "Run again: the same command goes on from the newest checkpoint."

ACTIONS: dict[str, tuple[Severity, str]] = {
    "IGNORE": ("warning", "Nothing to do; if it repeats, report it to NVIDIA or Google with the kernel log."),
    "RESTART_APP": ("error", f"{_RESTART} If it comes back on the same GPU: {REPLACE_GPU}"),
    "CHECK_APP": (
        "error",
        f"The program did something that the GPU refused. {_RESTART} If it repeats on other GPUs, "
        "look for a bug in a kernel (compute-sanitizer).",
    ),
    "RESET_GPU": ("error", f"The GPU needs a reset, which a pod cannot do. {REPLACE_GPU}"),
    "RESTART_BM": ("error", f"The machine needs a power cycle. {REPLACE_GPU}"),
    "RESTART_VM": ("error", f"The VM needs a restart. {REPLACE_GPU}"),
    "MEMORY": ("error", f"Uncorrectable GPU memory: what ran on it may hold wrong numbers. {REPLACE_GPU}"),
    "NVLINK": ("error", f"A link between the node's GPUs failed. {REPLACE_GPU}"),
    "FOLLOW": ("error", "It follows another Xid of the same node: act on that one. Alone, restart the node."),
    "CONTACT_SUPPORT": (
        "error",
        "Look it up in NVIDIA's catalogue of Xids (docs.nvidia.com/deploy/xid-errors) and ask NVIDIA or Google, with "
        f"the kernel's log: {KERNEL_LOG} Nothing says yet that the GPU is broken.",
    ),
}
"""The catalogue's buckets in our words -> severity and what to do. CHECK_APP is RESTART_APP with CHECK_APP/CUDA or a
workflow for Xid 13 or 31 as what to investigate; MEMORY is WORKFLOW_XID_48, NVLINK the WORKFLOW_NVLINK ones, FOLLOW is
WORKFLOW_XID_45 and XID_154; a power cable (CHECK_MECHANICALS) is the host's business, as a power cycle is."""


class Xid(NamedTuple):
    """One entry of the catalogue."""

    meaning: str
    """NVIDIA's description."""
    action: str
    """Key of `ACTIONS`."""


_ENGINES = (*range(70, 73), *range(75, 78), *range(82, 87), 88, 89, *range(96, 106), *range(126, 136), 139)
"""Copy, NVDEC, NVJPG and OFA engines, each with an Xid of its own."""

XIDS: dict[int, Xid] = {
    **dict.fromkeys(_ENGINES, Xid("Copy or video engine error", "RESTART_APP")),
    8: Xid("GPU stopped processing", "RESTART_APP"),
    11: Xid("Invalid or corrupted push buffer stream", "CHECK_APP"),
    13: Xid("Graphics Engine Exception", "CHECK_APP"),
    14: Xid("Unused", "IGNORE"),
    25: Xid("Invalid or illegal push buffer stream", "CHECK_APP"),
    31: Xid("GPU memory page fault", "CHECK_APP"),
    32: Xid("Invalid or corrupted push buffer stream", "CHECK_APP"),
    37: Xid("Driver firmware error", "IGNORE"),
    38: Xid("Driver firmware error", "IGNORE"),
    39: Xid("Copy Engine Exception", "RESTART_APP"),
    40: Xid("Copy Engine Exception", "RESTART_APP"),
    41: Xid("Copy Engine Exception", "RESTART_APP"),
    43: Xid("GPU stopped processing", "IGNORE"),
    44: Xid("Graphics Engine fault during context switch", "IGNORE"),
    45: Xid("Preemptive cleanup, due to previous errors", "FOLLOW"),
    46: Xid("GPU stopped processing", "RESET_GPU"),
    48: Xid("Double Bit ECC Error", "MEMORY"),
    54: Xid("Auxiliary power is not connected to the GPU board", "RESTART_BM"),
    60: Xid("Video processor exception", "RESTART_APP"),
    62: Xid("Internal micro-controller halt", "RESET_GPU"),
    63: Xid("GPU memory remapping event", "IGNORE"),
    64: Xid("GPU memory remapping failure", "RESET_GPU"),
    66: Xid("Illegal access by driver", "IGNORE"),
    67: Xid("Illegal access by driver", "IGNORE"),
    68: Xid("NVDEC0 Exception", "RESTART_APP"),
    69: Xid("Graphics Engine class error", "CHECK_APP"),
    74: Xid("NVLINK Error", "NVLINK"),
    78: Xid("vGPU Start Error", "CONTACT_SUPPORT"),
    79: Xid("GPU has fallen off the bus", "RESTART_BM"),
    80: Xid("Corrupted data sent to GPU", "CHECK_APP"),
    92: Xid("High single-bit ECC error rate", "IGNORE"),
    93: Xid("Non-fatal violation of provisioned InfoROM wear limit", "IGNORE"),
    94: Xid("Contained memory error", "RESTART_APP"),
    95: Xid("Uncontained memory error", "RESET_GPU"),
    106: Xid("SMBPBI Test Message", "IGNORE"),
    107: Xid("SMBPBI Test Message Silent", "IGNORE"),
    108: Xid("NVLink remote translation error", "IGNORE"),
    109: Xid("Context Switch Timeout Error", "RESET_GPU"),
    110: Xid("Security Fault Error", "RESET_GPU"),
    119: Xid("GSP RPC Timeout", "RESET_GPU"),
    120: Xid("GSP Error", "RESET_GPU"),
    121: Xid("C2C Error", "IGNORE"),
    136: Xid("Link Training Failed", "RESET_GPU"),
    137: Xid("NVLink Privilege Error", "IGNORE"),
    140: Xid("ECC Unrecovered Error", "RESET_GPU"),
    141: Xid("CUDA Fast Path Error", "IGNORE"),
    142: Xid("NVENC3 Error", "CONTACT_SUPPORT"),
    143: Xid("GPU Initialization Error", "RESET_GPU"),
    144: Xid("NVLINK: SAW Error", "NVLINK"),
    145: Xid("NVLINK: RLW Error", "NVLINK"),
    146: Xid("NVLINK: TLW Error", "NVLINK"),
    147: Xid("NVLINK: TREX Error", "NVLINK"),
    148: Xid("NVLINK: NVLPW_CTRL Error", "NVLINK"),
    149: Xid("NVLINK: NETIR Error", "NVLINK"),
    150: Xid("NVLINK: MSE Error", "NVLINK"),
    151: Xid("Key rotation Error", "RESTART_VM"),
    152: Xid("DLA SMMU Error", "IGNORE"),
    153: Xid("DLA timeout Error", "IGNORE"),
    154: Xid("GPU Recovery Action Changed", "FOLLOW"),
    155: Xid("NVLINK: SW Defined Error", "RESET_GPU"),
    156: Xid("Resource Retirement Event", "RESET_GPU"),
    157: Xid("Resource Retirement Failure", "IGNORE"),
    158: Xid("GPU Fatal Timeout", "RESET_GPU"),
    159: Xid("CHI Non-Data Error", "CONTACT_SUPPORT"),
    160: Xid("Channel Retirement Event", "IGNORE"),
    161: Xid("Channel Retirement Failure", "IGNORE"),
}

UNKNOWN = Xid("not in the catalogue of October 2025", "CONTACT_SUPPORT")
"""Entry for an Xid that is not listed above: the catalogue's own default."""
