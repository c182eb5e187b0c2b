"""The dashboard agent of one of several nodes on 127.0.0.1: run as a script, with the agent's own script and arguments.

An agent connects to a raylet on its machine, the head's if there are several (ray 2.60,
`services.get_node_to_connect_for_driver`), and reads jobs' logs in that raylet's folder. A pod sees only its own
raylet. Here the agent is told which one that is; otherwise it would look on the head for the log of a job on a worker.
"""

import runpy
import sys
from unittest import mock

from ray._private import services


def main() -> None:
    """Run the agent so that it sees only its own node."""
    del sys.argv[0]
    [node] = [word.partition("=")[2] for word in sys.argv if word.startswith("--node-id=")]
    with mock.patch.object(services, "find_node_ids", lambda: {node}):
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
