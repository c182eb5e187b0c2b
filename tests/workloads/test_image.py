"""The image's build files: what can be known of them without building."""

import re
import shlex
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from oasis_stack.pod_specs.mounts import GROUP, USER
from oasis_stack.settings.settings import from_config, parse
from tests.support.stacks import FULL

CHECKOUT = Path(__file__).resolve().parents[2]
IMAGE = CHECKOUT / "workloads" / "image"


def instructions(text: str) -> list[tuple[str, str]]:
    """A Dockerfile's instructions, continued lines joined, comments dropped."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    parts = [line.strip().partition(" ") for line in joined.splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in parts]


DOCKERFILE = instructions((IMAGE / "Dockerfile").read_text())


def pinned(text: str) -> dict[str, str]:
    """Name and version of each requirement of a lock file."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", text, flags=re.MULTILINE))


def test_only_the_system_packages_are_installed_as_root() -> None:
    assert {word for word, _ in DOCKERFILE} == {"ARG", "FROM", "USER", "RUN", "WORKDIR", "ENV", "COPY"}
    user = f"{USER}:{GROUP}"
    as_root = []
    for word, rest in DOCKERFILE:
        user = rest if word == "USER" else user
        if word in ("RUN", "COPY") and user == "0:0":
            as_root.append(rest)
    assert len(as_root) == 1
    assert "'libnl-3-200=3.*' 'libnl-route-3-200=3.*'" in as_root[0]
    assert as_root[0].endswith("rm -rf /var/lib/apt/lists/*")


def test_every_copied_file_exists_and_is_sent_to_the_builder() -> None:
    sent = (IMAGE / "Dockerfile.dockerignore").read_text().split()
    allowed = [line[2:] for line in sent if line.startswith("!/")]
    for word, rest in DOCKERFILE:
        if word == "COPY":
            *sources, _target = [part for part in shlex.split(rest) if not part.startswith("--")]
            for source in sources:
                assert (CHECKOUT / source).exists()
                assert any(source == entry or source.startswith(f"{entry}/") for entry in allowed)


def test_cloud_build_is_sent_what_docker_is_sent_and_nothing_else() -> None:
    def rules(path: Path) -> list[str]:
        return [line for line in path.read_text().splitlines() if line and not line.startswith("#")]

    sent = rules(CHECKOUT / ".gcloudignore")
    assert sent == rules(IMAGE / "Dockerfile.dockerignore")
    # Everything is left out first: .git, .venv, .oasis, stack files and whatever else lies in a checkout.
    assert sent[0] == "/*"
    assert {line for line in sent if line.startswith("!")} == {"!/requirements-workloads.txt", "!/workloads"}


def test_base_image_and_packages_come_from_the_stack_s_repositories_and_so_do_those_of_a_job() -> None:
    assert [rest for word, rest in DOCKERFILE if word == "FROM"] == ["${DOCKER_INDEX}/${BASE}"]
    [environment] = [rest for word, rest in DOCKERFILE if word == "ENV"]
    variables = dict(pair.split("=", 1) for pair in shlex.split(environment))
    assert variables["PIP_INDEX_URL"] == "${PYTHON_INDEX_URL}"
    before = [word for word, _ in DOCKERFILE].index("ENV")
    assert ("ARG", "PYTHON_INDEX_URL") in DOCKERFILE[:before]


def test_python_packages_come_hash_checked_and_the_token_stays_out_of_the_layers() -> None:
    [install] = [rest for word, rest in DOCKERFILE if word == "RUN" and "pip install" in rest]
    assert install.startswith("--mount=type=secret,id=python_index_token")
    assert "--require-hashes" in install
    assert "rm -f /tmp/netrc" in install
    assert not any("TOKEN" in rest for word, rest in DOCKERFILE if word in ("ARG", "ENV"))


def test_image_client_environment_locks_and_default_setting_have_one_ray_and_one_python() -> None:
    makefile = (CHECKOUT / "Makefile").read_text()
    [python] = re.findall(r"^IMAGE_PYTHON := (.+)$", makefile, re.MULTILINE)
    locked = pinned((CHECKOUT / "requirements-workloads.txt").read_text())
    [base] = [rest.partition("=")[2] for word, rest in DOCKERFILE if word == "ARG" and rest.startswith("BASE=")]
    environment = yaml.safe_load((IMAGE / "environment.yaml").read_text())

    stock = f"rayproject/ray:{locked['ray']}-py{python.replace('.', '')}-cu128"
    assert base.partition("@")[0] == parse(from_config(FULL)).ray.image == stock
    assert f"python={python}" in environment["dependencies"]
    # The lock of what the image adds, and the checks that every package has a wheel, there and on a Mac, are for it.
    assert len(re.findall(r"--python-version \$\(IMAGE_PYTHON\)", makefile)) == 3


def test_every_lock_file_holds_what_pyproject_asks_for_and_none_disagrees_with_another() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    groups = {"program": project["project"]["dependencies"], **project["dependency-groups"]}
    files = {
        "requirements.txt": ("program",),
        "requirements-workloads.txt": ("program", "workloads"),
        "requirements-dev.txt": ("program", "workloads", "emulator", "dev"),
    }
    locks = {name: pinned((CHECKOUT / name).read_text()) for name in files}
    locks["requirements-index.txt"] = pinned((IMAGE / "requirements-index.txt").read_text())
    asked = {name: [line for group in names for line in groups[group]] for name, names in files.items()}
    asked["requirements-index.txt"] = [
        line for line in (IMAGE / "requirements-index.in").read_text().splitlines() if not line.startswith("#")
    ]

    for name, lines in asked.items():
        for wanted in map(Requirement, lines):
            assert locks[name].get(canonicalize_name(wanted.name), "0") in wanted.specifier, (name, str(wanted))
    every = [(package, version) for lock in locks.values() for package, version in lock.items()]
    assert len({package for package, _ in every}) == len(set(every))


def test_the_conda_environment_takes_its_pins_from_the_image_s_lock_file_and_a_supported_python() -> None:
    environment = yaml.safe_load((IMAGE / "environment.yaml").read_text())
    [pip] = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    [requirement] = pip
    flag, _, path = requirement.partition(" ")
    assert flag == "--requirement"
    assert (IMAGE / path).resolve() == CHECKOUT / "requirements-workloads.txt"
    [python] = [entry for entry in environment["dependencies"] if str(entry).startswith("python=")]
    supported = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["requires-python"]
    lowest, highest = (tuple(map(int, bound.split("."))) for bound in re.findall(r"\d+\.\d+", supported))
    assert lowest <= tuple(map(int, python.partition("=")[2].split("."))) < highest


def test_cloud_build_caches_every_layer_logs_to_the_stacks_bucket_and_uses_no_floating_image() -> None:
    build = yaml.safe_load((IMAGE / "cloudbuild.yaml").read_text())
    script = build["steps"][1]["args"][-1]
    assert "--driver docker-container" in script
    assert "mode=max" in script and "--cache-from" in script
    # The bucket comes with `--gcs-log-dir`; an attestation would need Container Analysis, which no stack enables.
    assert build["options"] == {"logging": "GCS_ONLY"}
    assert build["images"] == ["${_IMAGE}:${_TAG}"]
    used = [step["name"] for step in build["steps"]] + re.findall(r"image=(\S+)", script)[:1]
    assert len(used) == 3
    for image in used:
        assert re.search(r"@sha256:[0-9a-f]{64}$|:\d+\.\d+\.\d+(-\w+)?$", image)


def test_cloud_build_gives_the_dockerfile_every_argument_and_secret_it_names() -> None:
    build = yaml.safe_load((IMAGE / "cloudbuild.yaml").read_text())
    script = build["steps"][1]["args"][-1]
    arguments = {rest.partition("=")[0] for word, rest in DOCKERFILE if word == "ARG"} - {"BASE"}
    assert set(re.findall(r'--build-arg "(\w+)=', script)) == arguments
    assert "--secret id=python_index_token" in script
    substitutions = set(re.findall(r"\$\{(_\w+)\}", (IMAGE / "cloudbuild.yaml").read_text()))
    assert substitutions == {"_IMAGE", "_TAG", "_DOCKER_INDEX", "_PYTHON_INDEX_URL"}


def test_no_build_file_names_a_package_index() -> None:
    for name in (
        "Dockerfile",
        "cloudbuild.yaml",
        "environment.yaml",
        "requirements-index.in",
        "requirements-index.txt",
    ):
        assert not re.search(r"https?://\S*(pypi|simple)", (IMAGE / name).read_text())
