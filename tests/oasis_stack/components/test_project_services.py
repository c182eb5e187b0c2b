"""The APIs of the stack."""

from oasis_stack.command_line.offline import Deployment
from oasis_stack.components.project_services import FIRST

SERVICE = "gcp:projects/service:Service"
ANSWER = "pulumi-python:dynamic/wait:ApisAnswer"


def test_each_api_is_enabled_once_after_the_two_that_enabling_needs_have_answered_and_is_waited_for(
    full: Deployment,
) -> None:
    services = {service.inputs["service"]: service for service in full.of_type(SERVICE)}
    others = sorted(services.keys() - set(FIRST))
    first, rest = full.get(ANSWER, "services-first"), full.get(ANSWER, "services")
    assert len(services) == len(full.of_type(SERVICE))
    assert (first.inputs["apis"], rest.inputs["apis"]) == (list(FIRST), others)
    assert all(full.is_before(services[api], first) for api in FIRST)
    for api in others:
        assert full.is_before(first, services[api]) and full.is_before(services[api], rest)
    assert first.parent == rest.parent == full.only("oasis:index:ProjectServices").urn


def test_nothing_is_done_before_it_is_known_that_the_stack_stands_where_it_stood(full: Deployment) -> None:
    place = full.get("pulumi-python:dynamic/wait:Place", "services")
    assert place.inputs.items() >= {"project": "some-project", "region": "us-central1", "zone": "us-central1-b"}.items()
    made = [found for found in full if not found.type.startswith("oasis:index:") and found is not place]
    assert [found.name for found in made if not full.is_before(place, found)] == []


def test_a_destroy_leaves_every_api_on(full: Deployment) -> None:
    assert {service.inputs["disableOnDestroy"] for service in full.of_type(SERVICE)} == {False}
