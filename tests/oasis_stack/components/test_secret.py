"""The secret, and the value it may start with."""

from oasis_stack.command_line.offline import Deployment
from oasis_stack.components.secret import value_version

VERSION = "gcp:secretmanager/secretVersion:SecretVersion"
KEY = "0123456789abcdef0123456789abcdef01234567"


def test_a_value_is_there_only_if_the_stack_has_one_write_only_and_kept_with_its_secret(
    full: Deployment, other: Deployment
) -> None:
    assert full.of_type(VERSION) == []
    version = other.only(VERSION)
    assert "secretDataWoVersion" in version.secret_inputs
    assert "secretData" not in version.inputs
    assert version.retain_on_delete


def test_another_value_gives_another_version_and_the_same_value_the_same() -> None:
    assert value_version(KEY) == value_version(KEY) != value_version(KEY[::-1])
    assert 0 <= int(value_version(KEY)) < 2**31
