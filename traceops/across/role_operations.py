"""What a process group is for, as far as what it does in which pass says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from traceops.core.words import Role
from traceops.measure.exchanges import BACKWARD, FORWARD, NOTHING
from traceops.measure.phases import AFTER, UPDATED

OperationKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "other"]
_KINDS: tuple[tuple[OperationKind, re.Pattern[str]], ...] = (
    ("all_reduce", re.compile(r"all_?reduce", re.I)),
    ("all_gather", re.compile(r"all_?gather", re.I)),
    ("reduce_scatter", re.compile(r"reduce_?scatter", re.I)),
    ("all_to_all", re.compile(r"all_?to_?all", re.I)),
)
_IN_FORWARD = 0.2  # of what is moved: layers need it themselves
_HARDLY = 0.05  # of what is moved in the forward pass: a loss, statistics of a batch
_IN_LAYERS = 2  # a step, of equal size: more than a loss or a flag
_TINY = 1024  # elements: flags, losses, norms
_TRAINS = re.compile(r"backward|bwd|dgrad|wgrad|adam|multi_tensor|sgd|optim", re.I)
_EXPERTS = re.compile(r"moe|expert|group(ed)?_?(gemm|mm)|gmm", re.I)
_FUSED = re.compile(
    r"fused_all_gather_(scaled_)?matmul|fused_(scaled_)?matmul_reduce_scatter|all_?gather_?gemm|gemm_?reduce_?scatter"
    r"|\bflux::",
    re.I,
)
_TABLES = re.compile(r"embedding_?bag|split_embedding|table_batched|fbgemm.*embedding", re.I)


@dataclass(frozen=True)
class Computed:
    """What the ranks compute, as far as it tells what they communicate for, by the names of kernels and operators.

    infers: GPUs that compute nothing of a backward pass or an optimizer. experts: kernels of a mixture of experts.
    tables: tables of embeddings, which recommenders split over ranks. fused: products that gather or scatter what they
    multiply themselves, as asynchronous tensor parallel does.
    """

    infers: bool = False
    experts: bool = False
    tables: bool = False
    fused: bool = False


def computed_by(names: Iterable[str], on_gpu: bool, has_backward: bool) -> Computed:
    """The same of all these names."""
    text = "\n".join(names)
    return Computed(
        infers=on_gpu and not has_backward and bool(text) and _TRAINS.search(text) is None,
        experts=_EXPERTS.search(text) is not None,
        tables=_TABLES.search(text) is not None,
        fused=_FUSED.search(text) is not None,
    )


@dataclass
class Moved:
    """What one group moved: how many calls, and elements, by kind and pass, in `steps` steps of one member.

    `without_size` are calls whose size is not known, `uneven` all-to-alls that take in another
    amount than they give out.
    """

    steps: int = 1
    computed: Computed = Computed()
    calls: Counter[tuple[OperationKind, int]] = field(default_factory=Counter)
    elements: Counter[tuple[OperationKind, int]] = field(default_factory=Counter)
    without_size: int = 0
    uneven: int = 0  # all-to-alls
    largest: int = 0  # of the all-reduces

    def add(self, op: str, phase: int, elements_in: int | None, elements_out: int | None) -> None:
        """Counts one call."""
        kind = kind_of(op)
        self.calls[kind, phase] += 1
        elements = max((n for n in (elements_in, elements_out) if n is not None), default=None)
        self.uneven += kind == "all_to_all" and None not in (elements_in, elements_out) and elements_in != elements_out
        if elements is None:
            self.without_size += 1
        else:
            self.elements[kind, phase] += elements
            self.largest = max(self.largest, elements if kind == "all_reduce" else 0)

    def total(self, kind: OperationKind) -> int:
        """Calls of one kind in all passes."""
        return sum(count for (own, _), count in self.calls.items() if own == kind)

    def share(self, kind: OperationKind, *phases: int) -> float:
        """Part of what a kind moves in these passes, of all that is told: elements, or calls without sizes."""
        source = self.calls if self.without_size else self.elements
        told = sum(n for (own, phase), n in source.items() if own == kind and phase != NOTHING)
        return sum(source[kind, phase] for phase in phases) / told if told else 0.0

    def told(self, kind: OperationKind) -> bool:
        """Whether there are such calls, and the pass of most of them is known."""
        return 2 * self.calls[kind, NOTHING] < self.total(kind)


@lru_cache(maxsize=1024)
def kind_of(op: str) -> OperationKind:
    """The kind of an operation by its name."""
    return next((kind for kind, pattern in _KINDS if pattern.search(op)), "other")


def roles_by_operations(moved: Moved) -> dict[OperationKind, Role]:
    """The role of each kind of operation of a group; unknown where several kinds of parallelism do the same.

    Gradients are reduced in the backward pass or after it, activations of layers in the forward pass too. So
    all-reduces only there are data parallel, and in the forward pass tensor parallel. Reduce-scatters of gradients,
    with all-gathers of parameters, are sharded data parallel; in the forward pass they are tensor parallel with its
    sequences split. All-to-alls are of experts where these compute, or where ranks take in other amounts than they
    give out; but recommenders exchange their tables' rows that way, and sequences are exchanged evenly: unknown. What
    else a group does goes with what it is known for.
    """
    exchanged = _all_to_alls(moved)
    reduced, scattered = _all_reduces(moved), _reduce_scatters(moved)
    told = {role for role in (reduced, scattered) if role != "unknown"}
    whole: Role = told.pop() if len(told) == 1 else "unknown"
    return {
        "all_reduce": reduced if reduced != "unknown" else whole,
        "reduce_scatter": scattered,
        "all_gather": scattered if moved.total("reduce_scatter") else whole,
        "all_to_all": exchanged,
        "other": whole,
    }


def _reduce_scatters(moved: Moved) -> Role:
    if not moved.told("reduce_scatter"):
        return "unknown"
    inner = moved.share("reduce_scatter", FORWARD)
    return "tensor" if inner >= _IN_FORWARD else "shard" if inner < _HARDLY else "unknown"


def _all_to_alls(moved: Moved) -> Role:
    if moved.computed.tables or not moved.total("all_to_all"):
        return "unknown"
    return "expert" if moved.computed.experts or moved.uneven else "unknown"


def _all_reduces(moved: Moved) -> Role:
    if not moved.total("all_reduce"):
        return "unknown"
    if not moved.told("all_reduce"):
        return "tensor" if moved.computed.infers and _in_layers(moved) else "unknown"
    inner = moved.share("all_reduce", FORWARD)
    if inner >= _IN_FORWARD and _in_layers(moved):
        return "tensor"
    if inner < _HARDLY and moved.share("all_reduce", BACKWARD, AFTER, UPDATED) and not _only_flags(moved):
        return "data"
    return "unknown"


def _in_layers(moved: Moved) -> bool:
    """Whether all-reduces come several times a pass, and not of a flag alone."""
    return moved.total("all_reduce") >= _IN_LAYERS * moved.steps and not _only_flags(moved)


def _only_flags(moved: Moved) -> bool:
    return not moved.without_size and moved.largest < _TINY
