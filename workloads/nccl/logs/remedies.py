"""Advice that several findings share. Pure."""

from __future__ import annotations


def _replace(behavior: str) -> str:
    return (
        "Take the node out (`kubectl get pods -A -o wide` names a pod's): `kubectl cordon NODE`, then delete its pods. "
        "Have it replaced: `gcloud compute instances report-host-as-faulty NODE --zone ZONE --disruption-schedule "
        f"IMMEDIATE --fault-reasons behavior={behavior}`."
    )


REPLACE_NODE = _replace("PERFORMANCE")
"""gcloud reference, compute instances report-host-as-faulty; it works on reserved hosts. A flex-start or Spot node is
replaced once it is deleted."""

REPLACE_GPU = _replace("UNRECOVERABLE_GPU_ERROR")
"""Only for an Xid, as the definition of this behavior says (Compute Engine API, InstancesReportHostAsFaultyRequest:
`Unrecoverable GPU error identified by an XID`); a faulty NIC or link does not show that the GPU is broken."""

INSTALLER = (
    "Look at the log of the worker's init container (`kubectl -n NAMESPACE logs POD -c install-gib`), and whether the "
    "worker mounts /usr/local/gib, has /usr/local/gib/lib64 in LD_LIBRARY_PATH and sources set_nccl_env.sh."
)

ENVIRONMENT = (
    "Let /usr/local/gib/scripts/set_nccl_env.sh alone set NCCL's variables; take out your own NCCL_ variables."
)

SAME_IMAGE = "Run one image on all nodes (`make image`, then `make restart`, with the stack's STACK), and one gIB."

KERNEL_LOG = (
    "`gcloud compute instances get-serial-port-output NODE --zone ZONE | python -m workloads explain - --node NODE` "
    "reads what its kernel wrote."
)
