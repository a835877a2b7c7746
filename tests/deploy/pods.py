"""The pods of the jobs in deploy/kubernetes: their names, commands and environment, as the controllers make them.

Sources: kubernetes, Indexed Job (JOB_COMPLETION_INDEX, and $(NAME) in commands) and pods (KUBERNETES_SERVICE_HOST);
kubernetes-sigs/jobset, names of pods; kubeflow/trainer, pkg/runtime/framework/plugins/torch/torch.go;
kubeflow/training-operator 1.9, pkg/controller.v1/pytorch/envvar.go and master.go.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from conftest import ROOT

FOLDER = ROOT / "deploy/kubernetes"
OF_KUBELET = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@dataclass(frozen=True)
class Pod:
    """A pod. dns: the name by which the other pods find it. spec: its PodSpec."""

    dns: str
    words: list[str]
    environ: dict[str, str]
    spec: dict[str, Any]

    def words_with(self, mounts: Mapping[str, Path]) -> list[str]:
        """Return the command with other folders in place of the volumes."""
        words = self.words
        for path, folder in mounts.items():
            words = [re.sub(rf"(?<==){path}(?=/|$)", str(folder), word) for word in words]
        return words


def documents(file: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / file).read_text(encoding="utf-8")))


def _pod(name: str, dns: str, spec: dict[str, Any], container: dict[str, Any], environ: Mapping[str, str]) -> Pod:
    own = {variable["name"]: variable["value"] for variable in container.get("env", [])}
    environ = {**OF_KUBELET, "HOSTNAME": name, **own, **environ}
    words = [*container["command"], *container["args"]]
    return Pod(dns, [re.sub(r"\$\((\w+)\)", lambda found: environ[found[1]], word) for word in words], environ, spec)


def of_trainjob() -> list[Pod]:
    runtime, job = documents("trainjob.yaml")
    name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert replicated["name"] == container["name"] == "node"  # which the controller requires
    found = []
    for index in range(trainer["numNodes"]):
        host = f"{name}-node-0-{index}"
        environ = {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": "auto",
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": "29500",
            "JOB_COMPLETION_INDEX": str(index),
        }
        found.append(_pod(host, f"{host}.{name}", spec, {**container, **trainer}, environ))
    return found


def of_jobset() -> list[Pod]:
    (jobset,) = documents("jobset.yaml")
    name, (replicated,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    spec = job["template"]["spec"]
    assert job["completions"] == job["parallelism"] and job["completionMode"] == "Indexed"
    found = []
    for index in range(job["completions"]):
        host = f"{name}-{replicated['name']}-0-{index}"
        (container,) = spec["containers"]
        found.append(_pod(host, f"{host}.{name}", spec, container, {"JOB_COMPLETION_INDEX": str(index)}))
    return found


def of_pytorchjob() -> list[Pod]:
    (job,) = documents("pytorchjob.yaml")
    name, kinds = job["metadata"]["name"], job["spec"]["pytorchReplicaSpecs"]
    num = sum(kind["replicas"] for kind in kinds.values())
    found = []
    for kind in ("Master", "Worker"):
        for index in range(kinds[kind]["replicas"]):
            host, rank = f"{name}-{kind.lower()}-{index}", str(len(found))
            spec = kinds[kind]["template"]["spec"]
            environ = {
                # without PYTHONUNBUFFERED=0, which Python itself reads: the tests fork a Python that has started
                "MASTER_PORT": "23456",
                "PET_MASTER_PORT": "23456",
                "MASTER_ADDR": f"{name}-master-0",
                "PET_MASTER_ADDR": f"{name}-master-0",
                "WORLD_SIZE": str(num),  # times nprocPerNode, where that is a number
                "RANK": rank,
                "PET_NPROC_PER_NODE": "auto",
                "PET_NODE_RANK": rank,
                "PET_NNODES": str(num),
            }
            (container,) = spec["containers"]
            assert container["name"] == "pytorch"  # the one whose variables the operator sets
            found.append(_pod(host, host, spec, container, environ))
    return found


OF_FILE = {"trainjob.yaml": of_trainjob, "jobset.yaml": of_jobset, "pytorchjob.yaml": of_pytorchjob}
