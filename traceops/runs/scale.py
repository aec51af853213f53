"""From runs of one training at several sizes to how it scales: efficiency, where the rest goes, cost, the next size."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from traceops.across.links import bus_factor, link_by_name
from traceops.compare.statistics import quantile
from traceops.core.claims import phrases, reason
from traceops.core.documents import Tool
from traceops.core.errors import UsageError
from traceops.core.units import count_text
from traceops.core.words import Role
from traceops.measure.ledger import BUCKETS, COMM_BUCKETS
from traceops.report.model import ReportBase
from traceops.report.rows import Count, NotNegative, Number, RoleRow
from traceops.report.tables import KernelRow
from traceops.runs.row import RunRow, row_of
from traceops.runs.scale_table import TableRow

SCALE_VERSION = 1
ScalingKind = Literal["weak", "strong", "mixed", "unknown"]
Gain = Literal["good", "diminishing", "poor", "none"]
PredictedBy = Literal["replay", "trend", "gradients"]


class LostPart(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a step that a size takes more than its share of the smallest size's step, on the average rank."""

    bucket: str
    role: Role | None = None
    ms: Number
    pct: Number | None = None


class SizeRow(msgspec.Struct, frozen=True, kw_only=True):
    """All captures with as many ranks."""

    ranks: Count
    captures: Count
    hosts: Count | None = None
    samples_per_step: NotNegative | None
    samples_per_s: NotNegative
    step_ms: NotNegative | None
    speedup: NotNegative
    efficiency_pct: NotNegative
    low_pct: NotNegative | None = None
    high_pct: NotNegative | None = None
    lost_ms: Number | None = None
    lost: tuple[LostPart, ...] = ()
    gain: Gain | None = None
    rank_hours_per_million: NotNegative
    cost_per_million: NotNegative | None = None
    training_hours: NotNegative | None = None
    training_cost: NotNegative | None = None


class PredictionRow(msgspec.Struct, frozen=True, kw_only=True):
    """What a size would get done, predicted from smaller ones: no measurement."""

    ranks: Count
    from_ranks: tuple[Count, ...]
    by: PredictedBy
    samples_per_s: NotNegative
    efficiency_pct: NotNegative
    error_pct: Number | None = None
    leaves_host: bool = False


class ScaleDocument(msgspec.Struct, frozen=True, kw_only=True):
    """What scale.json holds."""

    schema_version: Annotated[int, Meta(extra_json_schema={"const": SCALE_VERSION})] = SCALE_VERSION
    tool: Tool = Tool()
    name: str
    scaling: ScalingKind
    device: str | None = None
    price: NotNegative | None = None
    best_value: Count
    fastest: Count
    sizes: tuple[SizeRow, ...]
    predictions: tuple[PredictionRow, ...] = ()
    runs: tuple[RunRow, ...] = ()
    notes: tuple[str, ...] = ()


# A step of DDP on several GPUs of one host, predicted from one GPU, whose trace has no collective to replay.

_GPUS_A_HOST = 8
_GRADIENT_BYTES = {"fp32": 4, "bf16": 4, "fp16": 4, "bf16-params": 2, "fp64": 8}  # of a parameter
_BUCKET_MB = 25.0  # torch's, and the built-in training's on GPUs
_LATENCY_MS = 0.03  # of an all-reduce of a few bytes over NVLink
_FOREACH = "multi_tensor_apply"
_BACKWARD = 2.0 / 3.0  # of what the batch decides of the compute: twice forward's products
_WAITS_FOR_HOST = 0.1  # of the step: then less compute makes it no shorter


def optimizer_ms(kernels: Sequence[KernelRow]) -> float:
    """Time a step of torch's foreach and fused optimizers, which the parameters decide and no batch does."""
    return sum(row.ms_per_step or 0.0 for row in kernels if _FOREACH in row.name)


def step_from_one(report: ReportBase, ranks: int, work: float, fixed_ms: float = 0.0) -> float | None:
    """The step on `ranks` GPUs, ms, each with `work` times the one's batch; None where too little is known.

    The gradients leave in buckets as backward makes them, evenly, one after the other at the rate that NVLink gives to
    this GPU; what of them ends after backward is added to the step. No rank is late. pytorch_ddp only. fixed_ms: of the
    compute, what another batch does not change.
    """
    training, step = report.run.training or {}, report.summary.own_step_ms
    config, parameters = training.get("config"), training.get("parameters")
    link, compute = link_by_name(report.run.device, ranks), report.summary.ledger_ms.of("compute")
    if not isinstance(config, dict) or training.get("strategy") != "pytorch_ddp" or ranks > _GPUS_A_HOST:
        return None
    bytes_each = _GRADIENT_BYTES.get(str(config.get("precision")))
    if bytes_each is None or not isinstance(parameters, int) or parameters <= 0:
        return None
    if link is None or compute is None or not step:
        return None
    size = float(parameters * bytes_each)
    waits = max(step - compute, 0.0) / step > _WAITS_FOR_HOST
    of_batch = max(min(compute, step) - fixed_ms, 0.0)
    alone = step if waits else step - of_batch * (1.0 - work)
    backward = _BACKWARD * of_batch * work
    mb = config.get("bucket_mb")
    count = math.ceil(size / ((float(mb) if isinstance(mb, (int, float)) and mb > 0 else _BUCKET_MB) * 2**20))
    each = _LATENCY_MS + size / count * bus_factor("all_reduce", ranks) / (link.busbw_gbs * 1e9) * 1e3
    end = 0.0
    for number in range(1, count + 1):
        end = max(end, backward * number / count) + each
    return alone + max(end - backward, 0.0)


def trend_rate(measured: Sequence[tuple[int, float]], ranks: int) -> float:
    """Samples a second of `ranks` ranks, from (ranks, samples a second) of two sizes or more, ascending. What a rank
    gets done is taken as a power of the ranks: the slope is least squares' over all sizes, in logarithms, and it goes
    on from the largest. On public tables the error is in docs/runs.md. Raises ValueError for one size."""
    if len(measured) < 2:
        raise ValueError("a trend needs two sizes")
    sizes = [math.log(n) for n, _ in measured]
    each = [math.log(rate / n) for n, rate in measured]
    slope = statistics.linear_regression(sizes, each).slope
    return ranks * math.exp(each[-1] + slope * (math.log(ranks) - sizes[-1]))


# The runs that a scaling is made of, and which of them are none of one training.

# step with so many times as many ranks, and so many times as much work of a rank, over the measured one
Replay = Callable[[float, float], float]
OPEN_LINE = "with traceops.capture() as profile:"
STEP_LINE = "profile.step(samples=len(batch))"
_MODEL = (
    "model", "model_name", "parameters", "layers", "dim", "heads", "vocab", "hidden_size", "n_layers", "seq_len",
    "precision", "dtype", "strategy",
)  # fmt: skip


class MeasuredRun(Struct, frozen=True):
    """One run. replay: predicts its step with other sizes; None without traces, or where the replay does not hold.
    fixed_ms: of its step, what the device computes for the parameters alone, whatever the batch."""

    name: str
    path: str
    report: ReportBase
    replay: Replay | None = None
    fixed_ms: float = 0.0

    @property
    def ranks(self) -> int:
        return self.report.run.world_size or len(self.report.ranks)

    @property
    def rate(self) -> float:
        """Samples a second of all ranks."""
        return self.report.summary.samples_per_s or 0.0

    @property
    def samples(self) -> float:
        return self.report.run.samples_per_step or 0.0


def no_samples(path: str) -> UsageError:
    """What a run is refused with that does not report its samples."""
    return UsageError(reason("runs", "no_samples", path=path, open=OPEN_LINE, step=STEP_LINE))


def refuse(captures: Sequence[MeasuredRun]) -> None:
    """Raise UsageError where these are not runs of one training at several sizes."""
    for capture in captures:
        if not capture.samples:
            raise no_samples(capture.path)
        if not capture.rate:
            raise UsageError(reason("runs", "no_step", path=capture.path))
    if len({capture.ranks for capture in captures}) < 2:
        raise UsageError(reason("runs", "one_size", ranks=captures[0].ranks if captures else 0))
    first = captures[0]
    for other in captures[1:]:
        sides = {"first": first.path, "other": other.path}
        for key in _MODEL:
            mine, theirs = (_settings(capture).get(key) for capture in (first, other))
            if mine is not None and theirs is not None and mine != theirs:
                shown = {"mine": str(mine) or "empty", "theirs": str(theirs) or "empty"}
                raise UsageError(reason("runs", "other_setting", name=key, **shown, **sides))
        if _device(first) != _device(other):
            mine, theirs = str(_device(first)), str(_device(other))
            raise UsageError(reason("runs", "other_device", mine=mine, theirs=theirs, **sides))
        scripts = [(capture.report.run.command or ("",))[0] for capture in (first, other)]
        if all(scripts) and scripts[0] != scripts[1]:
            raise UsageError(reason("runs", "other_script", mine=scripts[0], theirs=scripts[1], **sides))


def _device(capture: MeasuredRun) -> str | None:
    return capture.report.run.device


def _settings(capture: MeasuredRun) -> dict[str, object]:
    """What the run says of its training, one level deep."""
    training = capture.report.run.training or {}
    config = training.get("config")
    flat = {key: value for key, value in training.items() if not isinstance(value, (dict, list))}
    return {**(config if isinstance(config, dict) else {}), **flat}


_SURE = 0.975
_GAINS: tuple[tuple[Gain, float], ...] = (("good", 0.8), ("diminishing", 0.5), ("poor", 0.0), ("none", -math.inf))
_SAME = 0.01  # batches that differ by less are the same
_UNLIKE = 1.2  # times as much done by one capture of a size as by another
_MORE_THAN_ALL = 105.0  # percent
_LEAST_LOST = 0.01  # of a step: less is not divided into parts
_OF_COMM = {"comm_transfer": "transfer_ms", "comm_wait": "wait_ms", "comm_unmatched": "unmatched_ms"}


def scale_document(
    captures: Sequence[MeasuredRun], name: str, price: float | None = None, ahead: Sequence[int] = ()
) -> ScaleDocument:
    """How the training scales over the sizes of `captures`; `ahead` are sizes to predict (twice the largest). Raises
    UsageError for what is no scaling: one size, other models, runs that do not report their samples."""
    refuse(captures)
    sizes = _by_size(captures)
    rows = _with_gains([_size_row(own, sizes[0], price) for own in sizes])
    best = min(rows, key=lambda row: row.rank_hours_per_million)
    kind = _kind_of([(capture.samples, capture.ranks) for capture in captures])
    return ScaleDocument(
        name=name, scaling=kind, device=captures[0].report.run.device, price=price, best_value=best.ranks,
        fastest=max(rows, key=lambda row: row.samples_per_s).ranks, sizes=rows,
        predictions=tuple(_predictions(sizes, rows, ahead or (2 * rows[-1].ranks,), kind)),
        runs=tuple(row_of(capture.report, capture.name, capture.path) for capture in captures),
        notes=tuple(_notes(sizes, rows, kind)),
    )  # fmt: skip


_Measured = TypeVar("_Measured", MeasuredRun, TableRow)


def _by_size(measured: Sequence[_Measured]) -> list[list[_Measured]]:
    """Those of as many ranks together, the fewest ranks first."""
    found: dict[int, list[_Measured]] = defaultdict(list)
    for one in measured:
        found[one.ranks].append(one)
    return [found[ranks] for ranks in sorted(found)]


def table_document(
    rows: Sequence[TableRow], name: str, price: float | None = None, ahead: Sequence[int] = ()
) -> ScaleDocument:
    """As `scale_document`, of a table's rows: nothing shows where the rest goes, and only the trend predicts."""
    sizes, each = _by_size(rows), []
    for own in sizes:
        row, samples = _rated(own, sizes[0], price), own[0].samples
        step_ms = None if samples is None else 1e3 * samples / row.samples_per_s
        each.append(replace(row, samples_per_step=samples, step_ms=step_ms))
    made = _with_gains(each)
    points = [(row.ranks, row.samples_per_s) for row in made]
    predicted = []
    for ranks in [n for n, _ in points] + [n for n in ahead or (2 * points[-1][0],) if n not in dict(points)]:
        known = [point for point in points if point[0] < ranks]
        if len(known) > 1:
            predicted.append(_prediction(ranks, "trend", trend_rate(known, ranks), [n for n, _ in known], made))
    batches = [(row.samples, row.ranks) for row in rows if row.samples is not None]
    return ScaleDocument(
        name=name, scaling=_kind_of(batches) if len(batches) == len(rows) else "unknown", price=price,
        best_value=min(made, key=lambda row: row.rank_hours_per_million).ranks,
        fastest=max(made, key=lambda row: row.samples_per_s).ranks, sizes=made, predictions=tuple(predicted),
    )  # fmt: skip


def with_training(found: ScaleDocument, samples: float) -> ScaleDocument:
    """With what a training of so many samples takes at each size."""
    rows = [
        replace(
            row,
            training_hours=round(hours := samples / row.samples_per_s / 3600, 4),
            training_cost=None if found.price is None else round(found.price * hours * row.ranks, 2),
        )
        for row in found.sizes
    ]
    return replace(found, sizes=tuple(rows))


def _with_gains(rows: Sequence[SizeRow]) -> tuple[SizeRow, ...]:
    """Each with what its ranks beyond the next smaller size are worth."""
    each = rows[0].samples_per_s / rows[0].ranks
    made = [rows[0]]
    for before, row in pairwise(rows):
        worth = (row.samples_per_s - before.samples_per_s) / (row.ranks - before.ranks) / each
        made.append(replace(row, gain=next(gain for gain, least in _GAINS if worth > least)))
    return tuple(made)


def interval(rates: Sequence[float], base: Sequence[float], ideal: float) -> tuple[float, float] | None:
    """95 % interval of mean(rates) ÷ mean(base) ÷ ideal, by captures; None where a side has a single one. Welch's, of
    the logarithms: efficiencies are ratios."""
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
    """What a recorded step takes more than its share of the base's, and of what; None where a ledger is not known. The
    share: as long as the base's ranks need for as many samples of a rank. Parts add up to the whole."""
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
    row = _rated(own, base, price)
    lost = None if own is base else lost_parts(own, base)
    hosts = [len(capture.report.run.hosts) for capture in own if capture.report.run.hosts]
    return replace(
        row, hosts=max(hosts, default=None), samples_per_step=own[0].samples,
        step_ms=statistics.fmean(capture.report.summary.own_step_ms or 0.0 for capture in own),
        lost_ms=None if lost is None else lost[0], lost=() if lost is None else lost[1],
    )  # fmt: skip


def _rated(own: Sequence[_Measured], base: Sequence[_Measured], price: float | None) -> SizeRow:
    """A size by its throughput alone. base: of the smallest size."""
    ranks, least = own[0].ranks, base[0].ranks
    rates, of_base = [one.rate for one in own], [one.rate for one in base]
    rate, first = statistics.fmean(rates), statistics.fmean(of_base)
    between = None if own is base else interval(rates, of_base, ranks / least)
    hours = ranks / rate * 1e6 / 3600
    return SizeRow(
        ranks=ranks, captures=len(rates), samples_per_step=None, samples_per_s=round(rate, 3), step_ms=None,
        speedup=round(rate / first, 4), efficiency_pct=round(100 * rate / first * least / ranks, 2),
        low_pct=None if between is None else round(100 * between[0], 2),
        high_pct=None if between is None else round(100 * between[1], 2), rank_hours_per_million=round(hours, 6),
        cost_per_million=None if price is None else round(price * hours, 6),
    )  # fmt: skip


def _kind_of(batches: Sequence[tuple[float, int]]) -> ScalingKind:
    """Whether a rank's batch stays, or that of all ranks. batches: samples per step of all ranks, and the ranks."""
    whole = [samples for samples, _ in batches]
    each = [samples / ranks for samples, ranks in batches]
    if max(each) <= (1 + _SAME) * min(each):
        return "weak"
    return "strong" if max(whole) <= (1 + _SAME) * min(whole) else "mixed"


def _notes(sizes: Sequence[Sequence[MeasuredRun]], rows: Sequence[SizeRow], kind: ScalingKind) -> list[str]:
    said = partial(phrases, "runs", "scale")
    every = [capture for own in sizes for capture in own]
    rates = {own[0].ranks: [capture.rate for capture in own] for own in sizes}
    apart = {ranks: max(own) / min(own) for ranks, own in rates.items()}
    threads = {(capture.report.run.environment or {}).get("OMP_NUM_THREADS") for capture in every}
    samples = [f"{count_text(own[0].samples)} with {own[0].ranks}" for own in sizes]
    return [
        *said(
            "notes",
            profiled=any(capture.report.summary.plain_ms is None for capture in every),
            single=any(len(own) < 2 for own in sizes),
        ),
        *(
            note
            for ranks, ratio in apart.items()
            if ratio > _UNLIKE
            for note in said("unlike", ranks=ranks, apart=100 * (ratio - 1))
        ),
        *said(
            "why",
            beyond=any(row.efficiency_pct > _MORE_THAN_ALL for row in rows),
            threads=len(threads) > 1,
            samples=samples if kind == "mixed" else None,
        ),
    ]


def _predictions(
    sizes: Sequence[Sequence[MeasuredRun]], rows: Sequence[SizeRow], ahead: Sequence[int], kind: ScalingKind
) -> list[PredictionRow]:
    """Each measured size from the smaller ones, with its error, then sizes that were not measured."""
    made = []
    measured = {row.ranks: row for row in rows}
    for ranks in [row.ranks for row in rows[1:]] + [ranks for ranks in ahead if ranks not in measured]:
        known, own = [side for side in sizes if side[0].ranks < ranks], measured.get(ranks)
        # Whether it has links between hosts where the smaller size has none.
        several = ranks > _GPUS_A_HOST if own is None else own.hosts is not None and own.hosts > 1
        leaves = several and {len(capture.report.run.hosts) for capture in known[-1]} == {1}
        for by, rate in _rates(known, ranks, own, kind):
            from_ranks = [side[0].ranks for side in known] if by == "trend" else [known[-1][0].ranks]
            made.append(_prediction(ranks, by, rate, from_ranks, rows, leaves_host=leaves))
    return made


def _prediction(
    ranks: int, by: PredictedBy, rate: float, from_ranks: Sequence[int], rows: Sequence[SizeRow], *,
    leaves_host: bool = False,
) -> PredictionRow:  # fmt: skip
    """rate: predicted samples per second. rows: the measured sizes, with this one where it was measured."""
    own = next((row.samples_per_s for row in rows if row.ranks == ranks), None)
    return PredictionRow(
        ranks=ranks, from_ranks=tuple(from_ranks), by=by, samples_per_s=round(rate, 3),
        efficiency_pct=round(100 * rate / ranks / (rows[0].samples_per_s / rows[0].ranks), 2),
        error_pct=None if own is None else round(100 * (rate / own - 1), 2), leaves_host=leaves_host,
    )  # fmt: skip


def _rates(
    known: Sequence[Sequence[MeasuredRun]], ranks: int, measured: SizeRow | None, kind: ScalingKind
) -> list[tuple[PredictedBy, float]]:
    found: list[tuple[PredictedBy, float]] = []
    last = known[-1]
    if measured is not None:
        samples = measured.samples_per_step
    else:  # None where batches follow no rule
        by_kind = {"weak": last[0].samples * ranks / last[0].ranks, "strong": last[0].samples}
        samples = by_kind.get(kind)
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
        if steps := [ms for ms in made if ms is not None]:
            found.append(("gradients", statistics.fmean(1e3 * samples / ms for ms in steps)))
    if len(known) > 1:
        points = [(own[0].ranks, statistics.fmean(c.rate for c in own)) for own in known]
        found.append(("trend", trend_rate(points, ranks)))
    return found


def _parts(own: Sequence[MeasuredRun]) -> dict[tuple[str, Role | None], float] | None:
    """Bucket and role -> ms of a recorded step, mean over ranks and captures."""
    whole: dict[tuple[str, Role | None], float] = defaultdict(float)
    for capture in own:
        for bucket in BUCKETS:
            known = [row.bucket_ms(bucket) for row in capture.report.ranks]
            if not (values := [ms for ms in known if ms is not None]):
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
