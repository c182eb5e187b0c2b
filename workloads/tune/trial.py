"""A trial as Ray Tune sees it: an actor without resources that has one `train` run and tells what it reports.

In a process and not a thread, for what Ray does at its end: a placement group that a killed actor made stays until its
*job* ends, and Ray Train's own cleaner asks the dashboard, which an embedded Ray lacks. As threads of one job, stopped
trials would leave CPUs reserved that the next ones wait for without end. A process of its own is a job of its own, and
gives up what each of its trials has left; see `child`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
from ray import tune

from workloads.tune import processes


class TrainProcess(tune.Trainable):
    """One trial. Every result has `at`, the epoch it is in; one at an epoch's end has that epoch's record as well.

    One between them has `waits`, the words of a trial that waits for its workers' places, else empty. The last has
    `done` and `train`'s `exit_code`, `problem` and `seconds`.
    """

    def setup(self, config: dict[str, Any]) -> None:
        """Start it.

        Args:
            config: `trial`, its name; `arguments` of the command line; `address` of Ray; `pid` of the search, whose
                environment is each trial's, so that no key passes through Ray; `directory` to work in; `log`, the file
                for the trial's messages.
        """
        self._trial = config["trial"]
        Path(config["log"]).parent.mkdir(parents=True, exist_ok=True)
        self._processes = ray.get_actor(processes.NAME)
        ray.get(self._processes.begin.remote(config))

    def step(self) -> dict[str, Any]:
        """The next epoch's record, or after a beat where the trial is."""
        result: Any = ray.get(self._processes.next.remote(self._trial))
        return result

    def cleanup(self) -> None:
        """End it, if it has not ended: as Ctrl-C does, then by force."""
        ray.get(self._processes.end.remote(self._trial))
