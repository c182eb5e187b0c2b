"""What the emulated Google knows about each resource type the program uses: outputs, replacement, in-use edges, API.

A type without a row is refused: nothing is guessed. `replaces` is what hashicorp/terraform-provider-google v7.45.0
marks ForceNew, under pulumi-gcp's names; the page named by `source` says the same in words.
"""

from __future__ import annotations

from emulator.gcp.container_rows import CONTAINER_ROWS
from emulator.gcp.network_rows import NETWORK_ROWS
from emulator.gcp.row import Edge, ResourceType, attributed_labels, paths


def _member(resource: str, kind: str, api: str, source: str, *edge: Edge) -> ResourceType:
    return ResourceType(
        source=source,
        kind=kind,
        api=api,
        identity=resource + "/{role}/{member}",
        replaces=frozenset({"*"}),
        edges=edge,
        computed={"etag": lambda made: made.digits(11)},
        shared=True,
    )


ROWS: dict[str, ResourceType] = {
    "gcp:projects/service:Service": ResourceType(
        source="Terraform Google provider: google_project_service",
        kind="serviceusage/service",
        api="serviceusage.googleapis.com",
        identity="{project}/{service}",
        replaces=paths("service project"),
        shared=True,
        stays=True,
    ),
    "gcp:projects/serviceIdentity:ServiceIdentity": ResourceType(
        source="Terraform Google provider: google_project_service_identity",
        kind="serviceusage/serviceIdentity",
        api="serviceusage.googleapis.com",
        identity="projects/{project}/services/{service}",
        replaces=paths("service project"),
        # The answer names an account only for some services.
        computed={"email": "", "member": ""},
        shared=True,
        stays=True,
    ),
    "gcp:projects/iAMMember:IAMMember": _member(
        "{project}",
        "cloudresourcemanager/iamMember",
        "cloudresourcemanager.googleapis.com",
        "Terraform Google provider: google_project_iam",
    ),
    "gcp:serviceaccount/account:Account": ResourceType(
        source="Terraform Google provider: google_service_account",
        kind="iam/serviceAccount",
        api="iam.googleapis.com",
        identity="projects/{project}/serviceAccounts/{accountId}@{project}.iam.gserviceaccount.com",
        auto_name=("accountId", 30),
        replaces=paths("accountId project"),
        computed={
            "email": "{accountId}@{project}.iam.gserviceaccount.com",
            "member": "serviceAccount:{accountId}@{project}.iam.gserviceaccount.com",
            "name": "{id}",
            "uniqueId": lambda made: made.digits(21),
        },
    ),
    "gcp:serviceaccount/iAMMember:IAMMember": _member(
        "{serviceAccountId}",
        "iam/serviceAccountIamMember",
        "iam.googleapis.com",
        "Terraform Google provider: google_service_account_iam",
        Edge(path="serviceAccountId", kind="iam/serviceAccount", relation="part-of"),
    ),
    "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember": _member(
        "{cryptoKeyId}",
        "cloudkms/iamMember",
        "cloudkms.googleapis.com",
        "Terraform Google provider: google_kms_crypto_key_iam",
    ),
    **NETWORK_ROWS,
    **CONTAINER_ROWS,
    "gcp:artifactregistry/repository:Repository": ResourceType(
        source="Terraform Google provider: google_artifact_registry_repository",
        kind="artifactregistry/repository",
        api="artifactregistry.googleapis.com",
        identity="projects/{project}/locations/{location}/repositories/{repositoryId}",
        replaces=paths("format repositoryId kmsKeyName location mavenConfig mode remoteRepositoryConfig project"),
        edges=(
            Edge(
                path="virtualRepositoryConfig.upstreamPolicies.repository",
                kind="artifactregistry/repository",
                relation=None,
            ),
        ),
        defaults={"mode": "STANDARD_REPOSITORY"},
        computed={
            "createTime": "{created}",
            "effectiveLabels": attributed_labels,
            "name": "{repositoryId}",
            "pulumiLabels": attributed_labels,
            "registryUri": lambda made: made.text(
                f"{{location}}-{made.body['format'].lower()}.pkg.dev/{{project}}/{{repositoryId}}"
            ),
            "updateTime": "{created}",
        },
    ),
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": _member(
        "projects/{project}/locations/{location}/repositories/{repository:last}",
        "artifactregistry/iamMember",
        "artifactregistry.googleapis.com",
        "Terraform Google provider: google_artifact_registry_repository_iam",
        Edge(path="repository", kind="artifactregistry/repository", relation="part-of"),
    ),
    "gcp:cloudbuild/workerPool:WorkerPool": ResourceType(
        source="Terraform Google provider: google_cloudbuild_worker_pool",
        kind="cloudbuild/workerPool",
        api="cloudbuild.googleapis.com",
        identity="projects/{project}/locations/{location}/workerPools/{name}",
        auto_name=("name", 63),
        replaces=paths("location name networkConfig privateServiceConnect project"),
        edges=(Edge(path="networkConfig.peeredNetwork", kind="compute/network", relation=None),),
        computed={
            "createTime": "{created}",
            "deleteTime": "",
            "effectiveAnnotations": lambda made: dict(made.body.get("annotations", {})),
            "state": "RUNNING",
            "uid": lambda made: made.digits(21),
            "updateTime": "{created}",
        },
    ),
    "gcp:storage/bucket:Bucket": ResourceType(
        source="Terraform Google provider: google_storage_bucket",
        kind="storage/bucket",
        api="storage.googleapis.com",
        identity="{name}",
        auto_name=("name", 63),
        replaces=paths(
            "name location project enableObjectRetention customPlacementConfig.dataLocations hierarchicalNamespace"
        ),
        defaults={
            "forceDestroy": False,
            "publicAccessPrevention": "inherited",
            "storageClass": "STANDARD",
            "softDeletePolicy": {"retentionDurationSeconds": 604800},
            "uniformBucketLevelAccess": False,
        },
        computed={
            "effectiveLabels": attributed_labels,
            "projectNumber": lambda made: int(made.number),
            "pulumiLabels": attributed_labels,
            "selfLink": "https://www.googleapis.com/storage/v1/b/{id}",
            "timeCreated": "{created}",
            "updated": "{created}",
            "url": "gs://{id}",
        },
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": _member(
        "b/{bucket}",
        "storage/iamMember",
        "storage.googleapis.com",
        "Terraform Google provider: google_storage_bucket_iam",
        Edge(path="bucket", kind="storage/bucket", relation="part-of"),
    ),
    "gcp:secretmanager/secret:Secret": ResourceType(
        source="Terraform Google provider: google_secret_manager_secret",
        kind="secretmanager/secret",
        api="secretmanager.googleapis.com",
        identity="projects/{project}/secrets/{secretId}",
        auto_name=("secretId", 255),
        replaces=paths("replication secretId tags project"),
        computed={
            "createTime": "{created}",
            "effectiveAnnotations": lambda made: dict(made.body.get("annotations", {})),
            "effectiveLabels": attributed_labels,
            "name": "projects/{number}/secrets/{secretId}",
            "pulumiLabels": attributed_labels,
        },
    ),
    "gcp:secretmanager/secretVersion:SecretVersion": ResourceType(
        source="Terraform Google provider: google_secret_manager_secret_version",
        kind="secretmanager/version",
        api="secretmanager.googleapis.com",
        identity="{secret}/versions/{version}",
        replaces=paths("secretData secretDataWoVersion secret project isSecretDataBase64"),
        edges=(Edge(path="secret", kind="secretmanager/secret", relation="part-of"),),
        defaults={"enabled": True},
        computed={"createTime": "{created}", "destroyTime": "", "name": "{id}", "version": "{version}"},
        hidden=frozenset({"secretDataWo"}),
    ),
    "gcp:secretmanager/secretIamMember:SecretIamMember": _member(
        "projects/{project}/secrets/{secretId:last}",
        "secretmanager/iamMember",
        "secretmanager.googleapis.com",
        "Terraform Google provider: google_secret_manager_secret_iam",
        Edge(path="secretId", kind="secretmanager/secret", relation="part-of"),
    ),
}


IDENTITIES = {row.kind: row.identity for row in ROWS.values()}
"""Template of the name path of each kind, to complete an input that gives a bare name."""
