"""TO-P001 to TO-P005: what the fabric's evidence says is wrong with it."""

from __future__ import annotations

from traceops.fabric.circumstances import Circumstances
from traceops.fabric.fabric import Fabric
from traceops.fabric.talks import talks
from traceops.rules.fabric_network import judge_far_nic, judge_sockets
from traceops.rules.fabric_paths import judge_across_nodes, judge_unused_links
from traceops.rules.fabric_widths import judge_widths
from traceops.rules.findings import Verdict

_NONE = (
    "nothing tells of the fabric: no topology matrix (nvidia-smi topo -m), no NCCL log (NCCL_DEBUG=INFO) and no XML "
    "of NCCL in the run folder or beside the traces"
)
TOPOLOGY_RULES = ("TO-P001", "TO-P002", "TO-P003", "TO-P004", "TO-P005")


def judge_fabric(fabric: Fabric | None, circumstances: Circumstances | None = None) -> list[Verdict]:
    """A verdict for each rule of the fabric."""
    if fabric is None or not (fabric.machines or fabric.log is not None):
        return [Verdict(rule, not_evaluated=_NONE) for rule in TOPOLOGY_RULES]
    known = circumstances or Circumstances()
    talked = talks(fabric)
    return [
        judge_across_nodes(fabric, talked, known),
        judge_unused_links(fabric, talked, known),
        judge_sockets(fabric, talked, known),
        judge_far_nic(fabric, talked),
        judge_widths(fabric),
    ]
