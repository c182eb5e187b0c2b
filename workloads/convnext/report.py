"""What a training run leaves behind: a table, JSON lines and a plot, the same on disk and in the runs bucket."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from workloads import curve
from workloads.storage import Folder
from workloads.tracking import Record, merge, parse

JOURNAL = "journal"
"""Folder of a run's history: a segment per checkpoint, written before its COMMIT, named so that they sort by time."""


@dataclass(frozen=True)
class Written:
    """What was published."""

    table: str
    """The training curve in numbers."""
    uri: str
    """Folder of the results in the runs bucket."""


def history(folder: Folder) -> list[Record]:
    """The records of all attempts at a run, as one history."""
    segments = folder.child(JOURNAL)
    whole = [name for name in segments.names() if name.endswith(".jsonl")]
    return merge([record for name in whole for record in parse(segments.read(name).decode())])


def keep(folder: Folder, name: str, records: list[Record]) -> None:
    """Write one segment of a run's history."""
    folder.child(JOURNAL).write(f"{name}.jsonl", "".join(json.dumps(record) + "\n" for record in records).encode())


def publish(folder: Folder, results: Path, summary: Record) -> Written:
    """Write table, plot, JSON lines and summary.

    Args:
        folder: of the run, with its history.
        results: local folder for the same files.
        summary: of the run.
    """
    records = history(folder)
    table = curve.table(records)
    title = f"ConvNeXt {summary['model']} on {Path(summary['data']).name}: {summary['run']}"
    files = {
        "curve.png": curve.draw(records, title),
        "table.txt": f"{title}\n\n{table}\n".encode(),
        "metrics.jsonl": "".join(json.dumps(record, sort_keys=True) + "\n" for record in records).encode(),
        "summary.json": (json.dumps(summary, indent=1, sort_keys=True) + "\n").encode(),
    }
    kept = folder.child("results")
    results.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (results / name).write_bytes(content)
        kept.write(name, content)
    return Written(table, kept.uri)
