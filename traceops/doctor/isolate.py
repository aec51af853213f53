"""Tests devices of one node apart from the others: each alone, or the rest without some."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from traceops.core.claims import reason
from traceops.doctor.candidates import Situation, change_of, hidden_but, words
from traceops.doctor.job import LAUNCH
from traceops.doctor.model import BAD, EnvironmentChange, Trial
from traceops.doctor.runs import Pair as RankPair
from traceops.doctor.runs import Runner, assess, to_leave_out
from traceops.doctor.try_changes import NoTime, SearchResult, TriedChange, try_changes
from traceops.fabric import fabric

# Deadlines of tests, so that all of them together keep the time of the checkup.

PATIENT_S: Mapping[str, float] = {
    LAUNCH: 90.0, "start": 40.0, "all_reduce": 30.0, "pairs": 50.0, "ddp_step": 30.0,
}  # fmt: skip
SHORT_S: Mapping[str, float] = {
    LAUNCH: 60.0, "start": 20.0, "all_reduce": 12.0, "pairs": 30.0, "ddp_step": 20.0, "sweep": 20.0,
    "pair_bandwidth": 20.0,
}  # fmt: skip
LEAST_S = 12.0  # a try takes about as long: processes, torch, NCCL
FULL_S = 25.0  # so does a test of everything


def within(deadlines_s: Mapping[str, float], left: float) -> dict[str, float]:
    """These deadlines where only `left` seconds remain."""
    return {stage: min(seconds, max(left, LEAST_S)) for stage, seconds in deadlines_s.items()}


# Pairs of ranks to test, and their order.

Pair = tuple[int, int]
ALL_PAIRS_TO = 16  # ranks: 120 pairs; 64 ranks would have 2,016


def pair_order(ranks: int) -> list[Pair]:
    """Pairs (a < b) in rounds in which no rank comes twice, so that those of a round can run side by side. Up to
    ALL_PAIRS_TO ranks these are all pairs, as in a tournament. Above that, each rank is paired with the next one, as in
    NCCL's rings, and with the one half the world away. That one is on another node where there are several."""
    if ranks > ALL_PAIRS_TO:
        far = {_pair(rank, (rank + ranks // 2) % ranks) for rank in range(ranks)}
        near = {_pair(rank, (rank + 1) % ranks) for rank in range(ranks)} - far
        return [*sorted(near, key=lambda pair: (pair[0] % 2, pair)), *sorted(far)]
    seats: list[int | None] = [*range(ranks), *([None] if ranks % 2 else [])]
    order = []
    for _ in range(len(seats) - 1):
        facing = zip(seats[: len(seats) // 2], reversed(seats), strict=False)
        order += [_pair(one, other) for one, other in facing if one is not None and other is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]  # the circle method: all but one move a seat on
    return order


def _pair(one: int, other: int) -> Pair:
    return (one, other) if one < other else (other, one)


_T = TypeVar("_T")


class Isolation(Struct):
    """left: seconds of the checkup that remain. keep: told of every test. one_make: whether all GPUs are alike. alone:
    the tests of every device by itself, empty until they were made. bad_pairs: of this node, that fail with no setting
    changed. named: devices that then failed of themselves, while most did not. left_out: what came of it to leave these
    devices out, with no setting changed."""

    runner: Runner
    left: Callable[[], float]
    report: Callable[[str], None]
    keep: Callable[[tuple[Trial, ...]], None]
    one_make: bool = True
    alone: tuple[Trial, ...] = ()
    bad_pairs: tuple[RankPair, ...] = ()
    named: tuple[int, ...] = ()
    left_out: dict[tuple[int, ...], TriedChange] = field(default_factory=dict)

    @property
    def broken(self) -> tuple[int, ...]:
        """Devices of the first node that fail without any other."""
        return tuple(gpu for host, gpu in self._broken() if host in self._first())

    @property
    def sound(self) -> tuple[int, ...]:
        """Devices of the first node of which all tests alone were right."""
        return tuple(gpu for host, gpu in self._sound() if host in self._first())

    @property
    def names_devices(self) -> bool:
        """Whether some devices fail alone and others do not, on whatever nodes: no setting cures that."""
        return bool(self._broken() and self._sound())

    def _broken(self) -> dict[tuple[tuple[str, ...], int], None]:
        return {(trial.hosts, trial.gpus[0]): None for trial in self.alone if trial.outcome in BAD}

    def _sound(self) -> list[tuple[tuple[str, ...], int]]:
        every = dict.fromkeys((trial.hosts, trial.gpus[0]) for trial in self.alone)
        return [device for device in every if device not in self._broken()]

    def _first(self) -> tuple[tuple[str, ...], ...]:
        return (), self.runner.nodes.hosts[:1]

    def test_alone(self) -> None:
        """Start and train one step on every device of every node by itself, all at the same time; once only."""
        if self.alone or self.left() < LEAST_S:
            return
        self.report(reason("doctor", "trying_each", device="GPU" if self.runner.gpus else "rank"))
        # As it trains when it stands in for all: what is wrong with the network is no fault of its own.
        change = EnvironmentChange(fabric.SET, tuple(name for name in fabric.UNSET if name in self.runner.environ))
        settings = ("start", "ddp_step"), change, within(SHORT_S, self.left())
        each = [replace(self.runner, devices=(device,)) for device in self.runner.devices]
        own = _at_once([partial(one.own, one.job(*settings)) for one in each])
        self.alone = self.runner.share(tuple(trial for trials in own for trial in trials), self.runner.job(*settings))
        self.keep(self.alone)

    def test_pairs(self, out: Sequence[int] = ()) -> tuple[RankPair, ...]:
        """Pairs that fail of all devices but these, where a test of all together ended before it came to them."""
        if len(self.runner.counts) > 1 or self.left() < 2 * LEAST_S:
            return ()
        self.report(reason("doctor", "testing_pairs"))
        rest, change = self._rest(out) if out else (self.runner, EnvironmentChange())
        trials = rest.run("node", rest.job(("start", "pairs"), change, within(SHORT_S, self.left())))
        self.keep(trials)
        return assess(trials).bad_pairs

    def fewer(self, situation: Situation, enough_gbs: float | None) -> SearchResult:
        """Without those that fail alone, and without as few more as it takes that no two fail together; else `named`.
        Where that does not start, settings may be at fault besides: those are tried without them."""
        tried: list[TriedChange] = []
        out: tuple[int, ...] = ()
        alone = self.broken if self.names_devices else ()
        while out != (more := tuple(sorted({*alone, *to_leave_out(self.bad_pairs)} or self.named))):
            if (without := self.without(more)) is None:
                return SearchResult(tuple(tried))
            out = more
            tried.append(without)
            if without.works:
                return SearchResult(tuple(tried), without)
            state = assess(without.trials)
            if not alone or "start" not in state.failed:
                found = state.bad_pairs or self.test_pairs(out)
                self.bad_pairs = tuple(dict.fromkeys((*self.bad_pairs, *found)))
        if not out and situation.inside_only and "start" in situation.failed:
            return self._halves()
        if not alone:  # else they were tried on all
            return SearchResult(tuple(tried))
        cured = try_changes(situation, partial(self._attempt, out), None, enough_gbs)
        return replace(cured, tried=(*tried, *cured.tried))

    def _halves(self) -> SearchResult:
        """Each half by itself, at the same time, where all had met and nothing tells between which of them it fails."""
        every = sorted(self.runner.tested, key=self.runner.gpus.index) if self.runner.gpus else []
        middle = len(every) // 2
        if middle < 2:
            return SearchResult()
        both = _at_once([partial(self.without, out) for out in (every[middle:], every[:middle])])
        tried = tuple(one for one in both if one is not None)
        return SearchResult(tried, next((one for one in tried if one.works), None))

    def without(self, out: Sequence[int]) -> TriedChange | None:
        """Whether those that are left work together; None where they are fewer than two, or cannot be hidden."""
        if (out := tuple(out)) not in self.left_out:
            try:
                self.left_out[out] = self._attempt(out, EnvironmentChange())
            except NoTime:
                return None
        return self.left_out[out]

    def _attempt(self, out: tuple[int, ...], change: EnvironmentChange) -> TriedChange:
        """A change on those that are left. Raises NoTime, also where they are fewer than two."""
        rest, hides = self._rest(out)
        if not out or len(self.runner.counts) > 1 or len(rest.devices) < 2 or self.left() < LEAST_S:
            raise NoTime
        also = f", {words(change)}" if change.size else ""
        self.report(f"trying without {names_of(out)}{also}")
        change = EnvironmentChange(
            hides.set | change.set, change.unset,
            "; ".join(filter(None, (hides.does, change.does))), "; ".join(filter(None, (hides.costs, change.costs))),
        )  # fmt: skip
        stages = ("start", "all_reduce", "pairs", "ddp_step", "sweep")
        trials = rest.run("node", rest.job(stages, change, within(SHORT_S, self.left()), (), 3.0))
        self.keep(trials)
        return TriedChange(change, trials, assess(trials).gbs)

    def _rest(self, out: Sequence[int]) -> tuple[Runner, EnvironmentChange]:
        """The devices that are left, and what hides the others."""
        tested = self.runner.tested
        # In the order in which CUDA counts what it is shown, whatever order --gpus names.
        kept = tuple(gpu for gpu in self.runner.gpus if gpu in tested and gpu not in out)
        hides = change_of("fewer", self.shown(kept), devices=names_of(out), out=len(out), all=len(tested))
        return replace(self.runner, gpus=kept, devices=tuple(range(len(kept)))), hides

    def shown(self, kept: Sequence[int]) -> dict[str, str]:
        """Variables that hide all GPUs but these from CUDA."""
        shown = {"CUDA_VISIBLE_DEVICES": hidden_but(kept, self.runner.environ, self.runner.gpus)}
        # CUDA puts the fastest first where they differ; the doctor counts as nvidia-smi.
        return shown if self.one_make else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **shown}


def names_of(devices: Collection[int], one: str = "GPU") -> str:
    """'GPU 2', 'GPUs 1, 5'."""
    return f"{one}{'' if len(devices) == 1 else 's'} {', '.join(map(str, devices))}"


def _at_once(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """What these calls give, or the first one's exception. Ctrl-C waits for none of them, as a pool would."""

    def run(call: Callable[[], _T], future: Future[_T]) -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # is raised where the result is asked for
            future.set_exception(error)

    futures: list[Future[_T]] = [Future() for _ in calls]
    for call, future in zip(calls, futures, strict=True):
        Thread(target=run, args=(call, future), daemon=True).start()
    return [future.result() for future in futures]
