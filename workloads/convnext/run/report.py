"""The results of a training run: a table, JSON lines and a plot, the same on disk and in the runs bucket."""

from __future__ import annotations

import json
from pathlib import Path

from workloads.reporting.history import Record, history
from workloads.storage.folders import Folder
from workloads.storage.results import keep

WANDB = "wandb"
"""Folder, within the results, of W&B's own files."""


def publish(folder: Folder, results: Path, summary: Record) -> tuple[str, str]:
    """Write table, plot, JSON lines and summary.

    Args:
        folder: folder of the run, with its history.
        results: local folder for the same files.
        summary: summary of the run.

    Returns:
        The training curve in numbers, and the folder of the results in the runs bucket.

    Raises:
        PlaceError: a place does not accept them; files that the bucket accepted remain there.
    """
    # Not at the top: it loads matplotlib, which every restarted worker would wait for, and only the end of a run plots.
    from workloads.reporting import curve

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
    # In offline mode W&B's record is a file too, and the head that has it may be gone when somebody syncs it.
    for file in results.glob(f"{WANDB}/wandb/offline-run-*/*.wandb"):
        kept.child(WANDB, file.parent.name).write(file.name, file.read_bytes())
    keep(files, kept, results)
    return table, kept.uri
