"""A server on 127.0.0.1 in the place of W&B's: one that never answers, one that refuses, one that records runs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support import loopback
from tests.support.loopback import Reply, Request


@contextmanager
def silent() -> Iterator[str]:
    """Accepts every connection and never answers; its address."""
    with recording() as (url, runs):
        runs.stalled.set()
        yield url


@contextmanager
def answering(status: int, body: object) -> Iterator[tuple[str, list[str]]]:
    """Gives every request the same answer; its address and the Authorization headers that it was sent."""
    sent: list[str] = []

    def answer(request: Request) -> Reply:
        sent.append(request.headers.get("Authorization", ""))
        return status, body

    with loopback.answering(answer) as url:
        yield url, sent


class Runs:
    """What a server of W&B keeps, as far as one run needs it: the lines of its history, in the order they came."""

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self.names: set[str] = set()
        self.stalled = threading.Event()
        """Set, the server goes on accepting and answers no more."""

    def graphql(self, operation: str, variables: dict[str, Any], address: str) -> dict[str, Any]:
        """The answer to one of the questions that wandb 0.31 asks of a run's way through the server."""
        project = {"id": "p", "name": "oasis", "entity": {"id": "e", "name": "me"}}
        bucket = {"id": "b", "name": variables.get("name"), "project": project, "historyLineCount": len(self.history)}
        if operation == "UpsertBucket":
            self.names.add(variables["name"])
            return {"upsertBucket": {"bucket": bucket, "inserted": not self.history}}
        if operation == "RunResumeStatus" and self.history:
            tail = json.dumps([json.dumps(self.history[-1])])
            texts = {"summaryMetrics": "{}", "config": "{}", "historyTail": tail, "eventsTail": "[]"}
            counts = {"logLineCount": 0, "eventsLineCount": 0}
            known = {**bucket, **texts, **counts, "wandbConfig": json.dumps({"t": 1}), "tags": []}
            return {"model": {**project, "bucket": known}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{address}/upload"} for name in variables["files"]]
            return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}
        return {}

    def take(self, files: dict[str, Any]) -> None:
        """Keep what a run streams: lines, and the number of the first of them."""
        if streamed := files.get("wandb-history.jsonl"):
            first = streamed["offset"]
            lines = [json.loads(line) for line in streamed["content"]]
            self.history[first : first + len(lines)] = lines


@contextmanager
def recording() -> Iterator[tuple[str, Runs]]:
    """Takes runs as W&B's own server does; its address and what it keeps."""
    runs = Runs()
    leaving = threading.Event()

    def answer(request: Request) -> Reply:
        if runs.stalled.is_set():
            leaving.wait()
            return None
        if request.path == "/graphql":
            question = json.loads(request.body)
            operation, variables = question.get("operationName") or "", question.get("variables") or {}
            return 200, {"data": runs.graphql(operation, variables, f"http://{request.headers['Host']}")}
        if request.path.endswith("/file_stream"):
            runs.take(json.loads(request.body).get("files") or {})
        return 200, {}

    with loopback.answering(answer) as url:
        try:
            yield url, runs
        finally:
            leaving.set()
