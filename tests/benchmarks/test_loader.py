"""The benchmark of loaders: all of them read the same pictures, which differ by class and follow from their seed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from PIL import Image

from benchmarks.loader import __main__ as loader
from benchmarks.loader import loaders, photos


@pytest.fixture(autouse=True)
def few_and_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(photos, "TEXTURES", photos.TEXTURES[:2])
    monkeypatch.setattr(photos, "SHAPES", photos.SHAPES[:2])
    monkeypatch.setattr(photos, "LONGEST_SIDE", (100, 0.1))
    monkeypatch.setattr(loaders, "CLASSES", 4)
    monkeypatch.setattr(loaders, "BATCH", 2)


def test_pictures_follow_from_their_seed_and_are_jpegs_of_mixed_sizes(tmp_path: Path) -> None:
    assert loader.main(["--photos", str(tmp_path / "photos"), "--each", "5"]) == 0
    written = {
        str(file.relative_to(tmp_path / "photos")): file.read_bytes() for file in (tmp_path / "photos").rglob("*.jpg")
    }
    assert len(written) == 4 * (5 + 1) == len(set(written.values()))
    assert len({name.split("/")[1] for name in written}) == 4
    assert len({Image.open(io.BytesIO(content)).size for content in written.values()}) > 10
    again = [content for _, content in photos.pictures(1, seed=0)]
    assert set(again) <= set(written.values())
    assert again != [content for _, content in photos.pictures(1, seed=1)]


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--rounds", "0"], "--rounds is 0"), (["--each", "-1"], "--each is -1"), (["--photos", "."], "name another one")],
)
def test_a_mistake_is_refused_and_what_is_there_is_left(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").touch()
    with pytest.raises(SystemExit):
        loader.main(words)
    assert said in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["mine"]


@pytest.mark.thorough
def test_each_loader_is_timed_on_both_ways_and_two_processes_of_two_are_started(tmp_path: Path) -> None:
    results = tmp_path / "loader.json"
    assert loader.main(["--each", "1", "--rounds", "1", "--results", str(results)]) == 0
    found = json.loads(results.read_text())
    for part in ("host", "whole"):
        rates = {name: found[part][name]["median"] for name in ("oasis", "torchvision", "timm", "webdataset")}
        assert min(rates.values()) > 1
        assert set(found[part]["times"]) == set(rates) - {"oasis"}
    for name in ("oasis", "torchvision"):
        assert found[f"two processes of {name}"]["MiB each"]["median"] > 20
