"""Launchers by name, commands that start the ranks themselves, and runs below Slurm and Kubernetes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from started import LIGHT_TORCH, environment

from traceops.cli import main
from traceops.core.errors import UsageError
from traceops.launch.folder import of_this_machine
from traceops.launch.launchers import (
    NAMES,
    Started,
    check_command,
    check_script,
    command_of,
    python_program,
    starts_ranks,
    wraps_in_data_parallel,
)
from traceops.launch.plan import JOINING, Cluster, Plan
from traceops.launch.schedulers import first_node_reports, in_slurm, left_out, name_in_slurm, refuse_task_each
from traceops.pipeline.analyze import analyze

GPUS = Started(("train.py", "--lr", "1"), None, 2)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    for name in ("accelerate", "deepspeed", "srun"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("launcher", "begins", "ends"),
    [
        ("accelerate", "accelerate launch --multi_gpu --num_processes 2", "train.py --lr 1"),
        ("deepspeed", "deepspeed --num_gpus 2", "train.py --lr 1"),
        ("lightning", sys.executable, "train.py --lr 1"),
        ("srun", f"srun --ntasks 2 {sys.executable}", "train.py --lr 1"),
    ],
)
def test_the_command_of_each(launcher, begins, ends):
    command = " ".join(command_of(launcher, GPUS))
    assert command.startswith(begins) and command.endswith(ends)
    assert launcher in NAMES


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("launcher", "flag"), [("accelerate", "--module"), ("deepspeed", "--module"), ("srun", "-m")])
def test_modules(launcher, flag):
    command = command_of(launcher, Started(("-m", "pkg", "--a"), 4, 4))
    assert command[-3:] == [flag, "pkg", "--a"] and "4" in command


@pytest.mark.usefixtures("installed")
def test_a_command_of_the_launcher_itself_stays_as_it_is():
    own = ("accelerate", "launch", "--config_file", "mine.yaml", "train.py")
    assert command_of("accelerate", Started(own, None, 2)) == list(own)


@pytest.mark.usefixtures("installed")
def test_srun_over_machines():
    assert command_of("srun", Started(("train.py",), 8, 8, nnodes=2))[:5] == ["srun", "--nodes", "2", "--ntasks", "16"]


@pytest.mark.usefixtures("installed")
def test_what_cannot_work_is_refused_with_the_command_that_can(monkeypatch):
    with pytest.raises(UsageError, match=r"a single process.*traceops run --nproc 2 -- train\.py --lr 1"):
        command_of("accelerate", Started(GPUS.trains, None, 0))
    with pytest.raises(UsageError, match=r"devices=…"):
        command_of("lightning", Started(("train.py",), 2, 2))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match=r"no srun here.*traceops run --nproc 2 -- train\.py"):
        command_of("srun", GPUS)
    with pytest.raises(UsageError, match="after --"):
        command_of("srun", Started((), None, 0))


@pytest.mark.usefixtures("installed")
def test_a_program_that_pip_installed_is_run_by_each_rank_and_launchers_are_not(installed):
    program = installed / "trl"
    program.write_text("#!/opt/env/bin/python\nimport sys\n")
    program.chmod(0o755)
    assert python_program(["trl", "sft"]) == [str(program), "sft"]
    (installed / "accelerate").write_text("#!/opt/env/bin/python\n")
    assert python_program(["accelerate", "launch"]) == ["accelerate", "launch"]
    assert python_program(["srun", "x"]) == ["srun", "x"]
    assert python_program(["gone"]) == ["gone"] and python_program(["-m", "x"]) == ["-m", "x"]
    Path("trl").unlink(missing_ok=True)


_DEADLOCK_S = 600

# Rank 1 is forked; a process of its own trains beside them, and takes itself for rank 0 of 1 but comes last.
_SCRIPT = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def train(steps):
    model = torch.nn.Linear(8, 8)
    if dist.is_initialized():
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
def work(rank, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=2)
    train(17)
    dist.destroy_process_group()
    os.write(1, f"rank {rank} {os.environ['MARK']}\\n".encode())
if __name__ == "__main__":
    ranks = [
        mp.start_processes(work, args=(sys.argv[1],), nprocs=1, join=False, start_method="spawn").processes[0]
    ]
    pid = os.fork()
    if not pid:
        work(1, sys.argv[1])
        sys.exit()
    code = os.waitpid(pid, 0)[1]
    ranks[0].join()
    train(2)
    sys.exit(code or ranks[0].exitcode or 5)
"""


@pytest.mark.torch
@pytest.mark.slow
def test_ranks_that_the_command_starts_are_traced_and_its_exit_code_is_the_runs(tmp_path):
    (tmp_path / "train.py").write_text(_SCRIPT)
    own = tmp_path / "own"
    own.mkdir()
    light = f"import runpy\nrunpy.run_path({str(LIGHT_TORCH / 'sitecustomize.py')!r})\n"  # which it stands before
    (own / "sitecustomize.py").write_text(f"import os\nos.environ['MARK'] = 'mine'\n{light}")
    env = environment()
    env["PYTHONPATH"] = os.pathsep.join([str(own), env["PYTHONPATH"]])
    command = [sys.executable, "-m", "traceops", "run", "--launcher", "none", "--out", "out"]
    done = subprocess.run(
        [*command, "--", sys.executable, "train.py", str(tmp_path / "store")],
        cwd=tmp_path, env=env, text=True, capture_output=True, timeout=_DEADLOCK_S, check=False,
    )  # fmt: skip
    assert done.returncode == 5, done.stderr
    assert {"rank 0 mine", "rank 1 mine"} <= set(done.stdout.splitlines())
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (run["world_size"], run["exit_code"], run["status"]) == (2, 5, "failed")
    assert [(rank["rank"], rank["steps"], len(rank["traces"])) for rank in run["ranks"]] == [(0, 17, 1), (1, 17, 1)]
    assert run["profiled_steps"] == [10, 11, 12, 13]
    assert "2 of 2 ranks traced" in done.stderr and "the command ended with 5" in done.stderr


def test_a_program_without_torch_is_told_what_it_had_of_the_machine(tmp_path):
    """XGBoost, scikit-learn or NumPy end no step that is seen, and the run ended with nothing but that."""
    (tmp_path / "fit.py").write_text("data = bytearray(200_000_000)\nsum(i * i for i in range(3_000_000))\n")
    command = [sys.executable, "-m", "traceops", "run", "--out", "out", "--", sys.executable, "fit.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), text=True, capture_output=True, timeout=_DEADLOCK_S, check=False
    )
    assert done.returncode == 3, done.stderr
    used = re.search(r"used (\d+\.\d) of (\d+) cores?, (\d+) MB of memory at most", done.stderr)
    assert used is not None, done.stderr
    assert float(used[1]) <= int(used[2]) + 0.1 and 200 <= int(used[3]) < 400


_ENDS = """
import os, sys, torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(6):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
if sys.argv[1] == "exits":
    os._exit(7)
raise KeyboardInterrupt
"""


@pytest.mark.torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "code", "rank_code", "said"),
    [
        # On a busy machine the launcher may not have seen the rank yet.
        ("exits", 7, None, "in step 6; how it ended is not known|no rank reported a failure"),
        ("stops", 130, 130, "rank 0 on .* failed first, exit code 130"),
    ],
)
def test_how_a_rank_ended_is_no_more_than_is_known(tmp_path, how, code, rank_code, said):
    """os._exit(7) was told as exit code 0, and Ctrl-C as 1."""
    (tmp_path / "train.py").write_text(_ENDS)
    command = [sys.executable, "-m", "traceops", "run", "--launcher", "none", "--out", "out"]
    done = subprocess.run(
        [*command, "--", sys.executable, "train.py", how],
        cwd=tmp_path, env=environment(), text=True, capture_output=True, timeout=_DEADLOCK_S, check=False,
    )  # fmt: skip
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (done.returncode, run["exit_code"], run["ranks"][0]["exit_code"]) == (code, code, rank_code)
    assert re.search(said, done.stderr) and "exit code 0" not in done.stderr, done.stderr


_CHAINS = """
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
print("first")
spec = PathFinder.find_spec("sitecustomize", [f for f in sys.path if f != {own!r}])
spec.loader.exec_module(module_from_spec(spec))
"""


def test_a_sitecustomize_that_runs_the_next_one_itself_runs_once(tmp_path):
    """The next one is ours, which runs the next one itself."""
    for name, text in (("one", _CHAINS.format(own=str(tmp_path / "one"))), ("two", 'print("second")')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sitecustomize.py").write_text(text)
    path = os.pathsep.join(map(str, (JOINING, tmp_path / "one", tmp_path / "two")))
    shown = "import sys; print(sum(type(one).__name__ == '_Joins' for one in sys.meta_path))"
    done = subprocess.run(
        [sys.executable, "-c", shown], text=True, capture_output=True, timeout=_DEADLOCK_S, check=False,
        env={**os.environ, "PYTHONPATH": path, "TRACEOPS_CAPTURE": "{}"},
    )  # fmt: skip
    assert (done.stdout.split(), done.stderr) == (["first", "second", "1"], "")


def plan(*command, **options):
    return Plan("mine", Path("/runs/mine"), Cluster(1), list(command), {}, {}, launcher="none", **options)


def test_the_command_runs_as_it_is_and_python_scripts_by_this_python():
    assert plan("accelerate", "launch", "train.py").command() == ["accelerate", "launch", "train.py"]
    assert plan("train.py", "--a").command() == [sys.executable, "train.py", "--a"]
    assert plan("-m", "pkg", "--a").command() == [sys.executable, "-m", "pkg", "--a"]


def test_what_a_torchrun_around_us_told_us_is_not_told_on(monkeypatch):
    outer = {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "a", "OTHER": "1", "PYTHONPATH": "/mine"}
    assert plan("x").environment(outer)["RANK"] == "3"  # of srun, say, or set by hand
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    env = plan("x").environment(outer)
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(env) and env["OTHER"] == "1"
    assert env["PYTHONPATH"].split(os.pathsep)[:2] == [str(JOINING), "/mine"]
    assert "OMP_NUM_THREADS" not in env


def test_what_cannot_be_started_is_refused_with_what_can(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="not a program"):
        check_command(["no-such-program"])
    with pytest.raises(UsageError, match="after --"):
        check_command([])
    with pytest.raises(UsageError, match="does not exist"):
        check_command(["gone.py"])
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "deepspeed").touch(mode=0o755)
    with pytest.raises(UsageError, match=r"traceops run -- deepspeed train\.py --zero 3"):
        check_script(["deepspeed", "train.py", "--zero", "3"])


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("if 1: mp.spawn(w, nprocs=2)", "mp.spawn"),
        ("torch.multiprocessing.spawn(\n  w)", "multiprocessing.spawn"),
        ("from accelerate import notebook_launcher\nnotebook_launcher(f)", "notebook_launcher"),
        ("# mp.spawn(w)\nimport torch", None),
        ("subprocess.spawn(x)", None),
    ],
)
def test_a_script_that_seems_to_start_its_ranks_is_recognised(tmp_path, text, call):
    script = tmp_path / "train.py"
    script.write_text(text)
    assert starts_ranks([str(script), "--epochs", "3"]) == call
    assert starts_ranks(["-m", "pkg"]) is None and starts_ranks([str(tmp_path / "gone.py")]) is None


@pytest.mark.torch
@pytest.mark.parametrize("options", [["--nproc", "2"], ["--against", "main"], ["--skip-first", "0"]])
def test_options_without_a_meaning_are_refused(options, capsys):
    assert main(["run", "--launcher", "none", *options, "--", "echo", "hi"]) == 2
    assert options[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "wraps"),
    [
        ("model = nn.DataParallel(model)", True),
        ("model = torch.nn.DataParallel(model, device_ids=[0, 1])", True),
        ("    net = DataParallel(net)", True),
        ("model = DistributedDataParallel(model)", False),
        ("model = nn.parallel.DistributedDataParallel(model)", False),
        ("# nn.DataParallel(model) was slow", False),
        ("model = FullyShardedDataParallel(model)", False),
    ],
)
def test_a_script_under_data_parallel_is_recognised(tmp_path, line, wraps):
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{line}\n")
    assert wraps_in_data_parallel([str(script)]) == wraps
    assert not wraps_in_data_parallel(["-m", "pkg"]) and not wraps_in_data_parallel([str(tmp_path / "gone.py")])


_TRAIN = """
import time
import torch, torch.distributed as dist
from torch.utils.data import DataLoader

def slow_collate(items):
    time.sleep(0.12)
    return torch.tensor(items)

def main():
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters())
    method = ("spawn", "forkserver")[dist.get_rank()]
    items = [[1.0, 2.0, 3.0, 4.0]] * 80
    for batch in DataLoader(
        items, batch_size=2, num_workers=1, collate_fn=slow_collate, multiprocessing_context=method
    ):
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


@pytest.mark.torch
@pytest.mark.slow
def test_the_report_names_the_line_that_they_are_in(tmp_path):
    (tmp_path / "train.py").write_text(_TRAIN)
    run = [sys.executable, "-m", "traceops", "run", "--nproc", "2", "--out", "run", "--", str(tmp_path / "train.py")]
    done = subprocess.run(run, cwd=tmp_path, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        [seen] = (tmp_path / "run" / f"rank_{rank}").glob("loader.0.*.jsonl")
        assert any("slow_collate" in str(json.loads(line)) for line in seen.read_text().splitlines())
    told = [f"{finding.rule}: {finding.message}" for finding in analyze(tmp_path / "run").findings]
    assert any(one.startswith("TO-I002") and "slow_collate (train.py:7)" in one for one in told), told


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
    assert left_out(Cluster(4, 2), environ, WORDS) == []


@pytest.mark.parametrize("environ", [{}, step(1, 1), {"SLURM_JOB_ID": "712", "SLURM_JOB_NUM_NODES": "1"}])
def test_one_node_is_as_it_is_without_slurm(environ):
    refuse_task_each(environ, WORDS, nodes_too=True)
    assert in_slurm(Cluster(4), environ) == Cluster(4)
    assert left_out(Cluster(4), environ, WORDS) == []


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
    assert "4 nodes, and the run uses 1" in left_out(Cluster(4), environ, WORDS)[0]


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
