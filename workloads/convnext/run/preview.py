"""`train --dry-run`: the values that a training run would use, and the source of each."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from workloads import dry_run, environment
from workloads.cluster.session import Place
from workloads.convnext.run.run import Run
from workloads.dry_run import Settings


def of_run(args: argparse.Namespace, run: Run, place: Place) -> Settings:
    """The settings that `train` would use.

    Args:
        args: arguments of `train`.
        run: the run that the arguments and the place define.
        place: where Ray is.
    """
    recipe = f"recipe {run.config.recipe}"
    assigned = {word.partition("=")[0] for word in args.set}
    fields: Settings = {
        name.replace("_", "-"): (value, "flag --set" if name in assigned else recipe)
        for name, value in run.config.to_dict().items()
        if name != "recipe"
    }
    gpus = place.environment and place.environment.gpus_per_node
    # A relative folder is relative to the process that trains.
    results = Path(args.results) / run.name if place.told_by else run.results
    return {
        "run": (run.name, "recipe and time"),
        **fields,
        "workers": (
            args.workers or run.workers,
            dry_run.stack_origin("gpus_per_node", place) if gpus else dry_run.DEFAULT,
        ),
        "require-fabric": (run.promise is not None, dry_run.stack_origin("rdma_nics", place)),
        "storage": (run.folder.uri, dry_run.stack_origin("runs_uri", place)),
        "results": (str(results), dry_run.DEFAULT),
        **dry_run.of_ray(place),
        "data-place": _data_place(run.config.data, place),
        "wandb-key": _wandb_key(args.wandb, args.wandb_key_file, place),
        **dry_run.of_stack(place),
    }


def _variables(place: Place) -> Mapping[str, str]:
    """Environment variables that commands have there, as far as they are known here."""
    return {} if place.told_by else os.environ


def _data_place(data: str, place: Place) -> tuple[str, str]:
    # This imports Google's storage library, which no other command's `--dry-run` needs.
    from workloads.convnext.images import location

    if data == location.SYNTHETIC or "://" in data or data.startswith("/"):
        return data, "data"
    if place.embedded and not place.told_by and data == location.DIGITS and (given := location.digits_mount()):
        return f"{given}/{data}", "scikit-learn's, written there by the run"
    mount = environment.mount(environment.DATA_MOUNT, _variables(place))
    name = "OASIS_DATA_MOUNT"
    return f"{mount}/{data}", f"variable {name}" if _variables(place).get(name) else f"{dry_run.DEFAULT} mount"


def _wandb_key(mode: str, file: Path | None, place: Place) -> tuple[str, str]:
    from workloads.reporting.credentials import KEY_VARIABLE

    if mode in ("off", "offline"):
        return "not looked for", f"wandb {mode}"
    if file is not None:
        here = "" if place.told_by or file.is_file() else ", which does not exist"
        return f"in file {file}{here}", "flag --wandb-key-file"
    if _variables(place).get(KEY_VARIABLE, "").strip():
        return dry_run.REDACTED, f"variable {KEY_VARIABLE}"
    if place.wandb_secret:
        return f"in Secret Manager, {place.wandb_secret}", dry_run.stack_origin("wandb_secret", place)
    return "none", "no file, variable or secret"
