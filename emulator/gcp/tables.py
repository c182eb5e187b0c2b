"""What the emulated Google knows about each resource type the program uses: outputs, replacement, in-use edges, API.

A type without a row is refused: nothing is guessed. `replaces` is what hashicorp/terraform-provider-google v7.45.0
marks ForceNew, under pulumi-gcp's names; the page that each row names says the same in words.
"""

from __future__ import annotations

from emulator.gcp.container_rows import CONTAINER_ROWS
from emulator.gcp.network_rows import NETWORK_ROWS
from emulator.gcp.resources.members import Member
from emulator.gcp.resources.services import EnabledApi, ServiceAgent
from emulator.gcp.resources.small_services import (
    Account,
    Bucket,
    Budget,
    ManagedFolder,
    Repository,
    Secret,
    SecretVersion,
    WorkerPool,
)
from emulator.gcp.row import ResourceType, paths
from emulator.google.collection import last


def _member(resource: Member) -> ResourceType:
    return ResourceType(resource=resource, replaces=frozenset({"*"}))


ROWS: dict[str, ResourceType] = {
    "gcp:projects/service:Service": ResourceType(
        # Terraform Google provider: google_project_service
        resource=EnabledApi(),
        replaces=paths("service project"),
    ),
    "gcp:projects/serviceIdentity:ServiceIdentity": ResourceType(
        # Terraform Google provider: google_project_service_identity
        resource=ServiceAgent(),
        replaces=paths("service project"),
    ),
    "gcp:projects/iAMMember:IAMMember": _member(
        # Terraform Google provider: google_project_iam
        Member(
            object_input="project",
            object_template="projects/{project}",
            path="v1/{object}",
            form="posts",
            identity="{project}",
        ),
    ),
    "gcp:serviceaccount/account:Account": ResourceType(
        # Terraform Google provider: google_service_account
        resource=Account(
            parent="v1/projects/{project}/serviceAccounts",
            identity="projects/{project}/serviceAccounts/{email}",
            id_input="accountId",
        ),
        auto_name=("accountId", 30),
        replaces=paths("accountId project"),
    ),
    "gcp:serviceaccount/iAMMember:IAMMember": _member(
        # Terraform Google provider: google_service_account_iam
        Member(
            object_input="serviceAccountId",
            object_template="{serviceAccountId}",
            path="v1/{object}",
            form="posts",
        ),
    ),
    "gcp:billing/budget:Budget": ResourceType(
        # Terraform Google provider: google_billing_budget
        resource=Budget(
            parent="v1/billingAccounts/{billingAccount}/budgets",
            identity="billingAccounts/{billingAccount}/budgets/{name}",
        ),
        replaces=paths("billingAccount"),
        defaults=paths(
            "amount.specifiedAmount.currencyCode budgetFilter.calendarPeriod budgetFilter.creditTypesTreatment"
        ),
    ),
    "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember": _member(
        # Terraform Google provider: google_kms_crypto_key_iam
        Member(object_input="cryptoKeyId", object_template="{cryptoKeyId}", path="v1/{object}"),
    ),
    **NETWORK_ROWS,
    **CONTAINER_ROWS,
    "gcp:artifactregistry/repository:Repository": ResourceType(
        # Terraform Google provider: google_artifact_registry_repository
        resource=Repository(
            parent="v1/projects/{project}/locations/{location}/repositories",
            identity="projects/{project}/locations/{location}/repositories/{repositoryId}",
            id_input="repositoryId",
            id_parameter="repositoryId",
            labels="labels",
        ),
        replaces=paths(
            """
            format repositoryId kmsKeyName location mavenConfig mode project remoteRepositoryConfig.description
            remoteRepositoryConfig.aptRepository remoteRepositoryConfig.commonRepository
            remoteRepositoryConfig.dockerRepository remoteRepositoryConfig.mavenRepository
            remoteRepositoryConfig.npmRepository remoteRepositoryConfig.pythonRepository
            remoteRepositoryConfig.yumRepository
            """
        ),
        defaults=paths("mode"),
    ),
    "gcp:artifactregistry/repositoryIamMember:RepositoryIamMember": _member(
        # Terraform Google provider: google_artifact_registry_repository_iam
        Member(
            object_input="repository",
            object_template="projects/{project}/locations/{location}/repositories/{repository:last}",
            path="v1/{object}",
        ),
    ),
    "gcp:cloudbuild/workerPool:WorkerPool": ResourceType(
        # Terraform Google provider: google_cloudbuild_worker_pool
        resource=WorkerPool(
            parent="v1/projects/{project}/locations/{location}/workerPools",
            identity="projects/{project}/locations/{location}/workerPools/{name}",
            id_parameter="workerPoolId",
        ),
        auto_name=("name", 63),
        replaces=paths("location name networkConfig privateServiceConnect project"),
    ),
    "gcp:storage/bucket:Bucket": ResourceType(
        # Terraform Google provider: google_storage_bucket
        resource=Bucket(
            parent="storage/v1/b",
            identity="{name}",
            renamed={
                "publicAccessPrevention": "iamConfiguration.publicAccessPrevention",
                "uniformBucketLevelAccess": "iamConfiguration.uniformBucketLevelAccess.enabled",
            },
            unsent=frozenset({"forceDestroy", "lifecycleRules"}),
            labels="labels",
        ),
        imported=last,
        auto_name=("name", 63),
        replaces=paths(
            "name location project enableObjectRetention customPlacementConfig.dataLocations hierarchicalNamespace"
        ),
        defaults=paths("forceDestroy publicAccessPrevention softDeletePolicy storageClass uniformBucketLevelAccess"),
    ),
    "gcp:storage/bucketIAMMember:BucketIAMMember": _member(
        # Terraform Google provider: google_storage_bucket_iam
        Member(
            object_input="bucket",
            object_template="b/{bucket:last}",
            path="storage/v1/{object}",
            form="iam",
        ),
    ),
    "gcp:storage/managedFolder:ManagedFolder": ResourceType(
        # Terraform Google provider: google_storage_managed_folder
        resource=ManagedFolder(
            parent="storage/v1/b/{bucket}/managedFolders",
            identity="{bucket}/{name}",
            unsent=frozenset({"forceDestroy"}),
        ),
        replaces=paths("bucket name"),
        defaults=paths("forceDestroy"),
    ),
    "gcp:storage/managedFolderIamMember:ManagedFolderIamMember": _member(
        # Terraform Google provider: google_storage_managed_folder_iam
        Member(
            object_input="managedFolder",
            object_template="b/{bucket:last}/managedFolders/{managedFolder}",
            path="storage/v1/{object}",
            form="iam",
        ),
    ),
    "gcp:secretmanager/secret:Secret": ResourceType(
        # Terraform Google provider: google_secret_manager_secret
        resource=Secret(
            parent="v1/projects/{project}/secrets",
            identity="projects/{project}/secrets/{secretId}",
            id_input="secretId",
            id_parameter="secretId",
            labels="labels",
        ),
        auto_name=("secretId", 255),
        replaces=paths("replication secretId tags project"),
    ),
    "gcp:secretmanager/secretVersion:SecretVersion": ResourceType(
        # Terraform Google provider: google_secret_manager_secret_version
        resource=SecretVersion(),
        replaces=paths("secretData secretDataWoVersion secret project isSecretDataBase64"),
        defaults=paths("enabled"),
        hidden=frozenset({"secretDataWo"}),
    ),
    "gcp:secretmanager/secretIamMember:SecretIamMember": _member(
        # Terraform Google provider: google_secret_manager_secret_iam
        Member(
            object_input="secretId",
            object_template="projects/{project}/secrets/{secretId:last}",
            path="v1/{object}",
        ),
    ),
}


class MissingRowError(Exception):
    """The program uses a resource type without a row in `ROWS`."""


def row_of(token: str) -> ResourceType:
    """The row of a resource type. Raises MissingRowError."""
    if token not in ROWS:
        raise MissingRowError(
            f"the emulated Google has no {token!r}. Add a row to emulator/gcp/tables.py, with the page it was read "
            f"from; it has {', '.join(sorted(ROWS))}."
        )
    return ROWS[token]
