"""GPU memory for people at a terminal: an estimate, a run, a snapshot, and why an allocation failed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from traceops.across.run_use import MemoryUse
from traceops.core.units import UNKNOWN, gib_text
from traceops.core.words import MEMORY_KINDS
from traceops.memory.changes import changes_of, peak_of
from traceops.memory.model import MemoryChange, MemoryEstimate, RankMemory, Verdict
from traceops.memory.run_memory import RunMemory
from traceops.pipeline.assemble_whole import recorded_memory
from traceops.render.cells import Cell, Column, Table
from traceops.render.document import Block, TableBlock, bold, soft, text
from traceops.report.memory import MemoryRecorded, MemoryStepPeak
from traceops.traces.memory_snapshot import DeviceSnapshot, Held, OverTime, difference
from traceops.traces.ran_out import RanOut
from traceops.traces.snapshot_rows import NO_STACK

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
    blocks += describe_changes(found.changes, known=found.capacity_bytes is not None)
    blocks += [soft(f"Assumed: {said}.") for said in found.assumptions]
    return blocks


def describe_changes(changes: Sequence[MemoryChange], *, known: bool = True) -> list[Block]:
    """What would help, each estimated; nothing where nothing was looked for. known: the capacity is."""
    return [TableBlock(_changes(changes, known))] if changes else []


def describe_less(found: RanOut, world_size: int) -> list[Block]:
    """What a program that ran out of memory would have needed less of with each change."""
    peak = peak_of(found, world_size)
    return [] if peak is None else describe_changes(changes_of(peak, None, 0.0), known=False)


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


def _changes(changes: Sequence[MemoryChange], known: bool) -> Table:
    rows = [
        (
            " ".join(change.options) or change.name,
            f"{change.device_bytes / _GIB:.2f}",
            f"{change.saves_bytes / _GIB:.2f}",
            _VERDICTS[change.verdict] or ("may fit" if known else ""),
            change.cost,
        )
        for change in changes
    ]
    return plain_table("What would help, cheapest in time first", ("change", "GiB", "saves", "", "costs"), rows)


def plain_table(caption: str, labels: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table of words; numbers are to the right."""
    columns = tuple(Column(label, label, number=label in ("GiB", "saves", "MiB", "blocks")) for label in labels)
    return Table(caption, columns, tuple(tuple(map(Cell, row)) for row in rows))


# What tensors held in the recorded steps, by the phases that made and freed it, for the page and the terminal.


_MIB_BYTES = 1 << 20


def recorded_headline(rows: MemoryRecorded) -> str:
    """The highest peak of the recorded steps."""
    most = highest(rows)
    where = "" if most.step is None else f" in step {most.step}"
    return (
        f"Rank {rows.rank}, GPU {rows.device}: tensors held {gib_text(most.peak_bytes)} at the peak of its recorded "
        f"steps{where}."
    )


def highest(rows: MemoryRecorded) -> MemoryStepPeak:
    """The step of which the course is told."""
    return max(rows.steps, key=lambda step: step.peak_bytes)


def kinds_table(rows: MemoryRecorded) -> Table:
    """What the peak consists of, most first."""
    most = highest(rows)
    held = sorted(((getattr(most.held, kind), words) for kind, words in MEMORY_KINDS.items()), reverse=True)
    shown = [(f"{size / _MIB_BYTES:,.1f}", words) for size, words in held if size]
    return plain_table("Held at that peak", ("MiB", "what"), shown)


def makers_table(rows: MemoryRecorded) -> Table:
    """The operators that made most of what is held there, and was made in the recording."""
    return plain_table(
        "Made in the recording and held at that peak, by operator", ("MiB", "blocks", "operator", "what"),
        tuple(_makers(highest(rows))),
    )  # fmt: skip


def _makers(most: MemoryStepPeak) -> Iterator[tuple[str, ...]]:
    for one in most.makers:
        name = one.operator or "no operator"
        yield f"{one.held_bytes / _MIB_BYTES:,.1f}", str(one.blocks), name, MEMORY_KINDS[one.kind]


# Memory snapshots of torch, for people at a terminal.


_PLACES = 12  # shown
_BARS, _BAR = 12, 16  # of memory over time: rows, and characters of the longest
_LOST = 0.1  # share of what is reserved that is worth a word
_SNAPSHOT_MIB = 1 << 20
_STAYS = "Torch cannot give back what lies between blocks in use."
_MAY_HELP = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may help."


def describe_snapshots(read: Sequence[tuple[str, tuple[DeviceSnapshot, ...]]]) -> list[Block]:
    """What held the memory of each device; of two snapshots, what the second holds more."""
    blocks: list[Block] = []
    for name, devices in read:
        if not devices:
            blocks.append(text(f"{name}: no device holds anything."))
        for device in devices:
            blocks += describe_device(f"{name}, GPU {device.device}", device, places=len(read) == 1)
    if len(read) == 2:
        pairs = _pairs(read[0][1], read[1][1])
        blocks += [compared(before, after) for before, after in pairs]
        if not pairs and read[0][1] and read[1][1]:
            blocks.append(text("No GPU is in both, so nothing is compared."))
    return blocks


def _pairs(
    before: Sequence[DeviceSnapshot], after: Sequence[DeviceSnapshot]
) -> list[tuple[DeviceSnapshot, DeviceSnapshot]]:
    """The same GPU of both; where each has one, these, as of two ranks of a host."""
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    old = {device.device: device for device in before}
    return [(old[device.device], device) for device in after if device.device in old]


def describe_device(name: str, device: DeviceSnapshot, *, places: bool = True) -> list[Block]:
    """What held the memory of one device, and when."""
    when = "at the peak of its recorded events" if device.recorded else "when it was taken (no history was recorded)"
    blocks: list[Block] = [text(bold(f"{name}: tensors hold {gib(device.peak)} {when}."))]
    if device.asked is not None:
        blocks.append(_out_of_memory(device))
    blocks.append(
        text(
            f"At the end {gib(device.reserved)} are reserved: {gib(device.allocated)} in use, "
            f"{gib(device.free_whole)} in segments that are free, {gib(device.free_between)} between blocks in use"
            + (f", the largest piece {device.largest_free / _SNAPSHOT_MIB:,.0f} MiB." if device.free_between else ".")
        )
    )
    blocks += _in_pieces(device)
    if places and device.over_time is not None:
        blocks.append(TableBlock(_over_time(device.over_time)))
    if places:
        blocks.append(TableBlock(places_table("Held at the peak, by the line that made it", device.at_peak)))
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
        name = f"{size / _SNAPSHOT_MIB:,.0f} MiB {place}" if size else ""
        bar = "#" * round(_BAR * sum(held) / most) + (" peak" if found.moments[at] == found.peak else "")
        rows.append((str(found.moments[at]), f"{sum(held) / _SNAPSHOT_MIB:,.0f}", bar, name))
    return plain_table("Held over time, by events, and the line that held most", ("event", "MiB", "", "most"), rows)


def _in_pieces(device: DeviceSnapshot) -> list[Block]:
    """Whether pieces between blocks cost memory: they do not where tensors filled them at the peak."""
    if device.free_between <= _LOST * device.reserved:
        return []
    if not device.recorded:
        return [soft(f"{_STAYS} {_MAY_HELP}")]
    never = device.reserved - device.peak
    if never <= _LOST * device.reserved:
        return [soft(f"At their peak tensors needed all but {gib(max(never, 0))} of that: little is lost to pieces.")]
    return [soft(f"{_STAYS} Tensors never held more than {gib(device.peak)} at once here. {_MAY_HELP}")]


def _out_of_memory(device: DeviceSnapshot) -> Block:
    asked, free = device.asked or 0, device.device_free or 0
    unused = device.unused_then
    if unused + free < asked:
        why = "that is more than was free in all"
    elif device.largest_free >= asked > free and unused == device.free_whole + device.free_between:
        why = (
            "a piece was large enough, and torch may not use it for this: it is of another stream, of a CUDA graph, or "
            "above max_split_size_mb"
        )
    elif free >= asked:
        why = "the device had enough, so the process may have a limit of its own, or others gave memory back since"
    else:
        why = "enough was free in pieces: the memory is fragmented"
    return text(
        f"Out of memory: {gib(asked)} were asked for, the device had {gib(free)} free "
        f"and torch {gib(unused)} unused; {why}."
    )


def compared(before: DeviceSnapshot, after: DeviceSnapshot) -> Block:
    """What the second holds more at its peak, by line."""
    changes = difference(before, after)
    change = after.peak - before.peak
    if not changes:
        return text(f"GPU {after.device}: at the peak the second holds what the first holds.")
    sign = "+" if change >= 0 else "-"
    caption = f"GPU {after.device}: {sign}{gib(abs(change))} at the peak, by the line that made it"
    return TableBlock(places_table(caption, changes, signed=True))


def places_table(caption: str, rows: Sequence[Held], most: int = _PLACES, *, signed: bool = False) -> Table:
    """The first `most` places with what they hold, and the others together."""
    shown = [
        (f"{held.bytes / _SNAPSHOT_MIB:{'+' if signed else ''},.1f}", str(held.blocks), held.place)
        for held in rows[:most]
    ]
    left = rows[most:]
    if left:
        size = sum(held.bytes for held in left) / _SNAPSHOT_MIB
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

    phase: of the step, where a stack tells. named: the rank is, because no sentence before has done so.
    """
    where = f"step {found.step}" + (f", in {phase}" if phase else "")
    subject = f"Rank {found.rank} ran out of memory in {where}. It" if named else f"In {where} it"
    blocks: list[Block] = [
        text(
            f"{subject} asked for {gib_text(found.asked)}. Tensors held {gib_text(found.allocated)}{_kinds(found)}. "
            f"Torch had {gib_text(found.unused)} more reserved, and {_left(found)}.",
            indent=(2, 2),
        ),
        text(_why(found), indent=(2, 2)),
    ]
    if found.snapshot is not None:
        lines = [own for own in found.snapshot.held if own.place != NO_STACK]
        lines = [own for own in lines if own.bytes >= _WORTH * found.allocated]
        if lines:
            blocks.append(
                TableBlock(places_table("Held then, by the line that made it", found.snapshot.held, _FEW_PLACES))
            )
        else:
            blocks.append(
                text("With --with-memory the lines that made what was held are told.", look="soft", indent=(2, 2))
            )
    return blocks


def _kinds(found: RanOut) -> str:
    if not found.held:
        return ""
    told = [f"{gib_text(found.held[name])} {_NAMES[name]}" for name in _KEPT_KINDS if found.held.get(name)]
    return f": {', '.join([*told, f'{gib_text(found.rest)} activations, temporaries and all else'])}"


def _left(found: RanOut) -> str:
    if found.limited:
        return f"may have {gib_text(found.total)} in all"
    return f"{gib_text(found.free)} of {gib_text(found.total)} were free on the device"


def _why(found: RanOut) -> str:
    """Too large, in pieces, or held by others."""
    others = 0 if found.limited else found.total - found.free - found.reserved
    own = found.snapshot
    if own is not None and own.free_between >= found.asked > own.largest_free:
        return (
            f"The memory is fragmented: {gib_text(own.free_between)} lay free between blocks in use, in pieces of at "
            f"most {gib_text(own.largest_free)}."
        )
    if others >= found.asked and others > _OTHERS * found.total:
        return (
            f"{gib_text(others)} of the device were held by neither this process's tensors nor its cache: see who else "
            "is on it."
        )
    if found.left >= found.asked:
        return (
            "As much was free when this was written: another process gave memory back meanwhile, or the driver "
            "refused it."
        )
    if own is not None and own.largest_free >= found.asked:
        return (
            f"A piece of {gib_text(own.largest_free)} lay free in torch's cache, and torch may not use it for this: "
            "it is of another stream, of a CUDA graph, or above max_split_size_mb."
        )
    if found.unused >= found.asked:
        return "The memory is fragmented: enough was reserved and unused, in pieces that were too small."
    if found.unused + found.left >= found.asked:
        return (
            f"The memory is fragmented: {gib_text(found.unused)} reserved and unused and {gib_text(found.left)} not "
            "reserved would do together, and neither alone."
        )
    lacked = found.asked - found.unused - found.left
    return f"It is too large: {gib_text(lacked)} more than all that was free, torch's cache included."


_MOST_ROWS = 32
_MOST_RAN_OUT = 4
_COLUMNS = ("rank", "peak", "reserved", "GPU", "between steps", "parameters", "gradients", "optimizer", "a step")


def describe_run(found: RunMemory) -> list[Block]:
    """Peaks by rank, where memory ran out, and what a snapshot says of the rank that held most."""
    blocks: list[Block] = []
    if found.uses:
        most = max(found.uses, key=lambda use: use.peak or 0)
        of = "" if most.capacity is None else f" of {gib_text(most.capacity)}"
        blocks.append(text(bold(f"Tensors held {gib_text(most.peak or 0)}{of} at the most, on rank {most.rank}.")))
        blocks.append(TableBlock(_table(found.uses)))
    for one in found.ran_out[:_MOST_RAN_OUT]:
        blocks += describe_ran_out(one, named=True)
    if found.ran_out:
        blocks += describe_less(found.ran_out[0], max(len(found.uses), 1))
    if len(found.ran_out) > _MOST_RAN_OUT:
        blocks.append(soft(f"Memory ran out on {len(found.ran_out) - _MOST_RAN_OUT} further ranks."))
    if found.recorded is not None:
        rows = recorded_memory(*found.recorded)
        blocks += [text(bold(recorded_headline(rows))), TableBlock(kinds_table(rows)), TableBlock(makers_table(rows))]
    blocks += _snapshots(found)
    blocks += [soft(problem) for problem in found.problems]
    return blocks


def _snapshots(found: RunMemory) -> list[Block]:
    """Of the rank that held most, and what it holds more than the one that held least."""
    if not found.snapshots:
        return []
    ranks = sorted(found.snapshots, key=lambda rank: found.snapshots[rank].peak)
    most, least = ranks[-1], ranks[0]
    blocks = describe_device(f"rank {most}", found.snapshots[most])
    if most != least and found.snapshots[most].peak > 1.1 * found.snapshots[least].peak:
        blocks.append(text(f"Beside rank {least}:"))
        blocks.append(compared(found.snapshots[least], found.snapshots[most]))
    return blocks


def _table(uses: Sequence[MemoryUse]) -> Table:
    """GiB; the ranks with the highest peaks where there are many."""
    shown = sorted(sorted(uses, key=lambda use: -(use.peak or 0))[:_MOST_ROWS], key=lambda use: use.rank)
    columns = tuple(Column(name, name, number=True) for name in _COLUMNS)
    rows = tuple(tuple(map(Cell, _row(use))) for use in shown)
    left = len(uses) - len(shown)
    caption = "By rank, GiB" + (f" ({left} ranks with less left out)" if left else "")
    return Table(caption, columns, rows)


def _row(use: MemoryUse) -> tuple[str, ...]:
    grows = "" if use.growth is None else f"+{use.growth.per_step / (1 << 20):,.1f} MiB"
    held = (use.held.get(name) for name in ("allocated", "parameters", "gradients", "optimizer_state"))
    return (str(use.rank), *map(_gib, (use.peak, use.reserved, use.capacity, *held)), grows)


def _gib(size: int | None) -> str:
    return UNKNOWN if size is None else f"{size / _GIB:.2f}"
