"""What to do, in the words that several findings share. Pure."""

from __future__ import annotations

REPLACE_NODE = (
    "Take the pod's node out (`kubectl get pods -o wide` names it; `kubectl cordon NODE`, then delete its pods) and "
    "have it replaced: `gcloud compute instances report-host-as-faulty NODE --zone ZONE --disruption-schedule "
    "IMMEDIATE --fault-reasons behavior=UNRECOVERABLE_GPU_ERROR`."
)
"""gcloud reference, compute instances report-host-as-faulty; it works on reserved hosts. A flex-start or Spot node is
replaced once it is deleted."""

INSTALLER = (
    "Look at the log of the worker's init container (`kubectl logs POD -c install-gib`), and whether the worker mounts "
    "/usr/local/gib, has /usr/local/gib/lib64 in LD_LIBRARY_PATH and sources set_nccl_env.sh."
)

ENVIRONMENT = (
    "Let /usr/local/gib/scripts/set_nccl_env.sh alone set NCCL's variables; take out your own NCCL_ variables."
)

SAME_IMAGE = "Run one image on all nodes (`make restart STACK=...` after `make image`), and one version of gIB."

KERNEL_LOG = (
    "`gcloud compute instances get-serial-port-output NODE --zone ZONE | python -m workloads explain -` reads what its "
    "kernel wrote."
)
