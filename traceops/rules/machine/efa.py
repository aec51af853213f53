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
    fires=(
        "Warning where there are EFA devices and GPUs, and NCCL finds neither libnccl-net.so nor what NCCL_NET_PLUGIN "
        "names."
    ),
    advice="Install aws-ofi-nccl (Amazon's EFA installer has it) and put its folder into LD_LIBRARY_PATH.",
    judged_by=JudgedBy.DOCTOR,
)
RULES = (EFA,)
_WHAT = "NCCL's EFA plugin"
_WHY = "without aws-ofi-nccl NCCL cannot use EFA: sockets between hosts"


def judge_efa(devices: Sequence[Rdma], plugin: Plugin, gpus: int, host: str) -> tuple[Look, ...]:
    """One Look where there are EFA devices and GPUs."""
    if not gpus or not any(one.family == "EFA" for one in devices):
        return ()
    if plugin.loadable:
        why = "whether it is the one for EFA NCCL's log says (NCCL_DEBUG=INFO): NET/OFI"
        return (Look(host, "network", _WHAT, "found", why=why, rule=EFA.id),)
    found, advice = "not found", "install aws-ofi-nccl (Amazon's EFA installer has it)"
    if plugin.turned_off:
        found, advice = "turned off by NCCL_NET_PLUGIN=none", "unset NCCL_NET_PLUGIN"
    elif plugin.installed:
        found = f"in {plugin.installed}, not loaded"
        settings = (f"LD_LIBRARY_PATH={plugin.installed}:$LD_LIBRARY_PATH", *plugin.settings)
        advice = f"export {' '.join(settings)}"
    return (Look(host, "network", _WHAT, found, "warning", _WHY, advice, rule=EFA.id),)
