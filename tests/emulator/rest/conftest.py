"""The emulated Google's HTTP server, for the tests of its REST APIs under Google's own clients."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator.google import Google, served


@pytest.fixture(scope="module")
def google(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    """A Google of the module's own, with the module's `APIS` on and `VARIABLES` in its server's environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in getattr(request.module, "VARIABLES", {}).items():
            patch.setenv(name, value)
        with served(tmp_path_factory.mktemp("google"), *getattr(request.module, "APIS", ())) as google:
            yield google
