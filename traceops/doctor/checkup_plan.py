"""The plan of a checkup: which tests run, in what order and time, and what is tried when they fail."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.doctor import runs
from traceops.doctor.candidates import NodeContext, Situation, words
from traceops.doctor.isolate import FULL_S, LEAST_S, PATIENT_S, SHORT_S, Isolation, within
from traceops.doctor.job import SIZES, STAGES, Job
from traceops.doctor.model import EnvironmentChange, Trial
from traceops.doctor.try_changes import WORTH_IT, NoTime, SearchResult, TriedChange, choose, is_better, try_changes
from traceops.fabric.model import Machine, Measured, Reference

# The tests under one set of variables, and what they showed.


@dataclass(frozen=True)
class Configuration:
    """A change and everything that was tested under it. node: the trials of each node by itself. over_all: of the job
    over all nodes, None where there is one node."""

    change: EnvironmentChange
    trials: tuple[Trial, ...]
    node: runs.Assessment
    over_all: runs.Assessment | None = None

    def of(self, scope: runs.Scope) -> runs.Assessment:
        """Of the nodes by themselves, or of all together; of one node both are the same."""
        return self.node if scope == "node" or self.over_all is None else self.over_all

    @property
    def failed(self) -> frozenset[str]:
        return self.node.failed | (self.over_all.failed if self.over_all else frozenset())

    @property
    def measured(self) -> tuple[Measured, ...]:
        return tuple(row for trial in self.trials for row in trial.measured)


QUICK_STAGES = ("start", "all_reduce", "ddp_step", "sweep")
_QUICK_SIZES = 2


@dataclass
class CheckupPlan:
    """What is run goes through here, and what came of it is kept, also where a node is lost on the way. machines,
    around: of all nodes. past: what this machine gave before. until: by this process's monotonic clock. costly:
    variables of the environment that cost speed. enough_gbs: from here a large all-reduce is not slow. isolation: tests
    of some devices without the others. stand_in: device for the fallback, where it is not the first."""

    runner: runs.Runner
    machines: tuple[Machine, ...]
    contexts: tuple[NodeContext, ...]
    costly: tuple[str, ...]
    past: Reference | None
    until: float
    quick: bool = False
    logs: Path | None = None
    report: Callable[[str], None] = lambda text: None
    trials: list[Trial] = field(default_factory=list)
    first: Configuration | None = None
    best: Configuration | None = None
    search: SearchResult = field(default_factory=SearchResult)
    enough_gbs: dict[runs.Scope, float] = field(default_factory=dict)
    scope: runs.Scope = "node"
    fallback: int | None = None
    stand_in: int | None = None
    untested: str = ""

    def __post_init__(self) -> None:
        names = {gpu.name for gpu in self.machines[self.runner.nodes.identity.node].gpus}
        self.isolation = Isolation(self.runner, self._left, self.report, self.trials.extend, len(names) <= 1)

    def run(self) -> None:
        """Test everything; where that fails or is slow, try what may help, and test everything with it."""
        # Bus bandwidth from which a large all-reduce is not slow, GB/s, where anything is known to compare with
        machine = self.machines[self.runner.nodes.identity.node]
        own = runs.expected_gbs(machine, self.runner.tested, self.runner.backend, self.before)
        told = self.runner.nodes.gather(own, tuple[float, float])
        scopes: tuple[runs.Scope, ...] = ("node", "all") if len(told) > 1 else ("node",)
        known = {scope: min(found) for scope, found in zip(scopes, zip(*told, strict=True), strict=False)}
        self.enough_gbs = {scope: gbs for scope, gbs in known.items() if gbs}
        self.first = self.best = first = self._everything(EnvironmentChange())
        situation = self._situation(first)
        if first.node.hopeless and not first.node.one_device:
            return
        if not (situation.broken or situation.slow or situation.costly):
            return
        self._isolate(first)
        without = self.isolation.without(runs.shared_by(self.isolation.bad_pairs))
        if not first.node.hopeless and not self.isolation.names_devices:
            attempt = self._attempt(situation)
            self.search = try_changes(situation, attempt, self.state.gbs, self.enough_gbs.get(self.scope))
        if without is not None:
            chosen, enough = self.search.chosen, self.enough_gbs.get(self.scope)
            if without.works and is_better(without, chosen, enough):
                chosen = without
            self.search = replace(self.search, tried=(without, *self.search.tried), chosen=chosen)
        self._hold_to_the_full_test(situation)
        left = self.search.chosen is None and not self.search.passed
        if left and situation.broken and situation.world > 1:
            self._with_fewer(first, situation)

    def _isolate(self, first: Configuration) -> None:
        """Look for what is one device's own, where what failed does not show it or no setting can help."""
        state = first.node
        self.isolation.bad_pairs, self.isolation.named = state.bad_pairs, state.named
        if state.one_device and sum(self.runner.counts) > 1:
            self.isolation.test_alone()
        elif any(trial.name == "all_reduce" and trial.outcome == "wrong" for trial in first.trials):
            self.isolation.bad_pairs = state.bad_pairs or self._pairs_that_fail(first)

    def _with_fewer(self, first: Configuration, situation: Situation) -> None:
        """Where nothing lets all devices work together: as many as do, or one in the place of all."""
        if first.node.hopeless and not self.isolation.alone:
            return
        self.isolation.test_alone()
        self.isolation.bad_pairs = self.isolation.bad_pairs or self._pairs_that_fail(first)
        fewer = self.isolation.fewer(situation, self.enough_gbs.get(self.scope))
        new = tuple(one for one in fewer.tried if one not in self.search.tried)
        self.search = SearchResult((*self.search.tried, *new), fewer.chosen)
        if fewer.chosen is not None:
            self.best = self._with(fewer.chosen)
        elif not runs.nodes_that_work(self.runner, first.trials) and (self.isolation.sound or not self.isolation.alone):
            self.fallback = sum(self.runner.counts)
            device = (self.isolation.sound or self.runner.tested)[0]
            self.stand_in = device if self.runner.gpus and device != self.runner.gpus[0] else None

    def _pairs_that_fail(self, first: Configuration) -> tuple[runs.Pair, ...]:
        """Those of a test by themselves, where none came to them."""
        tested = any(trial.name == "pairs" and trial.outcome != "not_evaluated" for trial in first.trials)
        return () if tested or "start" in first.node.failed else self.isolation.test_pairs()

    @property
    def state(self) -> runs.Assessment:
        """Where the trouble is, or would be: of the first configuration, in the scope that was treated."""
        return self.first.of(self.scope) if self.first else runs.Assessment()

    @property
    def before(self) -> Measured | None:
        """The large all-reduce of these same GPUs when this machine was last measured at its best."""
        rows = self.past.measured if self.past else ()
        return runs.large_all_reduce([row for row in rows if set(row.gpus) == set(self.runner.tested)])

    def is_slow(self, configuration: Configuration | None, scope: runs.Scope = "node") -> bool:
        """Whether a large all-reduce is far below what is known that it should give."""
        gbs = configuration.of(scope).gbs if configuration else None
        enough = self.enough_gbs.get(scope)
        return gbs is not None and enough is not None and gbs < enough

    def _left(self) -> float:
        """Seconds, as node 0 has them, so that all nodes stop at the same point."""
        return self.runner.nodes.first(self.until - time.monotonic(), float)

    def _everything(self, change: EnvironmentChange) -> Configuration:
        left, counts = max(self._left(), FULL_S), self.runner.counts
        stages = QUICK_STAGES if self.quick or left < 2 * FULL_S else tuple(STAGES)
        sizes = SIZES[self.runner.backend][-_QUICK_SIZES if self.quick else 0 :]
        job = self.runner.job(stages, change, within(PATIENT_S, left), sizes, min(10.0, left / 8))
        with_it = f" ({words(change)})" if change.size else ""
        what = reason("doctor", "gpus" if self.runner.gpus else "ranks", count=counts[0])
        if len(counts) > 1:
            what = reason("doctor", "of_each_node", devices=what, nodes=len(counts))
        self.report(reason("doctor", "testing", what=f"{what}{with_it}", stages=stages))
        logs = None if change.size else self.logs  # of the first job alone
        trials = self._run("node", job, logs and logs / "node")
        node = self._node(trials)
        alone = node.failed & {"start", "all_reduce"}  # then it does not work over all of them either
        if len(counts) == 1 or node.hopeless or alone:
            return Configuration(change, trials, node)
        self.report(f"{reason('doctor', 'testing_together', nodes=len(counts))}{with_it}")
        together = self._run("all", replace(job, stages=QUICK_STAGES), logs and logs / "all")
        return Configuration(change, trials + together, node, runs.assess(together))

    def _run(self, scope: runs.Scope, job: Job, logs: Path | None = None) -> tuple[Trial, ...]:
        trials = self.runner.run(scope, job, logs)
        self.trials += trials
        return trials

    def _node(self, trials: Sequence[Trial]) -> runs.Assessment:
        """Of the nodes by themselves: what failed on any, and the slowest one's bandwidth."""
        return runs.assess_each(trials, self.runner.nodes.hosts, self.machines)

    def _situation(self, first: Configuration) -> Situation:
        """Sets `scope` to where the trouble is: inside the nodes, else between them."""
        between = first.over_all is not None and not first.node.failed and not self.is_slow(first)
        # Whether variables concern GPUs of one host only
        inside_only = bool(self.costly) and all(re.search("P2P|SHM|NVLS", name) for name in self.costly)
        self.scope = "all" if between and not inside_only else "node"
        merged: dict[str, str] = {}
        for one in reversed(self.contexts):
            merged |= one.environ
        shared = [set(one.interfaces) for one in self.contexts]
        counts = self.runner.counts
        state = self.state
        return Situation(
            self.runner.backend, sum(counts) if self.scope == "all" else max(counts),
            len(counts) if self.scope == "all" else 1, merged, tuple(sorted(set.intersection(*shared))),
            tuple(dict.fromkeys(hca for one in self.contexts for hca in one.hcas)), state.transports, state.failed,
            self.is_slow(first, self.scope) or bool(state.slow_pairs), self.costly,
            any(trial.outcome == "hung" for trial in first.trials),
        )  # fmt: skip

    def _attempt(self, situation: Situation) -> Callable[[EnvironmentChange], TriedChange]:
        works, tried = False, False

        def attempt(change: EnvironmentChange) -> TriedChange:
            nonlocal works, tried
            # The likeliest variable is faster removed than every device tested alone; where ranks do not start because
            # of a device that fails alone, no setting cures that.
            not_met = "start" in situation.failed and situation.world > 1 and self.scope == "node"
            if (tried or change.set) and not_met:
                self.isolation.test_alone()
                if self.isolation.names_devices:
                    raise NoTime
            if (left := self._left()) < LEAST_S + self._for_later(situation, works):
                self.untested = reason("doctor", "time_used_up")
                raise NoTime
            self.report(reason("doctor", "trying" if change.size else "measuring_again", change=words(change)))
            trials = self._run(self.scope, self._short(situation, change, left))
            state = self._node(trials) if self.scope == "node" else runs.assess(trials)
            one = TriedChange(change, trials, state.gbs)
            works, tried = works or one.works, True
            return one

        return attempt

    def _for_later(self, situation: Situation, works: bool) -> float:
        """Seconds to keep: to test in full what works, else each device alone, and some without the others."""
        if works:
            return FULL_S + (SHORT_S["start"] if situation.hung else 0.0)  # as the next one may hang, too
        alone = situation.broken and situation.world > 1 and not self.isolation.alone
        met = "start" in situation.failed and situation.inside_only
        return LEAST_S * (alone + bool(met or self.isolation.bad_pairs or self.isolation.named))

    def _short(self, situation: Situation, change: EnvironmentChange, left: float) -> Job:
        """A start, a sum, a large message, and again what failed or was not come to."""
        assert self.first is not None
        starts = [trial for trial in self.first.trials if trial.name == "start" and trial.outcome == "ok"]
        started = max((trial.seconds for trial in starts), default=0.0)
        deadlines = within({**SHORT_S, "start": max(SHORT_S["start"], 2 * started)}, left)
        large = SIZES[self.runner.backend][-1]
        measured = self.state.large
        sizes = (large,) if measured is None or measured.bytes > 0.9 * large else (measured.bytes, large)
        not_ok = {trial.name for trial in self.first.trials if trial.outcome != "ok"}
        again = not_ok & {"pairs", "ddp_step"} | situation.failed & {"pair_bandwidth"}
        return self.runner.job(("start", "all_reduce", "sweep", *again), change, deadlines, sizes, 3.0)

    def _hold_to_the_full_test(self, situation: Situation) -> None:
        """Sets `best`: the chosen change, or the next one where that fails or is no faster when all is tested."""
        before, enough = self.state.gbs, self.enough_gbs.get(self.scope)
        while (chosen := self.search.chosen) is not None:
            best = self._with(chosen)
            gbs = best.of(self.scope).gbs
            worth = situation.broken or gbs is None or before is None or gbs >= WORTH_IT * before
            if not best.failed and worth:
                self.best = best
                return
            now = replace(chosen, trials=best.trials, gbs=gbs)
            tried = tuple(now if one is chosen else one for one in self.search.tried)
            self.search = replace(self.search, tried=tried, chosen=choose(situation, tried, before, enough))

    def _with(self, chosen: TriedChange) -> Configuration:
        """Everything under the change that is to be used, where there is time for it."""
        if "CUDA_VISIBLE_DEVICES" in chosen.change.set or self._left() < FULL_S:
            over_all = runs.assess(chosen.trials) if self.scope == "all" else None
            return Configuration(chosen.change, chosen.trials, self._node(chosen.trials), over_all)
        return self._everything(chosen.change)
