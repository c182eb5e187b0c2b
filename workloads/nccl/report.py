"""What a benchmark leaves behind, on disk and in a bucket: a table for people, JSON lines for programs, a plot."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from workloads.nccl import bandwidth, plot
from workloads.nccl.bandwidth import Row, Timing
from workloads.storage import Folder

SCHEMA = "oasis.collective/1"
"""Version of the JSON lines: the first line is the environment, each further one a row. A field is never given another
meaning under the same version."""


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a number means nothing without."""

    op: str
    backend: str
    """`nccl` or `gloo`; figures of different backends are never compared."""
    nodes: int
    ranks: int
    hosts: tuple[str, ...]
    """Host of each rank."""
    started: str
    """When, RFC 3339."""
    machine_type: str
    """Compute Engine machine type; empty where it is unknown or has no part in the measurement."""
    accelerator: str
    """GPU as torch names it; empty on CPU."""
    image: str
    """Container image; empty outside a stack."""
    versions: Mapping[str, str]
    """torch, CUDA, NCCL, Ray, Python."""
    variables: Mapping[str, str]
    """NCCL_, GLOO_ and OMP_ variables of rank 0."""

    def lines(self) -> list[str]:
        """The table's head for people."""
        where = f"{self.nodes} nodes, {self.ranks} ranks, {self.backend}"
        machine = f", {self.accelerator} ({self.machine_type})" if self.accelerator else " on CPU"
        versions = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        return [
            f"# {self.op}: {where}{machine}",
            f"# {versions}",
            "# time: mean of calls back to back on the slowest rank (nccl-tests -a 3); GB is 10^9 bytes, per rank",
            "# out of place: a copy into the result, then the call, as torch has it in place only",
        ]


def json_lines(conditions: Conditions, rows: Sequence[Row]) -> str:
    """The machine-readable result."""
    head = {"schema": SCHEMA, "kind": "environment", **asdict(conditions)}
    records = [head, *({"kind": "row", **row_record(row)} for row in rows)]
    return "".join(json.dumps(record, sort_keys=True) + "\n" for record in records)


def row_record(row: Row) -> dict[str, Any]:
    """One row as plain data: times in microseconds, bandwidths in GB/s."""
    return {
        "size": row.size,
        "count": row.count,
        "type": row.dtype,
        "redop": row.redop,
        "root": row.root,
        "factor": row.factor,
        "out_of_place": _timing_record(row, row.out_of_place),
        "in_place": _timing_record(row, row.in_place),
    }


def write(folders: Sequence[Folder], conditions: Conditions, rows: Sequence[Row]) -> list[str]:
    """Write table, JSON lines and plot into each folder; returns the files' names."""
    text = "\n".join([*conditions.lines(), bandwidth.table(rows), ""])
    files = {
        f"{conditions.op}.txt": text.encode(),
        f"{conditions.op}.jsonl": json_lines(conditions, rows).encode(),
        f"{conditions.op}.png": plot.draw(conditions.op, _title(conditions), rows, reference(conditions)),
    }
    for folder in folders:
        for name, content in files.items():
            folder.write(name, content)
    return list(files)


def reference(conditions: Conditions) -> plot.Reference | None:
    """The line to compare with: only for a machine whose limits are known, and only where its GPUs were used."""
    if conditions.backend != "nccl":
        return None
    return plot.REFERENCES.get((conditions.machine_type, conditions.nodes > 1))


def _title(conditions: Conditions) -> str:
    where = conditions.accelerator or "CPU"
    return f"{conditions.nodes} nodes, {conditions.ranks} ranks, {conditions.backend}, {where}"


def _timing_record(row: Row, timing: Timing) -> dict[str, Any]:
    return {
        "time_us": timing.seconds * 1e6,
        "algbw": row.algbw(timing),
        "busbw": row.busbw(timing),
        "wrong": timing.wrong,
        "iterations": timing.iterations,
        "slowest_rank": timing.slowest_rank,
        "rank_time_us": [seconds * 1e6 for seconds in timing.rank_seconds],
    }
