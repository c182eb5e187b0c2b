"""The policy pack under the real engine: plain `pulumi` with `--policy-pack` in the emulator's shell."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from emulator.machine.state import CHECKOUT, State
from policies.rules import BUCKET, CLUSTER, Resource
from tests.emulator import programs
from tests.emulator.conftest import ControlPlane, Emulated, shell
from tests.support.policy_breaks import BREAKS, KEPT, STRICT, Break
from tests.support.program import deploy_stack

pytestmark = pytest.mark.emulated

PACK = STRICT.parent


@pytest.fixture(scope="module")
def checkout(bare_cluster: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program with a stack."""
    made = tmp_path_factory.mktemp("policies") / "broken"
    programs.engine(bare_cluster.state, made, "").preview()
    return made


@pytest.fixture(scope="module", autouse=True)
def environment() -> None:
    """The pack's own, which `make test` installs."""
    if not (PACK / ".venv" / ".installed").exists():
        pytest.fail("the policies have no environment: `make policies` installs it")


def pulumi(state: State, checkout: Path, command: str, pack: Path = PACK) -> tuple[int, str]:
    """The exit status of a command with the pack, and all that it says, on one line."""
    words = ["pulumi", "--cwd", str(checkout), *command.split(), "--policy-pack", str(pack)]
    done = subprocess.run(words, env=shell(state), cwd=CHECKOUT, capture_output=True, text=True, check=False)
    return done.returncode, " ".join(f"{done.stdout}{done.stderr}".split())


def broken(level: str, said: str) -> set[str]:
    """The policies of a level that are said to be broken."""
    return set(re.findall(rf"\[{level}\] ([\w-]+)", said))


def program(*resources: Resource) -> str:
    """A program that asks for them."""
    lines = [f"pulumi.CustomResource({one.type!r}, {one.name!r}, {dict(one.properties)!r})" for one in resources]
    return "\n".join(["import pulumi", *lines, ""])


def test_a_preview_of_what_breaks_policies_fails_and_names_each_with_its_resource(
    bare_cluster: ControlPlane, checkout: Path
) -> None:
    deployment = deploy_stack(KEPT)
    breaks = {one.policy: one.of(deployment) for one in reversed(BREAKS)}
    # Two of them break the cluster.
    breaks = {policy: replace(one, name=policy) if one.type == CLUSTER else one for policy, one in breaks.items()}
    (checkout / "__main__.py").write_text(program(*breaks.values()))

    status, said = pulumi(bare_cluster.state, checkout, f"preview -s local --policy-pack-config {STRICT}")

    assert status != 0, said
    assert broken("mandatory", said) == breaks.keys(), said
    named = dict(re.findall(r"\[mandatory\] ([\w-]+) \([^ ]+ ([\w-]+)\)", said))
    of_the_stack = {policy for policy, name in named.items() if name == "broken-local"}
    assert of_the_stack == {"budget", "gpu-nodes", "required-labels", "same-labels"}, said
    assert {policy: breaks[policy].name for policy in breaks.keys() - of_the_stack}.items() <= named.items(), said


def test_an_update_does_not_make_what_a_policy_refuses(bare_cluster: ControlPlane, checkout: Path) -> None:
    public = Break("private-data", BUCKET, "data", "publicAccessPrevention", "inherited")
    (checkout / "__main__.py").write_text(program(public.of(deploy_stack(KEPT))))

    status, said = pulumi(bare_cluster.state, checkout, "up -s local --yes --skip-preview")

    assert status != 0, said
    assert broken("mandatory", said) == {"private-data"}, said
    assert bare_cluster.cloud.list() == []


def test_a_pack_without_its_packages_is_said_to_lack_them_and_how_they_come(
    bare_cluster: ControlPlane, checkout: Path, tmp_path: Path
) -> None:
    shutil.copy2(PACK / "PulumiPolicy.yaml", tmp_path)

    status, said = pulumi(bare_cluster.state, checkout, "preview -s local", tmp_path)

    assert status != 0
    assert f"{tmp_path}/.venv/bin/python is missing" in said
    assert "`make policies` installs" in said


def test_the_local_stack_is_told_advice_alone_and_refused_by_the_strict_configuration(emulated: Emulated) -> None:
    status, said = pulumi(emulated.state, CHECKOUT, "preview -s local")
    assert (status, broken("mandatory", said)) == (0, set()), said
    assert broken("advisory", said) == {"gpu-nodes", "required-labels", "budget"}

    status, said = pulumi(emulated.state, CHECKOUT, f"preview -s local --policy-pack-config {STRICT}")
    assert status != 0
    assert broken("mandatory", said) == {"required-labels", "budget"}, said
