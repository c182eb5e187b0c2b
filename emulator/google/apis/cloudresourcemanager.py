"""Resource Manager: projects, who holds which role on them, and the organisation policies for them. A project exists
once it is named."""

from __future__ import annotations

from emulator.google.collection import Body, Call, Collection, numbered
from emulator.google.permissions import Testable
from emulator.google.scope import project_number


class Projects(Testable):
    """`projects/p`."""

    kind = "resourcemanager/project"

    def do_get(self, call: Call) -> Body:
        project = call.project
        found = call.cloud.find(self.kind, f"projects/{project}")
        number = project_number(project)
        state = found.body.get("lifecycleState", "ACTIVE") if found else "ACTIVE"
        return {"projectId": project, "projectNumber": number, "name": project, "lifecycleState": state}


class Policies(Collection):
    """`projects/p/policies/c`: the effective organisation policy, which has no rules unless a test has put some
    there."""

    kind = "orgpolicy/policy"

    def do_get_effective_policy(self, call: Call) -> Body:
        found = call.cloud.find(self.kind, call.name)
        return {"name": numbered(call.name), "spec": found.body if found else {}}


COLLECTIONS = {"cloudresourcemanager.projects": Projects(), "orgpolicy.projects.policies": Policies()}
