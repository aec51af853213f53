"""What each rank's GPU, cores and memory did during the whole run, from what ranks and launchers saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.arrays import Floats, Int, median
from traceops.core.rank_files import CORE_WAIT_NS, RECORDED
from traceops.measure.steps import step_ends_ns
from traceops.measure.summary import RankSummary
from traceops.traces.observed import GpuFacts, MachineLog, Observed
from traceops.traces.run_manifest import ManifestRank

if TYPE_CHECKING:
    from traceops.traces.memory_snapshot import Held

# NVML's bits, as far as they are a reason of the machine's and not of the program's.
REASONS = {0x4: "power_cap", 0x8: "hardware_slowdown", 0x20: "too_hot", 0x40: "too_hot", 0x80: "power_brake"}
_BUSY_PCT = 50
_LEAST_LOOKS = 3
_LEAST_PRESENT = 0.25  # of the looks: a process that only passed by is left out
_Row = tuple[Any, ...]


class Stranger(Struct, frozen=True):
    """A process that is not of the run. busy_pct: of the GPU's time, or of a core's, in the median; None: not known."""

    pid: int
    name: str | None = None
    bytes: int | None = None
    busy_pct: float | None = None


class MachineUse(Struct, frozen=True):
    """Of one rank; None where the machine does not tell.

    waited_pct: of the time, in which its main thread wanted a core and had none; crowded_pct: the same, of the time in
    which it wanted one. Who works more wants cores more, so only this compares ranks. mhz: in the median, while the
    GPU is busy; reasons: percent of the looks with a reason for a lower clock. gpu_busy_pct: of the time, on average.
    host_cores: cores in which the whole host wanted to compute. received, sent: by its network devices, bytes a second;
    read, from_storage: by the rank and its loaders' workers. storage: mount and file system. on_gpu: processes of
    others there.
    on_cores: the same of its host, where ranks wait for cores.
    """

    rank: int
    host: str
    looks: int
    cpu_pct: float | None = None
    waited_pct: float | None = None
    crowded_pct: float | None = None
    faults: float | None = None
    stolen_pct: float | None = None
    refused_pct: float | None = None
    gpu: GpuFacts | None = None
    mhz: float | None = None
    power_w: float | None = None
    celsius: float | None = None
    reasons: Mapping[str, float] | None = None
    gpu_busy_pct: float | None = None
    host_cores: float | None = None
    received: float | None = None
    sent: float | None = None
    read: float | None = None
    from_storage: float | None = None
    storage: tuple[str, str] | None = None
    on_gpu: tuple[Stranger, ...] = ()
    on_cores: tuple[Stranger, ...] = ()


def machine_use(
    logs: Sequence[MachineLog], observed: Sequence[Observed], manifest: Mapping[str, Any]
) -> tuple[MachineUse, ...]:
    """For each rank that a launcher saw often enough while it trained, by rank."""
    entries = {e["rank"]: e for e in manifest.get("ranks") or () if isinstance(e.get("rank"), int)}
    spans = dict[int, tuple[float, float]]()
    for one in observed:
        if len(one.steps) > 1:
            ends = step_ends_ns(one) / 1e6  # from the end of the first step, which holds the program's start
            spans[one.rank] = float(ends[0]), float(ends[-1])
    found = []
    for log in logs:
        by_rank: dict[int, list[_Row]] = defaultdict(list)
        for row in log.ranks:
            begin, end = spans.get(int(row[1]), (0.0, 0.0))
            if begin <= row[0] <= end:
                by_rank[int(row[1])].append(row)
        ours = {int(row[2]) for row in log.ranks}
        for rank, rows in by_rank.items():
            if len(rows) >= _LEAST_LOOKS:
                found.append(_of_rank(rank, log, rows, entries.get(rank, {}), spans[rank], ours))
    return tuple(sorted(found, key=lambda one: one.rank))


def _of_rank(
    rank: int,
    log: MachineLog,
    rows: Sequence[_Row],
    entry: Mapping[str, Any],
    span: tuple[float, float],
    ours: set[int],
) -> MachineUse:
    hosts, network, others = _within(log.hosts, span), _within(log.network, span), _within(log.others, span)
    gpu = _gpu_of(log, entry)
    device = [row for row in _within(log.devices, span) if gpu is not None and row[1] == gpu.index]
    busy = [row for row in device if (row[6] or 0) >= _BUSY_PCT] or device
    reads = [row for row in _within(log.reads, span) if row[1] == rank]
    return MachineUse(
        rank=rank,
        host=log.host,
        looks=len(rows),
        cpu_pct=_pct_of(rows, 3, 0),
        waited_pct=_pct_of(rows, 4, 0),
        crowded_pct=_pct_of(rows, 4, 4, 7),  # waited or ran
        faults=None if rows[0][5] is None else float(rows[-1][5] - rows[0][5]),
        stolen_pct=_pct_of(hosts, 1, 3),  # of the time in which the machine's cores were wanted
        refused_pct=_pct_of(hosts, 2, 2, 4),  # refused by the container's quota, of that and what it used
        gpu=gpu,
        mhz=_usual(busy, 2),
        power_w=_usual(busy, 4),
        celsius=_usual(busy, 5),
        reasons=_reasons(busy),
        gpu_busy_pct=_usual(device, 6, np.mean),
        host_cores=_per_second(hosts, 3, 1e-3),
        received=_per_second(network, 1),
        sent=_per_second(network, 2),
        read=_per_second(reads, 3),
        from_storage=_per_second(reads, 2),
        storage=log.storage.get(rank),
        on_gpu=_strangers_on_gpu(device, ours),
        on_cores=_strangers_on_cores(others, ours),
    )


def _within(rows: Sequence[_Row], span: tuple[float, float]) -> list[_Row]:
    return [row for row in rows if span[0] <= row[0] <= span[1]]


def _gpu_of(log: MachineLog, entry: Mapping[str, Any]) -> GpuFacts | None:
    device = entry.get("device")
    uuid = device.get("uuid") if isinstance(device, dict) else None
    if not isinstance(uuid, str):
        return None
    wanted = uuid.removeprefix("GPU-")
    return next((g for g in log.gpus.values() if g.uuid and g.uuid.removeprefix("GPU-") == wanted), None)


def _grown(rows: Sequence[_Row], *columns: int) -> list[float] | None:
    """By how much each of these counts grew; None where too few rows have them all."""
    known = [row for row in rows if all(row[column] is not None for column in columns)]
    if len(known) < _LEAST_LOOKS:
        return None
    return [max(float(known[-1][column] - known[0][column]), 0.0) for column in columns]


def _pct_of(rows: Sequence[_Row], part: int, *whole: int) -> float | None:
    """Percent that the count `part` grew by, of what the counts `whole` grew by together; None where they are few."""
    if (grown := _grown(rows, part, *whole)) is None:
        return None
    every = sum(grown[1:])
    return 100 * grown[0] / every if every else 0.0


def _per_second(rows: Sequence[_Row], column: int, unit: float = 1.0) -> float | None:
    """How fast a count grows; None where it was looked at too rarely."""
    grown = _grown(rows, column, 0)
    return unit * grown[0] / (grown[1] / 1e3) if grown and grown[1] else None


def _usual(rows: Sequence[_Row], column: int, of: Callable[[list[float]], Any] = median) -> float | None:
    known = [float(row[column]) for row in rows if row[column] is not None]
    return float(of(known)) if len(known) >= _LEAST_LOOKS else None


def _reasons(rows: Sequence[_Row]) -> dict[str, float] | None:
    known = [int(row[3]) for row in rows if row[3] is not None]
    if len(known) < _LEAST_LOOKS:
        return None
    share = {
        name: 100 * sum(any(bits & bit for bit, of in REASONS.items() if of == name) for bits in known) / len(known)
        for name in sorted(set(REASONS.values()))
    }
    return {name: pct for name, pct in share.items() if pct}


def _strangers_on_gpu(rows: Sequence[_Row], ours: set[int]) -> tuple[Stranger, ...]:
    """Processes that are not ours, only where the driver shows ours: else its numbers are of other processes."""
    seen: dict[int, list[int | None]] = defaultdict(list)
    active: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        for pid, used in row[8]:
            seen[int(pid)].append(used)
        for pid, pct in row[9]:
            active[int(pid)].append(float(pct))
    if not ours & seen.keys():
        return ()
    found = [
        Stranger(
            pid,
            bytes=max((one for one in used if one is not None), default=None),
            busy_pct=median(active[pid]) if active.get(pid) else None,
        )
        for pid, used in seen.items()
        if pid not in ours and len(used) >= max(_LEAST_PRESENT * len(rows), _LEAST_LOOKS)
    ]
    return tuple(sorted(found, key=lambda one: (-(one.busy_pct or 0.0), one.pid)))


def _strangers_on_cores(rows: Sequence[_Row], ours: set[int]) -> tuple[Stranger, ...]:
    """Processes that take cores, for so long as was looked for them. ours: ranks, those of other launchers too."""
    times = len({row[0] for row in rows})
    seen: dict[tuple[int, str], list[float]] = defaultdict(list)
    for row in rows:
        if int(row[1]) in ours:
            continue
        seen[int(row[1]), str(row[2])].append(float(row[3]))
    found = [
        Stranger(pid, name, busy_pct=float(np.sum(pct)) / max(times, 1))
        for (pid, name), pct in seen.items()
        if len(pct) >= max(_LEAST_PRESENT * times, 1)
    ]
    return tuple(sorted(found, key=lambda one: (-(one.busy_pct or 0.0), one.pid)))[:8]


_LEAST_STEPS = 3
_AS_IN_THE_RUN = 1.5  # times as far apart as in the whole run: the recorded steps are no other time


class CoreWaits(Struct, frozen=True):
    """What ranks waited for a core in their recorded steps. of_rank: ns by rank and number of the step; ranks that do
    not tell are left out, as may be those that waited nowhere. unfair: by rank the part of that, at most, that the
    machine does to it more than to its peers; 1 where it is left out. fair_ns: by rank what it waits more than its
    peers, a step, because it computes more than they do."""

    of_rank: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    unfair: Mapping[int, float] = field(default_factory=dict)
    fair_ns: Mapping[int, float] = field(default_factory=dict)


class RecordedWait(Struct, frozen=True):
    """What a rank wanted for a core in its recorded steps: ms per step, and percent of their time. beside_pct: the same
    without the step in which it waited longest. One such step is an event, and no lack of cores."""

    ms: float
    pct: float
    beside_pct: float


def core_waits(observed: Sequence[Observed]) -> CoreWaits:
    """As they told it themselves."""
    found = {}
    for one in observed:
        waits = (one.steps["core_wait"] > 0) | one.core_waits
        recorded = np.flatnonzero(((one.steps["flags"] & RECORDED) > 0) & waits)
        waited = one.steps["core_wait"].astype(np.int64) * CORE_WAIT_NS
        if len(recorded):
            found[one.rank] = {one.first + int(at): int(waited[at]) for at in recorded}
    return CoreWaits(found)


def unfair_waits(observed: Sequence[Observed], uses: Sequence[MachineUse]) -> CoreWaits:
    """`core_waits`, with the part that no rank waits because it works more than its peers, on cores as full as theirs.
    A rank that computes while the others sleep in a collective wants a core more often, and so waits more often for
    one. Only a rank that is refused one more often than its peers is held up by the machine more than they are. Where
    ranks are farther apart in the recorded steps than in the run, or nobody saw the peers, all of the waiting stays."""
    refused = {one.rank: one.crowded_pct for one in uses if one.crowded_pct is not None}
    of_run = {one.rank: one.waited_pct for one in uses if one.waited_pct is not None}
    of_window = recorded_waits(observed)
    waits, parts, fair = core_waits(observed), dict[int, float](), dict[int, float]()
    for rank in waits.of_rank.keys() & refused.keys() & of_run.keys() & of_window.keys():
        if not (peers := [other for other in refused if other != rank and other in of_run]):
            continue
        window = of_window[rank].pct - median([of_window[peer].pct if peer in of_window else 0.0 for peer in peers])
        if window > _AS_IN_THE_RUN * (of_run[rank] - median([of_run[peer] for peer in peers])):
            continue
        # The part of its waiting that it would not have where it is refused a core as often as its peers.
        own, usual = _ratio(refused[rank]), _ratio(median([refused[peer] for peer in peers]))
        parts[rank] = max(1 - usual / own, 0.0) if own else 0.0
        # Percent of the time in which each has a core, by how long and how often it has none when it wants one.
        has = {one: of_run[one] / _ratio(refused[one]) if refused[one] else 0.0 for one in (rank, *peers)}
        more = max(has[rank] - median([has[peer] for peer in peers]), 0.0)
        took_ms = 100 * of_window[rank].ms / of_window[rank].pct
        fair[rank] = 1e6 * took_ms * more / 100 * usual
    return replace(waits, unfair=parts, fair_ns=fair)


def _ratio(refused_pct: float) -> float:
    """What a thread waits for a core over what it has one for."""
    return refused_pct / max(100 - refused_pct, 1.0)


def recorded_waits(observed: Sequence[Observed]) -> dict[int, RecordedWait]:
    """By rank; ranks that waited nowhere, or do not tell, are left out, as are those with fewer than three steps."""
    found = {}
    for one in observed:
        recorded = one.steps[(one.steps["flags"] & RECORDED) > 0]
        waited_us = recorded["core_wait"] * (CORE_WAIT_NS / 1e3)
        took_us = recorded["host_us"].astype(float)
        if len(recorded) >= _LEAST_STEPS and waited_us.any() and took_us.any():
            others = np.arange(len(recorded)) != waited_us.argmax()
            found[one.rank] = RecordedWait(
                float(waited_us.mean()) / 1e3,
                _percent(waited_us, took_us),
                _percent(waited_us[others], took_us[others]),
            )
    return found


def _percent(waited_us: Floats, took_us: Floats) -> float:
    return min(100 * float(waited_us.sum()) / max(float(took_us.sum()), 1.0), 100.0)


def beyond_peers(waits: CoreWaits, rank: int, peers: Sequence[int], steps: Sequence[int]) -> Floats:
    """What a rank wants for a core in each step beyond its median peer, ns: that part of its lateness is no own. Never
    more than it is held up by the machine more than they are; what they wait counts in full. Nor less than all but what
    it waits more because it computes more: of ranks with as much work, the one without a core is not late."""

    def of(one: int) -> list[int]:
        return [waits.of_rank.get(one, {}).get(step, 0) for step in steps]

    others = median([of(peer) for peer in peers], axis=0) if peers else np.zeros(len(steps))
    own = np.array(of(rank), dtype=float)
    most = waits.unfair.get(rank, 1.0) * own
    if rank in waits.fair_ns:
        most = np.maximum(most, own - others - waits.fair_ns[rank])
    more: Floats = np.clip(own - others, 0.0, most)
    return more


STEP, HELD, RESERVED, PIECES, MOST_HELD, MOST_RESERVED = range(6)  # columns of Observed.memory
_MEMORY_LOOKS = 8
_MEMORY_STEPS = 16
_EVEN = 0.35  # of the mean: what each quarter of the run adds at least, where something grows steadily


class Growth(Struct, frozen=True):
    """Bytes at the ends of steps that grow all through the run: by so many a step, from one to another. first, last:
    the least of the first and of the last quarter, at the end of first_step and last_step."""

    per_step: float
    first_step: int
    last_step: int
    first: int
    last: int


class MemoryUse(Struct, frozen=True):
    """Of one rank, bytes; None where nobody told.

    capacity: of its GPU. peak, reserved: most that tensors, and that the allocator, held. held: at the end of a step,
    by what it was (see ManifestRank). looks: rows of Observed.memory. pieces: the median share of what is reserved
    that lies free between blocks in use, at the ends of steps. retries, mallocs: requests that fitted only after the
    cache was emptied, and cudaMalloc calls a step, in the later part of the run. allocating_ms: a recorded step's
    calls to the driver for memory; calls: their number. stays: what stays by the line
    that made it, of a memory snapshot.
    """

    rank: int
    capacity: int | None = None
    peak: int | None = None
    reserved: int | None = None
    held: Mapping[str, int] = field(default_factory=dict)
    looks: Int = field(default_factory=lambda: np.zeros((0, 6), np.int64))
    growth: Growth | None = None
    pieces: float | None = None
    retries: int | None = None
    mallocs: float | None = None
    allocating_ms: float = 0.0
    calls: float = 0.0
    stays: tuple[Held, ...] = ()

    @property
    def unused(self) -> float | None:
        """The share of what is reserved that tensors never held at once; None where that is not known."""
        if self.peak is None or not self.reserved:
            return None
        return max(self.reserved - self.peak, 0) / self.reserved


def memory_use(
    told: Sequence[ManifestRank], observed: Sequence[Observed], ranks: Sequence[RankSummary]
) -> tuple[MemoryUse, ...]:
    """Of the ranks whose manifest, observer or trace tells something, in order."""
    of_rank = {own.rank: own for own in told}
    seen = {one.rank: one for one in observed}
    traced = {summary.rank: summary for summary in ranks}
    found = (
        _memory_of_rank(rank, of_rank.get(rank), seen.get(rank), traced.get(rank))
        for rank in sorted({*of_rank, *seen, *traced})
    )
    return tuple(use for use in found if use.peak or len(use.looks) or use.calls or use.mallocs is not None)


def _memory_of_rank(
    rank: int, own: ManifestRank | None, seen: Observed | None, summary: RankSummary | None
) -> MemoryUse:
    own = own or ManifestRank(rank)
    looks, counters = np.zeros((0, 6), np.int64), np.zeros((0, 4), np.int64)
    if seen is not None:
        looks = seen.memory
        # The later two thirds of the run: the allocator has what it needs by then.
        counters = seen.allocator[seen.allocator[:, 0] >= seen.first + len(seen.steps) / 3]
    steps, calls, retries, _ = (int(n) for n in counters[-1] - counters[0]) if len(counters) > 1 else (0, 0, 0, 0)
    later = looks[len(looks) // 2 :]
    later = later[later[:, RESERVED] > 0]
    # Calls of a typical recorded step that take memory from the driver or give it back
    allocations, allocating_ns = summary.host.allocating if summary is not None and summary.on_gpu else (0.0, 0.0)
    return MemoryUse(
        rank=rank,
        capacity=own.device_bytes,
        # The program may have set torch's own record back.
        peak=int(looks[:, MOST_HELD].max(initial=own.peak_memory_bytes or 0)) or None,
        reserved=int(looks[:, MOST_RESERVED].max(initial=own.peak_reserved_bytes or 0)) or None,
        held=own.held,
        looks=looks,
        growth=growth(looks),
        pieces=median(later[:, PIECES] / later[:, RESERVED]) if len(later) else None,
        retries=retries if len(counters) > 1 else None,
        mallocs=calls / steps if steps > 0 else None,
        allocating_ms=allocating_ns / 1e6,
        calls=allocations,
    )


def growth(looks: Int) -> Growth | None:
    """Whether the least that tensors hold grows in each quarter of the run, evenly; None where it does not. The first
    eighth is left out: states are made and caches filled there. The least of a quarter, because what a step's end holds
    varies with its batch."""
    if not len(looks):
        return None
    span = looks[-1, STEP] - looks[0, STEP]
    later = looks[looks[:, STEP] >= looks[0, STEP] + span / 8]
    if len(later) < _MEMORY_LOOKS or later[-1, STEP] - later[0, STEP] < _MEMORY_STEPS:
        return None
    quarters = np.array_split(later, 4)
    least = np.array([quarter[:, HELD].min() for quarter in quarters], dtype=float)
    added = np.diff(least)
    mean = float(added.mean())
    if mean <= 0 or (added < _EVEN * mean).any():
        return None
    at = [float(quarter[int(quarter[:, HELD].argmin()), STEP]) for quarter in quarters]
    apart = at[-1] - at[0]
    if apart <= 0:
        return None
    return Growth(
        per_step=float(least[-1] - least[0]) / apart,
        first_step=int(at[0]),
        last_step=int(at[-1]),
        first=int(least[0]),
        last=int(least[-1]),
    )
