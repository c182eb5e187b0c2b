"""What a training run leaves behind: a table, JSON lines and a plot, the same on disk and in the runs bucket."""

from __future__ import annotations

import json
from pathlib import Path

from workloads.reporting.history import Record, history
from workloads.storage.folders import Folder
from workloads.storage.results import keep

WANDB = "wandb"
"""Folder of the results with W&B's own files."""


def publish(folder: Folder, results: Path, summary: Record) -> tuple[str, str]:
    """Write table, plot, JSON lines and summary.

    Args:
        folder: of the run, with its history.
        results: local folder for the same files.
        summary: of the run.

    Returns:
        The training curve in numbers, and the folder of the results in the runs bucket.

    Raises:
        PlaceError: a place does not take them; what the bucket took is there.
    """
    # Not above: it loads matplotlib, for which every restarted worker would wait, and only the end of a run draws.
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
    # Recorded offline, W&B's part is a file too, and the head that has it may be gone when somebody syncs it.
    for file in results.glob(f"{WANDB}/wandb/offline-run-*/*.wandb"):
        kept.child(WANDB, file.parent.name).write(file.name, file.read_bytes())
    keep(files, kept, results)
    return table, kept.uri
