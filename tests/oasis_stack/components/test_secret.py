"""The secret, and the value it may start with."""

import pulumi

from oasis_stack.components.secret import ApiKeySecret, ApiKeySecretArgs, value_version
from oasis_stack.facts.lifecycle import Lifecycle
from tests.support.deployment import Deploy, Deployment
from tests.support.stacks import SITE

SECRET, VERSION = "gcp:secretmanager/secret:Secret", "gcp:secretmanager/secretVersion:SecretVersion"
KEY = "0123456789abcdef0123456789abcdef01234567"


def _deployed(deploy: Deploy, value: str | None = None, keep: bool = False, adopt: bool = False) -> Deployment:
    def program() -> None:
        args = ApiKeySecretArgs(
            site=SITE,
            lifecycle=Lifecycle(keep=keep, adopt=adopt),
            value=None if value is None else pulumi.Output.secret(value),
        )
        secret = ApiKeySecret("wandb", args)
        pulumi.export("secret", secret.secret_id)

    return deploy(program)


def test_without_a_value_only_the_container_is_made(deploy: Deploy) -> None:
    seen = _deployed(deploy)
    assert seen.exports == {"secret": "projects/project-a/secrets/oasis-wandb"}
    assert seen.of_type(VERSION) == [] and len(seen.of_type(SECRET)) == 1


def test_a_value_is_write_only_and_never_in_the_clear(deploy: Deploy) -> None:
    seen = _deployed(deploy, KEY)
    version = seen.only(VERSION)
    assert version.inputs["secretDataWo"] == KEY
    assert {"secretDataWo", "secretDataWoVersion"} <= version.secret_inputs
    assert "secretData" not in version.inputs
    in_the_clear = [
        value for resource in seen for key, value in resource.inputs.items() if key not in resource.secret_inputs
    ]
    assert KEY not in repr(in_the_clear) + repr(seen.exports)


def test_another_value_gives_another_version_and_the_same_value_the_same(deploy: Deploy) -> None:
    assert value_version(KEY) == value_version(KEY) != value_version(KEY[::-1])
    assert 0 <= int(value_version(KEY)) < 2**31


def test_a_kept_secret_survives_with_its_value_and_is_adopted_by_id(deploy: Deploy) -> None:
    seen = _deployed(deploy, KEY, keep=True, adopt=True)
    assert seen.only(SECRET).retain_on_delete and seen.only(VERSION).retain_on_delete
    assert seen.only(SECRET).import_id == "projects/project-a/secrets/oasis-wandb"
    assert not _deployed(deploy, KEY).only(SECRET).retain_on_delete
