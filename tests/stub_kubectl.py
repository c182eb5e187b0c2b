"""A `kubectl` for tests: knows one stack's ConfigMap and token, and forwards a port of its own to a given one."""

import json
import os
import sys
from pathlib import Path

from workloads.environment import ClusterEnvironment

OUTPUTS = ClusterEnvironment(
    project="test-project",
    region="us-central1",
    zone="us-central1-a",
    cluster_name="oasis",
    ray_namespace="ray",
    ray_cluster_name="oasis",
    ray_dashboard_url="http://127.0.0.1:8265",
    ray_dashboard_command="kubectl --namespace ray port-forward service/oasis-head-svc 8265:8265",
    data_uri="gs://test-data",
    runs_uri="gs://test-runs",
    image="rayproject/ray:2.60.0-py312-cu128",
    image_repository="us-central1-docker.pkg.dev/test-project/oasis",
    python_index_url="",
    machine_type="a3-ultragpu-8g",
    accelerator="nvidia-h200-141gb",
    gpus_per_node=8,
    rdma_nics=8,
    gpu_max_nodes=4,
    cpu_workers_max=4,
    wandb_secret="",
)

PROGRAM = """#!{python}
import base64, json, os, socket, sys, threading

words, facts = sys.argv[1:], json.load(open({facts!r}))


def pump(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


if "port-forward" in words:
    assert words[words.index("--address") + 1] == "127.0.0.1", words
    with open({facts!r} + ".forwards", "a") as log:
        log.write(str(os.getpid()) + chr(10))
    [ports] = [word for word in words if word.replace(":", "").isdigit()]
    server = socket.create_server(("127.0.0.1", int(ports.split(":")[0])))
    while True:
        near, _ = server.accept()
        far = socket.create_connection(("127.0.0.1", facts["behind"]))
        for pair in ((near, far), (far, near)):
            threading.Thread(target=pump, args=pair, daemon=True).start()
elif "configmaps" in words:
    print(json.dumps({{"items": [{{"data": facts["data"]}}] if facts["data"] else []}}))
elif "secret" in words:
    if not facts["token"]:
        sys.exit('Error from server (Forbidden): secrets "oasis" is forbidden')
    print(json.dumps({{"data": {{"auth_token": base64.b64encode(facts["token"].encode()).decode()}}}}))
else:
    sys.exit(f"unknown: {{words}}")
"""


def install(folder: Path, outputs: ClusterEnvironment | None, token: str, behind: int = 0) -> str:
    """Write the program; returns a PATH that begins with it.

    Args:
        folder: for the program and what it knows.
        outputs: the stack's outputs; None is a cluster without a stack.
        token: of Ray; empty is a Secret that may not be read.
        behind: port that a port-forward leads to.
    """
    facts = folder / "facts.json"
    data = {} if outputs is None else {name: str(value) for name, value in vars(outputs).items()}
    facts.write_text(json.dumps({"data": data, "token": token, "behind": behind}))
    program = folder / "kubectl"
    program.write_text(PROGRAM.format(python=sys.executable, facts=str(facts)))
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def forwards(folder: Path) -> list[int]:
    """Pids of the port-forwards that were started."""
    log = folder / "facts.json.forwards"
    return [int(line) for line in log.read_text().split()] if log.exists() else []
