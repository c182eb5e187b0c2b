"""What a benchmark leaves behind, on disk and in a bucket: tables for people, JSON lines and CSV, plots, NCCL's logs.

One set of files per collective, whatever the number of stages; a log per stage and rank.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from workloads.nccl.definitions import bandwidth

if TYPE_CHECKING:
    from workloads.nccl.results.measured import Measured
    from workloads.nccl.results.suspects import Suspect
    from workloads.storage.folders import Folder

Records = Mapping[str, dict[str, Any]]
"""Plain data by the name of the stage that they belong to."""


@dataclass(frozen=True, kw_only=True)
class Remarks:
    """What is said about measured stages, beside their numbers."""

    verdicts: Records = field(default_factory=dict)
    """Of NCCL's logs, which path was taken; a stage may be missing."""
    judgements: Records = field(default_factory=dict)
    """Of the figures against the machine type's thresholds; a stage may be missing."""
    suspects: tuple[Suspect, ...] = ()
    """Who is slow."""
    stopped: str = ""
    """Why stages are missing; empty where none is."""


NO_REMARKS = Remarks()

LOGS = "logs"
"""Folder of NCCL's own logs, beside the tables."""


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
    node_of_rank: tuple[int, ...]
    """Node of each rank, by its number in the placement group."""
    devices: tuple[str, ...]
    """Device of each rank: `cuda:3`, or `cpu`."""
    gpus_per_node: int
    """GPUs taken from each node; 0 on CPUs."""
    rdma_nics: int
    """NICs for RDMA that the stack gives a node; 0 where it promises none."""
    promised_rdma: bool
    """Whether the stack promised RDMA, so that a path without it is an error."""
    average: bool
    """Whether a time is the mean over the ranks (nccl-tests -a 1) rather than the slowest rank's (-a 3)."""
    started: str
    """When, RFC 3339."""
    machine_type: str
    """Compute Engine machine type; empty where it is unknown or has no part in the measurement."""
    accelerator: str
    """GPU as torch names it; empty on CPU."""
    image: str
    """Container image, with its digest where the stack pins one; empty outside a stack."""
    versions: Mapping[str, str]
    """torch, CUDA, NCCL, Ray, Python."""
    variables: Mapping[str, str]
    """NCCL_, GLOO_ and OMP_ variables of rank 0."""

    def lines(self) -> list[str]:
        """The table's head for people."""
        rank = "mean over the ranks (nccl-tests -a 1)" if self.average else "slowest rank (nccl-tests -a 3)"
        versions = ", ".join(f"{name} {value}" for name, value in self.versions.items())
        return [
            f"# {self.op}: {self.where()}",
            f"# {versions}",
            f"# time: mean of calls back to back, {rank}; GB is 10^9 bytes",
            "# out of place, where torch has it in place only (all_reduce, broadcast): after a copy that is not timed",
        ]

    def where(self) -> str:
        """Nodes, ranks and what they ran on, in a few words."""
        machine = f", {self.accelerator}" + (f" ({self.machine_type})" if self.machine_type else "")
        return (
            f"{counted(self.nodes, 'node')}, {counted(self.ranks, 'rank')}, {self.backend}"
            f"{machine if self.accelerator else ' on CPU'}"
        )


def counted(number: int, noun: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float, _: object = None) -> str:
    """Seconds as people read them: `20 µs`, `1.5 ms`."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} µs"


def write(folders: Sequence[Folder], measured: Sequence[Measured], remarks: Remarks = NO_REMARKS) -> list[str]:
    """Write every file into each folder; returns the files' names.

    Args:
        folders: where to; on a disk or in a bucket.
        measured: the stages, in the order in which they are to be shown; at least one, each with at least one row.
        remarks: on them.
    """
    files: dict[str, bytes] = {}
    for op in dict.fromkeys(one.conditions.op for one in measured):
        of = [one for one in measured if one.conditions.op == op]
        files |= _files(op, of, remarks)
    for one in measured:
        files |= log_files(one.conditions.op, one.stage.name, one.logs)
    _put(folders, files)
    return list(files)


def write_logs(folders: Sequence[Folder], op: str, logs: Mapping[str, Mapping[int, str]]) -> list[str]:
    """Write NCCL's logs alone, of stages that came to no result; returns the files' names.

    Args:
        folders: where to.
        op: the collective.
        logs: of each rank, by stage.
    """
    files = {name: content for stage, texts in logs.items() for name, content in log_files(op, stage, texts).items()}
    _put(folders, files)
    return list(files)


def log_files(op: str, stage: str, logs: Mapping[int, str]) -> dict[str, bytes]:
    """NCCL's logs of a stage's ranks as files, by name."""
    return {f"{LOGS}/{slug(op)}-{slug(stage)}-rank{rank}.log": log.encode() for rank, log in logs.items()}


def _put(folders: Sequence[Folder], files: Mapping[str, bytes]) -> None:
    from workloads.storage.folders import in_parallel

    def put(item: tuple[Folder, str]) -> None:
        folder, name = item
        inside, _, last = name.rpartition("/")
        (folder.child(inside) if inside else folder).write(last, files[name])

    in_parallel(put, [(folder, name) for folder in folders for name in files])


def slug(text: str) -> str:
    """A stage's name as part of a file name: `nodes-0-1-ring`."""
    return "-".join("".join(letter if letter.isalnum() or letter == "_" else " " for letter in text).split())


def _files(op: str, measured: Sequence[Measured], remarks: Remarks) -> dict[str, bytes]:
    from workloads.nccl.results import plot, records

    pictures = plot.draw(op, widest(measured).conditions.where(), measured)
    return {
        f"{op}.txt": text(measured, remarks).encode(),
        f"{op}.jsonl": records.json_lines(measured, remarks).encode(),
        f"{op}.csv": comma_separated(measured, remarks.verdicts).encode(),
        **{f"{op}.{form}": picture for form, picture in pictures.items()},
    }


def widest(measured: Sequence[Measured]) -> Measured:
    """The stage that speaks for a run: NCCL's own choice on the most nodes."""
    return max(measured, key=lambda one: (one.conditions.nodes, not one.stage.algorithm))


def text(measured: Sequence[Measured], remarks: Remarks) -> str:
    """The tables of all stages, each with its verdict and judgement beneath, as in the terminal.

    Args:
        measured: stages of one collective.
        remarks: on them.
    """
    lines = []
    for one in measured:
        name = one.stage.name
        lines += [f"# stage: {name}", *one.conditions.lines(), bandwidth.table(one.rows)]
        lines += verdict_lines(remarks.verdicts.get(name), remarks.judgements.get(name))
        lines.append("")
    lines += [f"# slow: {one.text}" for one in remarks.suspects]
    if remarks.stopped:
        lines.append(f"# stopped before its end: {remarks.stopped}")
    return "\n".join([*lines, ""]) if remarks.suspects or remarks.stopped else "\n".join(lines)


def verdict_lines(verdict: dict[str, Any] | None, judgement: dict[str, Any] | None) -> list[str]:
    """What the log and the thresholds say about a stage, a comment line each.

    Args:
        verdict: record of the path that was taken; None where it was not looked for.
        judgement: record of what the figures mean; None where nobody judged.
    """
    lines = []
    if verdict is not None:
        named = ((name, verdict.get(name)) for name in ("algorithm", "protocol", "channels", "plugin"))
        said = ", ".join(f"{name} {value}" for name, value in named if value)
        lines.append(f"# Path taken           : {verdict['path']}{f' ({said})' if said else ''}")
        lines += [f"# {one['severity']}: {one['problem']} {one['remedy']}" for one in verdict.get("problems", ())]
    if judgement is not None:
        reasons = "; ".join(judgement.get("reasons", ()))
        lines.append(f"# Verdict              : {judgement['verdict']}{f': {reasons}' if reasons else ''}")
    return lines


COLUMNS = (
    *("op", "stage", "backend", "nodes", "ranks", "forced_algorithm", "path", "size", "count", "type", "redop", "root"),
    *("place", "time_us", "algbw", "busbw", "wrong", "iterations", "slowest_rank"),
    *("blocking_p50_us", "blocking_p95_us", "blocking_p99_us", "blocking_max_us"),
)
"""Of the CSV; a line is one size in one place."""


def comma_separated(measured: Sequence[Measured], verdicts: Records) -> str:
    """The rows as CSV: a header, then a line for each size out of place and one in place.

    Args:
        measured: stages of one collective.
        verdicts: by stage; their path is a column.
    """
    written = io.StringIO()
    table = csv.writer(written, lineterminator="\n")
    table.writerow(COLUMNS)
    for one in measured:
        conditions, stage = one.conditions, one.stage
        path = verdicts.get(stage.name, {}).get("path", "")
        whose = (conditions.op, stage.name, conditions.backend, conditions.nodes, conditions.ranks, stage.algorithm)
        for row in one.rows:
            what = (row.size, row.count, row.dtype, row.redop, row.root)
            for place, timing in (("out_of_place", row.out_of_place), ("in_place", row.in_place)):
                alone = timing.blocking
                calls = (alone.p50, alone.p95, alone.p99, alone.max) if alone else ()
                table.writerow(
                    [
                        *(*whose, path, *what, place),
                        *(f"{timing.seconds * 1e6:.3f}", f"{row.algbw(timing):.4f}", f"{row.busbw(timing):.4f}"),
                        *("" if timing.wrong is None else timing.wrong, timing.iterations, timing.slowest_rank),
                        *([f"{seconds * 1e6:.3f}" for seconds in calls] or [""] * 4),
                    ]
                )
    return written.getvalue()
