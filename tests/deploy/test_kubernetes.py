"""The files of deploy/kubernetes: valid for the models of Kubernetes and of the controllers, and their pods, started as
the controllers start them, train and resume."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.hosts import Hosts, requirement
from helpers.restarted_nodes import Started, goes_on_after_its_end, loses_a_node_and_resumes, small

from imagenet_ddp.callbacks import background_logger, stalled_step

from . import pods

MODELS = {"TrainingRuntime": "TrainerV1alpha1TrainingRuntime", "TrainJob": "TrainerV1alpha1TrainJob",
          "JobSet": "JobsetV1alpha2JobSet"}  # fmt: skip
FILES = sorted(path.name for path in pods.FOLDER.glob("*.yaml"))


def read_back(document: dict[str, Any]) -> Any:
    """Return the document as the model of its kind has it: without the fields that it does not know. Raises ValueError
    for a value of another type."""
    import kubeflow_trainer_api.models as trainer  # here, because every worker of pytest-xdist imports this file
    from kubernetes.client import ApiClient

    if name := MODELS.get(document["kind"]):
        found = getattr(trainer, name).from_dict(document)
        assert found is not None
        return found.to_dict()
    client, model = (
        ApiClient(),
        "KubeflowOrgV1PyTorchJob" if document["kind"] == "PyTorchJob" else "V1" + document["kind"],
    )
    return client.sanitize_for_serialization(client.deserialize(SimpleNamespace(data=json.dumps(document)), model))


@pytest.fixture
def _one_client_for_all_models(monkeypatch: pytest.MonkeyPatch):
    """Kubernetes' client reads the models that it finds by name among its own."""
    import kubeflow.training.models
    import kubernetes.client.models

    for name, model in vars(kubeflow.training.models).items():
        if name.startswith("KubeflowOrgV1"):
            monkeypatch.setattr(kubernetes.client.models, name, model, raising=False)


@pytest.mark.usefixtures("_one_client_for_all_models")
@pytest.mark.parametrize("file", FILES)
def test_a_file_has_only_fields_that_its_kinds_know(file: str):
    for document in pods.documents(file):
        assert read_back(document) == document
        document["spec"]["misspelt"] = 5
        assert "misspelt" not in read_back(document)["spec"], "else this test could not fail"


@pytest.mark.parametrize("file", pods.OF_FILE)
def test_a_pod_can_save_before_it_is_killed_and_needs_no_root(file: str):
    claims = {document["metadata"]["name"] for document in pods.documents("volumes.yaml")}
    found = pods.OF_FILE[file]()
    assert len(found) == 2 and all(pod.spec == found[0].spec for pod in found)
    spec = found[0].spec
    # a stop waits for a step, then the loggers; the rest is for the checkpoint
    least_s = stalled_step.REPORT_S + background_logger.END_S
    assert spec["terminationGracePeriodSeconds"] >= 2 * least_s
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] > 0
    (container,) = spec["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {mounted[volume["name"]]: volume for volume in spec["volumes"]}
    assert volumes["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert {volumes[path]["persistentVolumeClaim"]["claimName"] for path in ("/runs", "/data")} == claims
    assert "resume=auto" in found[0].words and any(word.startswith("hydra.run.dir=/runs/") for word in found[0].words)


@pytest.mark.slow(20)
@pytest.mark.skipif(requirement() is not None, reason=str(requirement()))
@pytest.mark.parametrize("file", pods.OF_FILE)
def test_two_pods_train_and_resume(file: str, tree: Path, tmp_path: Path):
    """The command of the file, with the environment that its controller sets, and the names that the cluster's name
    server knows. The controller starts both pods again, those of the TrainJob after one was killed."""
    both, mounts = pods.OF_FILE[file](), {"/runs": tmp_path / "runs", "/data": tree}
    (tmp_path / "runs").mkdir()
    names = [pod.environ["HOSTNAME"] for pod in both]
    with Hosts(names, tmp_path) as (first, second):
        for host in (first, second):
            with (tmp_path / "hosts" / host.name / "files/hosts").open("a") as table:
                table.writelines(f"{each.address} {pod.dns}\n" for each, pod in zip((first, second), both, strict=True))
        started = [Started(pod.words_with(mounts), pod.environ) for pod in both]
        hosts, run_dir = (first, second), tmp_path / "runs/imagenet"
        if file == "trainjob.yaml":
            said = loses_a_node_and_resumes(hosts, started, small(tree), run_dir, tmp_path / "seen")
        else:
            said = goes_on_after_its_end(hosts, started, small(tree), run_dir)
    assert f"{both[0].dns}:" in said and "rank 0 of 2, local rank 0 of 1, node 0 of 2." in said
