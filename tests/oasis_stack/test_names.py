"""Names stay within each service's limits, at the longest project and stack name there can be."""

from __future__ import annotations

import re

import pytest

from oasis_stack.facts import names

LONGEST_PROJECT, LONGEST_NAME = "p" * 30, "n" * 16

# Cloud Storage documentation, "About Cloud Storage buckets": what a name may look like.
BUCKET = re.compile(r"[a-z0-9][a-z0-9_-]{1,61}[a-z0-9]")


@pytest.mark.parametrize("project", [LONGEST_PROJECT, "abcdef", "googly-eyes-1", "my-google-project"])
def test_bucket_names_are_legal_and_google_does_not_find_itself_in_them(project: str) -> None:
    for purpose in ("data", "runs", "state", "build"):
        name = names.bucket(project, LONGEST_NAME, purpose)
        assert BUCKET.fullmatch(name) and "goog" not in name


def test_projects_whose_names_cannot_stand_in_a_bucket_name_still_differ() -> None:
    assert names.bucket("google-a-1", "oasis", "data") != names.bucket("google-a-2", "oasis", "data")


def test_repositories_and_secrets_of_two_stacks_differ() -> None:
    assert names.repository("one", "docker") != names.repository("two", "docker")
    assert re.fullmatch(r"[a-z][a-z0-9-]{0,61}[a-z0-9]", names.repository(LONGEST_NAME, "python-virtual"))
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,255}", names.secret(LONGEST_NAME, "wandb"))


def test_a_service_account_id_beyond_its_limit_is_an_error_of_the_program() -> None:
    assert re.fullmatch(r"[a-z][a-z0-9-]{4,28}[a-z0-9]", names.service_account(LONGEST_NAME, "image-builder"))
    with pytest.raises(ValueError, match="31 characters"):
        names.service_account(LONGEST_NAME, "p" * 14)
    with pytest.raises(ValueError, match="5 characters"):
        names.service_account("a", "bcd")


def test_pool_names_leave_room_for_pulumis_suffix_and_tell_reservations_apart() -> None:
    # Of every length that Compute Engine allows: the longest are cut, and it is those just below that cross a limit.
    reservations = [
        *("r" * length for length in range(1, 64)),
        *(f"projects/{own}/reservations/r" for own in ("a", "b")),
    ]
    found = [names.pool("reservation", reservation, None) for reservation in reservations]

    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name) and len(name) <= 40 - 8 for name in found)
    assert [names.pool(mode, None, None) for mode in ("flex-start", "spot")] == ["gpu-flex-start", "gpu-spot"]
