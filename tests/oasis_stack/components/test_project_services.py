"""The APIs of the stack, and the budget that watches its project."""

from oasis_stack.command_line.offline import Deployment
from oasis_stack.components.project_services import FIRST, Budget
from tests.support.program import at, deploy_stack
from tests.support.setting_examples import BUDGET
from tests.support.stacks import FULL

SERVICE = "gcp:projects/service:Service"
ANSWER = "pulumi-python:dynamic/wait:ApisAnswer"


def test_each_api_is_enabled_once_and_for_good_after_the_two_that_enabling_needs_and_is_waited_for(
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
    assert {service.inputs["disableOnDestroy"] for service in services.values()} == {False}
    assert first.parent == rest.parent == full.only("oasis:index:ProjectServices").urn


def test_nothing_is_done_before_it_is_known_that_the_stack_stands_where_it_stood(full: Deployment) -> None:
    place = full.get("pulumi-python:dynamic/wait:Place", "services")
    assert place.inputs.items() >= {"project": "some-project", "region": "us-central1", "zone": "us-central1-b"}.items()
    made = [found for found in full if not found.type.startswith("oasis:index:") and found is not place]
    assert [found.name for found in made if not full.is_before(place, found)] == []


def test_a_stack_without_a_budget_asks_nothing_of_the_billing_account(full: Deployment) -> None:
    assert full.of_type(BUDGET[0]) == full.of_type("pulumi:providers:gcp") == []
    assert not {service.inputs["service"] for service in full.of_type(SERVICE)} & set(Budget.APIS)


def test_a_budget_watches_this_project_alone_in_us_dollars_and_tells_before_all_is_spent(other: Deployment) -> None:
    budget = other.get(*BUDGET)
    assert budget.inputs["budgetFilter"] == {"projects": ["projects/123456789012"], "calendarPeriod": "MONTH"}
    assert at(budget, "amount.specifiedAmount.currencyCode") == "USD"
    alerts = [(rule["spendBasis"], rule["thresholdPercent"]) for rule in budget.inputs["thresholdRules"]]
    assert alerts == [*(("CURRENT_SPEND", part) for part in (0.5, 0.9, 1.0)), ("FORECASTED_SPEND", 1.0)]
    assert "allUpdatesRule" not in budget.inputs  # to the account's administrators and users, by Google's default
    assert other.is_before(other.get(ANSWER, "services"), budget)


def test_a_budget_takes_the_project_s_own_quota_and_signs_in_as_the_stack_file_says() -> None:
    budgeted = {**FULL, "oasis:cost": {"billing_account": "01AB23-4CD567-89EF01", "monthly_usd": 5000}}
    deployed = deploy_stack({**budgeted, "gcp:accessToken": "t0ken", "gcp:impersonateServiceAccount": "deployer@p"})
    quota = deployed.only("pulumi:providers:gcp")
    assert quota.inputs == {
        "project": "some-project",
        "billingProject": "some-project",
        "userProjectOverride": "true",
        "accessToken": "t0ken",
        "impersonateServiceAccount": "deployer@p",
    }
    assert quota.secret_inputs == {"accessToken"}
    assert [found.name for found in deployed if found.provider.startswith(quota.urn)] == ["budget"]
