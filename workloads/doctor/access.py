"""Checks of access: Ray's token, who can reach this machine's Ray, the buckets' permissions, the W&B key."""

from __future__ import annotations

import base64
import http.client
import json
import secrets
import ssl
import sys
import urllib.error
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

from workloads.doctor import dashboard, listeners
from workloads.doctor.dashboard import ANSWER_SECONDS, NO_TOKEN
from workloads.doctor.finding import OUTSIDE, Doubtful, NotHere, Subject
from workloads.environment import API_SERVER_VARIABLE
from workloads.errors import AuthError, PlaceError, first_line

FIRST_NAMES = 20
"""Of the data bucket's objects that are looked at."""

PROTECTED = "/api/jobs/"
"""A route that Ray guards. Others, like its health check, answer anybody."""

WANDB = "https://api.wandb.ai"


def authentication(place: Subject) -> str:
    """Check that Ray accepts our token, and neither a wrong one nor none."""
    if not place.in_cluster:
        raise NotHere("not in a Ray cluster; an embedded Ray makes a token of its own")
    mode = place.variables.get("RAY_AUTH_MODE", "")
    if mode != "token":
        raise AuthError(f"RAY_AUTH_MODE is {mode!r}", NO_TOKEN)
    token = dashboard.token(place)
    addresses = dashboard.addresses(place)
    for address in addresses:
        status = _status(address, None)
        if status is not None:
            return _tried(address, token, status)
    raise Doubtful(
        f"a token is set, but no dashboard answers at {' or '.join(addresses)} to test it",
        "On a worker the NetworkPolicy may be the reason; run the doctor as a job, which runs on the head.",
    )


def ray_listeners(place: Subject) -> str:
    """Check that no Ray of this machine can be reached from others."""
    if API_SERVER_VARIABLE in place.variables:
        raise NotHere("in a pod Ray listens on the pod's address; the NetworkPolicy says who reaches it")
    if sys.platform != "linux":
        raise NotHere("only Linux says in /proc who listens where")
    exposed = [text for text, loopback in listeners.of(listeners.ray_processes()) if not loopback]
    if exposed:
        raise PlaceError(
            f"a Ray on this machine listens beyond loopback: {', '.join(exposed[:4])}",
            "End it, or start it with RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0.",
        )
    return "no Ray on this machine listens beyond loopback"


def runs_bucket(place: Subject) -> str:
    """Check that the runs bucket can be looked at, written, listed, read and deleted from."""
    if place.environment is None:
        raise NotHere(OUTSIDE)
    from workloads.storage.folders import locate

    uri = place.environment.runs_uri
    _get_bucket(uri)
    folder = locate(f"{uri}/.doctor-{secrets.token_hex(6)}")
    folder.write("probe", b"ok")
    try:
        if folder.names() != ["probe"] or folder.read("probe") != b"ok":
            raise PlaceError(f"{uri} does not give back what was written", "Check the storage endpoint.")
    finally:
        folder.remove()
    return f"{uri}: written, read, deleted, listed and looked up"


def data_bucket(place: Subject) -> str:
    """Check that the data bucket can be looked at and listed, and an object of it read."""
    if place.environment is None:
        raise NotHere(OUTSIDE)
    uri = place.environment.data_uri
    _get_bucket(uri)
    name = _read_first(uri)
    return f"{uri}: listed, and {name} was read" if name else f"{uri}: listed; it is empty, so nothing was read"


def wandb(place: Subject) -> str:
    """Check that there is a W&B key, of the right form, that the server accepts."""
    from workloads.reporting.credentials import MissingKeyError, wandb_key

    absent = "no key in the environment"
    try:
        key = wandb_key(None, place.environment.wandb_secret if place.environment else "")
    except MissingKeyError as unwanted:
        key, absent = None, f"{absent}, and {unwanted.problem.rstrip('.')}"
    if key is None:
        raise NotHere(f"{absent}; `train` records without W&B")
    server = place.variables.get("WANDB_BASE_URL", WANDB).rstrip("/")
    parts = urlsplit(server)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost", "::1"):
        raise AuthError(f"WANDB_BASE_URL is {server}: the key would cross the network in the clear", "Use https://.")
    question = json.dumps({"query": "query Viewer { viewer { id } }"}).encode()
    basic = base64.b64encode(f"api:{key.value}".encode()).decode()
    request = urllib.request.Request(
        f"{server}/graphql",
        data=question,
        headers={"Authorization": f"Basic {basic}", "Content-Type": "application/json"},
    )
    offline = "Training goes on without: metrics are recorded offline, and sent later with `wandb sync`."
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS, context=_trust()) as response:
            viewer = (json.load(response).get("data") or {}).get("viewer")
    except urllib.error.HTTPError as error:
        if error.code not in (401, 403):
            raise Doubtful(f"{server} answers with {error.code}", offline) from error
        viewer = None
    except (OSError, ValueError, AttributeError, http.client.HTTPException) as error:
        raise Doubtful(f"{server} does not answer within {ANSWER_SECONDS:.0f} s", offline) from error
    if viewer is None:
        raise AuthError(
            f"{server} refuses the key from {key.source}", "Store a valid one with `make secret STACK=...`."
        )
    return f"{server} accepts the key from {key.source}"


def _trust() -> ssl.SSLContext:
    """The system's certificate authorities, and those that W&B's own client trusts: a Python from python.org has none
    on a Mac until its `Install Certificates.command` was run."""
    context = ssl.create_default_context()
    with suppress(ImportError):
        import certifi

        context.load_verify_locations(certifi.where())
    return context


def _tried(address: str, token: str, without: int) -> str:
    if without < 400:
        raise AuthError(f"Ray at {address} answers without a token", NO_TOKEN)
    wrong = _status(address, secrets.token_hex(32))
    if wrong is not None and wrong < 400:
        raise AuthError(f"Ray at {address} takes any token", NO_TOKEN)
    right = _status(address, token)
    if right in (401, 403):
        raise AuthError(
            f"Ray at {address} refuses our token",
            "It is another cluster's, or from before a restart: read it again from the Secret of the RayCluster.",
        )
    if right != 200:
        raise Doubtful(f"Ray at {address} answers {right} to the right token", "Look at the head's dashboard log.")
    return f"Ray at {address} accepts our token, and neither a wrong one nor none"


def _status(address: str, token: str | None) -> int | None:
    """HTTP status of a guarded route; None where nothing answers."""
    answer = dashboard.ask(f"{address}{PROTECTED}", token)
    return answer[0] if answer else None


def _read_first(uri: str) -> str:
    """Read a byte of a bucket's first object that has one; returns its name, empty where the first names have none.

    To list a bucket of a million images takes minutes, and pyarrow lists all or nothing.
    """
    from google.api_core import exceptions as google
    from google.api_core.retry import Retry
    from google.auth.exceptions import GoogleAuthError

    from workloads.storage import client as storage_client
    from workloads.storage.folders import bucket_and_path

    bucket, path = bucket_and_path(uri)
    patience = Retry(timeout=ANSWER_SECONDS)
    try:
        listed = storage_client.connect().list_blobs(bucket, prefix=path, max_results=FIRST_NAMES, retry=patience)
        # A folder's marker object has no bytes to ask for.
        blob = next((blob for blob in listed if blob.size), None)
        if blob is None:
            return ""
        blob.download_as_bytes(start=0, end=0, retry=patience)
    except (google.Forbidden, google.Unauthorized, GoogleAuthError) as error:
        raise AuthError(
            f"objects of {uri} may not be read: {first_line(error)[:200]}",
            "The account needs storage.objects.list and get on it: roles/storage.objectUser, which the stack grants.",
        ) from error
    except (google.GoogleAPIError, OSError) as error:
        raise PlaceError(
            f"{uri} does not answer: {first_line(error)[:200]}", "Check the network and the endpoint."
        ) from error
    return str(blob.name)


def _get_bucket(uri: str) -> None:
    """Look a bucket up, which takes storage.buckets.get: no role for objects has it, and pyarrow cannot do without."""
    from workloads.storage.folders import bucket_and_path, locate

    if not uri.startswith("gs://"):
        return
    bucket = locate(f"gs://{bucket_and_path(uri)[0]}")
    if not bucket.exists():
        raise PlaceError(f"there is no bucket {bucket.uri}", "Run `pulumi up`, or check the bucket's name.")
