"""Where `srun` starts the launcher: its nodes are the run's, and nobody starts a job a task."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from traceops.core.errors import UsageError
from traceops.doctor.nodes import count_told, find_identity, nodes_of_job
from traceops.launch.plan import Cluster

_IN_STEP = "SLURM_STEP_NUM_NODES"  # set by srun, not in the script of a batch job


def refuse_task_each(environ: Mapping[str, str], words: Sequence[str], *, nodes_too: bool) -> None:
    """Raise UsageError where several tasks of a step would each be a run of its own.

    words: what was typed behind ``traceops``. nodes_too: a task on each node would be too many as well.
    """
    if _IN_STEP not in environ:
        return
    tasks, nodes = (count_told(environ, name) for name in ("SLURM_STEP_NUM_TASKS", _IN_STEP))
    typed = shlex.join(words)
    if nodes_too and tasks > 1:
        raise UsageError(
            f"srun starts {tasks} of these commands, and each would be its own run. Start one, and let it call srun: "
            f"traceops {typed}"
        )
    if tasks > nodes:
        raise UsageError(
            f"srun starts {tasks} tasks on {nodes} node{'s' if nodes > 1 else ''}, and each would be its own run. "
            f"Start one on each node; it starts that node's ranks: srun --ntasks-per-node=1 traceops {typed}"
        )


def in_slurm(cluster: Cluster, environ: Mapping[str, str]) -> Cluster:
    """The same on the nodes of the step that this process is a task of; as it is outside of one.

    Raises UsageError where Slurm does not say which nodes there are.
    """
    if _IN_STEP not in environ:
        return cluster
    here = find_identity({name: value for name, value in environ.items() if name.startswith("SLURM_")})
    if here is None or here.nodes == 1:
        return cluster
    return replace(cluster, nnodes=here.nodes, node_rank=here.node, master_addr=here.address, master_port=here.port)


def tells_beside(cluster: Cluster, environ: Mapping[str, str]) -> bool:
    """Whether the first node's launcher tells of the run in the same output: srun writes all tasks' into one."""
    return _IN_STEP in environ and cluster.nnodes > 1 and bool(cluster.node_rank)


def name_in_slurm(name: str, environ: Mapping[str, str], *, given: bool = True) -> str:
    """`name` with job and step, which are the same on all nodes and no other run's; as it is outside of a step.

    A name that nobody has given says which task of an array it is, where the batch script itself starts the run.
    """
    if _IN_STEP not in environ:
        job, task = (environ.get(f"SLURM_ARRAY_{part}_ID") for part in ("JOB", "TASK"))
        return name if given or job is None or task is None else f"{name}-{job}_{task}"
    again = environ.get("SLURM_RESTART_COUNT", "0")  # a job that was requeued keeps its number
    own = f"{name}-{environ.get('SLURM_JOB_ID', '0')}.{environ.get('SLURM_STEP_ID', '0')}"
    return own if again == "0" else f"{own}-{again}"


def left_out(cluster: Cluster, environ: Mapping[str, str], words: Sequence[str]) -> str | None:
    """What to say where the job has nodes that the run does not use; None where it uses all."""
    nodes = nodes_of_job(environ)
    if _IN_STEP in environ or nodes <= cluster.nnodes:
        return None
    return (
        f"this Slurm job has {nodes} nodes, and the run uses {cluster.nnodes}; for all of them: "
        f"srun --ntasks-per-node=1 traceops {shlex.join(words)}"
    )
