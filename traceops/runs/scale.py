"""From runs of one training at several sizes to how it scales: efficiency, where the rest goes, cost, the next size."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence

from traceops.compare.student import quantile
from traceops.core.units import count_text
from traceops.core.words import Role
from traceops.measure.ledger import BUCKETS, COMM_BUCKETS
from traceops.report.cross_rows import RoleRow
from traceops.runs.from_one import step_from_one
from traceops.runs.row import row_of
from traceops.runs.scale_model import LostPart, PredictedBy, PredictionRow, ScaleDocument, ScalingKind, SizeRow
from traceops.runs.scale_runs import MeasuredRun, refuse
from traceops.runs.trend import trend_rate

_SURE = 0.975
_SAME = 0.01  # batches that differ by less are the same
_UNLIKE = 1.2  # times as much done by one capture of a size as by another
_MORE_THAN_ALL = 105.0  # percent
_LEAST_LOST = 0.01  # of a step: less is not divided into parts
_OF_COMM = {"comm_transfer": "transfer_ms", "comm_wait": "wait_ms", "comm_unmatched": "unmatched_ms"}


def scale_document(
    captures: Sequence[MeasuredRun], name: str, price: float | None = None, ahead: Sequence[int] = ()
) -> ScaleDocument:
    """How the training scales over the sizes of `captures`; `ahead` are sizes to predict (twice the largest).

    Raises UsageError for what is no scaling: one size, other models, runs that do not tell their samples.
    """
    refuse(captures)
    by_size: dict[int, list[MeasuredRun]] = defaultdict(list)
    for capture in captures:
        by_size[capture.ranks].append(capture)
    sizes = [by_size[ranks] for ranks in sorted(by_size)]
    rows = tuple(_size_row(own, sizes[0], price) for own in sizes)
    best = min(rows, key=lambda row: row.rank_hours_per_million)
    return ScaleDocument(
        name=name,
        scaling=_kind(sizes),
        device=captures[0].report.run.device,
        price=price,
        best_value=best.ranks,
        fastest=max(rows, key=lambda row: row.samples_per_s).ranks,
        sizes=rows,
        predictions=tuple(_predictions(sizes, rows, ahead or (2 * rows[-1].ranks,))),
        runs=tuple(row_of(capture.report, capture.name, capture.path) for capture in captures),
        notes=tuple(_notes(sizes, rows)),
    )


def interval(rates: Sequence[float], base: Sequence[float], ideal: float) -> tuple[float, float] | None:
    """95 % interval of mean(rates) ÷ mean(base) ÷ ideal, by captures; None where a side has a single one.

    Welch's, of the logarithms: efficiencies are ratios.
    """
    if len(rates) < 2 or len(base) < 2:
        return None
    sides = [[math.log(rate) for rate in side] for side in (rates, base)]
    own = [statistics.variance(side) / len(side) for side in sides]
    error = math.sqrt(sum(own))
    middle = statistics.fmean(sides[0]) - statistics.fmean(sides[1]) - math.log(ideal)
    if not error:
        return math.exp(middle), math.exp(middle)
    df = error**4 / sum(part**2 / (len(side) - 1) for part, side in zip(own, sides, strict=True))
    wide = quantile(_SURE, df) * error
    return math.exp(middle - wide), math.exp(middle + wide)


def lost_parts(own: Sequence[MeasuredRun], base: Sequence[MeasuredRun]) -> tuple[float, tuple[LostPart, ...]] | None:
    """What a recorded step takes more than its share of the base's, and of what; None where a ledger is not known.

    The share: as long as the base's ranks need for as many samples of a rank. Parts add up to the whole.
    """
    mine, theirs = _parts(own), _parts(base)
    if mine is None or theirs is None:
        return None
    work = (own[0].samples / own[0].ranks) / (base[0].samples / base[0].ranks)
    changes = {key: mine.get(key, 0.0) - work * theirs.get(key, 0.0) for key in {*mine, *theirs}}
    whole = sum(changes.values())
    worth = abs(whole) > _LEAST_LOST * sum(mine.values())
    parts = [
        LostPart(bucket=bucket, role=role, ms=ms, pct=100 * ms / whole if worth else None)
        for (bucket, role), ms in changes.items()
        if ms
    ]
    return whole, tuple(sorted(parts, key=lambda part: -part.ms * (1 if whole >= 0 else -1)))


def _size_row(own: Sequence[MeasuredRun], base: Sequence[MeasuredRun], price: float | None) -> SizeRow:
    ranks, least = own[0].ranks, base[0].ranks
    rate, first = (statistics.fmean(capture.rate for capture in side) for side in (own, base))
    between = None if own is base else interval([c.rate for c in own], [c.rate for c in base], ranks / least)
    lost = None if own is base else lost_parts(own, base)
    hours = ranks / rate * 1e6 / 3600
    hosts = [len(capture.report.run.hosts) for capture in own if capture.report.run.hosts]
    return SizeRow(
        ranks=ranks,
        captures=len(own),
        hosts=max(hosts, default=None),
        samples_per_step=own[0].samples,
        samples_per_s=round(rate, 3),
        step_ms=statistics.fmean(capture.report.summary.own_step_ms or 0.0 for capture in own),
        speedup=round(rate / first, 4),
        efficiency_pct=round(100 * rate / first * least / ranks, 2),
        low_pct=None if between is None else round(100 * between[0], 2),
        high_pct=None if between is None else round(100 * between[1], 2),
        lost_ms=None if lost is None else lost[0],
        lost=() if lost is None else lost[1],
        rank_hours_per_million=round(hours, 6),
        cost_per_million=None if price is None else round(price * hours, 6),
    )


def _kind(sizes: Sequence[Sequence[MeasuredRun]]) -> ScalingKind:
    """By the batches: whether a rank's stays, or that of all ranks."""
    whole = [capture.samples for own in sizes for capture in own]
    each = [capture.samples / capture.ranks for own in sizes for capture in own]
    if max(each) <= (1 + _SAME) * min(each):
        return "weak"
    return "strong" if max(whole) <= (1 + _SAME) * min(whole) else "mixed"


def _notes(sizes: Sequence[Sequence[MeasuredRun]], rows: Sequence[SizeRow]) -> list[str]:
    notes = []
    if any(capture.report.summary.plain_ms is None for own in sizes for capture in own):
        notes.append("Some runs timed no steps without the profiler, which makes recorded ones longer.")
    if any(len(own) < 2 for own in sizes):
        notes.append("Sizes with one capture have no interval: two launches of the same code differ by some percent.")
    for own in sizes:
        rates = [capture.rate for capture in own]
        if max(rates) > _UNLIKE * min(rates):
            notes.append(
                f"Captures of size {own[0].ranks} differ by {100 * (max(rates) / min(rates) - 1):.0f} %: something "
                "else runs on the machine, or the steps are not alike. Efficiencies are no surer than that."
            )
    if any(row.efficiency_pct > _MORE_THAN_ALL for row in rows):
        notes.append("More than 100 % means that the smallest size is held up by something that larger ones are not.")
    threads = {(c.report.run.environment or {}).get("OMP_NUM_THREADS") for own in sizes for c in own}
    if len(threads) > 1:
        notes.append("OMP_NUM_THREADS is not the same in all runs: on the CPU their ranks compute with other threads.")
    if _kind(sizes) == "mixed":
        said = ", ".join(f"{count_text(own[0].samples)} with {own[0].ranks}" for own in sizes)
        notes.append(f"Neither the batch of a rank nor that of all ranks stays: samples a step are {said}.")
    return notes


def _predictions(
    sizes: Sequence[Sequence[MeasuredRun]], rows: Sequence[SizeRow], ahead: Sequence[int]
) -> list[PredictionRow]:
    """Each measured size from the smaller ones, with its error, then sizes that were not measured."""
    made = []
    measured = {row.ranks: row for row in rows}
    targets = [row.ranks for row in rows[1:]] + [ranks for ranks in ahead if ranks not in measured]
    for ranks in targets:
        known = [own for own in sizes if own[0].ranks < ranks]
        for by, rate in _rates(known, ranks, measured.get(ranks), _kind(sizes)):
            own = measured.get(ranks)
            made.append(
                PredictionRow(
                    ranks=ranks,
                    from_ranks=tuple(side[0].ranks for side in known) if by == "trend" else (known[-1][0].ranks,),
                    by=by,
                    samples_per_s=round(rate, 3),
                    efficiency_pct=round(100 * rate / ranks / (rows[0].samples_per_s / rows[0].ranks), 2),
                    error_pct=None if own is None else round(100 * (rate / own.samples_per_s - 1), 2),
                    leaves_host=_leaves_host(known[-1], ranks, own),
                )
            )
    return made


def _rates(
    known: Sequence[Sequence[MeasuredRun]], ranks: int, measured: SizeRow | None, kind: ScalingKind
) -> list[tuple[PredictedBy, float]]:
    found: list[tuple[PredictedBy, float]] = []
    last = known[-1]
    samples = measured.samples_per_step if measured is not None else _samples_at(last, ranks, kind)
    replayed = [
        samples / (share * (capture.report.summary.own_step_ms or 0.0) / 1e3)
        for capture in last
        if capture.replay is not None
        and samples is not None
        and (share := capture.replay(ranks / capture.ranks, samples / ranks * capture.ranks / capture.samples)) > 0
    ]
    if replayed:
        found.append(("replay", statistics.fmean(replayed)))
    elif last[0].ranks == 1 and samples is not None:
        made = [step_from_one(c.report, ranks, samples / ranks / c.samples, c.fixed_ms) for c in last]
        steps = [ms for ms in made if ms is not None]
        if steps:
            found.append(("gradients", statistics.fmean(1e3 * samples / ms for ms in steps)))
    if len(known) > 1:
        points = [(own[0].ranks, statistics.fmean(c.rate for c in own)) for own in known]
        found.append(("trend", trend_rate(points, ranks)))
    return found


def _samples_at(last: Sequence[MeasuredRun], ranks: int, kind: ScalingKind) -> float | None:
    """Samples a step of a size that was not measured; None where batches follow no rule."""
    if kind == "mixed":
        return None
    return last[0].samples * (ranks / last[0].ranks if kind == "weak" else 1.0)


def _leaves_host(last: Sequence[MeasuredRun], ranks: int, measured: SizeRow | None) -> bool:
    """Whether the larger size has links between hosts where the smaller one has none."""
    hosts = {len(capture.report.run.hosts) for capture in last}
    if hosts != {1}:
        return False
    return measured.hosts is not None and measured.hosts > 1 if measured is not None else ranks > 8


def _parts(own: Sequence[MeasuredRun]) -> dict[tuple[str, Role | None], float] | None:
    """Bucket and role -> ms of a recorded step, mean over ranks and captures."""
    whole: dict[tuple[str, Role | None], float] = defaultdict(float)
    for capture in own:
        for bucket in BUCKETS:
            known = [row.bucket_ms(bucket) for row in capture.report.ranks]
            values = [ms for ms in known if ms is not None]
            if not values:
                return None
            ms = statistics.fmean(values) / len(own)
            for role, share in _shares(bucket, capture.report.roles).items():
                whole[bucket, role] += ms * share
    return dict(whole)


def _shares(bucket: str, roles: Sequence[RoleRow]) -> dict[Role | None, float]:
    """How a bucket of communication divides among roles, by what each exposes; else it is nobody's."""
    if bucket not in COMM_BUCKETS:
        return {None: 1.0}
    exposed = {row.role: (getattr(row, _OF_COMM[bucket]) or 0.0) * row.ranks for row in roles}
    total = sum(exposed.values())
    return {role: ms / total for role, ms in exposed.items()} if total > 0 else {None: 1.0}
