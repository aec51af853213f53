"""TO-D207: whether network cards reach the memory of GPUs (GPUDirect RDMA), on a machine and by NCCL's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from traceops.core.rule import JudgedBy, Rule
from traceops.machine.look import Look
from traceops.machine.platform import PlatformFacts

GPUDIRECT = Rule(
    id="TO-D207",
    title="Network cards cannot reach the memory of GPUs (GPUDirect RDMA)",
    fires=(
        "Warning where there are GPUs and RDMA devices, and neither nvidia-peermem nor dma-buf, or where NCCL's log "
        "says that it is off for a card of InfiniBand or RoCE. Info for GeForce, which has none; GB10 needs none."
    ),
    advice=("On the host: sudo modprobe nvidia-peermem, or the driver's open kernel modules on Linux 5.12 and newer."),
    judged_by=JudgedBy.DOCTOR,
)
RULES = (GPUDIRECT,)
_WHAT = "GPUDirect RDMA"
_OF_IB = ("IB", "SPCX")  # NCCL's own network of that kind, and NVIDIA's plugins
# NVIDIA, DGX Spark Porting Guide, "GPUDirect RDMA": neither nvidia-peermem nor dma-buf works there.
_SHARES_MEMORY = "GB10"
_HAS_NONE = "GeForce"  # CUDA's GPUDirect RDMA guide: available on Tesla and Quadro


def judge_gdr(platform: PlatformFacts, rdma: bool, efa: bool, gpus: Sequence[str], host: str) -> Look:
    """Whether NICs can reach the memory of these GPUs, by their names."""
    if not rdma or not gpus:
        why = f"there is no {'GPU' if rdma else 'RDMA device'}"
        return Look(host, "network", _WHAT, "not known", "not_evaluated", why, rule=GPUDIRECT.id)
    if (look := _by_model(gpus, host)) is not None:
        return look
    if platform.peermem:
        return Look(host, "network", _WHAT, "nvidia-peermem is loaded", rule=GPUDIRECT.id)
    if platform.dmabuf or efa:
        return Look(host, "network", _WHAT, "through dma-buf", rule=GPUDIRECT.id)
    return Look(
        host, "network", _WHAT, "no", "warning",
        "neither nvidia-peermem nor dma-buf: data go through the host's memory",
        "on the host: sudo modprobe nvidia-peermem (or the driver's open kernel modules on Linux 5.12 and newer)",
        rule=GPUDIRECT.id,
    )  # fmt: skip


def judge_gdr_told(plugin: str, told: Mapping[str, bool], gpus: Sequence[str], host: str) -> Look | None:
    """What NCCL says of its network's devices, by name; None of another network, or where it says nothing."""
    if not told or not plugin.startswith(_OF_IB):
        return None
    off = [name for name, on in told.items() if not on]
    if not off:
        return Look(host, "network", _WHAT, f"on for {_listed(list(told))}", rule=GPUDIRECT.id)
    if (look := _by_model(gpus, host)) is not None:
        return look
    return Look(
        host, "network", _WHAT, f"off for {_listed(off)}", "warning",
        "as NCCL's log says, which finds neither nvidia-peermem nor dma-buf: data go through the host's memory",
        "on the host: sudo modprobe nvidia-peermem; where lsmod has it already, install the NVIDIA driver again: it is "
        "built with the network card's driver; or take the driver's open kernel modules on Linux 5.12 and newer",
        rule=GPUDIRECT.id,
    )  # fmt: skip


def _by_model(gpus: Sequence[str], host: str) -> Look | None:
    """Of GPUs that never have it."""
    if gpus and all(_SHARES_MEMORY in name for name in gpus):
        return Look(host, "network", _WHAT, "none on GB10, whose GPU works in the host's memory", rule=GPUDIRECT.id)
    if gpus and all(_HAS_NONE in name for name in gpus):
        return Look(
            host, "network", _WHAT, "not on these GPUs", "note",
            "GeForce has none: data go through the host's memory", "nothing to set: NCCL does so by itself",
            rule=GPUDIRECT.id,
        )  # fmt: skip
    return None


def _listed(names: Sequence[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
