"""Makes the program's waits for Google use the emulated cloud's clock, which they move forward, so that they take no
time. A copy of this file as `sitecustomize.py` in a checkout does so under the engine."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

PROVIDER = "pulumi.dynamic"
"""Module that Pulumi runs the waits in."""


class CloudClock(threading.local):
    """Stands for the module `time` in waits: the cloud's clock in threads that wait for Google, else this machine's."""

    cloud: Any = None

    def monotonic(self) -> float:
        """Seconds."""
        return self.cloud.now() if self.cloud else time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        if self.cloud:
            self.cloud.turn(30.0)
        else:
            time.sleep(seconds)


def install() -> None:
    """Install the clock in this process."""
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
