"""TO-D404: settings that are allowed and cost speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Struct

from traceops.core.rule import JudgedBy, Rule, described
from traceops.machine.look import HostContext, Level, Look
from traceops.machine.variables import as_number

COSTLY_VARIABLE = described("machine", "TO-D404", JudgedBy.DOCTOR)
RULES = (COSTLY_VARIABLE,)
_SHOWN = 80


class Costly(Struct, frozen=True):
    """A setting that costs speed. when: whether a value does.

    needs: ``gpus`` (two of them), ``rdma``, ``ib`` (RDMA that is not EFA), or nothing.
    """

    name: str
    when: Callable[[str], bool]
    level: Level
    why: str
    needs: str = ""


def is_on(value: str) -> bool:
    """Whether NCCL takes a switch's value for on: any number but 0."""
    return bool(as_number(value))


def is_true(value: str) -> bool:
    """Whether torch takes a switch's value for on."""
    return value.strip().lower() in ("1", "y", "yes", "t", "true")


def _is(*words: str) -> Callable[[str], bool]:
    return lambda value: value.strip().casefold() in {word.casefold() for word in words}


def _at_most(most: int) -> Callable[[str], bool]:
    return lambda value: 0 < (as_number(value) or 0) <= most


def _off(value: str) -> bool:
    return as_number(value) == 0


_COSTS = (
    Costly("NCCL_P2P_DISABLE", lambda value: as_number(value) == 1, "warning",
         "no direct access between GPUs: all goes through host memory, several times slower than NVLink", "gpus"),
    Costly("NCCL_P2P_LEVEL", _is("LOC", "0"), "warning",
         "no direct access between GPUs: all goes through host memory, several times slower than NVLink", "gpus"),
    Costly("NCCL_P2P_LEVEL", _is("NVL"), "note", "GPUs without NVLink between them go through host memory", "gpus"),
    Costly("NCCL_SHM_DISABLE", is_on, "warning",
         "GPUs that cannot reach each other directly use the network, even on one host", "gpus"),
    Costly("NCCL_IB_DISABLE", is_on, "warning", "RDMA devices are there and not used: sockets between hosts", "ib"),
    Costly("NCCL_NET", _is("Socket"), "warning", "RDMA devices are there and not used: sockets between hosts", "rdma"),
    Costly("NCCL_NET_GDR_LEVEL", _is("LOC", "0"), "warning", "no GPUDirect RDMA: data go through the host", "rdma"),
    Costly("NCCL_NVLS_ENABLE", _off, "note", "no reductions in NVSwitch; some hosts ask for that", "gpus"),
    Costly("NCCL_CUMEM_ENABLE", _off, "note", "no cuMem buffers, which NVLS needs", "gpus"),
    Costly("NCCL_PXN_DISABLE", is_on, "note", "data cannot leave over the NIC near another GPU", "rdma"),
    Costly("NCCL_P2P_DIRECT_DISABLE", is_on, "note", "one more copy where one process has several GPUs", "gpus"),
    Costly("NCCL_ALGO", bool, "note", "a fixed algorithm is not the fastest for all sizes; meant for debugging"),
    Costly("NCCL_PROTO", bool, "note", "a fixed protocol is not the fastest for all sizes; meant for debugging"),
    Costly("NCCL_MAX_NCHANNELS", _at_most(4), "warning", "few channels cannot fill NVLink or several NICs"),
    Costly("NCCL_MAX_CTAS", _at_most(4), "warning", "few channels cannot fill NVLink or several NICs"),
    Costly("NCCL_NTHREADS", _at_most(128), "note", "small kernels move less"),
    Costly("NCCL_BUFFSIZE", _at_most(1 << 20), "note", "small buffers: the default is 4 MiB"),
    Costly("NCCL_DEBUG", _is("TRACE"), "warning", "every call is written out"),
    Costly("NCCL_DEBUG_SUBSYS", _is("ALL"), "note", "with NCCL_DEBUG=INFO every call is written out"),
    Costly("NCCL_CHECK_POINTERS", is_on, "note", "checks each call's pointers"),
    Costly("NCCL_IB_TIMEOUT", _off, "warning", "a lost packet is waited for for ever", "rdma"),
    Costly("NCCL_IGNORE_DISABLED_P2P", is_on, "note", "hides that CUDA refuses P2P over NVLink", "gpus"),
    Costly("NCCL_GRAPH_FILE", bool, "note", "paths from a file, whatever this machine has"),
    Costly("NCCL_TOPO_FILE", bool, "note", "a topology from a file, whatever this machine has; right on some clouds"),
    Costly("CUDA_LAUNCH_BLOCKING", is_on, "warning", "the host waits for every kernel: nothing overlaps"),
    Costly("TORCH_DISTRIBUTED_DEBUG", _is("DETAIL"), "warning", "every collective is compared across ranks first"),
    Costly("TORCH_NCCL_BLOCKING_WAIT", is_true, "warning", "the host waits in wait(): communication overlaps less"),
    Costly("TORCH_NCCL_ASYNC_ERROR_HANDLING", _off, "warning",
         "after an error of NCCL the job hangs in place of ending"),
    Costly("TORCH_NCCL_NAN_CHECK", is_true, "warning", "reads all that is sent once more"),
    Costly("OFI_NCCL_MR_CACHE_DISABLE", is_true, "warning", "registers memory anew for each transfer"),
    Costly("FI_HMEM_DISABLE_P2P", is_on, "warning", "no GPUDirect RDMA", "rdma"),
)  # fmt: skip


def costs(set_: Mapping[str, str], context: HostContext, host: str) -> list[Look]:
    """Those that are set and matter here."""
    families = {one.family for one in context.rdma or ()}
    looks = []
    for cost in _COSTS:
        value = set_.get(cost.name, "")
        if not value.strip() or not cost.when(value):
            continue
        if (cost.needs == "rdma" and not families) or (cost.needs == "ib" and not families & {"IB", "RoCE"}):
            continue
        level = cost.level
        if cost.needs == "gpus" and context.gpus is not None and context.gpus < 2:
            level = "note"
        advice = f"unset {cost.name}" + (", unless it is there for a reason" if level == "note" else "")
        looks.append(setting(host, cost.name, value, level, cost.why, advice, rule=COSTLY_VARIABLE))
    return looks


def setting(host: str, name: str, value: str, level: Level, why: str, advice: str, *, rule: Rule) -> Look:
    """A Look on a variable whose value may be shown."""
    return Look(host, "environment", name, value[:_SHOWN], level, why, advice, {"value": value[:_SHOWN]}, rule=rule.id)
