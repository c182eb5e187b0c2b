"""Xids and NCCL's errors, and what is to be done: NVIDIA's catalogue, and lines that people have published."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.workloads.nccl.test_verdict import LOGS
from workloads.nccl.logs import faults, xids

CATALOGUE = {
    "RESTART_APP": [
        *(8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94),
        *(96, 97, 98, 99, 100, 101, 102, 103, 104, 105, *range(126, 136), 139),
    ],
    "IGNORE": [14, 108, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161],
    "RESET_GPU": [46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158],
    "WORKFLOW_NVLINK5_ERR": [144, 145, 146, 147, 148, 149, 150],
    "RESTART_BM": [79],
    "RESTART_VM": [151],
    "WORKFLOW_XID_45": [45],
    "WORKFLOW_XID_48": [48],
    "WORKFLOW_NVLINK_ERR": [74],
    "XID_154": [154],
    "CHECK_MECHANICALS": [54],
    "UPDATE_SWFW": [78],
    "CHECK_UVM": [159],
    "CONTACT_SUPPORT": [1, 2, 3, 61, 142, 9999],
}
"""Codes by immediate action, as NVIDIA has them (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, as
copied on 2025-10-29 into github.com/leptonai/gpud, components/accelerator/nvidia/xid/catalog_generated.go)."""

OURS = {
    "RESTART_APP": {"RESTART_APP", "CHECK_APP"},
    "WORKFLOW_NVLINK5_ERR": {"NVLINK"},
    "WORKFLOW_NVLINK_ERR": {"NVLINK"},
    "WORKFLOW_XID_45": {"FOLLOW"},
    "XID_154": {"FOLLOW"},
    "WORKFLOW_XID_48": {"MEMORY"},
    "CHECK_MECHANICALS": {"RESTART_BM"},
    "UPDATE_SWFW": {"CONTACT_SUPPORT"},
    "CHECK_UVM": {"CONTACT_SUPPORT"},
}
"""Our words for an action, where they are not NVIDIA's."""

KERNEL = {
    # github.com/leptonai/gpud/pull/46
    "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp "
    "Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter": ("Xid 13", "0000:cb:00", "error"),
    # github.com/NVIDIA/open-gpu-kernel-modules/issues/1150
    "kernel: NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149": (
        "Xid 45",
        "0000:dc:00",
        "error",
    ),
    # docs.nvidia.com/deploy/xid-errors/index.html: drivers before the PCI: prefix
    "NVRM: Xid (0000:03:00): 14, Channel 00000001": ("Xid 14", "0000:03:00", "warning"),
    # modal.com/docs/guide/gpu-health
    "XID: NVRM: Xid (PCI:0000:c6:00): 79, pid=1101234, name=nvc:[driver], GPU has fallen off the bus.": (
        "Xid 79",
        "0000:c6:00",
        "error",
    ),
    # github.com/leptonai/gpud/pull/1174
    "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x00000000)": (
        "Xid 149",
        "0019:01:00",
        "error",
    ),
    # github.com/NVIDIA/NVSentinel/issues/155, and NV_DEV_PRINTF in NVIDIA/open-gpu-kernel-modules, osinit.c: no Xid
    "               NVRM: fallen off the bus and is not responding to commands.": ("Xid 79", "", "error"),
    "NVRM: GPU 0000:b3:00.0: GPU has fallen off the bus.": ("Xid 79", "0000:b3:00.0", "error"),
}


@pytest.mark.parametrize(("bucket", "code"), [(bucket, code) for bucket, codes in CATALOGUE.items() for code in codes])
def test_every_xid_has_the_action_of_nvidias_catalogue(bucket: str, code: int) -> None:
    action = xids.XIDS.get(code, xids.UNKNOWN).action
    assert action in OURS.get(bucket, {bucket})
    fault = faults.of_xid(code, "0000:04:00")
    assert (fault.severity == "warning") == (bucket == "IGNORE")
    assert fault.remedy and "on 0000:04:00" in str(fault)


def test_what_is_in_the_table_is_in_the_catalogue() -> None:
    assert set(xids.XIDS) <= {code for codes in CATALOGUE.values() for code in codes}
    assert {xid.action for xid in xids.XIDS.values()} == set(xids.ACTIONS)


@pytest.mark.parametrize("line", KERNEL)
def test_a_line_of_the_kernel_log_is_read(line: str) -> None:
    (fault,) = faults.in_text(f"kernel: something else\n{line}\n{line}")
    assert (fault.name, fault.device, fault.severity) == KERNEL[line]


@pytest.mark.parametrize(
    ("text", "name", "remedy"),
    [
        ("ncclRemoteError: A call failed possibly due to a network error", "ncclRemoteError", "failed first"),
        ("ncclSystemError: System call (e.g. socket, malloc) or external library", "ncclSystemError", "NCCL WARN"),
        ("ncclInternalError: Internal check failed.", "ncclInternalError", "NCCL WARN"),
        ("ncclUnhandledCudaError: Call to CUDA function failed.", "ncclUnhandledCudaError", "Xid"),
        ("ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", "ncclInvalidUsage", "NCCL WARN"),
        # NVIDIA/nccl, src/enqueue.cc
        (
            "enqueue.cc:1 NCCL WARN Error : no algorithm/protocol available for function AllReduce with datatype "
            "ncclFloat32. NCCL_ALGO was set to NVLSTREE.",
            "no algorithm",
            "NCCL_ALGO",
        ),
        (
            "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE)",
            "collective timeout",
            "rank that did not time out",
        ),
        # github.com/NVIDIA/nccl-tests/issues/206
        (
            "misc/ibvwrap.cc:278 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
            "RDMA out of memory",
            "ulimit -l",
        ),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal memory access", "BLOCKING=1"),
        ("bootstrap.cc:48 NCCL WARN Bootstrap : no socket interface found", "no interface", "set_nccl_env.sh"),
        ("misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer n", "connection lost", "first"),
        (
            "init.cc:1 NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 4000",
            "one GPU twice",
            "",
        ),
    ],
)
def test_what_torch_and_nccl_print_of_an_error_becomes_advice(text: str, name: str, remedy: str) -> None:
    (fault,) = faults.in_text(f"Traceback\n  {text}")
    assert (fault.name, fault.severity) == (name, "error")
    assert remedy in fault.remedy
    assert fault.remedy in faults.advice(text)


def test_the_last_warning_that_torch_quotes_is_read_too() -> None:
    # github.com/pytorch/pytorch/pull/177472
    text = (
        "ncclUnhandledCudaError: Call to CUDA function failed. \nLast error: \nFailed to bind NVLink SHARP (NVLS) "
        "Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'. "
    )
    assert [fault.name for fault in faults.in_text(text)] == ["ncclUnhandledCudaError", "NVLS failed"]


def test_a_warning_that_nobody_knows_is_shown_and_is_no_error() -> None:
    (fault,) = faults.in_text("host:1:2 [0] init.cc:9 NCCL WARN the moon is full")
    assert (fault.name, fault.severity) == (faults.UNKNOWN_WARNING, "warning")
    assert "the moon is full" in fault.meaning
    assert faults.advice("host:1:2 [0] init.cc:9 NCCL WARN the moon is full") == ""


@pytest.mark.parametrize("text", ["", "step 12 of 100, loss 2.3", "NCCL INFO transport/net.cc:1298 -> 6", "Xid 79"])
def test_a_log_without_errors_has_none(text: str) -> None:
    assert faults.in_text(text) == ()


def test_who_failed_first_is_told_from_those_who_saw_a_peer_go() -> None:
    logs = {
        0: "a:1:2 [0] NCCL WARN socket.cc:1 Connection closed by remote peer",
        1: "a:1:2 [1] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 (Recv) hca mlx5_3",
        2: "a:1:2 [2] NCCL WARN No NCCL_TUNER_CONFIG_PATH",
        3: "",
    }
    found = faults.origins(logs)
    assert {rank: [(fault.name, fault.device) for fault in of] for rank, of in found.items()} == {
        1: [("RDMA completion error 12", "mlx5_3")]
    }


def test_a_kernels_line_without_a_name_is_not_laid_on_the_node_of_the_pod_whose_log_it_stands_in(
    tmp_path: Path, cli: CommandLine
) -> None:
    log = tmp_path / "job.log"
    log.write_text(
        "node-a:17:42 [0] transport/net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.5 with status=12\n"
        "[ 8123.445] NVRM: Xid (PCI:0000:8d:00): 79, pid=1, GPU has fallen off the bus.\n"
    )

    said = explained(cli, str(log))

    assert "Xid 79" in said
    assert "On the node that wrote the log, which no line names" in said and "node of node-a" not in said


def explained(cli: CommandLine, *words: str) -> str:
    """What `explain` prints."""
    return cli("explain", *words).out


def test_logs_are_explained_in_a_table_with_each_kind_of_error_once(tmp_path: Path, cli: CommandLine) -> None:
    lost = "NVRM: Xid (PCI:0000:{}:00): 79, pid=1101234, GPU has fallen off the bus.\n"
    kernel, quiet, log = tmp_path / "kern.log", tmp_path / "quiet.log", LOGS / "nccl_1814_completion.txt"
    kernel.write_text("step 1\n" + lost.format("c6") + lost.format("c7"))
    quiet.write_text("step 1\n")
    said = explained(cli, str(kernel), str(log), "--node", "gke-h200-1", "--zone", "us-east5-a")
    assert f"{log}: NCCL's own IB through host memory, without GPUDirect RDMA, 2 of 2 NICs carry channels" in said
    table, _, commands = said.partition("\nOn gke-h200-1:\n")
    assert "kern.log:2 and 1 more" in table and "nccl_1814_completion.txt:4" in table
    assert table.count("error: Xid 79") == 1
    assert "0000:c6:00" in table and "0000:c7:00" in table and "The machine needs a power" in table
    assert "gcloud compute instances report-host-as-faulty gke-h200-1 --zone us-east5-a" in commands
    assert not {"NODE", "ZONE"} & set(said.split()), "a placeholder was left"
    assert f"{quiet}: no Xid and no error of NCCL" in explained(cli, str(quiet))


def test_a_pod_s_log_gives_commands_that_find_its_node_themselves(tmp_path: Path, cli: CommandLine) -> None:
    log = tmp_path / "rank0.log"
    log.write_text(
        "ray-worker-7:9:1 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=4 (Recv)\n"
    )
    said = explained(cli, str(log))
    assert "--field-selector metadata.name=ray-worker-7" in said and "kubectl cordon $NODE" in said
    assert not {"NODE", "ZONE"} & set(said.split())


def test_the_kernel_s_log_names_its_node_itself(tmp_path: Path, cli: CommandLine) -> None:
    log = tmp_path / "kern.log"
    log.write_text("booted\nAug 30 11:43:14 gke-h200-1 kernel: [97.1] NVRM: Xid (PCI:0000:c6:00): 79, pid=1, lost\n")
    said = explained(cli, str(log))
    assert "kubectl cordon gke-h200-1" in said and "ZONE=$(kubectl get node gke-h200-1 " in said
    assert not {"NODE", "ZONE"} & set(said.split())


def test_only_an_xid_that_says_so_is_reported_as_a_broken_gpu() -> None:
    """Behavior UNRECOVERABLE_GPU_ERROR is "identified by an XID", by the API; a NIC or an unknown Xid is neither."""
    texts = ["Got completion with status=12", "Got completion with status=4", "ibv_modify_qp failed with 61", "NVLS"]
    of_nics = [fault for text in texts for fault in faults.in_text(f"NCCL WARN NET/IB : {text}")]
    assert len(of_nics) == len(texts)
    for fault in (*of_nics, faults.of_xid(9999, "0000:04:00")):
        assert "GPU_ERROR" not in fault.remedy, fault.name
    assert "report-host-as-faulty" not in faults.of_xid(9999, "").remedy
    assert "GPU_ERROR" in faults.of_xid(79, "").remedy


PEERS = (
    "host:1:2 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer a\n"
    "host:1:2 [0] NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 (Recv) hca mlx5_3\n"
    "[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027, remote process exited or "
    "there was a network error, NCCL version 2.27.7\n"
)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("(RayTrainWorker pid=3711, ip=10.52.3.7) [rank3]: ValueError: no image in shard 17", "Python error"),
        ("[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "GPU out of memory"),
        ("[rank3]: Fatal Python error: Segmentation fault", "crash"),
        ("[rank3]: worker was killed by signal 9", "killed"),
    ],
)
def test_a_remote_process_that_exited_is_followed_to_its_own_line(
    line: str, name: str, tmp_path: Path, cli: CommandLine
) -> None:
    log = tmp_path / "worker.log"
    log.write_text(f"step 12 of 100\n{PEERS}{line}\n")
    said = " ".join(explained(cli, str(log)).split())
    assert said.count(f"error: {name}: ") == 1, "the failing rank's own line"
    for follower in ("connection lost", "RDMA completion error 12", "ncclRemoteError"):
        assert follower in said
    assert "rank 3" in said and "Act on line 5." in said
    assert "cordon" not in said, "the nodes of ranks that only saw another one go are sound"

    log.write_text(PEERS)
    assert "add the logs of the other ranks and nodes" in " ".join(explained(cli, str(log)).split())


def test_a_log_that_is_not_there_is_one_message(cli: CommandLine) -> None:
    assert cli("explain", "nowhere.log", code=2).err.startswith(
        "error: nowhere.log cannot be read: No such file or directory."
    )
