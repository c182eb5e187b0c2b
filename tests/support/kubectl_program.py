"""The program behind `stub_kubectl`: one stack's ConfigMap, token and RayCluster, port-forwards, and RayJobs as KubeRay
would treat them. Its first argument is the folder of what it knows.

Tests run it a thousand times: what few calls need is imported there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import Any

folder, words = Path(sys.argv[1]), sys.argv[2:]
facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
jobs = folder / "rayjobs"


def pump(source: socket, target: socket) -> None:
    import contextlib
    from socket import SHUT_RDWR

    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(SHUT_RDWR)


def forward() -> None:
    import socket
    import threading

    assert words[words.index("--address") + 1] == "127.0.0.1", words
    with (folder / "forwards").open("a") as log:
        log.write(f"{os.getpid()}\n")
    [ports] = [word for word in words if word.replace(":", "").isdigit()]
    server = socket.create_server(("127.0.0.1", int(ports.split(":")[0])))
    while True:
        near, _ = server.accept()
        far = socket.create_connection(("127.0.0.1", facts["behind"]))
        for pair in ((near, far), (far, near)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


def read(name: str) -> dict[str, Any] | None:
    file = jobs / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else None


def write(job: dict[str, Any]) -> None:
    jobs.mkdir(exist_ok=True)
    (jobs / f"{job['metadata']['name']}.json").write_text(json.dumps(job))


def look(name: str) -> dict[str, Any] | None:
    """A RayJob, one step further than when it was looked at before."""
    job = read(name)
    if job is None or job["status"]["jobDeploymentStatus"] in ("Complete", "Failed"):
        return job
    status = job["status"]
    if facts["stuck"]:
        status |= {"jobDeploymentStatus": "Failed", "reason": "PreRunningDeadlineExceeded", "message": "too late"}
    elif job["spec"].get("suspend"):
        job["status"] = {"jobDeploymentStatus": "Suspended"}
    elif job["spec"]["submissionMode"] == "HTTPMode" and status["jobDeploymentStatus"] in ("", "Suspended"):
        job["status"] = {"jobDeploymentStatus": "Initializing", "rayClusterName": f"{name}-abcde"}
    elif "jobId" in job["spec"]:
        status |= {"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}
    else:
        status |= {"jobDeploymentStatus": "Waiting" if status["jobDeploymentStatus"] else "Initializing"}
        status["rayClusterName"] = f"{name}-abcde"
    write(job)
    return job


def kueue() -> list[dict[str, Any]]:
    """The Workloads of the RayJobs in the queue, one step further than when they were looked at before."""
    found = []
    for file in sorted(jobs.glob("*")):
        job = json.loads(file.read_text())
        metadata, spec = job["metadata"], job["spec"]
        if "labels" not in metadata or not facts["steps"]:
            continue
        count = folder / "steps-taken"
        taken = int(count.read_text()) if count.exists() else 0
        step = facts["steps"][min(taken, len(facts["steps"]) - 1)]
        count.write_text(str(taken + 1))
        if {"type": "Admitted", "status": "True"} in step.get("conditions", ()) and spec.pop("suspend", None):
            write(job)
        group = spec["rayClusterSpec"]["workerGroupSpecs"][0]
        found.append(
            {
                "metadata": {
                    "name": f"rayjob-{metadata['name']}",
                    "creationTimestamp": "2026-11-24T10:00:00Z",
                    "ownerReferences": [{"name": metadata["name"], "uid": metadata["uid"]}],
                },
                "spec": {
                    "queueName": metadata["labels"]["kueue.x-k8s.io/queue-name"],
                    "active": step.get("active", True),
                    "podSets": [{"count": group["replicas"], "template": group["template"]}],
                },
                "status": step,
            }
        )
    return [*facts["others"], *found]


def cluster(name: str) -> dict[str, Any] | None:
    if name == facts["data"]["ray_cluster_name"]:
        return {"metadata": {"name": name, "uid": "1"}, "spec": facts["cluster"]}
    if known := facts["objects"].get(f"raycluster/{name}"):
        return known
    job = read(name.removesuffix("-abcde"))
    alive = job is not None and job["spec"]["ttlSecondsAfterFinished"] != 0
    if not alive:
        return None
    owner = {"kind": "RayJob", "name": name.removesuffix("-abcde"), "uid": "3", "controller": True}
    return {"metadata": {"name": name, "uid": "2", "ownerReferences": [owner]}, "spec": {}}


def show(found: dict[str, Any] | None) -> None:
    if found is not None:
        print("found" if words[words.index("-o") + 1] == "name" else json.dumps(found))
    elif "--ignore-not-found" not in words:
        sys.exit("Error from server (NotFound): not found")


def main() -> None:
    with (folder / "calls").open("a") as log:
        log.write(json.dumps(words) + "\n")
    if "port-forward" in words:
        forward()
    elif "current-context" in words:
        print(facts["context"]) if facts["context"] else sys.exit("error: current-context is not set")
    elif "configmaps" in words:
        print(json.dumps({"items": [{"data": facts["data"]}] if facts["data"] else []}))
    elif "secret" in words:
        if not facts["token"]:
            sys.exit('Error from server (Forbidden): secrets "oasis" is forbidden')
        if cluster(words[words.index("secret") + 1]) is None:
            sys.exit("Error from server (NotFound): secrets not found")
        from base64 import b64encode

        print(json.dumps({"data": {"auth_token": b64encode(facts["token"].encode()).decode()}}))
    elif "create" in words:
        job = {**json.load(sys.stdin), "status": {"jobDeploymentStatus": ""}}
        job["metadata"]["uid"] = f"uid of {job['metadata']['name']}"
        write(job)
    elif "patch" in words and "rayjob" not in words:
        pass  # it is among the calls
    elif "patch" in words:
        job = read(words[words.index("rayjob") + 1])
        assert job is not None
        job["spec"] |= json.loads(words[words.index("--patch") + 1])["spec"]
        write(job)
    elif "delete" in words:
        (jobs / f"{words[words.index('rayjob') + 1]}.json").unlink(missing_ok=True)
    elif "workloads.kueue.x-k8s.io" in words:
        print(json.dumps({"items": kueue()}))
    elif "rayjobs" in words:
        print(json.dumps({"items": [look(file.stem) for file in sorted(jobs.glob("*"))]}))
    elif "rayjob" in words:
        show(look(words[words.index("rayjob") + 1]))
    elif "raycluster" in words:
        show(cluster(words[words.index("raycluster") + 1]))
    elif "job" in words:
        show(facts["objects"].get(f"job/{words[words.index('job') + 1]}"))
    elif "pods" in words:
        print(json.dumps({"items": facts["pods"]}))
    elif "nodes" in words:
        print(json.dumps({"items": []}))
    elif "events" in words:
        print(json.dumps({"items": facts["events"]}))
    else:
        sys.exit(f"unknown: {words}")
