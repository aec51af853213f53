"""The examples for Kubernetes: they fit the schemas of their kinds, and their pods are one run."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from traceops.cli import main

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "tests" / "data" / "kubernetes"


def example(name):
    return yaml.safe_load((ROOT / "examples" / "kubernetes" / f"{name}.yaml").read_text())


@pytest.mark.parametrize(
    "name, kind, version",
    [("pytorchjob", "PyTorchJob", "kubeflow.org/v1"), ("jobset", "JobSet", "jobset.x-k8s.io/v1alpha2")],
)
def test_an_example_fits_the_schema_of_its_kind(name, kind, version):
    job, schema = example(name), json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(job, schema)
    assert (job["kind"], job["apiVersion"]) == (kind, version)
    job["spec"]["replicas"] = 2  # no field of either
    with pytest.raises(jsonschema.ValidationError, match="replicas"):
        jsonschema.validate(job, schema)


def pods():
    """Name, containers' spec and what the operators say of each pod: variables, labels and annotations."""
    job = example("pytorchjob")
    for node, role in enumerate(("Master", "Worker")):
        pod = job["spec"]["pytorchReplicaSpecs"][role]["template"]["spec"]
        told = {"PET_NNODES": "2", "PET_NODE_RANK": str(node), "PET_NPROC_PER_NODE": job["spec"]["nprocPerNode"],
                "PET_MASTER_ADDR": "train-master-0", "PET_MASTER_PORT": "23456", "RANK": str(node), "WORLD_SIZE": "16",
                "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"}  # fmt: skip
        yield (pod, told, {"metadata.labels['training.kubeflow.org/job-name']": "train"}, node, "train-master-0", 23456)
    (group,) = (job := example("jobset"))["spec"]["replicatedJobs"]
    assert group["template"]["spec"]["parallelism"] == group["template"]["spec"]["completions"] == 2
    pod = group["template"]["spec"]["template"]["spec"]
    for node in range(2):
        fields = {"metadata.annotations['batch.kubernetes.io/job-completion-index']": str(node),
                  "metadata.labels['jobset.sigs.k8s.io/jobset-name']": job["metadata"]["name"]}  # fmt: skip
        yield pod, {}, fields, node, f"train-{group['name']}-0-0.train", None


@pytest.mark.parametrize("pod, told, fields, node, address, port", list(pods()))
def test_the_pods_of_an_example_are_one_run_in_one_folder(
    pod, told, fields, node, address, port, tmp_path, monkeypatch, capsys
):
    (container,) = pod["containers"]
    variables = {one["name"]: fields[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in container["env"]}
    command = [
        word.replace("$(JOB)", variables["JOB"]).replace("$(NODE)", variables.get("NODE", ""))
        for word in container["command"]
    ]
    assert command[0] == "traceops"
    assert "--gather" in command or "persistentVolumeClaim" in pod["volumes"][0], "a folder of its own is sent"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr("traceops.cli.run.gpu_count", lambda: int(container["resources"]["limits"]["nvidia.com/gpu"]))
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert main([*command[1:2], "--dry-run", *command[2:]]) == 0
    printed = capsys.readouterr().out
    where = [f"--nnodes=2 --nproc-per-node=8 --node-rank={node} --master-addr={address}", '"out": "/traces/train"']
    assert all(words in printed for words in [*where, *([f"--master-port={port}"] if port else [])]), printed


@pytest.mark.parametrize(
    "told, reason",
    [
        ({"PET_NODE_RANK": "5"}, "PET_NODE_RANK is 5, at most 1"),
        ({"PET_MASTER_PORT": "99999"}, "PET_MASTER_PORT is 99999, at most 65535"),
        ({"PET_MASTER_ADDR": ""}, "no PET_MASTER_ADDR"),
        ({"PET_NNODES": ""}, ""),  # as good as none
    ],
)
def test_variables_that_cannot_be_are_named(tmp_path, monkeypatch, capsys, told, reason):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    pod = {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "a", "PET_MASTER_PORT": "23456"}
    for name, value in (pod | told).items():
        monkeypatch.setenv(name, value)
    assert main(["run", "--dry-run", "--gather", "--nproc", "2", "--", "train.py"]) == (2 if reason else 0)
    assert reason in " ".join(capsys.readouterr().err.split())


def test_an_elastic_job_and_one_without_a_master_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    for told, reason in (("1:4", "an elastic job"), ("2", "no PET_MASTER_ADDR")):
        monkeypatch.setenv("PET_NNODES", told)
        assert main(["run", "--dry-run", "--nproc", "2", "--", "train.py"]) == 2
        assert reason in " ".join(capsys.readouterr().err.split())
    assert (
        main(["run", "--dry-run", "--nproc=2", "--nnodes=2", "--node-rank=0", "--master-addr=a", "--", "train.py"]) == 0
    )
