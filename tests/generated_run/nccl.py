"""How torch and NCCL name a collective, and what the trace says of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from .truth import CollectiveTruth


@dataclass(frozen=True)
class Names:
    """One operation in the operator's, the annotation's and the kernel's words."""

    c10d: str
    annotation: str
    kernel: str
    old_kernel: str


_DTYPES = {"Float": ("f32", "float"), "BFloat16": ("bf16", "__nv_bfloat16"), "Half": ("f16", "half")}
_NAMES = {
    "allreduce": ("allreduce_", "all_reduce", "AllReduce", True),
    "_allgather_base": ("_allgather_base_", "_all_gather_base", "AllGather", False),
    "_reduce_scatter_base": ("_reduce_scatter_base_", "_reduce_scatter_base", "ReduceScatter", True),
    "broadcast": ("broadcast_", "broadcast", "Broadcast", False),
    "all_to_allv": ("alltoall_base_", "all_to_allv", "SendRecv", False),
    "send": ("send", "send", "SendRecv", False),
    "recv": ("recv_", "recv", "SendRecv", False),
}


@cache
def names_of(op: str, dtype: str) -> Names:
    """The names of an operation; on data without reduction NCCL knows no type."""
    c10d, annotation, kernel, reduces = _NAMES[op]
    new, old = _DTYPES[dtype]
    return Names(
        f"c10d::{c10d}",
        annotation,
        f"ncclDevKernel_{kernel}{f'_Sum_{new}' if reduces else ''}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        f"ncclKernel_{kernel}_RING_LL_Sum_{old if reduces else 'int8_t'}(ncclWorkElem)",
    )


@cache
def _listed(members: tuple[int, ...]) -> str:
    """Ranks as torch writes them, which leaves out those behind the first 30."""
    shown = ", ".join(map(str, members[:30]))
    return f"[{shown}, ...]" if len(members) > 30 else f"[{shown}]"


def operation(collective: CollectiveTruth, rank: int) -> str:
    """The operation as this member calls it: of two, the first sends and the second receives."""
    op = collective.op
    return op.op if not op.to else "send" if rank == collective.members[0] else "recv"


def arguments(
    collective: CollectiveTruth, group: str, description: str, seq: bool, rank: int, whole: Sequence[int]
) -> str:
    """What torch adds to the arguments of the kernel and of record_param_comms; `whole` is the process group."""
    members = collective.members if not collective.op.to else tuple(whole)
    op = operation(collective, rank)
    elements_in, elements_out = collective.op.messages(len(members))
    text = (
        f', "Collective name": "{op}", "In msg nelems": {elements_in}, "Out msg nelems": {elements_out}, '
        f'"Group size": {len(members)}, "dtype": "{collective.op.dtype}", "In split size": "[]", '
        f'"Out split size": "[]", "Process Group Name": "{group}", "Process Group Description": "{description}", '
        f'"Process Group Ranks": "{_listed(tuple(members))}"'
    )
    if collective.op.to:
        key, other = ("Dst Rank", 1) if op == "send" else ("Src Rank", 0)
        return f'{text}, "{key}": {members.index(collective.members[other])}'
    return f'{text}, "Seq": {collective.sequence}' if seq else text
