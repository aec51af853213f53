"""Whether NCCL can use EFA."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.machine.efa import Plugin
from traceops.machine.look import Look
from traceops.machine.rdma import Rdma


def look_at_efa(devices: Sequence[Rdma], plugin: Plugin, gpus: int, host: str) -> tuple[Look, ...]:
    """One Look where there are EFA devices and GPUs."""
    if not gpus or not any(one.family == "EFA" for one in devices):
        return ()
    if plugin.loadable:
        return (Look(host, "network", "NCCL's EFA plugin", "found"),)
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
            ),
        )
    return (
        Look(host, "network", "NCCL's EFA plugin", "not found", "warning", why,
             "install aws-ofi-nccl (Amazon's EFA installer has it)"),
    )  # fmt: skip
