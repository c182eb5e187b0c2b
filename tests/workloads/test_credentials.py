"""Where the W&B key comes from, and that nothing but its caller ever sees it."""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import google.auth
import google_crc32c
import pytest
from google.auth.credentials import AnonymousCredentials
from wandb.sdk.lib.wbauth.validation import check_api_key

from tests.support import loopback
from tests.support.loopback import Reply, Request
from tests.support.processes import python
from workloads.errors import AuthError, DataIntegrityError, PlaceError
from workloads.reporting import credentials

SECRET = "projects/p/secrets/wandb"
KEY = "0123456789abcdef" * 3
FILE_KEY = "local-" + "f1" * 20
VARIABLE_KEY = "e2" * 20


@contextmanager
def secret_manager(monkeypatch: pytest.MonkeyPatch, status: int, body: dict[str, object]) -> Iterator[list[str]]:
    """A Secret Manager that always gives the same answer; the paths it was asked for."""
    asked: list[str] = []

    def answer(request: Request) -> Reply:
        asked.append(request.path)
        return status, body

    monkeypatch.setattr(google.auth, "default", lambda **_: (AnonymousCredentials(), "p"))
    with loopback.answering(answer) as url:
        monkeypatch.setenv(credentials.ENDPOINT_VARIABLE, f"{url}/")
        yield asked


def payload(content: bytes, checksum: int | None = None) -> dict[str, object]:
    checksum = google_crc32c.value(content) if checksum is None else checksum
    data = {"data": base64.b64encode(content).decode(), "dataCrc32c": str(checksum)}
    return {"name": f"{SECRET}/versions/3", "payload": data}


def failure(status: int, reason: str) -> dict[str, object]:
    return {"error": {"code": status, "message": "no", "status": reason}}


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(credentials.KEY_VARIABLE, raising=False)


def test_a_file_comes_before_the_environment_and_that_before_secret_manager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text(FILE_KEY + "\n")
    with secret_manager(monkeypatch, 200, payload(f"{KEY}\n".encode())) as asked:
        monkeypatch.setenv(credentials.KEY_VARIABLE, VARIABLE_KEY)
        found = credentials.wandb_key(file, SECRET)
        assert found is not None
        assert (found.value, found.source) == (FILE_KEY, f"file {file}")
        found = credentials.wandb_key(None, SECRET)
        assert found is not None
        assert found.value == VARIABLE_KEY
        assert asked == []
        monkeypatch.delenv(credentials.KEY_VARIABLE)
        found = credentials.wandb_key(None, SECRET)
        assert found is not None
        assert (found.value, found.source) == (KEY, f"{SECRET}/versions/3")
        assert [path.partition("?")[0] for path in asked] == [f"/v1/{SECRET}/versions/latest:access"]
        assert KEY not in repr(found)
    assert credentials.wandb_key(None, "") is None


def test_what_is_started_while_the_key_is_hidden_inherits_none(monkeypatch: pytest.MonkeyPatch) -> None:
    look = "-c", f"import os; print(os.environ.get({credentials.KEY_VARIABLE!r}))"
    monkeypatch.setenv(credentials.KEY_VARIABLE, "k" * 40)
    with pytest.raises(KeyboardInterrupt), credentials.hidden():
        assert python(*look).stdout == "None\n"
        raise KeyboardInterrupt
    assert os.environ[credentials.KEY_VARIABLE] == "k" * 40
    monkeypatch.delenv(credentials.KEY_VARIABLE)
    with credentials.hidden():
        pass
    assert credentials.KEY_VARIABLE not in os.environ


def test_a_key_file_that_cannot_be_used_is_an_error_and_not_a_reason_to_look_elsewhere(tmp_path: Path) -> None:
    with pytest.raises(AuthError, match="cannot be read: No such file") as caught:
        credentials.wandb_key(tmp_path / "none", SECRET)
    assert caught.value.exit_code == 7
    (tmp_path / "empty").touch()
    with pytest.raises(AuthError, match="is empty"):
        credentials.wandb_key(tmp_path / "empty", SECRET)
    (tmp_path / "wide").write_text(FILE_KEY, encoding="utf-16")  # as `>` of PowerShell 5 writes it
    with pytest.raises(AuthError, match="wide holds is not a W&B key"):
        credentials.wandb_key(tmp_path / "wide", SECRET)


@pytest.mark.parametrize(
    "key", ["a" * 39, "local-" + "a" * 39, "a" * 20 + " " + "a" * 20, "a" * 40 + "!", "\u00e4" * 40]
)
def test_what_cannot_be_a_key_is_refused_and_not_shown(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(credentials.KEY_VARIABLE, key)
    with pytest.raises(AuthError, match="variable WANDB_API_KEY holds is not a W&B key") as caught:
        credentials.wandb_key(None, "")
    assert key not in str(caught.value)


@pytest.mark.parametrize("key", ["a" * 40, "A_0" * 20, "local-" + "a" * 40, "wandb_v1_" + "a-b_" * 12 + "-" + "a" * 40])
def test_each_form_of_key_that_the_wandb_package_takes_is_taken(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_api_key(key) is None
    monkeypatch.setenv(credentials.KEY_VARIABLE, key)
    assert credentials.wandb_key(None, "") is not None


def test_in_a_pod_the_workload_s_own_identity_opens_the_secret(tmp_path: Path) -> None:
    # As on GKE: no key file, only the metadata server, which hands the pod's service account a token.
    account = "/computeMetadata/v1/instance/service-accounts/default/"
    answers: dict[str, object] = {
        "/computeMetadata/v1/project/project-id": "p",
        account: {"email": "default", "aliases": [], "scopes": ["https://www.googleapis.com/auth/cloud-platform"]},
        f"{account}token": {"access_token": "of-the-pod", "expires_in": 3599, "token_type": "Bearer"},
        f"/v1/{SECRET}/versions/latest:access": payload(KEY.encode()),
    }
    sent: dict[str, str | None] = {}

    def answer(request: Request) -> Reply:
        path = request.path.partition("?")[0]
        sent[path] = request.headers.get("Authorization")
        return 200, answers.get(path, "")

    with loopback.answering(answer, {"Metadata-Flavor": "Google"}) as url:
        address = url.removeprefix("http://")
        # A process of its own, because google-auth reads where the metadata server is when it is imported.
        variables = {"GCE_METADATA_HOST": address, "GCE_METADATA_IP": address, "CLOUDSDK_CONFIG": str(tmp_path)}
        ask = f"from workloads.reporting.credentials import wandb_key; print(wandb_key(None, {SECRET!r}).value)"
        variables |= {"PATH": os.environ["PATH"], credentials.ENDPOINT_VARIABLE: f"{url}/"}
        done = python("-c", ask, env=variables, timeout=60)
    assert done.stdout.strip() == KEY, done.stderr
    assert sent[f"/v1/{SECRET}/versions/latest:access"] == "Bearer of-the-pod"


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (404, failure(404, "NOT_FOUND"), AuthError, "has no version"),
        (400, failure(400, "FAILED_PRECONDITION"), AuthError, "the newest version of .* cannot be read: .*no. Enable"),
        (403, failure(403, "PERMISSION_DENIED"), AuthError, "may not be read by this account"),
        (200, payload(KEY.encode(), checksum=1), DataIntegrityError, "fails its checksum"),
        (200, payload(b" \n"), AuthError, "is empty"),
    ],
)
def test_each_refusal_of_secret_manager_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, status: int, body: dict[str, object], kind: type[Exception], message: str
) -> None:
    with secret_manager(monkeypatch, status, body), pytest.raises(kind, match=message) as caught:
        credentials.access(SECRET)
    assert KEY not in str(caught.value)


def test_an_unavailable_secret_manager_is_given_up_on_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "DEADLINE_SECONDS", 1.0)
    with secret_manager(monkeypatch, 503, failure(503, "UNAVAILABLE")) as asked:
        began = time.monotonic()
        with pytest.raises(PlaceError, match="did not give"):
            credentials.access(SECRET)
        assert time.monotonic() - began < 5
        assert len(asked) > 1


def test_no_token_is_sent_to_another_machine_in_the_clear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(credentials.ENDPOINT_VARIABLE, "http://secrets.example.com/")
    with pytest.raises(AuthError, match="in the clear"):
        credentials.access(SECRET)
