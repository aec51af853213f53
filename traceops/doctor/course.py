"""The tests of a checkup: what is run, in what order and within what time, and what is tried when it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from traceops.doctor.assess import (
    FAR_BELOW,
    OF_ITS_PAST,
    OF_THE_NETWORK,
    SLOWEST_NETWORK_GBS,
    Assessment,
    assess,
    large_all_reduce,
    link_gbs,
)
from traceops.doctor.candidates import words
from traceops.doctor.configuration import Configuration
from traceops.doctor.job import LAUNCH, SIZES
from traceops.doctor.model import Change, Trial
from traceops.doctor.runs import Ask, Runner, Scope, stages_of
from traceops.doctor.situation import Situation
from traceops.doctor.surroundings import Surroundings
from traceops.doctor.treat import WORTH_IT, NoTime, Treatment, Tried, choose, treat
from traceops.topology.model import Machine, Measured, Reference

ALL_STAGES = stages_of("start", "all_reduce", "pairs", "ddp_step", "sweep", "pair_bandwidth")
QUICK_STAGES = stages_of("start", "all_reduce", "ddp_step", "sweep")
_PATIENT = {LAUNCH: 90.0, "start": 40.0, "all_reduce": 30.0, "pairs": 50.0, "ddp_step": 30.0}
_SHORT = {
    LAUNCH: 60.0, "start": 20.0, "all_reduce": 12.0, "pairs": 30.0, "ddp_step": 20.0, "sweep": 20.0,
    "pair_bandwidth": 20.0,
}  # fmt: skip
_LEAST_S = 12.0  # a try takes about as long: processes, torch, NCCL
_FULL_S = 25.0
_QUICK_SIZES = 2


@dataclass
class Course:
    """What is run goes through here, and what came of it is kept, also where a node is lost on the way.

    machines, around: of all nodes. past: what this machine gave before. until: by this process's monotonic clock.
    costly: variables of the environment that cost speed. enough_gbs: from here a large all-reduce is not slow.
    alone: the test of one device by itself.
    """

    runner: Runner
    machines: tuple[Machine, ...]
    around: tuple[Surroundings, ...]
    costly: tuple[str, ...]
    past: Reference | None
    until: float
    quick: bool = False
    logs: Path | None = None
    tell: Callable[[str], None] = lambda text: None
    trials: list[Trial] = field(default_factory=list)
    first: Configuration | None = None
    best: Configuration | None = None
    treatment: Treatment = field(default_factory=Treatment)
    enough_gbs: dict[Scope, float] = field(default_factory=dict)
    scope: Scope = "node"
    fallback: int | None = None
    untested: str = ""
    alone: tuple[Trial, ...] = ()

    def go(self) -> None:
        """Test everything; where that fails or is slow, try what may help, and test everything with it."""
        self.enough_gbs = self._enough()
        self.first = self.best = first = self._everything(Change())
        situation = self._situation(first)
        if first.node.hopeless or not (situation.broken or situation.slow or situation.costly):
            return
        without = self._without_culprit(first)
        self.treatment = treat(
            situation, self._attempt(situation), self.state.gbs, self.enough_gbs.get(self.scope)
        )
        if without is not None:
            chosen = self.treatment.chosen or (without if without.works else None)
            self.treatment = replace(self.treatment, tried=(without, *self.treatment.tried), chosen=chosen)
        self._hold_to_the_full_test(situation)
        if self.treatment.chosen is None and situation.broken and situation.world > 1:
            self.fallback = situation.world
            self.alone = self._alone()

    @property
    def state(self) -> Assessment:
        """Where the trouble is, or would be: of the first configuration, in the scope that was treated."""
        return self.first.of(self.scope) if self.first else Assessment()

    @property
    def before(self) -> Measured | None:
        """The large all-reduce of these same GPUs when this machine was last measured at its best."""
        rows = self.past.measured if self.past else ()
        return large_all_reduce([row for row in rows if set(row.gpus) == set(self.runner.tested)])

    def is_slow(self, configuration: Configuration | None, scope: Scope = "node") -> bool:
        """Whether a large all-reduce is far below what is known that it should give."""
        gbs = configuration.of(scope).gbs if configuration else None
        enough = self.enough_gbs.get(scope)
        return gbs is not None and enough is not None and gbs < enough

    def _left(self) -> float:
        """Seconds, as node 0 has them, so that all nodes stop at the same point."""
        return self.runner.nodes.first(self.until - time.monotonic(), float)

    def _enough(self) -> dict[Scope, float]:
        """Bus bandwidth from which a large all-reduce is not slow, GB/s, where anything is known to compare with."""
        machine = self.machines[self.runner.nodes.seat.node]
        link = link_gbs(machine, self.runner.tested) if self.runner.gpus else None
        inside = [] if link is None else [FAR_BELOW * link[1]]
        if self.before is not None:
            inside.append(OF_ITS_PAST * self.before.busbw_gbs)
        speeds = [nic.speed_gbs for nic in machine.nics if nic.speed_gbs and nic.up is not False]
        between = max(speeds) * OF_THE_NETWORK[self.runner.backend] if speeds else SLOWEST_NETWORK_GBS
        told = self.runner.nodes.gather((max(inside, default=0.0), between), tuple[float, float])
        scopes: tuple[Scope, ...] = ("node", "all") if len(told) > 1 else ("node",)
        known = {scope: min(found) for scope, found in zip(scopes, zip(*told, strict=True), strict=False)}
        return {scope: gbs for scope, gbs in known.items() if gbs}

    def _everything(self, change: Change) -> Configuration:
        left = max(self._left(), _FULL_S)
        stages = QUICK_STAGES if self.quick or left < 2 * _FULL_S else ALL_STAGES
        sizes = SIZES[self.runner.backend]
        ask = Ask(
            stages,
            change,
            _within(_PATIENT, left),
            sizes[-_QUICK_SIZES:] if self.quick else sizes,
            budget_s=min(10.0, left / 8),
        )
        with_it = f" ({words(change)})" if change.size else ""
        self.tell(f"testing {self._what()}{with_it}: {', '.join(stages)}")
        first_time = self.logs is not None and not change.size
        trials = self._run("node", ask, self.logs / "node" if first_time and self.logs else None)
        node = self._node(trials)
        alone = node.failed & {"start", "all_reduce"}  # then it does not work over all of them either
        if len(self.runner.counts) == 1 or node.hopeless or alone:
            return Configuration(change, trials, node)
        self.tell(f"testing all {len(self.runner.counts)} nodes together{with_it}")
        ask = replace(ask, stages=stages_of("start", "all_reduce", "ddp_step", "sweep"))
        together = self._run("all", ask, self.logs / "all" if first_time and self.logs else None)
        return Configuration(change, trials + together, node, assess(together))

    def _run(self, scope: Scope, ask: Ask, logs: Path | None = None) -> tuple[Trial, ...]:
        trials = self.runner.run(scope, ask, logs)
        self.trials += trials
        return trials

    def _node(self, trials: Sequence[Trial]) -> Assessment:
        """Of the nodes by themselves: what failed on any, and the slowest one's bandwidth."""
        if len(self.machines) == 1:
            return assess(trials, self.machines[0])
        each = [
            assess([trial for trial in trials if trial.hosts == (host,)], machine)
            for host, machine in zip(self.runner.nodes.hosts, self.machines, strict=True)
        ]
        known = [one.large for one in each if one.large is not None]
        return Assessment(
            frozenset(stage for one in each for stage in one.failed),
            frozenset(way for one in each for way in one.transports),
            min(known, key=lambda row: row.busbw_gbs, default=None),
            tuple(pair for one in each for pair in one.bad_pairs),
            tuple(pair for one in each for pair in one.slow_pairs),
            hopeless=next((one.hopeless for one in each if one.hopeless), ""),
        )

    def _situation(self, first: Configuration) -> Situation:
        """Sets `scope` to where the trouble is: inside the nodes, else between them."""
        between = first.over_all is not None and not first.node.failed and not self.is_slow(first)
        self.scope = "all" if between and not _inside_only(self.costly) else "node"
        merged: dict[str, str] = {}
        for one in reversed(self.around):
            merged |= one.environ
        shared = [set(one.interfaces) for one in self.around]
        counts = self.runner.counts
        state = self.state
        return Situation(
            self.runner.backend,
            sum(counts) if self.scope == "all" else max(counts),
            len(counts) if self.scope == "all" else 1,
            merged,
            tuple(sorted(set.intersection(*shared))),
            tuple(dict.fromkeys(hca for one in self.around for hca in one.hcas)),
            state.transports,
            state.failed,
            self.is_slow(first, self.scope) or bool(state.slow_pairs),
            self.costly,
        )

    def _attempt(self, situation: Situation) -> Callable[[Change], Tried]:
        works = False

        def attempt(change: Change) -> Tried:
            nonlocal works
            left = self._left()
            if left < _LEAST_S + (_FULL_S if works else 0.0):  # what works is to be tested in full
                self.untested = (
                    "the time for tests was used up before everything that may help had been tried"
                )
                raise NoTime
            self.tell(
                f"trying {words(change)}" if change.size else "measuring the environment as it is again"
            )
            trials = self._run(self.scope, self._short(situation, change, left))
            tried = Tried(change, trials, self._gbs(trials))
            works = works or tried.works
            return tried

        return attempt

    def _short(self, situation: Situation, change: Change, left: float) -> Ask:
        """A start, a sum, a large message, and again what failed or was not come to."""
        assert self.first is not None
        starts = [trial for trial in self.first.trials if trial.name == "start" and trial.outcome == "ok"]
        started = max((trial.seconds for trial in starts), default=0.0)
        deadlines = _within({**_SHORT, "start": max(_SHORT["start"], 2 * started)}, left)
        large = SIZES[self.runner.backend][-1]
        measured = self.state.large
        sizes = (large,) if measured is None or measured.bytes > 0.9 * large else (measured.bytes, large)
        not_ok = {trial.name for trial in self.first.trials if trial.outcome != "ok"}
        again = not_ok & {"pairs", "ddp_step"} | situation.failed & {"pair_bandwidth"}
        return Ask(stages_of("start", "all_reduce", "sweep", *again), change, deadlines, sizes, 3.0)

    def _gbs(self, trials: Sequence[Trial]) -> float | None:
        state = self._node(trials) if self.scope == "node" else assess(trials)
        return state.gbs

    def _without_culprit(self, first: Configuration) -> Tried | None:
        """Whether the others work without the one GPU that all bad pairs share."""
        gpu = first.node.culprit
        bad = first.node.bad_pairs
        if gpu is None or not bad or not self.runner.gpus or len(self.runner.counts) > 1:
            return None
        left = self._left()
        if left < _LEAST_S:
            return None
        self.tell(f"trying without GPU {gpu}, which is in all pairs that fail")
        ask = Ask(
            stages_of("start", "all_reduce", "pairs", "sweep"), Change(), _within(_SHORT, left), (), 3.0
        )
        change, trials = self.runner.without(gpu, ask)
        self.trials += trials
        return Tried(change, trials, self._gbs(trials))

    def _alone(self) -> tuple[Trial, ...]:
        """Whether a single device works, which is then to do the work of all."""
        left = self._left()
        if left < _LEAST_S:
            return ()
        self.tell(f"trying one {'GPU' if self.runner.gpus else 'rank'} alone")
        one = replace(self.runner, devices=self.runner.devices[:1])
        trials = one.run("node", Ask(stages_of("start", "ddp_step"), deadlines_s=_within(_SHORT, left)))
        self.trials += trials
        return trials

    def _hold_to_the_full_test(self, situation: Situation) -> None:
        """Sets `best`: the chosen change, or the next one where that fails or is no faster when all is tested."""
        before, enough = self.state.gbs, self.enough_gbs.get(self.scope)
        while (chosen := self.treatment.chosen) is not None:
            best = self._with(chosen)
            gbs = best.of(self.scope).gbs
            worth = situation.broken or gbs is None or before is None or gbs >= WORTH_IT * before
            if not best.failed and worth:
                self.best = best
                return
            now = replace(chosen, trials=best.trials, gbs=gbs)
            tried = tuple(now if one is chosen else one for one in self.treatment.tried)
            self.treatment = replace(
                self.treatment, tried=tried, chosen=choose(situation, tried, before, enough)
            )

    def _with(self, chosen: Tried) -> Configuration:
        """Everything under the change that is to be used, where there is time for it."""
        if "CUDA_VISIBLE_DEVICES" in chosen.change.set or self._left() < _FULL_S:
            over_all = assess(chosen.trials) if self.scope == "all" else None
            return Configuration(chosen.change, chosen.trials, self._node(chosen.trials), over_all)
        return self._everything(chosen.change)

    def _what(self) -> str:
        counts = self.runner.counts
        kind, several = ("GPU", "GPUs") if self.runner.gpus else ("rank on the CPU", "ranks on the CPU")
        each = f"{counts[0]} {kind}" if counts[0] == 1 else f"{counts[0]} {several}"
        return each if len(counts) == 1 else f"{each} of each node ({len(counts)} nodes)"


def _within(deadlines_s: Mapping[str, float], left: float) -> dict[str, float]:
    return {stage: min(seconds, max(left, _LEAST_S)) for stage, seconds in deadlines_s.items()}


def _inside_only(names: Sequence[str]) -> bool:
    """Whether variables concern GPUs of one host only."""
    return bool(names) and all("P2P" in name or "SHM" in name or "NVLS" in name for name in names)
