"""What each rank's GPU, cores and memory did during the whole run, from what ranks and launchers saw."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.core.arrays import median
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
    spans = {one.rank: _span_ms(one) for one in observed if len(one.steps) > 1}
    found = []
    for log in logs:
        by_rank: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
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
    rows: Sequence[tuple[Any, ...]],
    entry: Mapping[str, Any],
    span: tuple[float, float],
    ours: set[int],
) -> MachineUse:
    took = max(float(rows[-1][0] - rows[0][0]), 1.0)
    host_rows, network = _within(log.hosts, span), _within(log.network, span)
    gpu = _gpu_of(log, entry)
    device = [row for row in _within(log.devices, span) if gpu is not None and row[1] == gpu.index]
    busy = [row for row in device if (row[6] or 0) >= _BUSY_PCT] or device
    reads = [row for row in _within(log.reads, span) if row[1] == rank]
    others = _within(log.others, span)
    return MachineUse(
        rank=rank,
        host=log.host,
        looks=len(rows),
        cpu_pct=_rate(rows, 3, took),
        waited_pct=_rate(rows, 4, took),
        crowded_pct=_crowded(rows),
        faults=None if rows[0][5] is None else float(rows[-1][5] - rows[0][5]),
        stolen_pct=_stolen(host_rows),
        refused_pct=_refused(host_rows),
        gpu=gpu,
        mhz=_median(row[2] for row in busy),
        power_w=_median(row[4] for row in busy),
        celsius=_median(row[5] for row in busy),
        reasons=_reasons(busy),
        gpu_busy_pct=_mean([row[6] for row in device]),
        host_cores=_per_second(host_rows, 3, 1e-3),
        received=_per_second(network, 1),
        sent=_per_second(network, 2),
        read=_per_second(reads, 3),
        from_storage=_per_second(reads, 2),
        storage=log.storage.get(rank),
        on_gpu=_strangers_on_gpu(device, ours),
        on_cores=_strangers_on_cores(others, ours),
    )


def _within(rows: Sequence[tuple[Any, ...]], span: tuple[float, float]) -> list[tuple[Any, ...]]:
    return [row for row in rows if span[0] <= row[0] <= span[1]]


def _span_ms(one: Observed) -> tuple[float, float]:
    """From the end of the first step, which holds the program's start, to the end of the last, Unix ms."""
    ends = step_ends_ns(one) / 1e6
    return float(ends[0]), float(ends[-1])


def _gpu_of(log: MachineLog, entry: Mapping[str, Any]) -> GpuFacts | None:
    device = entry.get("device")
    told = device.get("uuid") if isinstance(device, dict) else None
    if not isinstance(told, str):
        return None
    wanted = told.removeprefix("GPU-")
    return next((g for g in log.gpus.values() if g.uuid and g.uuid.removeprefix("GPU-") == wanted), None)


def _crowded(rows: Sequence[tuple[Any, ...]]) -> float | None:
    if any(row[4] is None or row[7] is None for row in (rows[0], rows[-1])):
        return None
    waited, ran = (max(float(rows[-1][column] - rows[0][column]), 0.0) for column in (4, 7))
    return 100 * waited / (waited + ran) if waited + ran else 0.0


def _rate(rows: Sequence[tuple[Any, ...]], column: int, took_ms: float) -> float | None:
    known = [row[column] for row in rows if row[column] is not None]
    return 100 * max(float(known[-1] - known[0]), 0.0) / took_ms if len(known) >= _LEAST_LOOKS else None


def _per_second(rows: Sequence[tuple[Any, ...]], column: int, unit: float = 1.0) -> float | None:
    """How fast a count grows; None where it was looked at too rarely."""
    known = [row for row in rows if row[column] is not None]
    if len(known) < _LEAST_LOOKS or known[-1][0] <= known[0][0]:
        return None
    return unit * max(float(known[-1][column] - known[0][column]), 0.0) / (float(known[-1][0] - known[0][0]) / 1e3)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [float(value) for value in values if value is not None]
    return sum(known) / len(known) if len(known) >= _LEAST_LOOKS else None


def _stolen(rows: Sequence[tuple[Any, ...]]) -> float | None:
    """Of the time in which the machine's cores were wanted, percent; None where that was not noted."""
    known = [row for row in rows if row[1] is not None and row[3] is not None]
    if len(known) < _LEAST_LOOKS:
        return None
    stolen, wanted = (max(float(known[-1][column] - known[0][column]), 0.0) for column in (1, 3))
    return 100 * stolen / wanted if wanted else 0.0


def _refused(rows: Sequence[tuple[Any, ...]]) -> float | None:
    """Of the CPU time that the container wanted, percent that its quota refused; None where that was not noted."""
    known = [row for row in rows if row[2] is not None and row[4] is not None]
    if len(known) < _LEAST_LOOKS:
        return None
    refused, used = (max(float(known[-1][column] - known[0][column]), 0.0) for column in (2, 4))
    return 100 * refused / (refused + used) if refused + used else 0.0


def _median(values: Any) -> float | None:
    known = [float(value) for value in values if value is not None]
    return median(known) if len(known) >= _LEAST_LOOKS else None


def _reasons(rows: Sequence[tuple[Any, ...]]) -> dict[str, float] | None:
    known = [int(row[3]) for row in rows if row[3] is not None]
    if len(known) < _LEAST_LOOKS:
        return None
    names = sorted(set(REASONS.values()))
    share = {
        name: 100 * sum(any(bits & bit for bit, of in REASONS.items() if of == name) for bits in known) / len(known)
        for name in names
    }
    return {name: pct for name, pct in share.items() if pct}


def _strangers_on_gpu(rows: Sequence[tuple[Any, ...]], ours: set[int]) -> tuple[Stranger, ...]:
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


def _strangers_on_cores(rows: Sequence[tuple[Any, ...]], ours: set[int]) -> tuple[Stranger, ...]:
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
    for rank in waits.of_rank:
        peers = [other for other in refused if other != rank and other in of_run]
        if peers and rank in refused and rank in of_run and rank in of_window:
            window = of_window[rank].pct - _middle(
                [of_window[peer].pct if peer in of_window else 0.0 for peer in peers]
            )
            run = of_run[rank] - _middle([of_run[peer] for peer in peers])
            if window <= _AS_IN_THE_RUN * run:
                others_pct = _middle([refused[peer] for peer in peers])
                parts[rank] = _beyond(refused[rank], others_pct)
                computes = {one: _computes(of_run[one], refused[one]) for one in (rank, *peers)}
                more = max(computes[rank] - _middle([computes[peer] for peer in peers]), 0.0)
                took_ms = 100 * of_window[rank].ms / of_window[rank].pct
                fair[rank] = 1e6 * took_ms * more / 100 * _ratio(others_pct)
    return replace(waits, unfair=parts, fair_ns=fair)


def _computes(waited_pct: float, refused_pct: float) -> float:
    """Percent of the time in which a thread has a core, by how long and how often it has none when it wants one."""
    return waited_pct / _ratio(refused_pct) if refused_pct else 0.0


def _ratio(refused_pct: float) -> float:
    """What a thread waits for a core over what it has one for."""
    return refused_pct / max(100 - refused_pct, 1.0)


def _middle(values: Sequence[float]) -> float:
    return median(values)


def _beyond(refused_pct: float, peers_pct: float) -> float:
    """The part of a rank's waiting that it would not have where it is refused a core as often as its peers."""
    own, other = _ratio(refused_pct), _ratio(peers_pct)
    return max(1 - other / own, 0.0) if own else 0.0


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


def _percent(waited_us: NDArray[np.float64], took_us: NDArray[np.float64]) -> float:
    return min(100 * float(waited_us.sum()) / max(float(took_us.sum()), 1.0), 100.0)


def beyond_peers(waits: CoreWaits, rank: int, peers: Sequence[int], steps: Sequence[int]) -> NDArray[np.float64]:
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
    more: NDArray[np.float64] = np.clip(own - others, 0.0, most)
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
    looks: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 6), np.int64))
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
    looks = np.zeros((0, 6), np.int64) if seen is None else seen.memory
    calls, took = _allocating(summary)
    # The program may have set torch's own record back.
    peaks = (own.peak_memory_bytes, _most(looks, MOST_HELD))
    reserved = (own.peak_reserved_bytes, _most(looks, MOST_RESERVED))
    rows = _later_rows(seen)
    if len(rows) < 2 or rows[-1, 0] <= rows[0, 0]:
        a_step: float | None = None
    else:
        a_step = float(rows[-1, 1] - rows[0, 1]) / float(rows[-1, 0] - rows[0, 0])
    return MemoryUse(
        rank=rank,
        capacity=own.device_bytes,
        peak=max((size for size in peaks if size is not None), default=None) or None,
        reserved=max((size for size in reserved if size is not None), default=None) or None,
        held=own.held,
        looks=looks,
        growth=growth(looks),
        pieces=_pieces(looks),
        retries=_later(seen, 2),
        mallocs=a_step,
        allocating_ms=took,
        calls=calls,
    )


def growth(looks: NDArray[np.int64]) -> Growth | None:
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


def _most(looks: NDArray[np.int64], column: int) -> int | None:
    return int(looks[:, column].max()) if len(looks) else None


def _pieces(looks: NDArray[np.int64]) -> float | None:
    later = looks[len(looks) // 2 :]
    later = later[later[:, RESERVED] > 0]
    return median(later[:, PIECES] / later[:, RESERVED]) if len(later) else None


def _allocating(summary: RankSummary | None) -> tuple[float, float]:
    """Calls of a typical recorded step that take memory from the driver or give it back, and their ms."""
    if summary is None or not summary.on_gpu:
        return 0.0, 0.0
    own = summary.host.allocating
    return sum(call.usual for call in own), sum(call.usual_ms for call in own)


def _later_rows(seen: Observed | None) -> NDArray[np.int64]:
    """The allocator's counters in the later two thirds of the run: it has what it needs by then."""
    if seen is None or not len(seen.allocator):
        return np.zeros((0, 4), np.int64)
    rows = seen.allocator
    return rows[rows[:, 0] >= seen.first + len(seen.steps) / 3]


def _later(seen: Observed | None, column: int) -> int | None:
    rows = _later_rows(seen)
    return int(rows[-1, column] - rows[0, column]) if len(rows) > 1 else None
