"""Has the program's waits for Google go by the emulated cloud's clock, which they set forward, so that they take no
time. A checkout with a copy of this as `sitecustomize.py` has it so under the engine."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

PROVIDER = "pulumi.dynamic"
"""Module that Pulumi runs the waits in."""


class CloudClock(threading.local):
    """What a wait takes for the module `time`: for those in Google's threads the cloud's, for others this machine's."""

    cloud: Any = None

    def monotonic(self) -> float:
        """Seconds."""
        return self.cloud.now() if self.cloud else time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time go by."""
        if self.cloud:
            self.cloud.turn(30.0)
        else:
            time.sleep(seconds)


def install() -> None:
    """Have it so in this process."""
    from emulator.google.cloud import Cloud
    from emulator.machine.state import State
    from oasis_stack import live_state
    from tests.emulator.one_process import WAITS

    clock, cloud = CloudClock(), Cloud(State.from_environment().directory)
    live_state.time = clock

    for waiter in WAITS.values():

        def awaited(self: Any, props: Mapping[str, Any], inner: Any = waiter.await_departure) -> None:
            clock.cloud = cloud
            try:
                inner(self, props)
            finally:
                clock.cloud = None

        waiter.await_departure = awaited


if PROVIDER in sys.orig_argv:
    install()
