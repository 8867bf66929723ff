"""Makes the Kubernetes objects of a run, and their YAML. The pods of each kind have the variables that a table of
node/container/platforms.py reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, inf
from typing import Any

import yaml

from fleet.node.container.channel import SECRET
from fleet.node.container.place import DEFAULT_PORT
from fleet.requests.manifest import MOUNTED, Manifest

Object = dict[str, Any]
LABEL, QUEUE = "fleet/run", "kueue.x-k8s.io/queue-name"
TRAINER = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}  # label of the job that completes a TrainJob
NODE = "node"  # the JobSet's only job; TrainJob requires this name of the container, too
LATE_SECONDS = 5  # time after the grace period in which a pod reports its end
# text that is a string without quotes in both YAML 1.1 and 1.2
PLAIN = re.compile(r"(?!(?i:y|n|yes|no|on|off|true|false|null)$)/?[A-Za-z][A-Za-z0-9]*([./_-][A-Za-z0-9]+)*")


class Dumper(yaml.SafeDumper):
    """Writes a string in double quotes if a parser could read it as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", data, None if PLAIN.fullmatch(data) else '"')


Dumper.add_representer(str, Dumper.text)


def text_of(objects: Iterable[Object]) -> str:
    """Returns the objects as YAML."""
    return yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=inf)


def literal(text: str) -> str:
    """Returns a container's text in the form in which Kubernetes does not expand $(NAME)."""
    return text.replace("$", "$$")


def _metadata(ask: Manifest, labels: Mapping[str, str] = {}) -> Object:
    queue = {QUEUE: ask.queue} if ask.queue else {}
    return {"name": ask.name, "labels": {LABEL: ask.name, **queue, **labels}}


def _template(ask: Manifest, place: Mapping[str, object] = {}, restarts: int = 0, **more: Any) -> Object:
    """Returns the template of the pods. place: variables for a pod's place in the run, in addition to those that the
    operator sets. restarts: how often ranks are restarted within a pod. more: fields of the container."""
    variables = {**place, **ask.env}
    by_name = [{"name": name, "value": literal(str(value))} for name, value in variables.items()]
    secret = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": ask.name, "key": name}}} for name in (SECRET, *ask.secret)
    ]
    claims = [each.partition(":")[::2] for each in ask.volume]
    mounts = [{"name": name, "mountPath": path} for name, path in zip(("fleet", "shm"), MOUNTED, strict=True)]
    volumes = [{"name": "fleet", "configMap": {"name": ask.name}}, {"name": "shm", "emptyDir": {"medium": "Memory"}}]
    for number, (claim, path) in enumerate(claims):
        mounts.append({"name": f"claim-{number}", "mountPath": path})
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}})
    again = [f"--max-restarts={restarts}"] if restarts else []
    container = {
        "name": NODE,
        "image": ask.container,
        "command": [*map(literal, ask.command)],
        "args": [*again, *map(literal, ask.args)],
        "env": [*by_name, *secret],
        **({"resources": {"limits": limits}} if (limits := dict(ask.limits())) else {}),
        "volumeMounts": mounts,
        **({"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}} if ask.rdma else {}),
        **more,
    }
    late = {} if ask.grace is None else {"terminationGracePeriodSeconds": ceil(ask.grace) + LATE_SECONDS}
    spec = {"restartPolicy": "Never", **late, "containers": [container], "volumes": volumes}
    return {"metadata": {"labels": {LABEL: ask.name}}, "spec": spec}


def _place(ask: Manifest, master: str) -> Object:
    """Returns the variables for a pod's place if no operator sets them. Kubernetes adds JOB_COMPLETION_INDEX."""
    port = ask.port or DEFAULT_PORT
    return {"NNODES": ask.nnodes, "NPROC_PER_NODE": ask.ranks, "MASTER_ADDR": master, "MASTER_PORT": port}


def _job(ask: Manifest, template: Object) -> Object:
    """Returns the spec of an Indexed Job."""
    counts = {"parallelism": ask.nnodes, "completions": ask.nnodes}
    return {**counts, "completionMode": "Indexed", "backoffLimit": 0, "template": template}


def _jobset(ask: Manifest, template: Object, labels: Mapping[str, str] = {}) -> Object:
    """Returns the spec of a JobSet of one job."""
    job = {**({"metadata": {"labels": dict(labels)}} if labels else {}), "spec": _job(ask, template)}
    return {
        "network": {"enableDNSHostnames": True},
        "failurePolicy": {"maxRestarts": ask.max_restarts},
        "replicatedJobs": [{"name": NODE, "replicas": 1, "template": job}],
    }


def jobset(ask: Manifest) -> list[Object]:
    spec = _jobset(ask, _template(ask, _place(ask, f"{ask.name}-{NODE}-0-0.{ask.name}")))
    return [{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": _metadata(ask), "spec": spec}]


def job(ask: Manifest) -> list[Object]:
    """Returns an Indexed Job, and the service by which its pods find one another before they are ready."""
    template = _template(ask, _place(ask, f"{ask.name}-0.{ask.name}"), ask.max_restarts)
    template["spec"]["subdomain"] = ask.name
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {LABEL: ask.name}}
    named = {"name": ask.name, "labels": {LABEL: ask.name}}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": named, "spec": service},
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(ask), "spec": _job(ask, template)},
    ]


def trainjob(ask: Manifest) -> list[Object]:
    """Returns a TrainJob and its own runtime. It does not use a runtime of the cluster, because it depends on the
    version what a TrainJob may change in such a runtime."""
    counted = {"numProcPerNode": ask.ranks} if isinstance(ask.ranks, int) else {}
    given = [f"--master-port={ask.port}"] if ask.port else []  # a TrainJob sets no port, and takes only a number
    given += [] if counted else [f"--nproc-per-node={ask.ranks}"]
    template = _template(ask)
    template["spec"]["containers"][0]["args"][:0] = given
    policy = {"numNodes": ask.nnodes, "torch": Object()}
    runtime = {"mlPolicy": policy, "template": {"spec": _jobset(ask, template, TRAINER)}}
    named = {"name": ask.name, "labels": {LABEL: ask.name}}
    of_runtime = {"apiGroup": "trainer.kubeflow.org", "kind": "TrainingRuntime", "name": ask.name}
    spec = {"runtimeRef": of_runtime, "trainer": {"numNodes": ask.nnodes, **counted}}
    version = "trainer.kubeflow.org/v1alpha1"
    return [
        {"apiVersion": version, "kind": "TrainingRuntime", "metadata": named, "spec": runtime},
        {"apiVersion": version, "kind": "TrainJob", "metadata": _metadata(ask), "spec": spec},
    ]


def pytorchjob(ask: Manifest) -> list[Object]:
    """Returns a PyTorchJob. Its operator finds the container and the port by their names."""
    ports = [{"name": "pytorchjob-port", "containerPort": ask.port or DEFAULT_PORT}]
    counts = {"Master": 1, "Worker": ask.nnodes - 1}
    replicas = {
        role: {
            "replicas": count,
            "restartPolicy": "Never",
            "template": _template(ask, restarts=ask.max_restarts, name="pytorch", ports=ports),
        }
        for role, count in counts.items()
        if count
    }
    policy = {"backoffLimit": 0, "cleanPodPolicy": "None"}
    spec = {"runPolicy": policy, "nprocPerNode": str(ask.ranks), "pytorchReplicaSpecs": replicas}
    return [{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": _metadata(ask), "spec": spec}]


KINDS: Mapping[str, Callable[[Manifest], Sequence[Object]]] = {
    "jobset": jobset,
    "job": job,
    "trainjob": trainjob,
    "pytorchjob": pytorchjob,
}
