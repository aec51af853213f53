"""Runs below Slurm and Kubernetes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.launch.folder import of_this_machine
from traceops.launch.plan import Cluster
from traceops.launch.schedulers import first_node_reports, in_slurm, left_out, name_in_slurm, refuse_task_each

WORDS = ("run", "--nproc", "4", "train.py")


def step(nodes, tasks, node=0, local=0):
    """The variables of a task, as Slurm 22.05 sets them."""
    return {
        "SLURM_JOB_ID": "712", "SLURM_STEP_ID": "3", "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_NODES": str(nodes), "SLURM_STEP_NUM_TASKS": str(tasks), "SLURM_NODEID": str(node),
        "SLURM_LOCALID": str(local), "SLURM_STEP_NODELIST": f"gpu[07-{6 + nodes:02d}]",
    }  # fmt: skip


@pytest.mark.parametrize("node", [0, 1])
def test_a_task_on_each_node_is_one_run(node):
    environ = step(2, 2, node)
    refuse_task_each(environ, WORDS, nodes_too=False)
    assert in_slurm(Cluster(4), environ) == Cluster(4, 2, node, master_addr="gpu07", master_port=20_712)
    assert name_in_slurm("train", environ) == "train-712.3", "the same on all nodes"
    assert left_out(Cluster(4, 2), environ, WORDS) is None


@pytest.mark.parametrize("environ", [{}, step(1, 1), {"SLURM_JOB_ID": "712", "SLURM_JOB_NUM_NODES": "1"}])
def test_one_node_is_as_it_is_without_slurm(environ):
    refuse_task_each(environ, WORDS, nodes_too=True)
    assert in_slurm(Cluster(4), environ) == Cluster(4)
    assert left_out(Cluster(4), environ, WORDS) is None


def test_a_task_a_gpu_would_be_a_run_each():
    with pytest.raises(UsageError, match=r"8 tasks on 2 nodes.*srun --ntasks-per-node=1 traceops run --nproc 4"):
        refuse_task_each(step(2, 8, 1, 3), WORDS, nodes_too=False)
    with pytest.raises(UsageError, match="4 tasks on 1 node,"):
        refuse_task_each(step(1, 4), WORDS, nodes_too=False)


def test_a_launcher_that_calls_srun_itself_is_started_once():
    with pytest.raises(UsageError, match="Start one, and let it call srun: traceops run"):
        refuse_task_each(step(2, 2), WORDS, nodes_too=True)


def test_the_script_of_a_batch_job_is_told_of_the_nodes_that_it_does_not_use():
    environ = {"SLURM_JOB_ID": "712", "SLURM_JOB_NUM_NODES": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
    refuse_task_each(environ, WORDS, nodes_too=False)
    assert "4 nodes, and the run uses 1" in left_out(Cluster(4), environ, WORDS)


def test_a_requeued_job_gets_a_folder_of_its_own():
    environ = step(1, 1)
    assert name_in_slurm("mine", environ | {"SLURM_RESTART_COUNT": "2"}) == "mine-712.3-2"
    assert name_in_slurm("mine", {"SLURM_JOB_ID": "712"}) == "mine", "a batch script's own shell, or none"


def test_the_tasks_of_an_array_have_folders_that_say_which():
    """The first task to start had profile/train and the next one profile/train-2, whichever these were."""
    environ = {"SLURM_JOB_ID": "714", "SLURM_ARRAY_JOB_ID": "712", "SLURM_ARRAY_TASK_ID": "7"}
    assert name_in_slurm("train", environ, given=False) == "train-712_7"
    assert name_in_slurm("mine", environ, given=True) == "mine", "the script may say which itself"
    assert name_in_slurm("train", environ | step(1, 1), given=False) == "train-712.3"


def test_one_launcher_tells_of_a_run_whose_nodes_write_into_one_log():
    """Every node told of the progress and the end: 64 nodes, 64 times the same lines."""
    first, second = (in_slurm(Cluster(4), step(2, 2, node)) for node in (0, 1))
    assert [first_node_reports(first, step(2, 2)), first_node_reports(second, step(2, 2, 1))] == [False, True]
    assert not first_node_reports(Cluster(4, 2, 1, master_addr="gpu07"), {}), "started by hand: a terminal each"


TYPED = [
    "run",
    "--slurm",
    "--nodes=2",
    "--gpus-per-node",
    "8",
    "--time",
    "30",
    "--quick",
    "--",
    "train.py",
    "--time",
    "9",
]


@pytest.mark.parametrize("local", [False, True])
def test_the_script_of_a_job_is_written_once_and_runs_one_task_a_node(local, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("traceops.cli.run.of_this_machine", lambda folder: local)
    (tmp_path / "train.py").write_text("")
    monkeypatch.setattr("sys.argv", ["traceops", *TYPED])
    assert main(TYPED) == 0
    script = (tmp_path / "train.sbatch").read_text()
    assert subprocess.run(["bash", "-n", "train.sbatch"]).returncode == 0
    for line in ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--time=30", "--signal=TERM@90", "--requeue"):
        assert f"#SBATCH {line}\n" in script
    task = f"srun --kill-on-bad-exit=1 {sys.executable} -m traceops run --nproc 8"
    assert script.endswith(f"{task}{' --gather' if local else ''} --quick -- train.py --time 9\n")
    assert "next: sbatch train.sbatch" in capsys.readouterr().err
    assert main(TYPED) == 0, "the same again"
    (tmp_path / "train.sbatch").write_text("mine")
    assert main(TYPED) == 2
    assert "exists and differs" in capsys.readouterr().err
    assert (tmp_path / "train.sbatch").read_text() == "mine"


def test_the_script_that_a_dry_run_prints_is_the_one_that_would_be_written(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    for typed in (["run", "--dry-run", *TYPED[1:]], TYPED):
        monkeypatch.setattr("sys.argv", ["traceops", *typed])
        assert main(typed) == 0
    assert capsys.readouterr().out == (tmp_path / "train.sbatch").read_text()


@pytest.mark.parametrize(
    "options, reason",
    [
        (["--slurm"], "needs --gpus-per-node N"),
        (["--slurm", "--nproc", "8", "--gpus-per-node", "4"], "ranks would share GPUs"),
        (["--slurm", "--nproc", "2", "--nodes", "0"], "--nodes 0"),
        (["--submit", "--nproc", "2"], "there is no sbatch on this machine. train.sbatch is written"),
    ],
)
def test_a_job_that_cannot_work_is_refused(options, reason, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "train.py").write_text("")
    words = ["run", *options, "--", "train.py"]
    monkeypatch.setattr("sys.argv", ["traceops", *words])
    assert main(words) == 2
    assert reason in " ".join(capsys.readouterr().err.split())


MOUNTS = r"""overlay / overlay rw 0 0
fs1:/home /home nfs4 rw 0 0
/dev/sda1 /home/scratch\040disk ext4 rw 0 0
/dev/sdb1 /data xfs rw 0 0
10.0.0.1@o2ib:/l /data lustre rw 0 0
"""


@pytest.mark.parametrize(
    "folder, local",
    [("/", True), ("/home/me", False), ("/home/scratch disk/me", True), ("/homes", True), ("/data/x", False)],
)
def test_a_disk_of_one_machine_is_told_by_its_file_system(folder, local, tmp_path):
    (tmp_path / "mounts").write_text(MOUNTS)
    assert of_this_machine(folder, tmp_path / "mounts") is local
    assert of_this_machine(folder, tmp_path / "none") is False, "not known"


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
