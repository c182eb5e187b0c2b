"""Volumes of a Ray pod: the two buckets through Cloud Storage FUSE, scratch disk, shared memory. Pure.

The FUSE sidecar is sized here: with its default 256 MiB it is killed under load, and the mounts die with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi

from oasis_stack.facts.pod_size import PodSize, sidecar
from workloads.environment import DATA_MOUNT, RUNS_MOUNT, SCRATCH_MOUNT

DRIVER = "gcsfuse.csi.storage.gke.io"

USER, GROUP = 1000, 100
"""`ray:users` of the Ray images (ray-project/ray 2.60, docker/base-deps/Dockerfile)."""

LOCAL_SSD_GIB = 340
"""Usable part of one local SSD of 375 GB."""

SHARED_MEMORY_MAX_GIB = 250
"""What Google's NCCL tests mount on A3 Ultra; Ray's object store takes at most 200 GB of it by itself."""


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """Buckets that are mounted in every pod."""

    data: pulumi.Input[str]
    """Bucket that jobs read; a bucket that the service account may not read leaves the pod in creation."""
    runs: pulumi.Input[str]
    """Bucket for results and logs; as above, for reading and writing."""
    runs_folder: str
    """Folder of it that is mounted; empty: all of it."""


@dataclass(frozen=True, kw_only=True)
class PodVolumes:
    """Volumes of a pod, their mounts in its Ray container, and the annotations that bring in the FUSE sidecar."""

    annotations: dict[str, str]
    volumes: list[dict[str, Any]]
    mounts: list[dict[str, Any]]


def pod_volumes(buckets: Buckets, size: PodSize, local_ssds: int, training: bool) -> PodVolumes:
    """Volumes of a pod of `size`; `training` pods live for days at most and read the same files again and again."""
    disk_gib = local_ssds * LOCAL_SSD_GIB
    cache_gib, scratch_gib = (disk_gib // 4, disk_gib // 2) if disk_gib else (8, 20)
    shared_gib = shared_memory_gib(size.memory_gib)
    options = data_options(cache_gib * 1024, metadata_seconds=-1 if training else 60)
    data = _bucket("data", buckets.data, options)
    data["csi"]["readOnly"] = True
    if training:
        data["csi"]["volumeAttributes"]["gcsfuseMetadataPrefetchOnMount"] = "true"
    volumes = [
        data,
        _bucket("runs", buckets.runs, RUNS_OPTIONS + (buckets.runs_folder and f",only-dir={buckets.runs_folder}")),
        # The driver takes the volume of this name for its file cache. Above the cache's own limit: at the volume's, the
        # kubelet would evict the pod.
        {"name": "gke-gcsfuse-cache", "emptyDir": {"sizeLimit": f"{cache_gib * 5 // 4}Gi"}},
        {"name": "scratch", "emptyDir": {"sizeLimit": f"{scratch_gib}Gi"}},
        {
            "name": "shared-mem",
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{shared_gib}Gi"},
        },
    ]
    return PodVolumes(
        annotations=sidecar_annotations(size),
        volumes=volumes,
        mounts=[
            {"name": "data", "mountPath": DATA_MOUNT, "readOnly": True},
            {"name": "runs", "mountPath": RUNS_MOUNT},
            {"name": "scratch", "mountPath": SCRATCH_MOUNT},
            {"name": "shared-mem", "mountPath": "/dev/shm"},
        ],
    )


def sidecar_annotations(size: PodSize) -> dict[str, str]:
    """Annotations that bring in the FUSE sidecar, without limits: a killed sidecar does not come back, and takes the
    mounts with it (GoogleCloudPlatform/gcs-fuse-csi-driver, issues 314 and 355)."""
    beside = sidecar(size.cpus, size.memory_gib)
    return {
        "gke-gcsfuse/volumes": "true",
        "gke-gcsfuse/cpu-limit": "0",
        "gke-gcsfuse/memory-limit": "0",
        "gke-gcsfuse/ephemeral-storage-limit": "0",
        "gke-gcsfuse/cpu-request": f"{beside.cpu_millis}m",
        "gke-gcsfuse/memory-request": f"{beside.memory_mib}Mi",
        "gke-gcsfuse/ephemeral-storage-request": "1Gi",
    }


def shared_memory_gib(memory_gib: int) -> int:
    """Size of /dev/shm: more than the 30 % of the memory that Ray's object store takes, or Ray puts it on disk."""
    return min(SHARED_MEMORY_MAX_GIB, max(1, memory_gib * 4 // 10))


def data_options(cache_mib: int, metadata_seconds: int) -> str:
    """Mount options of the data bucket: cached files and metadata (-1: for the pod's life).

    An object written under a new name is seen at once (misses are not kept); one replaced under its own name only when
    the metadata have expired.
    """
    return ",".join(
        (
            *_OWNED,
            "file-mode=444",
            "dir-mode=555",
            f"metadata-cache:ttl-secs:{metadata_seconds}",
            "metadata-cache:negative-ttl-secs:0",
            "metadata-cache:stat-cache-max-size-mb:-1",
            "metadata-cache:type-cache-max-size-mb:-1",
            f"file-cache:max-size-mb:{cache_mib}",
            "file-cache:cache-file-for-range-read:true",
            "file-cache:enable-parallel-downloads:true",
            "read_ahead_kb=1024",
        )
    )


_OWNED = ("implicit-dirs", f"uid={USER}", f"gid={GROUP}")

RUNS_OPTIONS = ",".join(
    (
        *_OWNED,
        "file-mode=664",
        "dir-mode=775",
        # Said out loud: on large machine types the driver's own default keeps metadata for ever, and a reader would see
        # another node's old files (GoogleCloudPlatform/gcsfuse, docs/semantics.md).
        "metadata-cache:ttl-secs:0",
        "metadata-cache:negative-ttl-secs:0",
        "file-system:kernel-list-cache-ttl-secs:0",
        "write:enable-streaming-writes:true",
    )
)
"""Mount options of the runs bucket: nothing cached, files streamed to the bucket and visible there when closed."""


def _bucket(volume: str, bucket: pulumi.Input[str], options: str) -> dict[str, Any]:
    return {
        "name": volume,
        "csi": {
            "driver": DRIVER,
            "volumeAttributes": {
                "bucketName": bucket,
                "mountOptions": options,
                # The check asks for storage.buckets.get for each mount; the first read shows the same error.
                "skipCSIBucketAccessCheck": "true",
            },
        },
    }
