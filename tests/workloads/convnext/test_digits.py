"""The handwritten digits as an image folder and as shards, on disk and on Cloud Storage."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.emulator.google import served
from tests.support.command_line import CommandLine
from workloads.convnext.config import digits_laptop
from workloads.convnext.images import digits
from workloads.convnext.images.data import sources, stores
from workloads.errors import PlaceError
from workloads.storage import client as storage_client


def test_the_split_is_fixed_and_every_class_is_in_both_halves() -> None:
    names = [name for name, _ in digits.images()]
    assert Counter(name.split("/")[0] for name in names) == {"train": 1437, "val": 360}
    assert {name.rsplit("/", 1)[0] for name in names} == {f"{s}/{c}" for s in ("train", "val") for c in range(10)}
    assert [name for name in names if name.startswith("val/")][:3] == [
        "val/8/0008.png",
        "val/9/0009.png",
        "val/9/0039.png",
    ]
    assert names == [name for name, _ in digits.images()]


@pytest.mark.thorough
def test_a_folder_is_written_once_and_is_what_the_recipe_reads(tmp_path: Path) -> None:
    said: list[str] = []
    assert digits.write(str(tmp_path), said.append) == (1797, 1797)
    assert digits.write(str(tmp_path), said.append) == (0, 1797)
    (tmp_path / "train" / "0" / "0000.png").write_bytes(b"torn")
    assert digits.write(str(tmp_path), said.append) == (1, 1797)
    train, val = sources(digits_laptop(), tmp_path, torch.device("cpu"))
    assert (len(train), len(val), train.classes) == (1437, 360, tuple("0123456789"))
    zero = Image.open(tmp_path / "train" / "0" / "0000.png")
    assert (zero.size, zero.mode, zero.getextrema()) == ((8, 8), "L", (0, 239))


@pytest.mark.thorough
def test_as_shards_they_are_the_same_digits(tmp_path: Path, cli: CommandLine) -> None:
    cli("digits", "--to", str(tmp_path), "--shards")
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == [f"{s}/00000.tar{index}" for s in ("train", "val") for index in ("", ".index.json")]
    train, val = stores(tmp_path)
    assert (train.classes, len(train.labels), len(val.labels)) == (tuple("0123456789"), 1437, 360)
    pictures = {(train.read(at), int(label)) for at, label in enumerate(train.labels)}
    assert pictures == {(png, int(name.split("/")[1])) for name, png in digits.images() if name.startswith("train/")}
    assert digits.write(str(tmp_path), lambda _: None, sharded=True) == (0, 4)


def test_a_bucket_gets_what_it_lacks_and_a_missing_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        digits, "images", lambda: [(f"train/{n % 2}/{n}.{'png' if n else 'tar'}", b"png" * (n + 1)) for n in range(20)]
    )
    with served(tmp_path) as google:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{google.host}")
        bucket = google.make_bucket("data")
        said: list[str] = []
        assert digits.write(f"gs://{bucket}/digits", said.append) == (20, 20)
        assert said == ["20 of 20 files uploaded to gs://data/digits"]
        assert (google.folder(bucket) / "digits" / "train" / "1" / "3.png").read_bytes() == b"png" * 4
        types = {blob.name[-3:]: blob.content_type for blob in storage_client.connect().bucket(bucket).list_blobs()}
        assert types == {"png": "image/png", "tar": "application/x-tar"}
        (google.folder(bucket) / "digits" / "train" / "1" / "3.png").unlink()
        assert digits.write(f"gs://{bucket}/digits", said.append) == (1, 20)
        assert digits.write(f"gs://{bucket}/digits", said.append) == (0, 20)
        with pytest.raises(PlaceError, match="there is no bucket none"):
            digits.write("gs://none/digits", said.append)


def test_an_address_of_another_kind_is_refused(cli: CommandLine) -> None:
    assert "neither gs://BUCKET/PREFIX nor a local folder" in cli("digits", "--to", "s3://bucket/x", code=2).err
