"""The README's tables and picture say what the program does, no more and no less."""

import re
import shlex
from pathlib import Path

from docs import platform_picture
from tests.deployment import Deploy
from tests.program import program
from tests.stacks import FULL

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text below a heading, up to the next heading of the same or a higher level."""
    marks = re.search(rf"^(#+) {re.escape(title)}$", README, re.MULTILINE)
    assert marks, f"README.md has no section {title!r}"
    rest = README[marks.end() :]
    following = re.search(rf"^#{{1,{len(marks.group(1))}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def first_cells(table: str) -> set[str]:
    """Every name in backquotes in the first column."""
    rows = [line for line in table.splitlines() if line.startswith("| ") and not line.startswith("|---")]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_the_outputs_table_names_exactly_the_exports(deploy: Deploy) -> None:
    exports = deploy(program, FULL).exports
    assert first_cells(section("Outputs")) == set(exports)


def test_the_apis_that_are_said_to_be_dropped_are_not_enabled(deploy: Deploy) -> None:
    services = deploy(program, FULL).of_type("gcp:projects/service:Service")
    enabled = {service.inputs["service"].removesuffix(".googleapis.com") for service in services}
    said = re.search(r"Dropped, since nothing here uses them: ([a-z, ]+) \|", section("From the seeds to here"))
    assert said
    dropped = set(said[1].split(", "))
    assert "servicehealth" in dropped
    assert len(enabled) > 10
    assert dropped & enabled == set()


def test_every_file_that_the_readme_names_exists() -> None:
    folders = ("", "oasis_stack/", "docs/", "workloads/", "emulator/")
    later = {"kueue.py", "queue.py", "services.tf", "gcs.tf", "registry.tf", "build.tf", "build.sh"}
    named = set(re.findall(r"`((?:[\w.]+/)*[\w]+\.(?:py|md|yaml|toml|svg|tf|sh))`", README)) - later
    of_the_seeds = {"convnext_train.py", "test_nccl_rdma_multi.py", "hello_world.py"}
    missing = {name for name in named - of_the_seeds if not any((ROOT / folder / name).exists() for folder in folders)}
    assert missing == set()


def test_every_test_that_the_table_of_threats_names_is_one() -> None:
    table = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    rows = [row for row in table.splitlines() if row.startswith("| ")][1:]
    tests = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    defined = {name for text in tests.values() for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    named = set(re.findall(r"`(test_\w+|tests/[\w/]+\.py)`", table))
    assert named - defined - tests.keys() == set()
    assert len(named) >= len(rows) > 8


def test_every_make_target_that_the_readme_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+)(?:[ a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", README, re.MULTILINE)) <= targets


def commands(module: str) -> list[list[str]]:
    """What the README and the Makefile give to `python -m <module>`, as arguments."""
    text = README.replace("\\\n", " ") + (ROOT / "Makefile").read_text(encoding="utf-8")
    found = re.findall(rf"-m {module} ([^`\n#;)]+)", text)
    return [shlex.split(re.sub(r"\$\((\w+)\)", r"docker", line).replace("[", "").replace("]", "")) for line in found]


def test_every_command_line_that_the_readme_or_the_makefile_gives_is_one() -> None:
    from emulator.__main__ import _parser as of_the_emulator
    from oasis_stack.__main__ import parser as of_the_stack
    from workloads.__main__ import _parser as of_the_workloads
    from workloads.submit import OWN_COMMANDS

    for words in commands("oasis_stack"):
        of_the_stack().parse_args(words)
    for words in commands("emulator"):
        of_the_emulator().parse_args(words)
    shown = commands("workloads")
    assert {words[0] for words in shown} >= {"submit", "jobs", "train", "bench", "runs", "tune"}
    submitted = [words[words.index("--") + 1 :] for words in shown if "--" in words]
    for words in [*shown, *(words for words in submitted if words[0] in OWN_COMMANDS)]:
        parser, _ = of_the_workloads(words[0])
        parser.parse_args(words)


def test_nothing_in_the_readme_waits_to_be_filled_in() -> None:
    assert not re.search(r"@@|TBD|XXX", README)


def test_the_picture_is_the_one_that_the_code_draws(tmp_path: Path) -> None:
    platform_picture.draw(tmp_path / "platform.svg")
    assert (tmp_path / "platform.svg").read_text() == (ROOT / "docs" / "platform.svg").read_text()


def test_the_picture_shows_what_the_program_builds(deploy: Deploy) -> None:
    deployed = deploy(program, FULL)
    text = "\n".join(line for box in platform_picture.BOXES for line in (box.title, *box.lines))
    networks = {
        resource.inputs["metadata"]["name"] for resource in deployed.of_type("kubernetes:networking.gke.io/v1:Network")
    }
    assert networks == {"gvnic-1", *(f"rdma-{nic}" for nic in range(8))}
    assert "Network gvnic-1" in text
    assert "Networks rdma-0 .. rdma-7" in text
    pools = deployed.of_type("gcp:container/nodePool:NodePool")
    machines = {pool.inputs["nodeConfig"]["machineType"] for pool in pools if pool.name.startswith("gpu")}
    assert machines == {"a3-ultragpu-8g"}
    assert "a3-ultragpu-8g, 0 nodes at rest" in text
    mtus = {network.inputs["mtu"] for network in deployed.of_type("gcp:compute/network:Network")}
    assert mtus == {8896}
    assert text.count("MTU 8896") == 3
