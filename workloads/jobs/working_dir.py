"""The files that travel with a job: the working directory without unwanted files, or this package and named files.

Ray's Jobs API takes a request of at most 100 MiB (ray 2.60, ray_constants.DASHBOARD_CLIENT_MAX_SIZE), far below the
512 MiB in Ray's messages; so a directory that is too large is refused here, with the names of its largest parts.
"""

from __future__ import annotations

import importlib
import io
import logging
import shutil
import zipfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal

from workloads.errors import UsageError
from workloads.reporting.progress import counted

LIMIT_BYTES = 100 * 1024**2
"""Maximum size of a working directory, before compression."""

SECRETS = (
    *(".env", ".env.*", ".netrc", ".pypirc", ".git-credentials", ".aws", ".ssh", "*.pem", "*.key"),
    # CA certificates that packages bring along (certifi, grpc), without which they reach no server.
    *("!cacert.pem", "!roots.pem"),
    # Google's names for the key files that it issues.
    *("service-account*.json", "service_account*.json", "client_secret*.json", "application_default_credentials.json"),
)
"""Patterns of files that may hold a secret: anyone who may list jobs may fetch the uploaded files."""

EXCLUDES = (
    *SECRETS,
    # Tools' own folders; a .gitignore leaves out more.
    *(".git", ".venv", "venv", ".oasis", ".pulumi", "node_modules", "__pycache__", "*.pyc", ".ipynb_checkpoints"),
    *(".pytest_cache", ".ruff_cache", ".mypy_cache"),
    # What training leaves behind.
    *("wandb", "lightning_logs", "mlruns", "*.ckpt", "*.pt", "*.pth", "*.safetensors"),
    *("/checkpoints", "/runs", "/results"),
    # Data belongs in the data bucket.
    *("/data", "/datasets", "*.tar", "*.parquet"),
)
"""Files that are never uploaded, as .gitignore patterns; a later `!pattern` among the runtime environment's excludes
brings one back."""

ARGUMENT_SUFFIXES = (".yaml", ".yml", ".json", ".toml")
"""Files with these suffixes travel with a command of this package that names them."""

_ARGUMENT_FOLDER = "arguments"
_TOP_FOLDER = "working_dir"
_NAMED = 5  # entries named in a refusal


def excludes(folder: Path, more: Sequence[str]) -> list[str]:
    """Patterns of files in a folder that are not uploaded: ours, virtual environments by any name, and `more`."""
    environments = [
        f"/{found.parent.relative_to(folder)}"
        for pattern in ("*/pyvenv.cfg", "*/*/pyvenv.cfg")
        for found in sorted(folder.glob(pattern))
    ]
    return [*EXCLUDES, *environments, *more]


def check(folder: Path, patterns: Sequence[str]) -> str:
    """The part of a folder that would be uploaded, in words.

    Args:
        folder: the working directory.
        patterns: what `excludes` returned.

    Raises:
        UsageError: the folder is larger than the Jobs API accepts, or has a name that no archive accepts.
    """
    files = _files(folder, patterns)
    inside = [str(file.relative_to(folder)) for file in files]  # an archive has only their names
    shown = [name.encode(errors="backslashreplace").decode() for name in inside]
    if strange := sorted(set(shown) - set(inside)):
        raise UsageError(
            f"The working directory holds files whose names are not UTF-8: {', '.join(strange[:_NAMED])}.",
            "Rename them, or leave them out by .rayignore or `excludes:` of --runtime-env.",
        )
    sizes: Counter[str] = Counter()
    for file in files:
        sizes[file.relative_to(folder).parts[0]] += file.stat().st_size
    entries = sorted(entry.name for entry in folder.iterdir())
    left_out = [name for name in entries if name not in sizes and not _is_empty(folder / name)]
    allowed = _files(folder, [pattern for pattern in patterns if pattern not in SECRETS])
    secret = [file.relative_to(folder) for file in sorted(set(allowed) - set(files))]
    left_out += [str(file) for file in secret if file.parts[0] in sizes]
    found = f"{counted(len(files), 'file')}, {decimal(sizes.total())}"
    found += f"; left out: {', '.join(left_out)}" if left_out else ""
    if sizes.total() > LIMIT_BYTES:
        named = ", ".join(f"{name} {decimal(size)}" for name, size in sizes.most_common(_NAMED))
        raise UsageError(
            f"The working directory {folder} holds {found}; a job can take {decimal(LIMIT_BYTES)} along. "
            f"The largest entries: {named}.",
            "Put data into the data bucket, and what the job does not need into .rayignore or `excludes:` of "
            "--runtime-env.",
        )
    return found


def stage(command: Sequence[str], folder: Path) -> list[str]:
    """Copy this package, and the files that the command names, into a folder to upload.

    Args:
        command: a command of this package.
        folder: an empty folder.

    Returns:
        The command with the paths of the files in the job.
    """
    package = Path(__file__).resolve().parents[1]
    shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__", "image"))
    return [_staged(word, folder) for word in command]


def pack(folder: Path, patterns: Sequence[str]) -> bytes:
    """A folder as the zip archive that Ray fetches by address, with everything in one top folder that Ray strips.

    Args:
        folder: the working directory.
        patterns: what `excludes` returned.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        archive.mkdir(_TOP_FOLDER)  # for an empty folder too
        for file in _files(folder, patterns):
            archive.write(file, Path(_TOP_FOLDER) / file.relative_to(folder))
    return content.getvalue()


def _staged(word: str, folder: Path) -> str:
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    file = Path(value)
    if file.suffix not in ARGUMENT_SUFFIXES or not file.is_file():
        return word
    target = folder / _ARGUMENT_FOLDER / file.name
    if target.exists() and target.read_bytes() != file.read_bytes():
        raise UsageError(
            f"Two files named {file.name} were given; in the job they share one folder.", "Rename one of them."
        )
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(file, target)
    return f"{flag}{equals}{target.relative_to(folder)}"


def _files(folder: Path, patterns: Sequence[str]) -> list[Path]:
    """The files that Ray would upload, by Ray's own rules, which only its code knows in full."""
    packaging = importlib.import_module("ray._private.runtime_env.packaging")
    # It logs each ignore file that it reads, and does so again at the upload.
    silent = logging.Logger("silent", logging.CRITICAL)
    found: list[Path] = []
    excluded = [packaging._get_excludes(folder, list(patterns))]
    packaging._dir_travel(folder, excluded, found.append, include_gitignore=True, logger=silent)
    return [path for path in found if path.is_file()]


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
