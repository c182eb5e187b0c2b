"""The emulated Secret Manager under its real client, with the metadata server's credentials."""

from __future__ import annotations

from dataclasses import replace

import google_crc32c
import pytest
from google.api_core import exceptions
from google.cloud import secretmanager_v1

from emulator.google import policies
from emulator.google.callers import Identity, set_identity
from emulator.google.scope import project_number
from tests.emulator.google import PROJECT, Google, lead_clients_to

SECRET = f"projects/{PROJECT}/secrets/wandb"
MEMBER = (
    "principal://iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p.svc.id.goog/subject/ns/r/sa/r"
)
Client = secretmanager_v1.SecretManagerServiceClient
Payload = secretmanager_v1.SecretPayload


@pytest.fixture
def client(google: Google, monkeypatch: pytest.MonkeyPatch) -> Client:
    lead_clients_to(google, monkeypatch)
    for found in google.cloud.list("secretmanager/secret"):
        google.cloud.delete(found.kind, found.name)
    set_identity(google.cloud, Identity(project=PROJECT, zone="us-central1-b"))
    client = Client(transport="rest", client_options={"api_endpoint": f"http://{google.host}"})
    automatic = secretmanager_v1.Secret(replication={"automatic": {}})
    client.create_secret(parent=f"projects/{PROJECT}", secret_id="wandb", secret=automatic)
    return client


def test_a_version_that_was_added_is_read_back_as_latest_with_its_checksum(client: Client) -> None:
    assert client.get_secret(name=SECRET).name == f"projects/{project_number(PROJECT)}/secrets/wandb"
    with pytest.raises(exceptions.NotFound, match="has no versions"):
        client.access_secret_version(name=f"{SECRET}/versions/latest")
    for value in (b"old", b"k\xc3\xa9y\x00"):
        added = client.add_secret_version(
            parent=SECRET, payload=Payload(data=value, data_crc32c=google_crc32c.value(value))
        )
    assert added.name.endswith("/versions/2")
    latest = client.access_secret_version(name=f"{SECRET}/versions/latest")
    assert latest.payload.data == b"k\xc3\xa9y\x00"
    assert latest.payload.data_crc32c == google_crc32c.value(latest.payload.data)
    by_number = client.access_secret_version(name=f"projects/{project_number(PROJECT)}/secrets/wandb/versions/1")
    assert by_number.payload.data == b"old"
    assert [version.name.rsplit("/", 1)[-1] for version in client.list_secret_versions(parent=SECRET)] == ["2", "1"]
    assert [secret.name for secret in client.list_secrets(parent=f"projects/{PROJECT}")] == [
        client.get_secret(name=SECRET).name
    ]


def test_a_workload_reads_only_what_it_was_granted(client: Client, google: Google) -> None:
    client.add_secret_version(parent=SECRET, payload=Payload(data=b"key"))
    google.cloud.put("iam/workloadIdentityPool", "p.svc.id.goog", {})
    workload = Identity(project=PROJECT, zone="us-central1-b", principal=MEMBER)
    set_identity(google.cloud, workload)
    with pytest.raises(exceptions.Forbidden, match=r"secretmanager\.versions\.access"):
        client.access_secret_version(name=f"{SECRET}/versions/latest")
    with pytest.raises(exceptions.Forbidden, match=r"roles/secretmanager\.admin"):
        client.get_iam_policy(request={"resource": SECRET})
    for role in ("roles/secretmanager.viewer", "roles/secretmanager.secretAccessor"):
        with pytest.raises(exceptions.Forbidden):
            client.access_secret_version(name=f"{SECRET}/versions/latest")
        set_identity(google.cloud, replace(workload, principal=""))
        policy = client.get_iam_policy(request={"resource": SECRET})
        policy.bindings.add(role=role, members=[MEMBER])
        client.set_iam_policy(request={"resource": SECRET, "policy": policy})
        set_identity(google.cloud, workload)
        google.cloud.turn(policies.GRANT_SECONDS - 1)
    with pytest.raises(exceptions.Forbidden):
        client.access_secret_version(name=f"{SECRET}/versions/latest")
    google.cloud.turn(1)
    assert client.access_secret_version(name=f"{SECRET}/versions/latest").payload.data == b"key"
    with pytest.raises(exceptions.Forbidden):
        client.access_secret_version(name=f"projects/{PROJECT}/secrets/other/versions/latest")
