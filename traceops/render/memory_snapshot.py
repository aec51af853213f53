"""Memory snapshots of torch, for people at a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.render.cells import Table
from traceops.render.document import Block, TableBlock, bold, soft, text
from traceops.render.memory import gib, plain_table
from traceops.traces.memory_snapshot import DeviceSnapshot, Held, OverTime, difference

_PLACES = 12  # shown
_BARS, _BAR = 12, 16  # of memory over time: rows, and characters of the longest
_LOST = 0.1  # share of what is reserved that is worth a word
_MIB = 1 << 20
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
            + (f", the largest piece {device.largest_free / _MIB:,.0f} MiB." if device.free_between else ".")
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
        name = f"{size / _MIB:,.0f} MiB {place}" if size else ""
        bar = "#" * round(_BAR * sum(held) / most) + (" peak" if found.moments[at] == found.peak else "")
        rows.append((str(found.moments[at]), f"{sum(held) / _MIB:,.0f}", bar, name))
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
    shown = [(f"{held.bytes / _MIB:{'+' if signed else ''},.1f}", str(held.blocks), held.place) for held in rows[:most]]
    left = rows[most:]
    if left:
        size = sum(held.bytes for held in left) / _MIB
        shown.append(
            (f"{size:{'+' if signed else ''},.1f}", str(sum(held.blocks for held in left)), f"{len(left)} others")
        )
    return plain_table(caption, ("MiB", "blocks", "made by"), shown)
