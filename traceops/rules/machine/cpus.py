"""TO-D305 and TO-D306: cores and NUMA nodes."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.rule import JudgedBy, Rule
from traceops.machine.cpus import Cpus, Near
from traceops.machine.files import listed
from traceops.machine.look import Look

CORES = Rule(
    id="TO-D305",
    title="Fewer CPU cores than GPUs",
    fires="Warning where this process may use fewer cores, or less time of them, than there are GPUs.",
    advice=("Ask for more cores: docker --cpus or --cpuset-cpus, Slurm --cpus-per-task, the pod's cpu limit."),
    judged_by=JudgedBy.DOCTOR,
)
NUMA = Rule(
    id="TO-D306",
    title="Processes may not run near their GPUs",
    fires=(
        "Warning where this process may use none of the cores near a GPU; info where the NUMA nodes of the "
        "GPUs are not known, or the kernel moves memory between nodes (RCCL's log tells that too)."
    ),
    advice="Widen the cpuset, or bind each rank near its GPU: numactl --cpunodebind=NODE --membind=NODE.",
    judged_by=JudgedBy.DOCTOR,
)
RULES = (CORES, NUMA)


def balancing_look(host: str) -> Look:
    """The kernel moves memory between nodes by itself."""
    return Look(
        host, "NUMA", "automatic NUMA balancing", "on", "note",
        "the kernel moves memory between nodes: it may disturb NCCL's buffers",
        "sudo sysctl kernel.numa_balancing=0", rule=NUMA.id,
    )  # fmt: skip


def judge_cpus(cpus: Cpus, gpus: Sequence[tuple[str, Near]], quota: float | None, host: str) -> tuple[Look, ...]:
    """Nodes, cores that are allowed, and whether those near each GPU are.

    gpus: by label. quota: processors that a cgroup grants, None without a limit.
    """
    if not cpus.allowed:
        return (
            Look(
                host,
                "NUMA",
                "cores",
                "not known",
                "not_evaluated",
                "this system has no /proc/self/status",
                rule=CORES.id,
            ),
        )
    total = sum(len(one) for one in cpus.nodes.values())
    found = f"{len(cpus.allowed)}{f' of {total}' if total > len(cpus.allowed) else ''} cores"
    found += f" on {len(cpus.nodes)} NUMA nodes" if len(cpus.nodes) > 1 else ""
    facts = {"allowed": listed(cpus.allowed), "nodes": {str(node): listed(one) for node, one in cpus.nodes.items()},
             "quota": quota, "gpus": {label: near.numa for label, near in gpus}}  # fmt: skip
    granted = min(float(len(cpus.allowed)), quota or float("inf"))
    if gpus and granted < len(gpus):
        looks = [
            Look(host, "NUMA", "cores", f"{granted:g} for {len(gpus)} GPUs", "warning",
                 "every rank keeps a core busy, and NCCL's network and the loader need more",
                 "ask for more cores: docker --cpus/--cpuset-cpus, Slurm --cpus-per-task, the pod's cpu limit", facts,
                 rule=CORES.id)
        ]  # fmt: skip
    else:
        looks = [Look(host, "NUMA", "cores", found, facts=facts, rule=CORES.id)]
    far = [(label, near) for label, near in gpus if near.cpus and not near.cpus & cpus.allowed]
    if far:
        shown = "; ".join(f"{label} is near {listed(near.cpus)}" for label, near in far)
        looks.append(
            Look(host, "NUMA", "cores near GPUs", f"none allowed for {', '.join(label for label, _ in far)}", "warning",
                 f"this process may use {listed(cpus.allowed)}; {shown}: all they copy crosses between NUMA nodes",
                 "widen the cpuset, or bind each rank near its GPU: numactl --cpunodebind=NODE --membind=NODE", facts,
                 rule=NUMA.id)
        )  # fmt: skip
    elif gpus and len(cpus.nodes) > 1 and all(near.numa is None for _, near in gpus):
        looks.append(
            Look(host, "NUMA", "GPUs' NUMA nodes", "not known", "note",
                 "there are several nodes and the firmware does not say where the GPUs are: binding is guesswork",
                 "on bare metal update the BIOS; in a virtual machine ask for its NUMA layout", facts,
                 rule=NUMA.id)
        )  # fmt: skip
    if gpus and len(cpus.nodes) > 1 and cpus.balancing:
        looks.append(balancing_look(host))
    return tuple(looks)
