"""TO-P001 to TO-P008: what the fabric's evidence says is wrong with it."""

from __future__ import annotations

from msgspec.structs import replace

from traceops.across.communication import exposed_pct
from traceops.core.claims import reason
from traceops.core.rule import Verdict
from traceops.fabric.fabric import Circumstances, Fabric
from traceops.fabric.talks import talks
from traceops.rules.bandwidth import LOW_BANDWIDTH, SAVED
from traceops.rules.fabric import benchmarks, graph, network, paths
from traceops.rules.failures import GPU_STUCK, NETWORK_STUCK, NO_START
from traceops.rules.inputs import Inputs

RULES = (
    paths.ACROSS_NUMA_NODES,
    paths.UNUSED_LINKS,
    network.SOCKETS,
    network.FAR_NIC,
    paths.NARROW_LINK,
    graph.BELOW_LINKS,
    *benchmarks.RULES,
)

# Hangs that a broken link explains as well as anything else does.
OF_A_LINK = (GPU_STUCK.id, NO_START.id, NETWORK_STUCK.id)


def judge(inputs: Inputs) -> list[Verdict]:
    """A verdict for each rule of the fabric, with the weight that the traces give it."""
    known = Circumstances(
        device=inputs.run.device,
        exposed_pct=exposed_pct(inputs.run),
        hung=inputs.hang is not None and any(root.rule in OF_A_LINK for root in inputs.hang.roots),
        words=inputs.run.step_words,
    )
    low = next((found for found in inputs.found_before(LOW_BANDWIDTH.id) if found.severity != "info"), None)
    if low is not None:
        saved = tuple(one for one in low.evidence if one.fact in SAVED)
        known = replace(known, slow=low.severity, lost_ms=low.impact_ms, saved=saved)
    return judge_fabric(inputs.run.fabric, known)


def judge_fabric(fabric: Fabric | None, circumstances: Circumstances | None = None) -> list[Verdict]:
    """A verdict for each rule of the fabric."""
    if fabric is None or not (fabric.machines or fabric.graphs or fabric.benchmarks or fabric.log is not None):
        return [rule.not_evaluated(reason("fabric", "no_evidence")) for rule in RULES]
    known = circumstances or Circumstances()
    talked = talks(fabric)
    return [
        paths.judge_across_nodes(fabric, talked, known),
        paths.judge_unused_links(fabric, talked, known),
        network.judge_sockets(fabric, talked, known),
        network.judge_far_nic(fabric, talked),
        paths.judge_widths(fabric),
        graph.judge_graph(fabric, known),
        *benchmarks.judge_benchmarks(fabric),
    ]
