"""What a finding about exposed copies says, and what its cure saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceops.across.copies import ExposedCopies
from traceops.core.arrays import mean_ms
from traceops.core.findings import Evidence
from traceops.core.rank_text import who_of
from traceops.core.short_text import short_name
from traceops.core.step_words import StepWords
from traceops.core.units import mean_count_text, ms_text, rate_text, size_text, stored
from traceops.fabric.host_link import HostLink
from traceops.measure.copies import CopyKind

_MEMORY = {"pageable": "pageable ", "pinned": "pinned ", "unknown": ""}
_LONGEST = 60
_UNEVEN = 2.0  # times as many bytes as so many typical copies have: one of them has most
EXPOSED = "exposed copies"


@dataclass(frozen=True)
class Part:
    """A rank's copies of one purpose as a part of a step, ms."""

    copies: ExposedCopies
    ms: float
    step_ms: float

    @property
    def pct(self) -> float:
        return 100.0 * self.ms / self.step_ms if self.step_ms else 0.0

    @property
    def saved_ms(self) -> float:
        """What its cure takes away: what is left of it is the link's."""
        return max(self.ms - (self.copies.exposed_ms - self.copies.saved_ms), 0.0)


def impact_ms(hit: Sequence[Part], worst: Part, replayed_ms: float | None) -> float:
    """What a step gains: as the replay has it, or of one rank as far as its host keeps up. Never more than is exposed.

    The host cannot be quicker than its own work, nor does it wait in these copies any more.
    """
    saved = max(part.saved_ms for part in hit)
    if replayed_ms is not None:
        return stored(max(min(saved, replayed_ms), 0.0))
    host = worst.copies.host_ms
    if host is not None:
        own = min(host, max(worst.step_ms - worst.copies.blocked_ms, 0.0))
        saved = min(saved, worst.step_ms - own)
    return stored(max(saved, 0.0))


def message_of(worst: Part, ranks: Sequence[int], count: int, words: StepWords, saved: float) -> str:
    """What runs alone, for how long, what it is, and what would be left of it."""
    copies, first = worst.copies, worst.copies.kinds[0]
    up_to = "" if len(ranks) == 1 else "up to "
    one_way = "to the device" if copies.purpose == "input" else "to the host"
    way = "from and to the host" if copies.purpose == "offload" else one_way
    said = (
        f"On {who_of(ranks, count)} nothing runs but copies {way}: {up_to}{worst.ms:.2f} ms of {words.each} "
        f"({worst.pct:.0f} %). {_kind(first, copies, words)}"
    )
    more = [kind for kind in copies.kinds[1:] if mean_ms(kind.exposed_ns) >= 0.2 * worst.ms]
    if more:
        others = sum(mean_ms(kind.exposed_ns) for kind in copies.kinds[1:])
        said += f" Others take {others:.2f} ms."
    if copies.purpose == "offload":
        said += " What goes to the host comes back: it is offloaded."
    elif copies.sync_ms >= 0.01 * worst.step_ms:
        said += f" The device is idle for {copies.sync_ms:.2f} ms more because the host waits for them."
    left = max(worst.ms - saved, 0.0)
    if saved < 0.9 * worst.ms and copies.purpose != "offload":
        said += f" Beside the kernels {ms_text(left)} ms of {words.the} stay: {_why(copies)}."
    return said


def _why(copies: ExposedCopies) -> str:
    """Why not all of it can be saved."""
    if copies.saved_ms < 0.9 * copies.exposed_ms:
        return "the link to the host carries no more"
    return "hosts, or what ranks wait for, hold it up then"


def _kind(kind: CopyKind, copies: ExposedCopies, words: StepWords) -> str:
    """'1 copy of 64.0 MB a step from pageable memory in aten::to, at 7.8 GB/s.'"""
    number = mean_count_text(int(kind.count.sum()) / copies.steps)
    one = number == "1"
    whole = float(kind.total_bytes[kind.total_bytes >= 0].sum()) / copies.steps
    uneven = whole >= _UNEVEN * kind.size * float(kind.count.sum()) / copies.steps
    size = "" if kind.size < 0 or uneven else f" of {'' if one else 'typically '}{size_text(kind.size)}"
    of_all = f", {size_text(whole)} in all," if kind.size >= 0 and uneven else ""
    way = "from" if kind.direction == "to_device" else "to"
    memory = "host memory" if kind.memory == "unknown" else f"{kind.memory} memory"
    said = f"{number} cop{'y' if one else 'ies'}{size} {words.per}{of_all} {way} {memory}"
    if kind.operator:
        said += f" in {short_name(kind.operator, _LONGEST)}"
    if kind.region:
        said += f" (inside '{short_name(kind.region, _LONGEST)}')"
    gbs = kind.gbs
    said += f", at {rate_text(gbs)} GB/s." if gbs is not None else "."
    if gbs is not None and kind.memory == "pageable" and copies.link is not None and gbs < 0.8 * copies.link.gbs:
        then = float(kind.device_ns.sum()) * gbs / copies.link.gbs / copies.steps / 1e6
        they = "it" if one else "they"
        said += f" From pinned memory {they} would take {ms_text(then)} ms, at {_speed(copies.link)}."
    return said


def _speed(link: HostLink) -> str:
    """'48 GB/s, as PCIe 5.0 x16 gives'."""
    if link.source == "trace":
        return f"{link.gbs:.0f} GB/s, as pinned copies in these traces reach"
    return f"{link.gbs:.0f} GB/s, as PCIe {link.generation}.0 x{link.lanes} gives"


def evidence_of(worst: Part, own: Sequence[Part], words: StepWords, saved: float, bound: float) -> list[Evidence]:
    """The numbers behind it, of the worst rank."""
    copies, rank = worst.copies, worst.copies.rank
    found = [
        Evidence(EXPOSED, stored(worst.ms), words.unit("ms"), rank=rank),
        Evidence("exposed copies, of the step", round(worst.pct, 1), "%", bound, rank=rank),
        Evidence("step", stored(worst.step_ms), "ms"),
        Evidence("saved from pinned memory, beside kernels", saved, words.unit("ms")),
    ]
    if len(own) > 1:
        shares = sorted(part.pct for part in own)
        middle = shares[len(shares) // 2]
        found.append(
            Evidence(
                "exposed copies (least, median, most over ranks)",
                f"{shares[0]:.1f} / {middle:.1f} / {shares[-1]:.1f}",
                "%",
            )
        )
    for kind in copies.kinds[:3]:
        way = "to the device" if kind.direction == "to_device" else "to the host"
        name = kind.region or kind.operator or "no operator"
        found.append(
            Evidence(
                f"{_MEMORY[kind.memory]}copies {way} in {short_name(name, _LONGEST)}",
                stored(mean_ms(kind.exposed_ns)),
                words.unit("ms"),
                rank=rank,
            )
        )
        if (gbs := kind.gbs) is not None:
            found.append(Evidence("their speed", round(gbs, 2), "GB/s", rank=rank))
    if copies.link is not None:
        found.append(Evidence("link from pinned memory", round(copies.link.gbs, 1), "GB/s"))
    found.append(Evidence("host in these copies", stored(copies.blocked_ms), words.unit("ms"), rank=rank))
    return found
