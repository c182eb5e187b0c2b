"""The JSON lines of a benchmark: schema, writer, and a reader that says which line is wrong and what to do.

The last line counts the others, so that a file that was cut off is known for one even where it ends with a whole line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.errors import DataIntegrityError, UsageError
from workloads.nccl.definitions.bandwidth import Percentiles, Row, Timing
from workloads.nccl.definitions.stages import Link, Stage
from workloads.nccl.results.measured import Conditions, Measured, widest

if TYPE_CHECKING:
    from workloads.nccl.results.findings import JudgedStage
    from workloads.nccl.results.suspects import Suspect

SCHEMA = "oasis.collective/3"
"""Version of the JSON lines. The first line is the environment of the widest stage; then come, for each stage, a line
`stage` with its own environment, verdict and judgement, its `row`s and its `link`s; then a line `suspect` for each part
that is slow; the last line is `end`, with the reason where the run stopped before its last stage. A field is never
given another meaning under the same version."""

FAMILY = "oasis.collective/"
SUFFIX = ".jsonl"

_AGAIN = "Copy it again from the runs bucket (bench/<name>), or measure again."


_ROW = ("op", "size", "count", "redop", "root", "factor")
_TIMING = ("wrong", "iterations", "slowest_rank")
_BLOCKING = ("calls", "slowest_rank")
_PERCENTILES = ("p50", "p95", "p99", "max")
"""Fields that are kept under their own names; of the last ones in microseconds, with `_us` behind."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """One file of results, read back, as far as others are compared with it."""

    source: str
    """Where it was read, for messages."""
    measured: tuple[Measured, ...]
    """Its stages, without NCCL's logs."""
    verdicts: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    """`Verdict.as_record` by stage; one that nobody asked for is missing."""
    stopped: str = ""
    """Why stages are missing; empty where none is."""


def json_lines(
    measured: Sequence[Measured], judged: Sequence[JudgedStage], suspects: Sequence[Suspect], stopped: str
) -> str:
    """The machine-readable result of one collective's stages.

    Args:
        measured: at least one stage.
        judged: those that were judged; of the others verdict and judgement are written as null.
        suspects: who is slow.
        stopped: why stages are missing; empty where none is.
    """
    found = {one.measured.stage.name: one for one in judged}
    lines: list[dict[str, Any]] = [
        {"schema": SCHEMA, "kind": "environment", **asdict(widest(measured).conditions)},
    ]
    for one in measured:
        name = one.stage.name
        own = found.get(name)
        lines.append(
            {
                "kind": "stage",
                **asdict(one.stage),
                "environment": asdict(one.conditions),
                "verdict": own and own.verdict.as_record(),
                "judgement": own and own.judgement.as_record(),
            }
        )
        lines += [{"kind": "row", "stage": name, **row_record(row)} for row in one.rows]
        lines += [{"kind": "link", "stage": name, **asdict(link)} for link in one.links]
    lines += [{**asdict(one), "kind": "suspect", "part": one.kind} for one in suspects]
    lines.append({"kind": "end", "lines": len(lines), "stopped": stopped})
    return "".join(json.dumps(line, sort_keys=True) + "\n" for line in lines)


def row_record(row: Row) -> dict[str, Any]:
    """One row as plain data: times in microseconds, bandwidths in GB/s."""
    return {
        **{name: getattr(row, name) for name in _ROW},
        "type": row.dtype,
        "out_of_place": _timing_record(row, row.out_of_place),
        "in_place": _timing_record(row, row.in_place),
    }


def _timing_record(row: Row, timing: Timing) -> dict[str, Any]:
    alone = timing.blocking
    return {
        **{name: getattr(timing, name) for name in _TIMING},
        "time_us": timing.seconds * 1e6,
        "algbw": row.algbw(timing),
        "busbw": row.busbw(timing),
        "rank_time_us": [seconds * 1e6 for seconds in timing.rank_seconds],
        "blocking": alone
        and {
            **{name: getattr(alone, name) for name in _BLOCKING},
            **{f"{name}_us": getattr(alone, name) * 1e6 for name in _PERCENTILES},
        },
    }


def load(place: str) -> list[Results]:
    """Every file of results that a place holds, in the order of their names.

    Args:
        place: a `.jsonl` file or a folder, on a disk or gs://; folders inside it are looked into, too.

    Raises:
        UsageError: there is no such place, or no results in it.
        DataIntegrityError: a file of results is cut off or damaged.
    """
    # It needs pyarrow, and a row is made into a record where there is torch alone, too (`benchmarks.one_gpu`).
    from workloads.storage.folders import locate

    if place.endswith(SUFFIX):
        above, _, name = place.rpartition("/")
        try:
            return [read(locate(above or ("/" if place.startswith("/") else ".")).read(name), place)]
        except FileNotFoundError:
            raise UsageError(f"There is no file {place}.", "Name a file or a folder that `bench` wrote.") from None
    if Path(place).is_file():
        raise UsageError(f"{place} is not a {SUFFIX} file.", "Name a file or a folder that `bench` wrote.")
    folder = locate(place)
    contents = {name: folder.read(name) for name in folder.files() if name.endswith(SUFFIX)}
    # Others may lie beside them; those of another version say so.
    ours = {name: content for name, content in contents.items() if FAMILY.encode() in content.partition(b"\n")[0]}
    if not contents and not folder.exists():
        raise UsageError(f"There is no file or folder {place}.", "Name a folder or a file that `bench` wrote.")
    if not ours:
        raise UsageError(
            f"{place} holds no results of `bench`: no {SUFFIX} file with schema {FAMILY}* is in it.",
            "Name the folder of a benchmark, or one of its .jsonl files.",
        )
    return [read(content, f"{place.rstrip('/')}/{name}") for name, content in ours.items()]


def read(content: bytes, source: str) -> Results:
    """Read a file of results back.

    Args:
        content: the whole file.
        source: where it came from, for messages.

    Raises:
        UsageError: it is no file of results, or of a version that this reader does not know.
        DataIntegrityError: it is one, and damaged or cut off; says at which line.
    """
    lines = content.decode(errors="replace").splitlines()
    parsed = [_parse(line, number, len(lines), source) for number, line in enumerate(lines, start=1)]
    _check_head(parsed[0] if parsed else {}, source)
    last = parsed[-1]
    if last.get("kind") != "end":
        raise _cut_off(source, f"line {len(lines)} is its last one and not the line that ends a file of results")
    if last.get("lines") != len(lines) - 1:
        raise _damaged(
            source, len(lines), f"it counts {last.get('lines')} lines before it, and there are {len(lines) - 1}"
        )
    return _assemble(parsed, source)


def _parse(line: str, number: int, lines: int, source: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
        if isinstance(record, dict):
            return record
        raise ValueError("not an object")
    except ValueError as error:
        if number == 1:
            return {}  # `_check_head` says that it is no file of results
        if number == lines:
            raise _cut_off(source, f"line {number}, its last, is not whole") from error
        raise _damaged(source, number, "it is not JSON") from error


def _check_head(head: dict[str, Any], source: str) -> None:
    schema = str(head.get("schema", ""))
    if not schema.startswith(FAMILY):
        raise UsageError(
            f"{source} is not a file of bench results: its first line names no schema {FAMILY}*.",
            "Give the <collective>.jsonl that `python -m workloads bench` wrote, or its folder.",
        )
    if schema != SCHEMA:
        raise UsageError(
            f"{source} has schema {schema}; this version of the workloads reads {SCHEMA}.",
            "Read it with the version that wrote it, or measure again with this one.",
        )


def _assemble(parsed: Sequence[dict[str, Any]], source: str) -> Results:
    found: list[tuple[Stage, Conditions, list[Row], list[Link]]] = []
    verdicts = {}
    for number, record in enumerate(parsed[1:-1], start=2):
        try:
            if record["kind"] == "stage":
                stage = Stage(name=record["name"], nodes=tuple(record["nodes"]), algorithm=record["algorithm"])
                found.append((stage, _conditions(record["environment"]), [], []))
                verdicts[stage.name] = record["verdict"]
            elif record["kind"] == "row":
                found[-1][2].append(_row(record))
            elif record["kind"] == "link":
                found[-1][3].append(Link(ranks=tuple(record["ranks"]), seconds=record["seconds"]))
            elif record["kind"] != "suspect":
                raise ValueError(f"a line of kind {record['kind']!r} has no place here")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise _damaged(source, number, f"{type(error).__name__}: {error}") from error
    if not found or not all(rows for _, _, rows, _ in found):
        raise _damaged(source, len(parsed), "it ends a file with a stage that has no rows")
    return Results(
        source=source,
        measured=tuple(
            Measured(stage=stage, conditions=conditions, rows=tuple(rows), links=tuple(links), logs={})
            for stage, conditions, rows, links in found
        ),
        verdicts={name: verdict for name, verdict in verdicts.items() if verdict is not None},
        stopped=str(parsed[-1]["stopped"]),
    )


def _conditions(record: dict[str, Any]) -> Conditions:
    values: dict[str, Any] = {one.name: record[one.name] for one in fields(Conditions) if one.name != "own_calls"}
    values["own_calls"] = record.get("own_calls", False)  # older results have no such field
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return Conditions(**values)


def _row(record: dict[str, Any]) -> Row:
    return Row(
        **{name: record[name] for name in _ROW},
        dtype=record["type"],
        out_of_place=_timing(record["out_of_place"]),
        in_place=_timing(record["in_place"]),
    )


def _timing(record: dict[str, Any]) -> Timing:
    alone = record["blocking"]
    if record["time_us"] <= 0:
        raise ValueError(f"a time of {record['time_us']} microseconds")
    return Timing(
        **{name: record[name] for name in _TIMING},
        seconds=record["time_us"] / 1e6,
        rank_seconds=tuple(value / 1e6 for value in record["rank_time_us"]),
        blocking=alone
        and Percentiles(
            **{name: alone[name] for name in _BLOCKING},
            **{name: alone[f"{name}_us"] / 1e6 for name in _PERCENTILES},
        ),
    )


def _cut_off(source: str, how: str) -> DataIntegrityError:
    return DataIntegrityError(f"{source} is cut off: {how}.", _AGAIN)


def _damaged(source: str, number: int, how: str) -> DataIntegrityError:
    return DataIntegrityError(f"{source} is damaged at line {number}: {how}.", _AGAIN)
