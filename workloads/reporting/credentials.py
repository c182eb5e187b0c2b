"""The W&B key: from a file, the environment or Secret Manager, read by the driver alone.

A key is never in argv, a runtime_env or a Ray object, all of which Ray shows to anyone who can see the dashboard.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import google_crc32c
from google.api_core import exceptions as google
from google.api_core.retry import Retry
from google.auth.exceptions import DefaultCredentialsError
from google.cloud.secretmanager_v1 import AccessSecretVersionResponse, SecretManagerServiceClient
from google.cloud.secretmanager_v1.services.secret_manager_service.transports import SecretManagerServiceRestTransport

from workloads.errors import AuthError, DataIntegrityError, PlaceError

KEY_VARIABLE = "WANDB_API_KEY"
ENDPOINT_VARIABLE = "CLOUDSDK_API_ENDPOINT_OVERRIDES_SECRETMANAGER"
"""gcloud's own variable for another Secret Manager endpoint (`gcloud topic configurations`, api_endpoint_overrides)."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

DEADLINE_SECONDS = 10.0
"""For all attempts together. The client's default keeps retrying for 60 s, in which the user sees nothing."""


@dataclass(frozen=True)
class Key:
    """A key and where it came from. Its value is in no repr."""

    value: str = field(repr=False)
    source: str


class MissingKeyError(AuthError):
    """A stack has a place for a key, and nobody has put one there."""


_FORM = re.compile(r"\w{40,}|[^-\s]*-[\w-]{40,}|[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
"""What the wandb package accepts as a key (wandb/sdk/lib/wbauth/validation.py): 40 or more characters, the same after a
deployment's prefix and a dash, or a JWT."""


def wandb_key(file: Path | None, secret: str) -> Key | None:
    """The first key found: in the file, then in WANDB_API_KEY, then in Secret Manager.

    Args:
        file: named by the user, so a failure to read it is an error; None to go on to the next.
        secret: `projects/<p>/secrets/<s>`; empty for a stack without one.

    Raises:
        AuthError: the file or the secret cannot be read, is empty, or holds what cannot be a key.
        DataIntegrityError: the secret did not arrive as it was stored.
        PlaceError: Secret Manager does not answer.
    """
    if file is not None:
        try:
            value = file.read_text(errors="replace").strip()
        except OSError as error:
            raise AuthError(
                f"the key file {file} cannot be read: {error.strerror}.", "Check its path and mode."
            ) from error
        if not value:
            raise AuthError(f"the key file {file} is empty.", "Write the key into it.")
        return _formed(Key(value, f"file {file}"))
    if value := os.environ.get(KEY_VARIABLE, "").strip():
        return _formed(Key(value, f"variable {KEY_VARIABLE}"))
    return _formed(access(secret)) if secret else None


@contextmanager
def hidden() -> Iterator[None]:
    """The environment without the key, for as long as the block lasts: what is started in it inherits none."""
    value = os.environ.pop(KEY_VARIABLE, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[KEY_VARIABLE] = value


def _formed(key: Key) -> Key:
    if not _FORM.fullmatch(key.value):
        raise AuthError(
            f"what {key.source} holds is not a W&B key: {len(key.value)} characters, where a key has 40 or more of "
            "A-Z, a-z, 0-9, '_' and '-'.",
            "Copy the whole key from the user settings of your W&B server.",
        )
    return key


def no_key() -> AuthError:
    """There is no key anywhere, and one was demanded."""
    return AuthError(
        "there is no W&B key in a file, the environment or Secret Manager.",
        f"Name a file with --wandb-key-file, set {KEY_VARIABLE}, store one with `make secret`, or use --wandb offline.",
    )


def access(secret: str) -> Key:
    """Read the newest version of a secret.

    Args:
        secret: `projects/<p>/secrets/<s>`.

    Raises:
        MissingKeyError: it does not exist or has no version.
        AuthError: it may not be read, or is empty.
        DataIntegrityError: the payload fails its checksum, which the client library does not compare.
        PlaceError: no answer in time.
    """
    try:
        response = _client().access_secret_version(
            name=f"{secret}/versions/latest",
            timeout=DEADLINE_SECONDS,
            retry=Retry(
                predicate=lambda error: isinstance(error, google.ServiceUnavailable | google.TooManyRequests),
                initial=0.2,
                timeout=DEADLINE_SECONDS,
            ),
        )
    except google.NotFound as error:
        raise MissingKeyError(
            f"{secret} has no version.", "To track runs there, store a key with `make secret STACK=<stack>`."
        ) from error
    except google.BadRequest as error:  # FAILED_PRECONDITION: somebody has disabled or destroyed that version
        raise AuthError(
            f"the newest version of {secret} cannot be read: {error.message.rstrip('.')}.",
            "Enable it again, or store a key with `make secret STACK=<stack>`.",
        ) from error
    except (google.Forbidden, google.Unauthorized) as error:
        raise AuthError(
            f"{secret} may not be read by this account.", "It needs roles/secretmanager.secretAccessor on the secret."
        ) from error
    except DefaultCredentialsError as error:
        raise AuthError(
            "there are no Google credentials here.", "Run `gcloud auth application-default login`."
        ) from error
    except (google.GoogleAPICallError, google.RetryError, OSError) as error:
        raise PlaceError(
            f"Secret Manager did not give {secret} within {DEADLINE_SECONDS:.0f} s ({type(error).__name__}).",
            "Run the same command again, or use --wandb offline.",
        ) from error
    return _received(response)


def _received(response: AccessSecretVersionResponse) -> Key:
    payload = response.payload
    if payload.data_crc32c and payload.data_crc32c != google_crc32c.value(payload.data):
        raise DataIntegrityError(f"the payload of {response.name} fails its checksum.", "Run the same command again.")
    value = payload.data.decode("utf-8", errors="replace").strip()
    if not value:
        raise AuthError(f"{response.name} is empty.", "Store the key with `make secret STACK=<stack>`.")
    return Key(value, response.name)


def _client() -> SecretManagerServiceClient:
    endpoint = os.environ.get(ENDPOINT_VARIABLE, "")
    if not endpoint:
        return SecretManagerServiceClient()
    parts = urlsplit(endpoint)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        raise AuthError(
            f"{ENDPOINT_VARIABLE} is {endpoint}: a token would cross the network in the clear.",
            "Use an https:// address, or unset the variable for Google's own.",
        )
    transport = SecretManagerServiceRestTransport(host=parts.netloc, url_scheme=parts.scheme)
    return SecretManagerServiceClient(transport=transport)
