"""Read-only questions to Google's APIs about one project."""

from __future__ import annotations

import json
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from oasis_stack import live_state
from oasis_stack.live_state import NotAnswering, RequestRefused

if TYPE_CHECKING:
    from google.auth.credentials import Credentials

Ask = Callable[[], Any]
"""A question, which raises `UnseenError` or `RequestRefused` where it is not answered."""

_PATHS = {"compute": "compute/v1/"}
"""What precedes a resource's name in an API's paths, where it is not the version alone."""


class UnseenError(Exception):
    """Google does not answer this question to this caller."""

    def __init__(self, problem: str, remedy: str, *, denied: bool = False) -> None:
        """`denied`: the caller may not ask, or the object does not exist; Google does not distinguish the two."""
        super().__init__(problem, remedy)
        self.problem, self.remedy, self.denied = problem, remedy, denied


class Google:
    """The APIs, asked with application default credentials."""

    def __init__(self, project: str) -> None:
        """Ask nothing yet.

        Args:
            project: id of the project that is asked about, and whose quota the questions take.
        """
        self.project = project
        self._lock, self._known = threading.Lock(), None

    def get(
        self, api: str, path: str, parameters: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """An answer; None for what does not exist.

        Args:
            api: name of it: `compute`.
            path: behind the API's address and, for Compute Engine, its version.
            parameters: of the query.
            body: of a question that is sent as a POST.

        Raises:
            UnseenError: the API is off, the caller may not ask, or nothing answers.
            RequestRefused: there are no credentials.
        """
        base = live_state.google_api(api, f"https://{api}.googleapis.com/{_PATHS.get(api, '')}")
        try:
            answer = live_state.google_answer(self.project, base + path, parameters, body, self._credentials())
        except NotAnswering as failure:
            raise UnseenError(f"{failure}", "Ask again.") from failure
        if answer.status_code == 404:
            return None
        if answer.status_code == 200:
            try:
                return answer.json()
            except ValueError:
                raise UnseenError(
                    f"{api}.googleapis.com answers with something that is not JSON", "Ask again."
                ) from None
        if live_state.says_disabled(answer):
            host = f"{api}.googleapis.com"
            remedy = f"`gcloud services enable {host} --project {self.project}`, and ask again."
            raise UnseenError(f"{host} is off in {self.project}, so it was not asked", remedy)
        said = _said(answer.text)
        # "Permission 'x.y.z' denied", "Required 'x.y.z' permission for"; of what may not exist either.
        permission = re.search(r"[Pp]ermission '?([a-z]+\.[A-Za-z.]+)|'([a-z]+\.[A-Za-z.]+)' permission", said)
        need = (
            f"the permission {(permission[1] or permission[2]).rstrip('.')}" if permission else "the right to ask this"
        )
        remedy = f"Ask for {need}." if answer.status_code in (401, 403) else "Look at what it says."
        denied = answer.status_code == 403 and bool(permission or "does not have permission" in said)
        raise UnseenError(f"{api}.googleapis.com answers {answer.status_code}: {said}", remedy, denied=denied)

    @property
    def is_signed_in(self) -> bool:
        """Whether credentials have been found."""
        return self._known is not None

    def _credentials(self) -> Credentials:
        # Questions are asked side by side, and to find credentials takes a run of gcloud where it made them.
        with self._lock:
            self._known = self._known or live_state.google_credentials(self.project)
            return self._known

    def list(self, api: str, path: str, key: str, **parameters: str) -> Iterator[dict[str, Any]]:
        """All of a list. Raises as `get`."""
        for answer in live_state.pages(lambda page: self.get(api, path, {**parameters, **page}) or {}):
            yield from answer.get(key, [])


def asked(questions: Mapping[str, Ask], seconds: float) -> tuple[dict[str, Any], str]:
    """The result of each question within some seconds, an `UnseenError` where Google does not answer; and the reason if
    nothing was asked."""
    came, outcomes = dict[str, Any](), queue.SimpleQueue[tuple[str, Any]]()
    for name, question in questions.items():
        # Not a pool of threads, which Python waits for at its end: a late answer must not hold the command up.
        threading.Thread(target=_ask, args=(name, question, outcomes), daemon=True).start()
    end = time.monotonic() + seconds
    while len(came) < len(questions):
        try:
            name, outcome = outcomes.get(timeout=max(0.0, end - time.monotonic()))
        except queue.Empty:
            break
        if isinstance(outcome, RequestRefused):
            return came, str(outcome)
        came[name] = outcome
    return came, ""


def _ask(name: str, question: Ask, outcomes: queue.SimpleQueue[tuple[str, Any]]) -> None:
    try:
        outcomes.put((name, question()))
    except (UnseenError, RequestRefused) as failure:
        outcomes.put((name, failure))
    except (LookupError, TypeError, ValueError) as failure:
        problem = f"Google's answer has a form that this program does not know ({failure!r})"
        outcomes.put((name, UnseenError(problem, "Look at Google's console, and see whether a newer Oasis knows it.")))


def _said(text: str) -> str:
    """The message of Google's error JSON, or the answer's beginning where it is none."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return text[:200]
