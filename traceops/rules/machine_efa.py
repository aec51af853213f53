"""TO-D206: whether NCCL can use EFA."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.rule import JudgedBy, Rule
from traceops.machine.efa import Plugin
from traceops.machine.look import Look
from traceops.machine.rdma import Rdma

EFA = Rule(
    id="TO-D206",
    title="NCCL cannot use EFA: its plugin is not found",
    fires="Warning where there are EFA devices and GPUs, and the loader does not find libnccl-net.",
    advice="Install aws-ofi-nccl (Amazon's EFA installer has it) and put its folder into LD_LIBRARY_PATH.",
    judged_by=JudgedBy.DOCTOR,
)
RULES = (EFA,)


def judge_efa(devices: Sequence[Rdma], plugin: Plugin, gpus: int, host: str) -> tuple[Look, ...]:
    """One Look where there are EFA devices and GPUs."""
    if not gpus or not any(one.family == "EFA" for one in devices):
        return ()
    if plugin.loadable:
        return (Look(host, "network", "NCCL's EFA plugin", "found", rule=EFA.id),)
    why = "without aws-ofi-nccl NCCL cannot use EFA: sockets between hosts"
    if plugin.installed:
        advice = f"export LD_LIBRARY_PATH={plugin.installed}:$LD_LIBRARY_PATH"
        return (
            Look(
                host,
                "network",
                "NCCL's EFA plugin",
                f"in {plugin.installed}, not loaded",
                "warning",
                why,
                advice,
                rule=EFA.id,
            ),
        )
    return (
        Look(host, "network", "NCCL's EFA plugin", "not found", "warning", why,
             "install aws-ofi-nccl (Amazon's EFA installer has it)", rule=EFA.id),
    )  # fmt: skip
