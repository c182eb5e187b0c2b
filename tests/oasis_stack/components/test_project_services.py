"""The APIs of the stack."""

import pulumi

from oasis_stack.components.project_services import FIRST, ProjectServices, ProjectServicesArgs
from tests.support.deployment import PROJECT_NUMBER, Deploy

SERVICE = "gcp:projects/service:Service"
ANSWER = "pulumi-python:dynamic/wait:ApisAnswer"


def _program() -> None:
    apis = ["compute.googleapis.com", "container.googleapis.com", "compute.googleapis.com", FIRST[0]]
    services = ProjectServices("services", ProjectServicesArgs(project="project-a", apis=apis))
    pulumi.export("number", services.number)


def test_each_api_is_enabled_once_and_after_the_two_that_enabling_needs_have_answered(deploy: Deploy) -> None:
    seen = deploy(_program)
    services = {service.inputs["service"]: service for service in seen.of_type(SERVICE)}
    assert len(services) == len(seen.of_type(SERVICE)) == 4
    answering = seen.get(ANSWER, "services-first")
    assert answering.inputs["apis"] == list(FIRST)
    assert all(seen.is_before(services[first], answering) for first in FIRST)
    for api in ("compute.googleapis.com", "container.googleapis.com"):
        assert seen.is_before(answering, services[api])


def test_the_component_is_complete_once_every_enabled_api_answers(deploy: Deploy) -> None:
    seen = deploy(_program)
    answering = seen.get(ANSWER, "services")
    assert answering.inputs["apis"] == ["compute.googleapis.com", "container.googleapis.com"]
    assert all(seen.is_before(service, answering) for service in seen.of_type(SERVICE))
    assert answering.parent == seen.only("oasis:index:ProjectServices").urn


def test_a_destroy_leaves_every_api_on(deploy: Deploy) -> None:
    assert {service.inputs["disableOnDestroy"] for service in deploy(_program).of_type(SERVICE)} == {False}


def test_the_project_number_comes_from_the_project(deploy: Deploy) -> None:
    assert deploy(_program).exports == {"number": PROJECT_NUMBER}
