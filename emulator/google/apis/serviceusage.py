"""Service Usage: which APIs a project has enabled, and its quotas. A newly enabled API keeps refusing calls for a
while."""

from __future__ import annotations

import os
from datetime import datetime

from emulator.google import operations
from emulator.google.cloud import Cloud
from emulator.google.collection import Body, Call, Collection, last
from emulator.google.discovery import Document
from emulator.google.errors import RefusedCall
from emulator.google.scope import project_number

API_SECONDS = float(os.environ.get("OASIS_EMULATOR_API_SECONDS", "1.0"))
"""How long a newly enabled API keeps refusing calls; Google's sometimes does so for minutes."""

KIND = "serviceusage/service"


def require_api(cloud: Cloud, document: Document, project: str) -> None:
    """Refuse a call to an API that the project has not enabled. Service Usage itself is on in every project.

    Words: hashicorp/terraform issue 29006.
    """
    api = document.host
    if api == "serviceusage.googleapis.com":
        return
    enabled = cloud.find(KIND, f"projects/{project}/services/{api}")
    if enabled is not None and cloud.now() >= datetime.fromisoformat(enabled.created).timestamp() + API_SECONDS:
        return
    number = project_number(project)
    raise RefusedCall(
        403,
        f"{document.title} has not been used in project {number} before or it is disabled. Enable it by visiting "
        f"https://console.developers.google.com/apis/api/{api}/overview?project={number} then retry. If you enabled "
        "this API recently, wait a few minutes for the action to propagate to our systems and retry. "
        "reason: SERVICE_DISABLED",
        "accessNotConfigured",
    )


class Services(Collection):
    """`projects/p/services/<API>`."""

    kind = KIND
    items = "services"

    def do_get(self, call: Call) -> Body:
        return self._service(call, call.name)

    def do_list(self, call: Call) -> Body:
        # The other filters of "services.list" would list all of Google.
        if call.query.get("filter", "state:ENABLED") != "state:ENABLED":
            raise RefusedCall(400, "the emulated Google lists services by the filter state:ENABLED alone", "badRequest")
        found = call.cloud.list(KIND, f"{call.name}/")
        return {"services": [self._service(call, one.name) for one in found]} if found else {}

    def do_enable(self, call: Call) -> Body:
        return operations.begin(call, "", {"service": self._enabled(call, call.name)})

    def do_batch_enable(self, call: Call) -> Body:
        names = [f"{call.name}/{service}" for service in call.body["serviceIds"]]
        return operations.begin(call, "", {"services": [self._enabled(call, name) for name in names]})

    def do_disable(self, call: Call) -> Body:
        if call.cloud.find(KIND, call.name):
            call.cloud.delete(KIND, call.name)
        return operations.begin(call, "", {"service": self._service(call, call.name)})

    def do_generate_service_identity(self, call: Call) -> Body:
        # The answer names an account only for some services.
        return operations.begin(call, "", {})

    def _enabled(self, call: Call, name: str) -> Body:
        if call.cloud.find(KIND, name) is None:
            call.cloud.create(KIND, name, {})
        return self._service(call, name)

    def _service(self, call: Call, name: str) -> Body:
        parent = f"projects/{project_number(call.project)}"
        state = "ENABLED" if call.cloud.find(KIND, name) else "DISABLED"
        api = last(name)
        return {"name": f"{parent}/services/{api}", "config": {"name": api}, "state": state, "parent": parent}


class QuotaInfos(Collection):
    """`projects/p/locations/global/services/s/quotaInfos`: only what a test has put there, as Google does not publish
    what it grants a project."""

    kind = "cloudquotas/quotaInfo"
    items = "quotaInfos"


COLLECTIONS = {
    "cloudquotas.projects.locations.services.quotaInfos": QuotaInfos(),
    "serviceusage.services": Services(),
}
