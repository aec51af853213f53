"""Tests of some devices of one node apart from the others: each alone, and those that are left without some."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import TypeVar

from traceops.doctor.assess import Pair, assess
from traceops.doctor.deadlines import LEAST_S, SHORT_S, within
from traceops.doctor.model import BAD, Change, Trial
from traceops.doctor.runs import Ask, Runner, stages_of
from traceops.doctor.surroundings import hidden_but
from traceops.doctor.treat import Tried
from traceops.launch import fallback

# As the one device trains that stands in for all: what is wrong with the network is no fault of its own.
_ALONE = Change(fallback.SET, fallback.UNSET)
_T = TypeVar("_T")


@dataclass
class Isolation:
    """left: seconds of the checkup that remain. keep: told of every test. one_make: whether all GPUs are alike.

    alone: the tests of every device by itself, empty until they were made.
    """

    runner: Runner
    left: Callable[[], float]
    tell: Callable[[str], None]
    keep: Callable[[tuple[Trial, ...]], None]
    one_make: bool = True
    alone: tuple[Trial, ...] = ()

    @property
    def broken(self) -> tuple[int, ...]:
        """Devices of the first node that fail without any other."""
        return tuple(dict.fromkeys(trial.gpus[0] for trial in self._here() if trial.outcome in BAD))

    @property
    def sound(self) -> tuple[int, ...]:
        """Devices of the first node of which all tests alone were right."""
        seen = dict.fromkeys(trial.gpus[0] for trial in self._here())
        return tuple(device for device in seen if device not in self.broken)

    def _here(self) -> list[Trial]:
        first = self.runner.nodes.hosts[:1]
        return [trial for trial in self.alone if trial.hosts in ((), first)]

    def test_alone(self) -> None:
        """Start and train one step on every device of this node by itself, all at the same time; once only.

        Of several nodes each tests its first device.
        """
        if self.alone or self.left() < LEAST_S:
            return
        one, each = ("GPU", "each GPU") if self.runner.gpus else ("rank", "each rank")
        several = len(self.runner.counts) > 1
        self.tell(f"trying one {one} alone" if several else f"trying {each} alone")
        ask = Ask(stages_of("start", "ddp_step"), _ALONE, within(SHORT_S, self.left()))
        devices = self.runner.devices[:1] if several else self.runner.devices
        jobs = [replace(self.runner, devices=(device,)) for device in devices]
        told = _at_once([partial(job.run, "node", ask) for job in jobs])
        self.alone = tuple(trial for trials in told for trial in trials)
        self.keep(self.alone)

    def test_pairs(self) -> tuple[Pair, ...]:
        """Pairs that fail, where a test of all devices ended before it came to them."""
        if len(self.runner.counts) > 1 or self.left() < 2 * LEAST_S:
            return ()
        self.tell("testing which pairs fail")
        trials = self.runner.run(
            "node", Ask(stages_of("start", "pairs"), Change(), within(SHORT_S, self.left()))
        )
        self.keep(trials)
        return assess(trials).bad_pairs

    def without(self, out: Sequence[int]) -> Tried | None:
        """Whether those that are left work together; None where they are fewer than two, or cannot be hidden."""
        tested = self.runner.tested
        # In the order in which CUDA counts what it is shown, whatever order --gpus names.
        kept = tuple(gpu for gpu in self.runner.gpus if gpu in tested and gpu not in out)
        if not out or len(self.runner.counts) > 1 or len(kept) < 2 or self.left() < LEAST_S:
            return None
        names = ", ".join(map(str, out))
        which = f"GPU {names}" if len(out) == 1 else f"GPUs {names}"
        self.tell(f"trying without {which}")
        change = Change(
            self.shown(kept), does=f"leaves {which} out",
            costs=f"{len(out)} of {len(tested)} GPUs, and as much of the batch of a step",
        )  # fmt: skip
        rest = replace(self.runner, gpus=kept, devices=tuple(range(len(kept))))
        stages = stages_of("start", "all_reduce", "pairs", "ddp_step", "sweep")
        trials = rest.run("node", Ask(stages, change, within(SHORT_S, self.left()), (), 3.0))
        self.keep(trials)
        return Tried(change, trials, assess(trials).gbs)

    def shown(self, kept: Sequence[int]) -> dict[str, str]:
        """Variables that hide all GPUs but these from CUDA."""
        shown = {"CUDA_VISIBLE_DEVICES": hidden_but(kept, self.runner.environ, self.runner.gpus)}
        # CUDA puts the fastest first where they differ; the doctor counts as nvidia-smi.
        return shown if self.one_make else {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **shown}


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
