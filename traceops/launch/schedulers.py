"""Runs below a batch system: the nodes that Slurm or Kubernetes gives, and the sbatch script of a run."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.files import write_whole
from traceops.doctor.nodes import count_told, find_identity
from traceops.launch.gather.meeting import SECRET_ENV
from traceops.launch.plan import Cluster
from traceops.words.catalogue import fill

_text = Wording("launch", "slurm")
_IN_STEP = "SLURM_STEP_NUM_NODES"  # set by srun, not in the script of a batch job


def refuse_task_each(environ: Mapping[str, str], words: Sequence[str], *, nodes_too: bool) -> None:
    """Raise UsageError where several tasks of a step would each be a run of its own. words: what was typed behind
    ``traceops``. nodes_too: a task on each node would be too many as well."""
    if _IN_STEP not in environ:
        return
    tasks, nodes = (count_told(environ, name) for name in ("SLURM_STEP_NUM_TASKS", _IN_STEP))
    typed = shlex.join(words)
    if nodes_too and tasks > 1:
        raise UsageError(fill("launch", "tasks", "refused", tasks=tasks, typed=typed))
    if tasks > nodes:
        here = f"{nodes} node{'s' if nodes > 1 else ''}"
        raise UsageError(fill("launch", "tasks_per_node", "refused", tasks=tasks, nodes=here, typed=typed))


def in_slurm(cluster: Cluster, environ: Mapping[str, str]) -> Cluster:
    """The same on the nodes of the step that this process is a task of; as it is outside of one. Raises UsageError
    where Slurm does not say which nodes there are."""
    return _placed(cluster, environ, "SLURM_") if _IN_STEP in environ else cluster


def _placed(cluster: Cluster, environ: Mapping[str, str], prefix: str) -> Cluster:
    here = find_identity({name: value for name, value in environ.items() if name.startswith(prefix)})
    if here is None or here.nodes == 1:
        return cluster
    return replace(cluster, nnodes=here.nodes, node_rank=here.node, master_addr=here.address, master_port=here.port)


def first_node_reports(cluster: Cluster, environ: Mapping[str, str]) -> bool:
    """Whether the first node's launcher tells of the run in the same output: srun writes all tasks' into one."""
    return _IN_STEP in environ and cluster.nnodes > 1 and bool(cluster.node_rank)


def name_in_slurm(name: str, environ: Mapping[str, str], *, given: bool = True) -> str:
    """`name` with job and step, which are the same on all nodes and no other run's; as it is outside of a step. A name
    that nobody has given says which task of an array it is, where the batch script itself starts the run."""
    if _IN_STEP not in environ:
        job, task = (environ.get(f"SLURM_ARRAY_{part}_ID") for part in ("JOB", "TASK"))
        return name if given or job is None or task is None else f"{name}-{job}_{task}"
    again = environ.get("SLURM_RESTART_COUNT", "0")  # a job that was requeued keeps its number
    own = f"{name}-{environ.get('SLURM_JOB_ID', '0')}.{environ.get('SLURM_STEP_ID', '0')}"
    return own if again == "0" else f"{own}-{again}"


def left_out(cluster: Cluster, environ: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """A note where the job has nodes that the run does not use."""
    nodes = count_told(environ, "SLURM_JOB_NUM_NODES")
    if _IN_STEP in environ or nodes <= cluster.nnodes:
        return []
    return [_text("left_out", nodes=nodes, used=cluster.nnodes, command=f"traceops {shlex.join(words)}")]


def in_pod(cluster: Cluster, environ: Mapping[str, str]) -> Cluster:
    """The same on the nodes that the variables of torchrun's options name (``PET_NNODES``…), if they do. Raises
    UsageError where they do not say where the nodes meet, and for an elastic job."""
    return _placed(cluster, environ, "PET_")


def ranks_per_node(environ: Mapping[str, str]) -> int | None:
    """Ranks of a node by ``PET_NPROC_PER_NODE``; None where it says none, or leaves it to the GPUs."""
    text = environ.get("PET_NPROC_PER_NODE", "")
    return int(text) if text.isdecimal() and int(text) else None


_BEFORE_S = 90  # before the time limit: for the ranks to end their step and write their traces
_OURS = {"--slurm": 0, "--submit": 0, "--dry-run": 0, "--nodes": 1, "--nnodes": 1, "--gpus-per-node": 1, "--nproc": 1,
         "--time": 1, "--partition": 1, "--account": 1}  # fmt: skip


class BatchJob(Struct, frozen=True):
    """name: of job and script. time: as Slurm has it, minutes or H:M:S. nproc: ranks a node. gather: the nodes may not
    share the run's folder."""

    name: str
    nodes: int
    nproc: int
    gpus_per_node: int | None = None
    time: str | None = None
    partition: str | None = None
    account: str | None = None
    gather: bool = False

    def check(self) -> None:
        """Raise UsageError for numbers that cannot work."""
        for flag, value in (("--nodes", self.nodes), ("--nproc", self.nproc)):
            if value < 1:
                raise UsageError(f"{flag} {value}: must be 1 or more")
        if self.gpus_per_node is not None and self.nproc > self.gpus_per_node > 0:
            raise UsageError(f"--nproc {self.nproc} with --gpus-per-node {self.gpus_per_node}: ranks would share GPUs")


def words_of_task(words: Sequence[str], nproc: int, *, gather: bool) -> list[str]:
    """What each node runs: the words behind ``traceops run`` without those that are Slurm's, with its ranks."""
    end = words.index("--") if "--" in words else len(words)
    kept, skip = list[str](), 0
    for word in words[:end]:
        flag, has_value, _ = word.partition("=")
        if skip:
            skip -= 1
        elif flag in _OURS:
            skip = 0 if has_value else _OURS[flag]
        else:
            kept.append(word)
    own = ["--gather"] if gather and "--gather" not in kept else []
    return ["--nproc", str(nproc), *own, *kept, *words[end:]]


_SCRIPT = """#!/bin/bash
{directives}
# Slurm sends SIGTERM {seconds} s before the time limit: the ranks write what they have captured.
# All cores of a node are for its ranks: add #SBATCH --exclusive or --cpus-per-task=N as your site has it.

set -euo pipefail
cd {folder}
# Which network the nodes use, where NCCL or gloo choose another one; `traceops doctor` shows it:
# export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0

# One task per node, which starts its ranks; the run's folder is profile/NAME-JOB.STEP.
{gather}srun --kill-on-bad-exit=1 {task}
"""
_GATHER = """# Its disk is local to one machine: at the end the other nodes send theirs to the first (--gather).
# A secret of this run, by which the nodes know each other.
export {variable}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
"""


def batch_script(job: BatchJob, words: Sequence[str]) -> str:
    """The script. words: behind ``traceops run``, as they were typed."""
    directives = {
        "job-name": job.name, "nodes": job.nodes, "ntasks-per-node": 1, "gpus-per-node": job.gpus_per_node,
        "time": job.time, "partition": job.partition, "account": job.account, "output": "%x-%j.log",
        "open-mode": "append", "signal": f"TERM@{_BEFORE_S}", "requeue": "",
    }  # fmt: skip
    lines = [
        f"#SBATCH --{name}" + (f"={value}" if value != "" else "")
        for name, value in directives.items()
        if value is not None
    ]
    task = shlex.join([sys.executable, "-m", "traceops", "run", *words_of_task(words, job.nproc, gather=job.gather)])
    gather = _GATHER.format(variable=SECRET_ENV) if job.gather else ""
    return _SCRIPT.format(
        directives="\n".join(lines), seconds=_BEFORE_S, folder=shlex.quote(str(Path.cwd())), gather=gather, task=task
    )


def write_script(job: BatchJob, words: Sequence[str]) -> Path:
    """Write ``NAME.sbatch`` here. Raises UsageError where another file has that name, or it cannot be written."""
    job.check()
    path, text = Path(f"{job.name}.sbatch"), batch_script(job, words)
    try:
        if path.exists() and path.read_text() != text:
            raise UsageError(f"{path} exists and differs; remove it, or choose another --name")
        write_whole(path, text.encode(), mode=0o777)
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror})") from error
    return path


def submit(path: Path) -> str:
    """What sbatch answers. Raises UsageError where it is not here, or refuses."""
    if shutil.which("sbatch") is None:
        raise UsageError(fill("launch", "no_sbatch", "refused", path=path))
    done = subprocess.run(["sbatch", str(path)], capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"sbatch refused {path}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()
