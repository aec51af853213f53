"""GPU memory for people at a terminal: an estimate, a run, a snapshot, and why an allocation failed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from traceops.across.run_use import MemoryUse
from traceops.core.claims import first_phrase, phrases
from traceops.core.units import UNKNOWN, gib_text
from traceops.core.words import MEMORY_KINDS, NO_STACK
from traceops.memory.changes import changes_of, peak_of
from traceops.memory.model import MemoryChange, MemoryEstimate
from traceops.memory.run_memory import RunMemory
from traceops.pipeline.assemble_whole import recorded_memory
from traceops.render.cells import Cell, Column, Table
from traceops.render.document import Block, TableBlock, bold, soft, text
from traceops.report.rows import MemoryRecorded, MemoryStepPeak
from traceops.traces.memory_snapshot import DeviceSnapshot, Held, OverTime, difference
from traceops.traces.ran_out import RanOut
from traceops.words.catalogue import texts

_GIB, _MIB = 1 << 30, 1 << 20
say = partial(first_phrase, "gpu_memory")
_SMALL = _GIB / 10  # below it two decimals of a GiB say too little
_CLOSE = 0.05  # an error above is one that was not measured
_MODULES = 5  # shown
_NAMES, _VERDICTS = texts("gpu_memory", "names"), texts("gpu_memory", "verdicts")


def gib(nbytes: float) -> str:
    """'12.34 GiB', as nvidia-smi and torch's errors count; smaller ones in MiB or KiB."""
    return gib_text(nbytes) if 0 < abs(nbytes) < _SMALL else f"{nbytes / _GIB:.2f} GiB"


def describe_estimate(found: MemoryEstimate) -> list[Block]:
    """The verdict, where the memory goes, and what would help."""
    most = max(found.ranks, key=lambda rank: rank.peak_reserved_bytes)
    rows = [(_NAMES.get(row.name, row.name), row.held_bytes) for row in most.categories]
    cached = most.peak_reserved_bytes - most.peak_allocated_bytes
    rows += [(say("estimate", "cached"), cached)] if cached else []
    rows += [("CUDA context", found.context_bytes)]
    rows += [("NCCL", found.nccl_bytes)] if found.nccl_bytes else []
    caption = say("estimate", "caption", rank=str(most.rank) if len(found.ranks) > 1 else None)
    unit, size, decimals = ("MiB", _MIB, 1) if most.peak_allocated_bytes < _GIB else ("GiB", _GIB, 2)
    table = plain_table(caption, ("Held by", unit), [(name, f"{held / size:,.{decimals}f}") for name, held in rows])
    blocks: list[Block] = [text(bold(headline(found))), TableBlock(table)]
    if most.peak_operation:
        at_peak = say(
            "estimate", "peak", held=gib(most.peak_allocated_bytes), phase=most.peak_phase, step=most.peak_step,
            inside=most.peak_module, operation=most.peak_operation, made=gib(most.peak_operation_bytes),
        )  # fmt: skip
        blocks.append(text(at_peak))
    if most.least_allocated_bytes < most.peak_allocated_bytes:
        blocks.append(text(say("estimate", "late", late=gib(most.peak_allocated_bytes - most.least_allocated_bytes))))
    if most.activations:
        top = ", ".join(f"{row.name or 'the model'} {gib(row.held_bytes)}" for row in most.activations[:_MODULES])
        blocks.append(text(say("estimate", "activations", top=top)))
    blocks += describe_changes(found.changes, known=found.capacity_bytes is not None)
    blocks += [soft(f"Assumed: {said}.") for said in found.assumptions]
    return blocks


def describe_changes(changes: Sequence[MemoryChange], *, known: bool = True) -> list[Block]:
    """What would help, each estimated; nothing where nothing was looked for. known: the capacity is."""
    rows = [
        (
            " ".join(change.options) or change.name, f"{change.device_bytes / _GIB:.2f}",
            f"{change.saves_bytes / _GIB:.2f}", _VERDICTS[change.verdict] or ("may fit" if known else ""), change.cost,
        )
        for change in changes
    ]  # fmt: skip
    table = plain_table(say("estimate", "changes"), ("change", "GiB", "saves", "", "costs"), rows)
    return [TableBlock(table)] if changes else []


def describe_less(found: RanOut, world_size: int) -> list[Block]:
    """What a program that ran out of memory would have needed less of with each change."""
    peak = peak_of(found, world_size)
    return [] if peak is None else describe_changes(changes_of(peak, None, 0.0), known=False)


def headline(found: MemoryEstimate) -> str:
    """What is needed of each GPU, and whether it fits."""
    outside = found.device_bytes - found.peak_reserved_bytes
    least = max(rank.least_allocated_bytes for rank in found.ranks) + outside
    error = found.error_share
    rough = error is not None and error > _CLOSE
    facts: dict[str, Any] = {
        "unmeasured": error is None,
        "tensors": gib(least) if rough and gib(least) != gib(found.device_bytes) else None,
        "rough": rough,
        "whole": gib(found.device_bytes),
        "error": None if error is None else 100 * error,
    }
    if found.capacity_bytes is not None and found.spare_bytes is not None:
        spare = gib(abs(found.spare_bytes))
        facts["capacity"] = gib(found.capacity_bytes)
        facts["left"] = spare if found.verdict == "unknown" else None
        facts["close"] = found.verdict == "too_close"
        facts["too_much"] = gib(least - found.capacity_bytes) if found.verdict == "does_not_fit" else None
        facts["spare"] = spare
    # Name the built-in strategy, or the script's file.
    if found.strategy != "script":
        trained = found.strategy
    else:
        words = found.command[found.command.index("--") + 1 :]
        trained = words[1] if words[0] == "-m" else Path(words[0]).name
    return say("estimate", "headline", trained=trained, count=found.world_size, **facts)


def plain_table(caption: str, labels: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of words; numbers are to the right."""
    columns = tuple(Column(label, label, number=label in ("GiB", "saves", "MiB", "blocks")) for label in labels)
    return Table(caption, columns, tuple(tuple(map(Cell, row)) for row in rows))


def recorded_headline(rows: MemoryRecorded) -> str:
    """The highest peak of the recorded steps."""
    most = highest(rows)
    peak = gib_text(most.peak_bytes)
    return say("recorded", "headline", rank=rows.rank, device=rows.device, peak=peak, step=most.step)


def highest(rows: MemoryRecorded) -> MemoryStepPeak:
    """The step with the highest peak."""
    return max(rows.steps, key=lambda step: step.peak_bytes)


def kinds_table(rows: MemoryRecorded) -> Table:
    """What the peak consists of, most first."""
    most = highest(rows)
    held = sorted(((getattr(most.held, kind), words) for kind, words in MEMORY_KINDS.items()), reverse=True)
    shown = [(f"{size / _MIB:,.1f}", words) for size, words in held if size]
    return plain_table(say("recorded", "kinds"), ("MiB", "what"), shown)


def makers_table(rows: MemoryRecorded) -> Table:
    """The operators that made most of what is held there, and was made in the recording."""
    shown = [
        (f"{one.held_bytes / _MIB:,.1f}", str(one.blocks), one.operator or "no operator", MEMORY_KINDS[one.kind])
        for one in highest(rows).makers
    ]
    return plain_table(say("recorded", "makers"), ("MiB", "blocks", "operator", "what"), shown)


# Memory snapshots of torch, for people at a terminal.

_PLACES = 12  # shown
_BARS, _BAR = 12, 16  # of memory over time: rows, and characters of the longest
_LOST = 0.1  # share of what is reserved that is worth a word


def describe_snapshots(read: Sequence[tuple[str, tuple[DeviceSnapshot, ...]]]) -> list[Block]:
    """What held the memory of each device; of two snapshots, what the second holds more."""
    blocks: list[Block] = []
    for name, devices in read:
        if not devices:
            blocks.append(text(say("snapshot", "empty", name=name)))
        for device in devices:
            blocks += describe_device(f"{name}, GPU {device.device}", device, places=len(read) == 1)
    if len(read) == 2:
        (_, before), (_, after) = read
        # The same GPU of both; where each has one, these, as of two ranks of a host
        old = {device.device: device for device in before}
        pairs = [(old[device.device], device) for device in after if device.device in old]
        pairs = [(before[0], after[0])] if len(before) == len(after) == 1 else pairs
        blocks += [compared(*pair) for pair in pairs]
        if not pairs and before and after:
            blocks.append(text(say("snapshot", "none_in_both")))
    return blocks


def describe_device(name: str, device: DeviceSnapshot, *, places: bool = True) -> list[Block]:
    """What held the memory of one device, and when."""
    held = say("snapshot", "held", name=name, recorded=device.recorded, peak=gib(device.peak))
    blocks: list[Block] = [text(bold(held))]
    if device.asked is not None:
        asked, free = device.asked or 0, device.device_free or 0
        unused = device.unused_then
        cases = (
            (unused + free < asked, "more"),
            (device.largest_free >= asked > free and unused == device.free_whole + device.free_between, "not_for_this"),
            (free >= asked, "limit"),
        )
        why = say("snapshot", f"why.{next((key for holds, key in cases if holds), 'pieces')}")
        blocks.append(
            text(say("snapshot", "out_of_memory", asked=gib(asked), free=gib(free), unused=gib(unused), why=why))
        )
    largest = f"{device.largest_free / _MIB:,.0f}" if device.free_between else None
    at_end = say(
        "snapshot", "at_end", reserved=gib(device.reserved), allocated=gib(device.allocated),
        whole=gib(device.free_whole), between=gib(device.free_between), largest_mib=largest,
    )  # fmt: skip
    blocks.append(text(at_end))
    # Pieces between blocks cost no memory where tensors filled them at the peak.
    if device.free_between > _LOST * device.reserved:
        never = device.reserved - device.peak
        little = gib(max(never, 0)) if never <= _LOST * device.reserved else None
        pieces = say("snapshot", "pieces", unrecorded=not device.recorded, little=little, most=gib(device.peak))
        blocks.append(soft(pieces))
    if places and device.over_time is not None:
        blocks.append(TableBlock(_over_time(device.over_time)))
    if places:
        blocks.append(TableBlock(places_table(say("snapshot", "places"), device.at_peak)))
    return blocks


def _over_time(found: OverTime) -> Table:
    """What was held over the recorded events as bars, the peak among them, and the line that held most."""
    every = max(len(found.moments) // _BARS, 1)
    chosen = [at for at, moment in enumerate(found.moments) if at % every == every - 1 or moment == found.peak]
    most = max(sum(row) for row in found.held) or 1
    rows = []
    for at in chosen:
        held = found.held[at]
        size, place = max(zip(held, found.places, strict=True))
        name = f"{size / _MIB:,.0f} MiB {place}" if size else ""
        bar = "#" * round(_BAR * sum(held) / most) + (" peak" if found.moments[at] == found.peak else "")
        rows.append((str(found.moments[at]), f"{sum(held) / _MIB:,.0f}", bar, name))
    return plain_table(say("snapshot", "over_time"), ("event", "MiB", "", "most"), rows)


def compared(before: DeviceSnapshot, after: DeviceSnapshot) -> Block:
    """What the second holds more at its peak, by line."""
    changes = difference(before, after)
    change = after.peak - before.peak
    by = f"{'+' if change >= 0 else '-'}{gib(abs(change))}"
    caption = say("snapshot", "compared", same=not changes, device=after.device, change=by)
    return TableBlock(places_table(caption, changes, signed=True)) if changes else text(caption)


def places_table(caption: str, rows: Sequence[Held], most: int = _PLACES, *, signed: bool = False) -> Table:
    """The first `most` places with what they hold, and the others together."""
    shown = [(f"{held.bytes / _MIB:{'+' if signed else ''},.1f}", str(held.blocks), held.place) for held in rows[:most]]
    if left := rows[most:]:
        size = sum(held.bytes for held in left) / _MIB
        shown.append(
            (f"{size:{'+' if signed else ''},.1f}", str(sum(held.blocks for held in left)), f"{len(left)} others")
        )
    return plain_table(caption, ("MiB", "blocks", "made by"), shown)


_KEPT_KINDS = ("parameters", "gradients", "optimizer_state")
_FEW_PLACES = 6
_OTHERS = 0.15  # of the device
_WORTH = 0.02  # share of what tensors hold that a line has at least


def describe_ran_out(found: RanOut, phase: str | None = None, *, named: bool = False) -> list[Block]:
    """What tensors held, by kind and, where a history was recorded, by line; what was free, and why it was no use.
    phase: of the step, where a stack tells. named: the rank is, because no sentence before has done so."""
    limit = gib_text(found.total) if found.limited else None
    kept = [f"{gib_text(found.held[name])} {_NAMES[name]}" for name in _KEPT_KINDS if found.held.get(name)]
    what = phrases(
        "gpu_memory", "ran_out", "what", named=named, rank=found.rank, step=found.step, in_phase=phase,
        asked=gib_text(found.asked), allocated=gib_text(found.allocated),
        kept=", ".join([*kept, gib_text(found.rest)]) if found.held else None, unused=gib_text(found.unused),
        limit=limit, free=gib_text(found.free), total=gib_text(found.total),
    )  # fmt: skip
    blocks: list[Block] = [text(" ".join(what), indent=(2, 2)), text(_why(found), indent=(2, 2))]
    if found.snapshot is not None:
        lines = [own for own in found.snapshot.held if own.place != NO_STACK]
        if lines := [own for own in lines if own.bytes >= _WORTH * found.allocated]:
            blocks.append(TableBlock(places_table(say("ran_out", "places"), found.snapshot.held, _FEW_PLACES)))
        else:
            blocks.append(text(say("ran_out", "no_lines"), look="soft", indent=(2, 2)))
    return blocks


def _why(found: RanOut) -> str:
    """Too large, in pieces, or held by others."""
    others = 0 if found.limited else found.total - found.free - found.reserved
    own = found.snapshot
    largest = 0 if own is None else own.largest_free
    cases = (
        (own is not None and own.free_between >= found.asked > largest, "fragmented"),
        (others >= found.asked and others > _OTHERS * found.total, "others"),
        (found.left >= found.asked, "given_back"),
        (largest >= found.asked, "not_for_this"),
        (found.unused >= found.asked, "small_pieces"),
        (found.unused + found.left >= found.asked, "together"),
    )
    return say(
        "ran_out", f"why.{next((key for holds, key in cases if holds), 'too_large')}", largest=gib_text(largest),
        between=None if own is None else gib_text(own.free_between), others=gib_text(others),
        unused=gib_text(found.unused), left_over=gib_text(found.left),
        lacked=gib_text(found.asked - found.unused - found.left),
    )  # fmt: skip


_MOST_ROWS = 32
_MOST_RAN_OUT = 4
_COLUMNS = ("rank", "peak", "reserved", "GPU", "between steps", "parameters", "gradients", "optimizer", "a step")


def describe_run(found: RunMemory) -> list[Block]:
    """Peaks by rank, where memory ran out, and what a snapshot says of the rank that held most."""
    blocks: list[Block] = []
    if found.uses:
        most = max(found.uses, key=lambda use: use.peak or 0)
        capacity = None if most.capacity is None else gib_text(most.capacity)
        held = say("run", "most", peak=gib_text(most.peak or 0), capacity_bytes=capacity, rank=most.rank)
        blocks.append(text(bold(held)))
        blocks.append(TableBlock(_table(found.uses)))
    for one in found.ran_out[:_MOST_RAN_OUT]:
        blocks += describe_ran_out(one, named=True)
    if found.ran_out:
        blocks += describe_less(found.ran_out[0], max(len(found.uses), 1))
    if len(found.ran_out) > _MOST_RAN_OUT:
        blocks.append(soft(say("run", "further", more=len(found.ran_out) - _MOST_RAN_OUT)))
    if found.recorded is not None:
        rows = recorded_memory(*found.recorded)
        blocks += [text(bold(recorded_headline(rows))), TableBlock(kinds_table(rows)), TableBlock(makers_table(rows))]
    if ranks := sorted(found.snapshots, key=lambda rank: found.snapshots[rank].peak):
        # The rank that held most, and what it holds more than the one that held least
        highest_rank, lowest_rank = ranks[-1], ranks[0]
        above, below = found.snapshots[highest_rank], found.snapshots[lowest_rank]
        blocks += describe_device(f"rank {highest_rank}", above)
        if highest_rank != lowest_rank and above.peak > 1.1 * below.peak:
            blocks += [text(say("run", "next_to", rank=lowest_rank)), compared(below, above)]
    blocks += describe_snapshots(found.others)
    blocks += [soft(problem) for problem in found.problems]
    return blocks


def _table(uses: Sequence[MemoryUse]) -> Table:
    """GiB; the ranks with the highest peaks where there are many."""
    rows = []
    for use in sorted(sorted(uses, key=lambda use: -(use.peak or 0))[:_MOST_ROWS], key=lambda use: use.rank):
        held = (use.held.get(name) for name in ("allocated", "parameters", "gradients", "optimizer_state"))
        known = (UNKNOWN if n is None else f"{n / _GIB:.2f}" for n in (use.peak, use.reserved, use.capacity, *held))
        grows = "" if use.growth is None else f"+{use.growth.per_step / _MIB:,.1f} MiB"
        rows.append(tuple(map(Cell, (str(use.rank), *known, grows))))
    columns = tuple(Column(name, name, number=True) for name in _COLUMNS)
    return Table(say("run", "caption", fewer=len(uses) - len(rows) or None), columns, tuple(rows))
