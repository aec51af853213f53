"""One job as it goes on: what its ranks write comes in, detections come out. Nothing here reads a file or a clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import sqrt
from statistics import median
from typing import Any, Protocol

from traceops.core.live_pulses import KINDS
from traceops.live import findings
from traceops.live.machines import MachineReader
from traceops.live.measures import (
    FIRST,
    KEPT,
    Change,
    Goodput,
    RankState,
    at_peaks,
    held_at_peaks,
    seen_ms,
    steady_growth,
    where_seen,
)  # fmt: skip
from traceops.live.stream import LineReader, LineTime, RankLook

_LOOKS = 90  # at each rank's host since the change, after which the cause is judged
_NOTED_PCT = 10.0
_FEW = 10
_STEPS, _MOSTLY = 8, 0.6  # since the change, before a cause is named, and the part of them that is slow
_SURPRISE = 22.0  # and by how much chance is too unlikely to make them so, where some were as slow before
_LEAST = 1.10  # times the usual step, where a cause is named
_LEAST_UNEXPLAINED = 1.15  # where none is found: long runs drift by less
_SOON_S, _LATE_S = 3.0, 8.0  # and no sooner and no later than so long after it was seen
_UNKNOWN_S = 14.0  # until then a cause that does not show is looked for again
# After a cause was named: whether there is another one, first so soon; and how long hosts are seen closely for that.
_AGAIN_S, _SOON_AGAIN, _MOST_AGAIN_S, _CLOSER_S = 4.0, 8, 600.0, 4.0
_MOST_RANKS = 16  # whose lines are read for one change
_NOTABLE = 3.0  # log likelihood from which on a line that was seen more often is looked at
_STUCK_S, _STUCK_STEPS, _STUCK_LONGEST = 8.0, 10, 3
_PATIENT = 10  # times as long where a rank is seen to do one of these: a new epoch waits for its input
_PATIENT_KINDS = ("evaluation", "checkpoint", "compiling", "input")
_SILENT_S = 4.0
_ALLOCATES = 24 << 20  # bytes per second
_OF_HELD = 60  # pulses before a change
_GROWS_EVERY, _GROWS_ALL = 2, 20  # pulses between two judgements, and between those of all whiles
_GROWS_PULSES = 80  # that a judgement in between looks at
_STARVED, _STARVED_S, _STARVED_LOOKS = 0.3, 20.0, 40
_LAG_LOOKS, _LAG_PART, _LAG_SIGMA = 400, 0.25, 6.0
_LAG_WEIGHTS = 3.0  # looks that count as one, because they weigh unlike
_WAITING = ("waiting", "backward")


class Sources(Protocol):
    """Where the job finds what it does not read all the time. host_bytes: the memory of this host."""

    host_bytes: int

    def lines(self, rank: int) -> LineReader:
        """What one rank's host was seen on."""
        ...

    def machine(self, rank: int) -> MachineReader | None:
        """The host that a rank runs on."""

    def closer(self) -> None:
        """Ask all ranks for more looks at their hosts, for some seconds."""


class _Episode:
    """A slowdown that goes on."""

    def __init__(self, now_ns: int, since_ns: int, step: int) -> None:
        self.seen_ns, self.since_ns, self.step = now_ns, since_ns, step
        self.reported: list[findings.Cause] = []
        self.suspected: list[findings.Cause] = []  # by the latest judgement
        self.noted = self.closely = False
        self.again = 0
        self.again_ns, self.pause_s = 0, _AGAIN_S  # when it is asked again for other causes
        self.from_ns = since_ns  # what is seen from then on counts

    @property
    def has_cause(self) -> bool:
        """Whether something was named that is more than other work of the program."""
        return any(cause.why not in findings.HARMLESS for cause in self.reported)


class Job:
    """The whole of it; `take` what all ranks have written since the last time, about once a second."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self.ranks: dict[int, RankState] = {}
        self.goodput = Goodput()
        self._episode: _Episode | None = None
        self._stuck_since: int | None = None
        self._said: set[tuple[str, int]] = set()
        self._before_ns: int | None = None
        self._skipped: dict[int, tuple[int, int]] = {}  # by rank: steps of before this monitor, and their µs
        self._starved_since: int | None = None

    @property
    def slow(self) -> bool:
        """Whether a slowdown goes on."""
        return self._episode is not None and bool(self._episode.reported)

    @property
    def ended(self) -> bool:
        """Whether all ranks have ended by themselves."""
        return bool(self.ranks) and all(state.ended for state in self.ranks.values())

    @property
    def saves_or_evaluates(self) -> bool:
        """Whether a rank was seen in a checkpoint or an evaluation in the last seconds."""
        for state in self.ranks.values():
            pulses = state.latest(6)
            if len(pulses) > 1:
                seen = seen_ms(pulses[0], pulses[-1])
                if seen["checkpoint"] + seen["evaluation"] > 0.3 * sum(seen.values()) > 0:
                    return True
        return False

    def take(self, looks: Sequence[RankLook], now_ns: int) -> list[findings.Detection]:
        """What is found by now."""
        seen: dict[int, dict[str, float]] = {}
        for look in looks:
            state = self.ranks.setdefault(look.rank, RankState(look.rank))
            seen[look.rank] = state.take(look)
            if look.skipped[0]:
                self._skipped[look.rank] = look.skipped
        found = self._judge_pace(now_ns)
        stuck = self._judge_progress(now_ns)
        found += stuck
        self._account(looks, seen, now_ns)
        alive = [state for state in self.ranks.values() if not state.ended]
        for state in alive:
            found += self._once(self._grows(state), now_ns, ("memory", state.rank))
        found += self._starved(alive, now_ns)
        found += self._once(self._lags(alive), now_ns, ("lags", 0), page=False)
        return found

    # How fast.

    def _judge_pace(self, now_ns: int) -> list[findings.Detection]:
        changes = {
            state.rank: state.pace.change
            for state in self.ranks.values()
            if state.pace.change is not None and not state.ended
        }
        episode = self._episode
        if not changes:
            self._episode = None
            if episode is None or not episode.reported or self.ended:
                return []
            lasted = (now_ns - episode.since_ns) / 1e9
            claim = findings.AsBefore(ranks=tuple(self.ranks), step=self._step(), seconds=lasted)
            return [findings.Detection(claim=claim, since_ns=now_ns, seen_ns=now_ns, page=False)]
        if episode is None:
            step = min(change.since for change in changes.values())
            # when this step began, as far as pulses tell; Unix ns
            times = []
            for state in self.ranks.values():
                _, since = state.around(step)
                if since and since[0].steps >= step:
                    first = since[0]
                    ms = state.pace.usual_ms if state.pace.change is None else state.pace.change.now_ms
                    times.append(first.begun_ns - int((first.steps - step) * ms * 1e6))
            self._episode = _Episode(now_ns, min(times, default=now_ns), step)
            self._sources.closer()
            return []
        found = []
        percent = 100 * (median(change.now_ms / change.before_ms for change in changes.values()) - 1)
        if not episode.noted and percent >= _NOTED_PCT:
            episode.noted = True
            noted = findings.Changed(ranks=tuple(changes), step=episode.step, percent=percent)
            found.append(findings.Detection(claim=noted, since_ns=episode.since_ns, seen_ns=now_ns, page=False))
        return found + self._causes(changes, episode, now_ns)

    def _causes(self, changes: Mapping[int, Change], episode: _Episode, now_ns: int) -> list[findings.Detection]:
        """What makes the steps longer, once enough is known, and later what does so too."""
        waited = (now_ns - episode.seen_ns) / 1e9
        if not (self._is_due_again(episode, now_ns) if episode.reported else self._is_due(episode, waited)):
            return []
        if not self._is_still_slow(changes, episode):
            return []
        found = []
        evidence = [
            self._evidence(self.ranks[rank], change, episode, now_ns, at < _MOST_RANKS)
            for at, (rank, change) in enumerate(changes.items())
        ]
        causes = findings.causes_of(evidence)
        # Once something is named, what else shows has to do so twice: a few seconds have long steps by chance.
        before, episode.suspected = episode.suspected if episode.reported else causes, causes
        for cause in causes:
            if not _is_among(cause, before):
                continue
            if not self._may_be_named(cause, len(causes) == 1, episode, waited):
                continue
            if not _is_among(cause, episode.reported):
                episode.reported.append(cause)
                found.append(self._slower(cause, changes, episode, now_ns))
            if cause.why is findings.Why.WORKLOAD:
                for state in self.ranks.values():
                    state.pace.accept()
                self._episode = None
        if not episode.reported:
            self._sources.closer()  # more looks may decide it
        else:
            episode.again_ns = now_ns + int(episode.pause_s * 1e9)
            episode.again, episode.closely = episode.again + 1, False
            if episode.again >= _SOON_AGAIN:
                episode.pause_s = min(2 * episode.pause_s, _MOST_AGAIN_S)
        return found

    def _may_be_named(self, cause: findings.Cause, alone: bool, episode: _Episode, waited: float) -> bool:
        """Whether a cause that shows may be reported by now."""
        if cause.why in findings.INDIRECT and episode.has_cause and alone:
            return False  # what was named goes on, and nothing else shows
        if waited < _UNKNOWN_S and (cause.why in findings.INDIRECT or not cause.sure):
            return False
        if cause.why is not findings.Why.HOST or alone:
            return True
        return not all(self._allocates(rank, episode) for rank in cause.ranks)  # this is reported by itself

    def _allocates(self, rank: int, episode: _Episode) -> bool:
        """Whether the memory of this rank's host has grown fast since the change: its line is busy with that."""
        _, since = self.ranks[rank].around(episode.step)
        if len(since) < 2:
            return False
        return since[-1].resident - since[0].resident > _ALLOCATES * (since[-1].time_ns - since[0].time_ns) / 1e9

    def _is_still_slow(self, changes: Mapping[int, Change], episode: _Episode) -> bool:
        """Whether most steps take longer by a good part, the last ones too: some long ones, by chance, are over."""
        count = self._step() - episode.step
        since = median(change.now_ms / change.before_ms for change in changes.values())
        if count < _STEPS or since < _LEAST:
            return False
        bounds = {rank: 0.6 * change.before_ms + 0.4 * change.now_ms for rank, change in changes.items()}
        slow = (min(self.ranks[rank].part_above(ms, steps) for steps in (count, 5)) for rank, ms in bounds.items())
        if median(slow) < _MOSTLY:
            return False
        return median(self.ranks[rank].surprise(ms, episode.step) for rank, ms in bounds.items()) >= _SURPRISE

    def _is_due(self, episode: _Episode, waited: float) -> bool:
        """Whether there were looks enough at hosts to name a first cause. waited: seconds since the change was seen."""
        # The rank whose host has the fewest looks decides.
        counts = []
        for state in self.ranks.values():
            _, since = state.around(episode.step)
            counts.append(since[-1].looks - since[0].looks if since else 0)
        if (looks := min(counts, default=0)) < _LOOKS:
            self._sources.closer()
        if looks >= _LOOKS:
            return waited >= _SOON_S
        return waited >= (_LATE_S if looks >= _FEW else _UNKNOWN_S)

    def _is_due_again(self, episode: _Episode, now_ns: int) -> bool:
        """Whether to see if something else makes steps longer too: by closer looks at all hosts from just before on."""
        left_s = (episode.again_ns - now_ns) / 1e9
        if left_s > _CLOSER_S:
            return False
        if not episode.closely:
            episode.closely, episode.from_ns = True, now_ns
            self._sources.closer()
        return left_s <= 0

    def _slower(
        self, cause: findings.Cause, changes: Mapping[int, Change], episode: _Episode, now_ns: int
    ) -> findings.Detection:
        before = median(change.before_ms for change in changes.values())
        now = median(change.now_ms for change in changes.values())
        reason, mhz_before, mhz_now = cause.throttle or (None, None, None)
        claim = findings.Slower(
            ranks=cause.ranks, step=episode.step, cause=cause.why.value, before_ms=before, now_ms=now,
            percent=100 * (now - before) / before, cost_ms=cause.ms or None,
            function=None if cause.line is None else cause.line.function, others=", ".join(cause.others) or None,
            pids=", ".join(map(str, cause.strangers)) or None, reason=reason, mhz_before=mhz_before, mhz_now=mhz_now,
            **_place(cause.line),
        )  # fmt: skip
        drifts = cause.why is findings.Why.UNKNOWN and now < _LEAST_UNEXPLAINED * before
        page = cause.why not in findings.HARMLESS and not drifts
        return findings.Detection(claim=claim, since_ns=episode.since_ns, seen_ns=now_ns, page=page)

    def _evidence(
        self, state: RankState, change: Change, episode: _Episode, now_ns: int, with_lines: bool
    ) -> findings.RankEvidence:
        before, since = state.around(change.since)
        since = [pulse for pulse in since if pulse.time_ns >= episode.from_ns] or since
        first = max(change.since, since[0].steps if since else 0)
        long = state.long_ones(change.now_ms)
        seen = where_seen(before, long), where_seen(since, long)
        then, now = seen[0].of_step(change.before_ms), seen[1].of_step(change.now_ms)
        grew = {kind: now.get(kind, 0.0) - then.get(kind, 0.0) for kind in KINDS} if then and now else {}
        machine = self._sources.machine(state.rank)
        begun_ms = before[0].time_ns / 1e6 if before else 0.0
        times_ms = begun_ms, episode.since_ns / 1e6, now_ns / 1e6
        host = {} if machine is None else machine.evidence(state.rank, change, *times_ms)
        steps = since[-1].steps - since[0].steps if len(since) > 1 else 0
        held_then, held_now = held_at_peaks(before[-_OF_HELD:]), held_at_peaks(since)
        return findings.RankEvidence(
            rank=state.rank, before_ms=change.before_ms, now_ms=change.now_ms, grew_ms=grew, before_kinds_ms=then,
            looks=(seen[0].looks, seen[1].looks),
            lines=self._longer_lines(state.rank, change, first) if with_lines else (),
            grown=self._grown_lines(state, change, first, long) if with_lines else (),
            retries=(since[-1].retries - since[0].retries) / steps if steps else 0.0,
            held=held_now / held_then if held_then and held_now else 1.0,
            garbage_ms=state.garbage_grew_ms(change.since, first),
            on_gpu=bool(state.pulse and state.pulse.total), **host,
        )  # fmt: skip

    def _lines(self, rank: int) -> LineReader:
        """What the rank's host was seen on until now."""
        lines = self._sources.lines(rank)
        lines.read()
        return lines

    def _longer_lines(self, rank: int, change: Change, first: int) -> tuple[LineTime, ...]:
        """The lines that take most of what steps became longer by."""
        lines = self._lines(rank)
        before, _ = lines.shares(range(FIRST, change.since))
        since, _ = lines.shares(range(first, 1 << 62))
        grew = {
            frame: since.get(frame, 0.0) * change.now_ms - before.get(frame, 0.0) * change.before_ms for frame in since
        }
        most = sorted(grew.items(), key=lambda one: -one[1])[:6]
        longer = [lines.line(frame, ms, before.get(frame, 0.0) * change.before_ms) for frame, ms in most if ms > 0]
        return tuple(line for line in longer if ".backward(" not in line.text)

    def _grown_lines(self, state: RankState, change: Change, first: int, long: Collection[int]) -> tuple[LineTime, ...]:
        """Lines that were seen more often than chance explains, since the change or of late; what grew most first."""
        lines = self._sources.lines(state.rank)
        without = set(long)
        took_ms = {number: ms for number, ms, _ in state.history if number not in without}
        before, then = lines.looks(range(FIRST, change.since), took_ms)
        grown: dict[tuple[int, str], LineTime] = {}
        for start in {change.since, first}:
            since, now = lines.looks(range(start, 1 << 62), took_ms)
            for (frame, kind), count in since.items():
                ms, was = count / now, before[frame, kind] / then if then else 0.0
                surprise = findings.beyond_chance((before[frame, kind], count), (then, now))
                known = grown.get((frame, kind))
                if ms > was and surprise > (_NOTABLE if known is None else known.surprise):
                    grown[frame, kind] = lines.line(frame, ms - was, was, kind, surprise)
        return tuple(sorted(grown.values(), key=lambda line: -line.ms))

    def _step(self) -> int:
        return max((state.steps for state in self.ranks.values()), default=0)

    # Whether at all.

    def _judge_progress(self, now_ns: int) -> list[findings.Detection]:
        alive = [state for state in self.ranks.values() if not state.ended and state.pulse is not None]
        if not alive or any(state.steps < 5 for state in alive) or len(alive) < len(self.ranks):
            self._stuck_since = None
            return []
        pulses = [state.pulse for state in alive if state.pulse is not None]
        age_s = min((now_ns - pulse.begun_ns) / 1e9 for pulse in pulses)
        usual_s = median(state.pace.usual_ms for state in alive) / 1000
        longest_s = max(state.longest_ms for state in alive) / 1000
        limit = max(_STUCK_S, _STUCK_STEPS * usual_s, _STUCK_LONGEST * longest_s)
        if age_s < limit:
            self._stuck_since = None
            return []
        patient = age_s < _PATIENT * limit and any(_is_patient(state) for state in alive)
        if patient or self._stuck_since is not None:
            return []
        self._stuck_since = now_ns
        how, ranks = _who_holds_up(alive, now_ns)
        line = self._latest_line(ranks[0]) if how == "busy" else None
        step = min(pulse.steps for pulse in pulses)
        claim = findings.Stuck(ranks=ranks, step=step, seconds=age_s, how=how, **_place(line))
        return [findings.Detection(claim=claim, since_ns=now_ns - int(age_s * 1e9), seen_ns=now_ns)]

    def _latest_line(self, rank: int) -> LineTime | None:
        lines = self._lines(rank)
        shares, _ = lines.shares(range(self.ranks[rank].steps, 1 << 62))
        most = max(shares, key=shares.__getitem__, default=None)
        return None if most is None else lines.line(most, 0.0)

    # Memory, input, ranks that lag.

    def _once(
        self, claim: findings.LiveClaim | None, now_ns: int, key: tuple[str, int], *, page: bool = True
    ) -> list[findings.Detection]:
        if claim is None or key in self._said:
            return []
        self._said.add(key)
        return [findings.Detection(claim=claim, since_ns=now_ns, seen_ns=now_ns, page=page)]

    def _grows(self, state: RankState) -> findings.MemoryGrows | None:
        """Memory that grew all the time, for some while until now, and is full before long."""
        pulse = state.pulse
        known = ("memory", state.rank) in self._said
        if pulse is None or pulse.number < state.weighed + _GROWS_EVERY or known or pulse.steps <= 2 * FIRST:
            return None
        all_whiles = pulse.number // _GROWS_ALL > state.weighed // _GROWS_ALL
        state.weighed = pulse.number
        pulses = [one for one in state.latest(KEPT if all_whiles else _GROWS_PULSES) if one.steps > 2 * FIRST]
        for where, limit in (("gpu", pulse.total), ("host", self._sources.host_bytes)):
            held = at_peaks([one.held for one in pulses]) if where == "gpu" else [one.resident for one in pulses]
            sizes = [(one.time_ns / 1e9, size) for one, size in zip(pulses, held, strict=True)]
            if (grows := steady_growth(sizes)) is None:
                continue
            per_minute, horizon = grows
            left = max(limit - sizes[-1][1], 0) / per_minute
            if left <= horizon:
                return findings.MemoryGrows(
                    ranks=(state.rank,), step=state.steps, where=where, per_minute=per_minute, minutes=left
                )
        return None

    def _starved(self, alive: Sequence[RankState], now_ns: int) -> list[findings.Detection]:
        shares = {}
        for state in alive:
            pulses = [pulse for pulse in state.latest(int(2 * _STARVED_S)) if pulse.steps > FIRST]
            if len(pulses) < 1.6 * _STARVED_S or pulses[-1].looks - pulses[0].looks < _STARVED_LOOKS:
                continue
            seen = seen_ms(pulses[0], pulses[-1])
            shares[state.rank] = seen["input"] / max(sum(seen.values()), 1e-9)
        if not (hungry := {rank: share for rank, share in shares.items() if share >= _STARVED}):
            return []
        claim = findings.Starved(ranks=tuple(hungry), step=self._step(), percent=100 * max(hungry.values()))
        return self._once(claim, now_ns, ("starved", 0), page=False)

    def _lags(self, alive: Sequence[RankState]) -> findings.Lags | None:
        """A rank that does more than the others in each step, since the start or for minutes."""
        if ("lags", 0) in self._said or len(alive) < 2 or self._episode or self._stuck_since:
            return None
        if any(not state.pace.usual_ms for state in alive):
            return None
        own: dict[int, tuple[float, int]] = {}
        for state in alive:
            first, last = next((pulse for pulse in state.pulses if pulse.steps > FIRST), None), state.pulse
            if first is None or last is None or (looks := last.looks - first.looks) < _LAG_LOOKS:
                return None
            seen = seen_ms(first, last)
            whole = max(sum(seen.values()), 1e-9)
            busy = whole - sum(seen[kind] for kind in _WAITING) - seen["evaluation"] - seen["checkpoint"]
            own[state.rank] = busy / whole, looks
        most = max(own, key=lambda rank: own[rank][0])
        share, looks = own[most]
        others = median(part for rank, (part, _) in own.items() if rank != most)
        sigma = sqrt(2 * max(others * (1 - others), 0.05) * _LAG_WEIGHTS / looks)
        if share - others < max(_LAG_PART, _LAG_SIGMA * sigma):
            return None
        behind_ms = (share - others) * self.ranks[most].pace.usual_ms
        return findings.Lags(
            ranks=(most,), step=self._step(), behind_ms=behind_ms, percent=100 * (share - others),
            **_place(self._top_line(most)),
        )  # fmt: skip

    def _top_line(self, rank: int) -> LineTime | None:
        lines = self._lines(rank)
        shares, _ = lines.shares(range(FIRST, 1 << 62))
        most = [lines.line(frame, 0.0) for frame in sorted(shares, key=lambda frame: -shares[frame])[:4]]
        return next((line for line in most if line.text and ".backward(" not in line.text), None)

    # Where the time goes.

    def _account(self, looks: Sequence[RankLook], seen: Mapping[int, dict[str, float]], now_ns: int) -> None:
        """Charge the time since the last look, as the lowest rank that is alive spent it."""
        before, self._before_ns = self._before_ns, now_ns
        first = min(looks, key=lambda look: look.rank, default=None)
        if before is None or first is None:
            return
        state = self.ranks[first.rank]
        if first.rank in self._skipped and state.pace.usual_ms:
            count, us = self._skipped.pop(first.rank)
            self.goodput.steps(us / 1000, state.pace.usual_ms, count, {}, False)
        if first.anew:
            self.goodput.add("restart", (now_ns - before) / 1e9)
        elif not state.steps:
            self.goodput.add("start", (now_ns - before) / 1e9)
        elif first.steps:
            whole = sum(step.us for step in first.steps) / 1000
            told = dict(seen.get(first.rank, {}))
            told["compiling"] = max(told.get("compiling", 0.0), sum(step.compile_us for step in first.steps) / 1000)
            self.goodput.steps(whole, state.pace.usual_ms, len(first.steps), told, self.slow)
        elif self._stuck_since is not None:
            self.goodput.add("hang", (now_ns - before) / 1e9)


def _is_among(cause: findings.Cause, causes: Sequence[findings.Cause]) -> bool:
    """Whether one of these is of the same kind, on some of its ranks."""
    return any(one.why is cause.why and set(one.ranks) & set(cause.ranks) for one in causes)


def _is_patient(state: RankState) -> bool:
    """Whether the rank's host is seen to evaluate, save, compile or wait for input in the step that goes on."""
    seen = state.seen_in_step()
    return sum(seen.get(kind, 0.0) for kind in _PATIENT_KINDS) > 0.5 * sum(seen.values()) > 0


def _place(line: LineTime | None) -> dict[str, Any]:
    """A claim's fields on a line of the program."""
    return {} if line is None else {"text": line.text, "place": f"{line.file}:{line.line}"}


def _who_holds_up(alive: Sequence[RankState], now_ns: int) -> tuple[str, tuple[int, ...]]:
    """Which ranks the others wait for, and how that shows."""
    last = {state.rank: state.pulse for state in alive if state.pulse is not None}
    silent = tuple(rank for rank, pulse in last.items() if now_ns - pulse.time_ns > _SILENT_S * 1e9)
    if silent and len(silent) < len(last):
        return "silent", silent
    least = min(pulse.steps for pulse in last.values())
    behind = tuple(rank for rank, pulse in last.items() if pulse.steps == least)
    if len(behind) < len(last):
        return "behind", behind
    busy = []
    for state in alive:
        seen = state.seen_in_step()
        if sum(seen.get(kind, 0.0) for kind in _WAITING) < 0.5 * sum(seen.values()):
            busy.append(state.rank)
    return ("busy", tuple(busy)) if busy and len(busy) < len(alive) else ("all_wait", tuple(last))
