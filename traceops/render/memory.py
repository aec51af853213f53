"""An estimate of memory, for people at a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from traceops.core.units import gib_text
from traceops.memory.model import MemoryChange, MemoryEstimate, RankMemory, Verdict
from traceops.render.cells import Cell, Column, Table
from traceops.render.document import Block, TableBlock, bold, soft, text

_GIB, _MIB = 1 << 30, 1 << 20
_SMALL = _GIB / 10  # below it two decimals of a GiB say too little
_CLOSE = 0.05  # an error above is one that was not measured
_MODULES = 5  # shown
_NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "loss": "logits and loss",
    "parameter_casts": "parameters cast by autocast",
    "sharding_buffers": "buffers of sharding",
    "before_steps": "made before the steps",
    "inputs": "inputs",
    "backward_temporaries": "temporaries of backward",
    "optimizer_temporaries": "temporaries of the optimizer",
    "library_workspaces": "cuBLAS",
}
_VERDICTS: dict[Verdict, str] = {
    "fits": "fits",
    "does_not_fit": "does not fit",
    "too_close": "too close to tell",
    "unknown": "",
}


def gib(nbytes: float) -> str:
    """'12.34 GiB', as nvidia-smi and torch's errors count; smaller ones in MiB or KiB."""
    return gib_text(nbytes) if 0 < abs(nbytes) < _SMALL else f"{nbytes / _GIB:.2f} GiB"


def describe_estimate(found: MemoryEstimate) -> list[Block]:
    """The verdict, where the memory goes, and what would help."""
    most = max(found.ranks, key=lambda rank: rank.peak_reserved_bytes)
    blocks: list[Block] = [text(bold(headline(found))), *_where(found, most)]
    blocks += describe_changes(found)
    blocks += [soft(f"Assumed: {said}.") for said in found.assumptions]
    return blocks


def describe_changes(found: MemoryEstimate) -> list[Block]:
    """What would help, each estimated; nothing where nothing was looked for."""
    return [TableBlock(_changes(found.changes))] if found.changes else []


def headline(found: MemoryEstimate) -> str:
    """What is needed of each GPU, and whether it fits."""
    needs = f"{_trained(found)} on {found.world_size} {'GPU' if found.world_size == 1 else 'GPUs'} needs "
    outside = found.device_bytes - found.peak_reserved_bytes
    least = max(rank.least_allocated_bytes for rank in found.ranks) + outside
    if found.error_share is None:
        needs += f"at least {gib(found.device_bytes)} of each"
    elif found.error_share > _CLOSE and gib(least) != gib(found.device_bytes):
        needs += f"{gib(least)} (its tensors) to {gib(found.device_bytes)} (with torch's cache) of each"
    elif found.error_share > _CLOSE:
        needs += f"{gib(found.device_bytes)} of each"
    else:
        needs += f"{gib(found.device_bytes)} of each (± {100 * found.error_share:.0f} %)"
    if found.capacity_bytes is None or found.spare_bytes is None:
        return needs + "."
    has = f"of {gib(found.capacity_bytes)}"
    spare = gib(abs(found.spare_bytes))
    if found.verdict == "unknown":
        return f"{needs}, {has}: what is left, {spare}, has to hold the activations."
    if found.verdict == "too_close":
        return f"{needs}, {has}: too close to tell."
    if found.verdict == "does_not_fit":
        return f"{needs}, {has}: does not fit, at least {gib(least - found.capacity_bytes)} too much."
    return f"{needs}, {has}: fits, {spare} to spare."


def _trained(found: MemoryEstimate) -> str:
    """The built-in strategy, or the script's file."""
    if found.strategy != "script":
        return found.strategy
    words = found.command[found.command.index("--") + 1 :]
    return words[1] if words[0] == "-m" else Path(words[0]).name


def _where(found: MemoryEstimate, most: RankMemory) -> list[Block]:
    rows = [(_NAMES.get(row.name, row.name), row.held_bytes) for row in most.categories]
    cached = most.peak_reserved_bytes - most.peak_allocated_bytes
    rows += [("cached by torch, not in use", cached)] if cached else []
    rows += [("CUDA context", found.context_bytes)]
    rows += [("NCCL", found.nccl_bytes)] if found.nccl_bytes else []
    caption = f"At the peak of rank {most.rank}" if len(found.ranks) > 1 else "At the peak"
    unit, size, decimals = ("MiB", _MIB, 1) if most.peak_allocated_bytes < _GIB else ("GiB", _GIB, 2)
    table = plain_table(caption, ("Held by", unit), [(name, f"{held / size:,.{decimals}f}") for name, held in rows])
    blocks: list[Block] = [TableBlock(table)]
    if most.peak_operation:
        inside = f" in {most.peak_module}" if most.peak_module else ""
        blocks.append(
            text(
                f"Tensors hold {gib(most.peak_allocated_bytes)} at the peak, in {most.peak_phase} of step "
                f"{most.peak_step}{inside}: {most.peak_operation} makes {gib(most.peak_operation_bytes)}."
            )
        )
    if most.least_allocated_bytes < most.peak_allocated_bytes:
        late = gib(most.peak_allocated_bytes - most.least_allocated_bytes)
        blocks.append(
            text(
                f"{late} of it only where NCCL still holds the first buckets of DDP in the second step; "
                "that depends on when its thread looks."
            )
        )
    if most.activations:
        top = ", ".join(f"{row.name or 'the model'} {gib(row.held_bytes)}" for row in most.activations[:_MODULES])
        blocks.append(text(f"Most activations: {top}."))
    return blocks


def _changes(changes: Sequence[MemoryChange]) -> Table:
    rows = [
        (
            " ".join(change.options),
            f"{change.device_bytes / _GIB:.2f}",
            f"{change.saves_bytes / _GIB:.2f}",
            _VERDICTS[change.verdict],
            change.cost,
        )
        for change in changes
    ]
    return plain_table("What would help, cheapest first, each estimated", ("change", "GiB", "saves", "", "costs"), rows)


def plain_table(caption: str, labels: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of words; numbers are to the right."""
    columns = tuple(Column(label, label, number=label in ("GiB", "saves", "MiB", "blocks")) for label in labels)
    return Table(caption, columns, tuple(tuple(map(Cell, row)) for row in rows))
