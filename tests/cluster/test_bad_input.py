"""The command `train`, given what only a worker can find wrong: how it ends on a real Ray, one for all cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from tests.support import namespaces
from tests.support.processes import python, usual_variables
from tests.support.training import CPU, Recorder
from workloads import __main__ as command_line
from workloads.checkpoints.store import CheckpointStore
from workloads.convnext.config import from_recipe
from workloads.convnext.images.data import sources
from workloads.convnext.learning.loop import Training
from workloads.storage.folders import locate

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]

COMMANDS = """
import json, subprocess, sys
from workloads.cluster import session
commands, size = json.loads(sys.argv[1]), sys.argv[2]
place = session.prepare()
import ray
if size:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=" + size, "tmpfs", "disk"], check=True)
    subprocess.run(["cp", "-r", "runs/other", "disk/full"], check=True)
with session.connect(place, cpus=1):
    address = ray.get_runtime_context().gcs_address
    for words in commands:
        train = [sys.executable, "-m", "workloads", "train", *words, "--workers", "1", "--address", address]
        done = subprocess.run(train, capture_output=True, text=True)
        print(json.dumps([done.returncode, done.stdout, done.stderr]))
if size:
    subprocess.run(["cp", "-r", "disk/full", "runs"], check=True)
"""


def small_images(root: Path) -> Path:
    """Two classes of four pictures to learn from and of one to validate on."""
    for split, count in (("train", 4), ("val", 1)):
        for number, name in enumerate(("cat", "dog")):
            (root / split / name).mkdir(parents=True)
            for picture in range(count):
                Image.new("RGB", (40, 40), (200 * number, 60 * picture, 0)).save(root / split / name / f"{picture}.png")
    return root


def first_epoch(data: Path, run: Path) -> None:
    """Leave the checkpoint of a run of one epoch."""
    config = from_recipe("digits_laptop", data=str(data), batch_size=8, epochs=1)
    training = Training(config, *sources(config, data, CPU), CPU)
    training.run(Recorder())
    store = CheckpointStore(locate(run / "checkpoints"), config.keep_checkpoints)
    store.save(training.state(), training.position.step, training.identity, {})


def checkpoints(run: Path) -> dict[Path, bytes]:
    """Every file of the run's checkpoints."""
    folder = run / "checkpoints"
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_only_a_worker_can_find_wrong_ends_with_one_message_its_exit_code_and_nothing_lost(tmp_path: Path) -> None:
    here = str(tmp_path)
    good, lacking, spoilt = (small_images(tmp_path / name) for name in ("good", "lacking", "spoilt"))
    (lacking / "val" / "dog" / "0.png").unlink()
    image = spoilt / "train" / "dog" / "3.png"
    image.write_bytes(image.read_bytes()[:60])
    assert command_line.main(["shards", "--from", str(good), "--to", f"{here}/torn"]) == 0
    (shard,) = (tmp_path / "torn" / "train").glob("*.tar")
    shard.write_bytes(shard.read_bytes()[:-1500])
    first_epoch(good, tmp_path / "runs" / "other")
    before = checkpoints(tmp_path / "runs" / "other")

    further = f"--data {good} --batch-size 8 --epochs 2"
    cases = [
        (f"--run lacking --data {lacking} --batch-size 4", 6, f"class 'dog' has no images in {lacking}/val/dog. Add"),
        (f"--run spoilt --data {spoilt} --batch-size 4", 6, f"{image} cannot be decoded"),
        (f"--run torn --data {here}/torn --batch-size 4", 6, f"{shard} has"),
        (f"--run larger --data {good} --batch-size 9", 2, f"but {good} has 8 training images. Choose --batch-size 8"),
        ("--run vast --data synthetic --set image_size=262144", 2, "do not fit the memory of a worker's device. "),
        (f"--run other --model tiny {further}", 2, "model is 'tiny', the checkpoint's is 'nano'. Choose another --run"),
    ]
    apart = namespaces.apart("mount")
    if apart:  # what this machine's own disk must not be used for
        cases.append((f"--run full {further} --storage {here}/disk", 8, "No space left on device. Free some space"))
        (tmp_path / "disk").mkdir()
    places = f"--storage {here}/runs --results {here}/results --wandb off"
    commands = [f"{places} {words}".split() for words, *_ in cases]
    # Room for the checkpoint that is there, and for half of the next one.
    size = str(sum(map(len, before.values())) * 3 // 2) if apart else ""
    variables = usual_variables(PYTHONPATH=str(ROOT))
    words = ("-c", COMMANDS, json.dumps(commands), size)
    done = python(*words, within=apart, cwd=tmp_path, env=variables, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr

    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    for (words, code, said), (found, out, error) in zip(cases, records, strict=True):
        assert found == code, (words, out, error)
        problem, remedy = error.splitlines()
        assert problem.startswith("error: ") and said in f"{problem} {remedy}", (words, error)
        assert "Traceback" not in out and "error: " not in out, (words, out)
    for run in ("other", "full") if apart else ("other",):
        assert checkpoints(tmp_path / "runs" / run) == before, run
    for run in ("lacking", "spoilt", "torn", "larger", "vast"):
        assert checkpoints(tmp_path / "runs" / run) == {}, run
