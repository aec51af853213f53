"""TO-P002: GPUs that are near each other and do not use their link."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from traceops.across.links import link_by_name
from traceops.core.findings import Evidence
from traceops.core.rule import Rule, Verdict
from traceops.fabric.circumstances import Circumstances, at_least, quoted
from traceops.fabric.fabric import Fabric
from traceops.fabric.nccl import NcclLog, NcclSetting
from traceops.fabric.talks import Talk, job_ranks, members, ranks_in

UNUSED_LINKS = Rule(
    id="TO-P002",
    title="NVLink or P2P is there but not used",
    fires=(
        "From NCCL's log: ranks of one host communicate via SHM or NET although NVLink connects them (by the "
        "topology or the GPU's name), or P2P was switched off. Warning, or as severe as TO-C001 where the traces "
        "show the cost. Info for GPUs at the same PCIe switches."
    ),
    advice=(
        "Remove NCCL_P2P_DISABLE, NCCL_P2P_LEVEL and NCCL_SHM_DISABLE from the environment (also from "
        "/etc/nccl.conf and ~/.nccl.conf); give containers all GPUs and --ipc=host; on bare metal look for "
        "IOMMU and ACS; `traceops doctor` measures the difference."
    ),
)
RULES = (UNUSED_LINKS,)

_SWITCHED_OFF = ("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE")
_NEAR = ("PIX", "PXB")  # NCCL uses P2P over PCIe up to here by default [NCCL, paths.cc]


def judge_unused_links(fabric: Fabric, talked: Sequence[Talk], known: Circumstances) -> Verdict:
    """TO-P002: GPUs of one host that talk through host memory or the network though P2P is there."""
    inside = [talk for talk in talked if talk.inside]
    if not inside:
        return UNUSED_LINKS.not_evaluated(
            "no log of NCCL says which way GPUs of one host talk (NCCL_DEBUG=INFO, NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH)"
        )
    assert fabric.log is not None
    reasons: dict[str, list[Talk]] = defaultdict(list)
    off = [setting.name for setting in _switched_off(fabric.log)]
    for talk in inside:
        if talk.connection.transport in ("SHM", "NET"):
            reason = _lost_link(talk, known.device, off, bool(fabric.log.p2p_disabled))
            if reason:
                reasons[reason].append(talk)
    findings = []
    for reason, missed in reasons.items():
        has_links = reason.startswith(("NVLink", "XGMI"))
        settings = _switched_off(fabric.log, over_pcie=not has_links)
        ways = sorted({talk.way for talk in missed})
        pairs = {members(talk) for talk in missed}
        through = "the network" if all(t.connection.transport == "NET" for t in missed) else "host memory"
        if len({talk.connection.transport for talk in missed}) > 1:
            through = "host memory and the network"
        because = (
            f" The log says that {' and '.join(f'{s.name} was set to {s.value}' for s in settings)}."
            if settings
            else " NCCL found that they cannot reach each other directly: look at the driver, at `nvidia-smi nvlink "
            "-s` and `nvidia-smi topo -p2p r`, and for virtual machines that get single GPUs."
            if fabric.log.p2p_disabled
            else " No variable in the log switches P2P off: look for isolated containers (each rank must see all "
            "GPUs' devices and share IPC), IOMMU or ACS, and a driver without P2P."
        )
        evidence = [
            Evidence("pairs of ranks without P2P", len(pairs), f"of {len({members(talk) for talk in inside})}"),
            *quoted((talk.connection.quote for talk in missed), "NCCL"),
            *quoted((setting.quote for setting in settings), "NCCL"),
            *quoted(fabric.log.p2p_disabled, "NCCL", 2),
            *quoted((t.path.quote for t in missed if t.path is not None and t.path.quote is not None), "topology", 1),
        ]
        certain = has_links or bool(settings)
        evidence += known.saved if certain else ()
        findings.append(
            UNUSED_LINKS.finding(
                at_least("warning", known.slow) if certain else "info",
                "high" if certain else "medium",
                f"GPUs of one host talk through {through} ({', '.join(ways)}) though {reason}.{because}",
                evidence,
                ranks=ranks_in(job_ranks(fabric), (end for talk in missed for end in members(talk))),
                impact_ms=known.lost_ms if certain else None,
            )
        )
    used = sorted({talk.way for talk in inside})
    return UNUSED_LINKS.verdict(*findings, clear=f"GPUs of one host talk by {', '.join(used)}")


def _lost_link(talk: Talk, device: str | None, switched_off: Sequence[str], no_p2p: bool) -> str:
    """What the pair has and does not use; empty where nothing says that it has anything better.

    no_p2p: NCCL says that GPUs cannot reach each other directly; over PCIe that is how many kinds are made.
    """
    path = talk.path
    if path is not None and path.kind in ("NV", "XGMI"):
        return "XGMI connects them" if path.kind == "XGMI" else "NVLink connects them"
    name = next((gpu.name for gpu in talk.gpus if gpu is not None and gpu.name), None) or device
    if path is None and name is not None and (known := link_by_name(name)) is not None:
        return f"NVLink connects GPUs of this kind ({name}: {known.link})"
    if path is not None and path.kind in _NEAR and not no_p2p:
        return f"they hang at the same PCIe switches ({path.kind}), near enough for P2P"
    if path is None and not no_p2p and any(name.startswith("NCCL_P2P") for name in switched_off):
        return "nothing says that P2P would not work: it was switched off"
    if talk.connection.transport == "NET" and "NCCL_SHM_DISABLE" in switched_off:
        return "host memory is faster: it was switched off"
    return ""


def _switched_off(log: NcclLog, *, over_pcie: bool = False) -> list[NcclSetting]:
    """The settings that keep GPUs from P2P or host memory; over_pcie: also those that leave NVLink alone."""
    levels = ("LOC", "0", "NVL") if over_pcie else ("LOC", "0")
    found: dict[str, NcclSetting] = {}
    for setting in log.settings:
        level = setting.name == "NCCL_P2P_LEVEL" and setting.value.strip().upper() not in levels
        off = re.match(r"\s*0", setting.value) is not None and setting.name != "NCCL_P2P_LEVEL"
        if setting.name in _SWITCHED_OFF and not level and not off:
            found.setdefault(setting.name, setting)
    return list(found.values())
