"""Image folders: `train/<class>/*` and `val/<class>/*`, listed when opened, read on demand.

This module finds every mistake that a folder can contain, and names it with its path.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from workloads.convnext.images.pictures import LAYOUT, READERS, SUFFIXES, unreadable
from workloads.errors import DataIntegrityError, UsageError


class FolderPictures:
    """One split of an image folder; see `PictureStore`."""

    def __init__(self, folder: Path, known: Sequence[str] | None) -> None:
        """List the images, without opening them.

        Args:
            folder: the split, with one folder per class.
            known: the training split's classes, when this is another split.

        Raises:
            UsageError: there is no class.
            DataIntegrityError: a class has no images, or is unknown to the training split.
            PlaceError: the folder cannot be listed.
        """
        try:
            names = class_folders(folder)
            with ThreadPoolExecutor(READERS) as pool:
                files = dict(zip(names, pool.map(image_files, [folder / name for name in names]), strict=True))
        except OSError as error:
            raise unreadable(str(error.filename or folder), error) from error
        if not names:
            raise UsageError(f"{folder} holds no classes.", LAYOUT)
        strangers = sorted(set(names) - set(names if known is None else known))
        if strangers:
            raise DataIntegrityError(f"{folder} has classes that train/ lacks: {', '.join(strangers[:5])}.", LAYOUT)
        empty = [name for name in names if not files[name]]
        if empty:
            raise DataIntegrityError(
                f"class {empty[0]!r} has no images in {folder / empty[0]}.", "Add images or remove the class."
            )
        self.classes = tuple(names if known is None else known)
        numbers = {name: number for number, name in enumerate(self.classes)}
        self.labels = np.array([numbers[name] for name in names for _ in files[name]], dtype=np.int64)
        self._folder = folder
        # An array, not a list: reading a list's items writes their reference counts, and with that every loader
        # process would end up with a copy of its own.
        self._files = np.array([os.fsencode(f"{name}/{file}") for name in names for file in files[name]])

    def path(self, index: int) -> Path:
        """Path of the picture."""
        return self._folder / os.fsdecode(bytes(self._files[index]))

    def name(self, index: int) -> str:
        return str(self.path(index))

    def read(self, index: int) -> bytes:
        try:
            return self.path(index).read_bytes()
        except OSError as error:
            raise unreadable(self.name(index), error) from error


def class_folders(folder: Path) -> list[str]:
    """Names of the folders inside, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def image_files(folder: Path) -> list[str]:
    """Names of the images inside, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".")]
    return sorted(name for name in names if name[name.rfind(".") :].lower() in SUFFIXES)
