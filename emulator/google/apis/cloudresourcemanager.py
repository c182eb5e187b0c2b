"""Resource Manager: projects, and who holds which role on them. A project exists once it is named."""

from __future__ import annotations

from emulator.google import policies
from emulator.google.collection import Body, Call, Collection
from emulator.google.scope import project_number


class Projects(Collection):
    """`projects/p`."""

    kind = "resourcemanager/project"

    def do_get(self, call: Call) -> Body:
        project = call.project
        number = project_number(project)
        return {"projectId": project, "projectNumber": number, "name": project, "lifecycleState": "ACTIVE"}

    def do_get_iam_policy(self, call: Call) -> Body:
        return policies.get(call.cloud, self.full_name(call))

    def do_set_iam_policy(self, call: Call) -> Body:
        return policies.put(call.cloud, self.full_name(call), call.body["policy"])


COLLECTIONS = {"cloudresourcemanager.projects": Projects()}
