"""Ends a command whose output nobody reads any more, as of `... | head`, quietly and with the usual exit status.

SIGPIPE stays ignored, as Python has it: with its default disposition a socket that a peer has closed would end a
training driver. The same module stands in each package, because none of them may import another.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

STATUS = 141
"""128 + SIGPIPE, as POSIX shells report a command that a closed pipe ended."""


def run(main: Callable[[], int]) -> int | str | None:
    """Result of `main`, for `sys.exit`; `STATUS` once the reader of its output has left."""
    try:
        try:
            status: int | str | None = main()
        except SystemExit as ended:
            # argparse's, after --help; and rich's own answer to a closed pipe, which exits with status 1.
            status = STATUS if isinstance(ended.__context__, BrokenPipeError) else ended.code
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        unread = [stream for stream in (1, 2) if _is_unread(stream)]
        if not unread:  # of a socket or another pipe: an error like any other
            raise
        for stream in unread:  # what is still in Python's buffers is written when it ends
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        return STATUS


def _is_unread(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, 0)  # an error is reported unasked: of a pipe, that its last reader has left (poll(2))
    return any(event & select.POLLERR for _, event in waiting.poll(0))
