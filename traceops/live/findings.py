"""What the monitor reports, as claims with words in words/live.ini, and how the cause of a slowdown is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import inf, log, sqrt
from statistics import fmean, median, median_low
from typing import Any, ClassVar

import msgspec
from msgspec import Struct

from traceops.core.claims import Claim
from traceops.live.stream import LineTime


class LiveClaim(Claim, frozen=True, kw_only=True):
    """One on ranks, since a step."""

    family: ClassVar[str] = "live"
    ranks: tuple[int, ...] = ()
    step: int | None = None


class Slower(LiveClaim, frozen=True, kw_only=True):
    """Steps take longer than they did. cause: of `cause.Why`, by its value; cost_ms: of a step, what it explains."""

    kind: ClassVar[str] = "slower"
    cause: str
    before_ms: float
    now_ms: float
    percent: float
    cost_ms: float | None = None
    text: str | None = None
    place: str | None = None
    function: str | None = None
    others: str | None = None
    pids: str | None = None
    reason: str | None = None
    mhz_before: int | None = None
    mhz_now: int | None = None


class Changed(LiveClaim, frozen=True, kw_only=True):
    """Steps take longer than they did, and the cause is not known yet."""

    kind: ClassVar[str] = "changed"
    percent: float


class AsBefore(LiveClaim, frozen=True, kw_only=True):
    """Steps take as long again as before the change."""

    kind: ClassVar[str] = "as_before"
    seconds: float


class Stuck(LiveClaim, frozen=True, kw_only=True):
    """No rank has ended a step for so long. ranks: that the others wait for. how: in words/live.ini."""

    kind: ClassVar[str] = "stuck"
    seconds: float
    how: str
    text: str | None = None
    place: str | None = None


class MemoryGrows(LiveClaim, frozen=True, kw_only=True):
    """Memory grows all the time. where: gpu or host; per_minute: bytes; minutes: until it is full at this pace."""

    kind: ClassVar[str] = "memory_grows"
    where: str
    per_minute: float
    minutes: float


class Starved(LiveClaim, frozen=True, kw_only=True):
    """Ranks wait for their input in such a part of the time."""

    kind: ClassVar[str] = "starved"
    percent: float


class Lags(LiveClaim, frozen=True, kw_only=True):
    """A rank does more than the others in each step, who wait for it."""

    kind: ClassVar[str] = "lags"
    behind_ms: float
    percent: float
    text: str | None = None
    place: str | None = None


class Detection(Struct, frozen=True, kw_only=True):
    """What was found. since_ns, seen_ns: Unix time at which it began, and was found. page: whether somebody should
    look; the others are remarks."""

    claim: LiveClaim
    since_ns: int
    seen_ns: int
    page: bool = True

    def document(self) -> dict[str, Any]:
        """As it stands in live.events.jsonl."""
        return {
            "kind": self.claim.kind, "page": self.page, "since_ns": self.since_ns, "seen_ns": self.seen_ns,
            "headline": self.claim.headline(), "message": self.claim.message(),
            "facts": msgspec.to_builtins(self.claim.facts()),
        }  # fmt: skip


_PART = 0.35  # of what steps take longer: a cause explains at least so much of it
_LIKE = 0.5  # of the most that one cause explains: others that explain so much are named too
_HIDDEN = 0.3  # of a step before: what grew by so much is named too, though the others wait for a slower rank
_ALIKE = 2.0  # times as much as steps: a line that grew by more is the cause by itself
_CROWD_PCT, _CROWD_PART = 50.0, 0.1  # of a core, which others take; of the excess, that a main thread waits for one
_WEIGHTS = 2.0  # looks that count as one
# Differences of log likelihoods: from how much on a rank's own work counts as grown, and more the more ranks there
# are; what each rank that is named costs; from how much on no more looks are needed.
_GROWN, _GROWN_RANKS, _NAMED, _SURE = 3.5, 1.0, 2.5, 4.0
# Of a step: a main thread that ran longer may have waited so; by how much its time on a core may be off; and the log
# likelihood that it takes at most.
_RUNS_PART, _RUNS_OFF, _RUNS_MOST = 0.8, 0.03, 4.0
_RAN_TOO = 0.4  # of what it did more, or of what it would run in proportion: a main thread with more work runs so much
_BOTH = 0.2  # of what steps take longer, where all ranks do more: their own work, and what follows it
_HELD_MORE = 1.005  # times what tensors held before, at the peak of a step: more of the same work
_LEAST_SHARE = 0.01  # that a kind is expected to have: some looks are misread


class Why(Enum):
    """The kinds of causes; words/live.ini has a sentence for each."""

    STRANGER = "stranger"
    THROTTLE = "throttle"
    ALLOCATOR = "allocator"
    GARBAGE = "garbage"
    INPUT = "input"
    HOST = "host"
    CORES = "cores"
    PAGING = "paging"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    COMPILING = "compiling"
    EXCHANGE = "exchange"
    DEVICE = "device"
    WORKLOAD = "workload"
    UNKNOWN = "unknown"


# What nobody needs to be called for: the program does other work than before.
HARMLESS = (Why.WORKLOAD, Why.EVALUATION, Why.COMPILING)
# Causes that show only by what is missing: they are named later than others.
INDIRECT = (Why.EXCHANGE, Why.DEVICE, Why.UNKNOWN)

_WAITS_SIGMA, _WAITS_PART = 3.0, 0.15
_WAITING = ("waiting", "backward")  # what a rank that is not the cause does longer
# Groups of kinds of core/live_pulses.py, and the cause where one grows.
_GROUPS: Mapping[Why | None, tuple[str, ...]] = {
    Why.HOST: ("own", "optimizer"), Why.INPUT: ("input",), Why.CHECKPOINT: ("checkpoint",),
    Why.EVALUATION: ("evaluation",), Why.COMPILING: ("compiling",), None: _WAITING,
}  # fmt: skip
_OWN = tuple(why for why in _GROUPS if why is not None)
_BY_KIND = {kind: why for why, kinds in _GROUPS.items() if why is not None for kind in kinds}
_OF_LINES = 2.5  # log likelihood by which a line has to fit better than a kind: there are many lines


class RankEvidence(Struct, frozen=True, kw_only=True):
    """One rank: ms per step before the change and since, and what its host did in them.

    grew_ms: ms per step by kind of `core/live_pulses.py`. looks: at its host before and since. lines: of the program,
    by how much they grew; grown: those that did so beyond chance. ran_ms, cores_ms, garbage_ms: by how much more its
    main thread ran, waited for a core, and collected garbage, per step; None where that is not known. retries: of the
    allocator, per step. held: held bytes now ÷ before. others: processes on the host that are not of the run;
    crowd_pct: what they take, of a core.
    """

    rank: int
    before_ms: float
    now_ms: float
    grew_ms: dict[str, float]
    before_kinds_ms: dict[str, float] = {}
    looks: tuple[int, int] = (0, 0)
    lines: tuple[LineTime, ...] = ()
    grown: tuple[LineTime, ...] = ()
    ran_ms: float | None = None
    before_ran_ms: float | None = None  # by how much before, a step
    cores_ms: float | None = None
    before_cores_ms: float | None = None
    garbage_ms: float = 0.0
    faults: float = 0.0
    retries: float = 0.0
    held: float = 1.0
    on_gpu: bool = False
    strangers: tuple[int, ...] = ()
    throttle: tuple[str, int, int] | None = None
    others: tuple[str, ...] = ()
    crowd_pct: float = 0.0


class Cause(Struct, frozen=True):
    """What makes steps longer, on which ranks, and the line of the program where one has it. ms: of a step."""

    why: Why
    ranks: tuple[int, ...]
    ms: float = 0.0
    line: LineTime | None = None
    strangers: tuple[int, ...] = ()
    throttle: tuple[str, int, int] | None = None
    others: tuple[str, ...] = ()
    sure: bool = True  # more looks at hosts would not change it


def causes_of(ranks: Sequence[RankEvidence]) -> list[Cause]:
    """The causes that the evidence of some ranks shows, those among them that changed most; at least one. Three
    explanations are held against where hosts were seen, by their likelihood: some ranks do more of one kind of work and
    the others wait; all ranks do more of all; all wait longer, and no host does more."""
    if (outer := _from_outside(ranks)) is not None:
        return [outer]
    excess = median(one.now_ms - one.before_ms for one in ranks)
    least = _GROWN + _GROWN_RANKS * log(len(ranks))
    fits = [_fits(one, least) for one in ranks]
    found = {one.rank: _of_rank(one, ranks, excess, least) for one in ranks}
    wait, more = sum(wait for _, wait, _ in fits), max(sum(more for *_, more in fits), _alike(ranks))
    own = sum(max(wait, own) for own, wait, _ in fits)
    if more > max(own, wait) and not any(_has_own_cause(one, excess) for one in ranks):
        everyone = tuple(one.rank for one in ranks)
        return [Cause(Why.WORKLOAD, everyone, excess, sure=more - max(own, wait) > _SURE)]
    if max(sum(grew.values()) for grew in found.values()) >= _PART * excess:
        most = max((ms for grew in found.values() for ms in grew.values()), default=0.0)
        causes = _causes_by_kind(ranks, found, min(max(_LIKE * most, _PART * excess), most))
        slowest = max(ranks, key=lambda one: sum(found[one.rank].values()))
        one_rank = all(cause.ranks == (slowest.rank,) for cause in causes)
        return causes + ([_indirect(ranks, excess, sure=False)] if one_rank and _waits_too(slowest, excess) else [])
    return [_indirect(ranks, excess, sure=wait - max(own, more) > _SURE)]


def _alike(ranks: Sequence[RankEvidence]) -> float:
    """The log likelihood that all ranks do more of their own work by the same measure, and of what follows it. It need
    not be in proportion: with larger batches, what a step does once stays as it is."""
    grew = [sum(one.grew_ms.get(kind, 0.0) for kind in _GROUPS[Why.HOST]) for one in ranks]
    part = fmean(grew) / max(fmean(one.now_ms - one.before_ms for one in ranks), 1e-9)
    if not _BOTH < part < 1 - _BOTH:
        return -inf
    more = (
        _Looks.of(one).grown({Why.HOST: part * (one.now_ms - one.before_ms)})
        + _of_core(one, one.now_ms / one.before_ms - 1)
        for one in ranks
    )
    return sum(more) - _NAMED


def _causes_by_kind(ranks: Sequence[RankEvidence], found: Mapping[int, Mapping[Why, float]], bar: float) -> list[Cause]:
    """One for each kind of work that grew by so much, on the ranks where it did; the largest first. Also where it grew
    by less, but by a good part of a step more than on other ranks: a slower one hides it."""
    usual = {why: median_low(found[one.rank].get(why, 0.0) for one in ranks) for why in Why}
    named = [
        (ms, why, one) for one in ranks for why, ms in found[one.rank].items()
        if ms >= bar or ms - usual[why] >= _HIDDEN * one.before_ms
    ]  # fmt: skip
    named.sort(key=lambda each: -each[0])
    causes = []
    for why in dict.fromkeys(why for _, why, _ in named):
        ms, first = next((ms, one) for ms, kind, one in named if kind is why)  # the rank that shows it most
        fitting = (line for line in first.lines if line.input is (why is Why.INPUT))
        line = next(fitting, next(iter(first.lines), None)) if why in (Why.HOST, Why.INPUT) else None
        where = tuple(sorted(one.rank for _, kind, one in named if kind is why))
        causes.append(Cause(why, where, ms, line, others=first.others if why is Why.CORES else ()))
    return causes


def _waits_too(one: RankEvidence, excess: float) -> bool:
    """Whether the rank that others wait for waits longer itself, beyond chance: something else is slow too."""
    then, grew = (sum(kinds.get(kind, 0.0) for kind in _WAITING) for kinds in (one.before_kinds_ms, one.grew_ms))
    off = 0.0
    for ms, whole, looks in ((then, one.before_ms, one.looks[0]), (then + grew, one.now_ms, one.looks[1])):
        part = min(max(ms / whole, 0.05), 0.95)
        off += whole * whole * part * (1 - part) * _WEIGHTS / max(looks, 1)
    return grew - _WAITS_SIGMA * sqrt(off) >= _WAITS_PART * excess


def _indirect(ranks: Sequence[RankEvidence], excess: float, *, sure: bool) -> Cause:
    """What is left where no rank's own work grew: the exchange between them, or their GPUs."""
    everyone = tuple(one.rank for one in ranks)
    waits = [sum(one.grew_ms.get(kind, 0.0) for kind in _WAITING) for one in ranks]
    if median(waits) < _PART * excess:
        return Cause(Why.UNKNOWN, everyone, excess)
    if any(one.on_gpu for one in ranks):
        changed = min(one.held for one in ranks) > _HELD_MORE  # on all of them: one alone does something of its own
        return Cause(Why.WORKLOAD if changed else Why.DEVICE, everyone, excess, sure=sure)
    crowded = [
        one for one in ranks
        if one.crowd_pct >= _CROWD_PCT and (one.cores_ms is None or one.cores_ms >= _CROWD_PART * excess)
    ]  # fmt: skip
    if crowded:
        return Cause(Why.CORES, tuple(one.rank for one in crowded), excess, others=crowded[0].others)
    return Cause(Why.EXCHANGE if len(ranks) > 1 else Why.UNKNOWN, everyone, excess, sure=sure)


def _from_outside(ranks: Sequence[RankEvidence]) -> Cause | None:
    """What the machine itself reports: no sample is needed for it."""
    if strange := [one for one in ranks if one.strangers]:
        pids = tuple(sorted({pid for one in strange for pid in one.strangers}))
        return Cause(Why.STRANGER, tuple(one.rank for one in strange), strangers=pids)
    if held := [one for one in ranks if one.throttle is not None]:
        return Cause(Why.THROTTLE, tuple(one.rank for one in held), throttle=held[0].throttle)
    if retrying := [one for one in ranks if one.retries >= 0.1]:
        return Cause(Why.ALLOCATOR, tuple(one.rank for one in retrying))
    return None


class _Looks(Struct, frozen=True):
    """Where one rank's host was seen, ms per step by kind of its own work (None: it waits), in so many looks. excess:
    by how much steps became longer, beyond `before`."""

    before: dict[Why | None, float]
    seen: dict[Why | None, float]
    now_ms: float
    excess: float
    count: float

    @classmethod
    def of(cls, one: RankEvidence, known: Mapping[Why, float] | None = None) -> _Looks:
        """Of what is known of a rank. known: ms that grew for reasons that were measured."""
        was, grew = ({why: sum(side.get(kind, 0.0) for kind in kinds) for why, kinds in _GROUPS.items()}
                     for side in (one.before_kinds_ms, one.grew_ms))  # fmt: skip
        before = {why: ms + (known or {}).get(why or Why.UNKNOWN, 0.0) for why, ms in was.items()}
        excess = max(one.now_ms - sum(before.values()), 0.0) if known else one.now_ms - one.before_ms
        count = 1 / (1 / max(one.looks[0], 1) + 1 / max(one.looks[1], 1)) / _WEIGHTS
        return cls(before, {why: max(was[why] + grew[why], 0.0) for why in _GROUPS}, one.now_ms, excess, count)

    def likelihood(self, expected: Mapping[Why | None, float]) -> float:
        """Its logarithm, of where a host was seen if this was expected, in ms."""
        least = _LEAST_SHARE * self.now_ms
        seen, whole = (sum(kinds.values()) + len(kinds) * least for kinds in (self.seen, expected))
        parts = ((self.seen[why] + least) / seen * log((ms + least) / whole) for why, ms in expected.items())
        return self.count * sum(parts)

    def grown(self, kinds: Mapping[Why, float]) -> float:
        """The log likelihood that these kinds grew by so much, and the rank waits for the rest."""
        expected = {why: ms + kinds.get(why or Why.UNKNOWN, 0.0) for why, ms in self.before.items()}
        return self.likelihood({**expected, None: self.before[None] + self.excess - sum(kinds.values())})

    def chosen(self, least: float) -> tuple[dict[Why, float], float]:
        """The kinds that grew, one after the other as long as that fits better by `least`; and how well kinds fit."""
        found, fits, own = dict[Why, float](), self.grown({}), -inf
        while left := [why for why in _OWN if why not in found]:
            room = self.excess - sum(found.values())
            tried = ({**found, why: min(max(self.seen[why] - self.before[why], 0.0), room)} for why in left)
            better = max(tried, key=self.grown)
            now = self.grown(better)
            own = max(own, now - len(better) * _NAMED)
            if now - fits < least:
                break
            found, fits = better, now
        return found, own


def _fits(one: RankEvidence, least: float) -> tuple[float, float, float]:
    """How well explanations fit where one rank's host was seen, as log likelihoods: it does more of some kinds of its
    own work; it waits longer; it does more of everything. least: by how much another kind has to fit better."""
    looks = _Looks.of(one)
    if not sum(looks.seen.values()):
        return 0.0, 0.0, -1.0
    _, own = looks.chosen(least)
    more = looks.likelihood({why: ms * one.now_ms / one.before_ms for why, ms in looks.before.items()})
    return own, looks.grown({}) + _of_core(one, 0.0), more + _of_core(one, looks.excess / one.before_ms)


def _of_core(one: RankEvidence, part: float) -> float:
    """The log likelihood of what a rank's main thread ran longer, if it were such a part of what it ran before. Only of
    hosts that sleep where they wait; one that waits for a GPU may run."""
    ran = one.before_ran_ms
    if one.ran_ms is None or ran is None or one.on_gpu or ran > _RUNS_PART * one.before_ms:
        return 0.0
    apart = (one.ran_ms - part * ran) / (_RUNS_OFF * one.before_ms + 0.1 * ran)
    return -min(apart * apart / 2, _RUNS_MOST)


def _of_rank(one: RankEvidence, ranks: Sequence[RankEvidence], excess: float, least: float) -> dict[Why, float]:
    """What of a rank's own grew, and by how much: what was measured, and where its host was seen beyond that."""
    grew, least_ms = _Looks.of(one).chosen(least)[0], _PART * excess
    by_lines = _by_lines(one, ranks, least, min(least_ms, _HIDDEN * one.before_ms))
    measured, known = dict[Why, float](), dict.fromkeys(_OWN, 0.0)
    if one.garbage_ms >= least_ms:
        measured[Why.GARBAGE] = known[Why.HOST] = one.garbage_ms
        by_lines.pop(Why.HOST, None)
    elif one.faults >= 1.0 and max(grew.values(), default=0.0) >= least_ms:
        return {Why.PAGING: max(grew.values())}
    brought = _where_it_waited(one, ranks)
    beyond = sum(grew.values()) - sum(brought.values())
    waited = _waited_for_cores(one, beyond if beyond >= least_ms else 0.0)
    if waited >= least_ms:
        measured[Why.CORES] = waited
        by_lines = {why: ms for why, ms in by_lines.items() if not brought[why]}
        if beyond < least_ms:
            return by_lines | measured
        known = {why: ms + brought[why] for why, ms in known.items()}
    return by_lines | (measured | _Looks.of(one, known).chosen(least)[0] if measured else grew)


def beyond_chance(counts: tuple[int, int], steps: tuple[float, float]) -> float:
    """How little chance explains that something is seen so often now, after so often before, if it takes as long in a
    step: a log likelihood ratio. steps: looks per ms of a step, before and now."""
    before, now = (count / _WEIGHTS for count in counts)
    if not all(steps) or now / steps[1] <= before / steps[0]:
        return 0.0
    rate = (before + now) / sum(steps)
    return sum(count * log(count / (rate * part)) for count, part in zip((before, now), steps, strict=True) if count)


def _by_lines(one: RankEvidence, ranks: Sequence[RankEvidence], least: float, least_ms: float) -> dict[Why, float]:
    """Kinds of a rank's own work of which a line grew beyond chance, and by so much more than on other ranks."""
    found: dict[Why, float] = {}
    for line in one.grown:
        if (why := _BY_KIND.get(line.kind)) is None or line.surprise < least + _OF_LINES:
            continue
        place = line.file, line.line, line.kind
        others = [sum(each.ms for each in other.grown if (each.file, each.line, each.kind) == place)
                  for other in ranks if other is not one]  # fmt: skip
        ms = line.ms - (median(others) if others else 0.0)
        if ms >= least_ms and (others or line.ms > _ALIKE * line.before_ms):
            found[why] = max(found.get(why, 0.0), ms)
    return found


def _where_it_waited(one: RankEvidence, ranks: Sequence[RankEvidence]) -> dict[Why, float]:
    """In which work of its own a rank waited longer for cores: as on others that did so, else where it could be."""
    cores = one.cores_ms or 0.0
    others = [other for other in ranks if other is not one and (other.cores_ms or 0.0) > _LIKE * cores]
    sides = [other.grew_ms for other in others] or [one.before_kinds_ms]
    ms = {why: median(max(sum(side.get(kind, 0.0) for kind in _GROUPS[why]), 0.0) for side in sides) for why in _OWN}
    whole = sum(ms.values())
    part = cores / max(whole, 1e-9) if whole > cores or not others else 1.0
    return {why: own * part for why, own in ms.items()} if whole else {**ms, Why.HOST: 0.0 if others else cores}


def _waited_for_cores(one: RankEvidence, beyond: float) -> float:
    """By how much longer a rank waited for a core, where that is a cause by itself: 0 where it ran longer by as much.
    beyond: ms of other work that grew, which brings along waits as before."""
    cores, ran = one.cores_ms or 0.0, one.ran_ms or 0.0
    if beyond:
        cores -= max(ran, 0.0) * (one.before_cores_ms or 0.0) / max(one.before_ran_ms or 0.0, 1e-9)
    return cores if cores > 1.5 * (ran - beyond) else 0.0


def _has_own_cause(one: RankEvidence, excess: float) -> bool:
    """Whether something else than more work makes a rank's steps longer, or may."""
    grew = one.grew_ms.get("own", 0.0)
    if one.garbage_ms >= _PART * excess or (one.cores_ms or 0.0) >= _PART * excess:
        return True
    in_proportion = (one.before_ran_ms or grew) * excess / one.before_ms
    if one.ran_ms is not None and one.ran_ms < _RAN_TOO * min(grew, in_proportion):
        return True
    if not one.before_kinds_ms.get("own") or not one.before_kinds_ms.get("backward"):
        return True
    usual = one.now_ms / one.before_ms
    return any(line.ms > 0.3 * excess and line.ms > _ALIKE * usual * max(line.before_ms, 0.1) for line in one.lines[:1])
