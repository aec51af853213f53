"""What a cure truly saves: the same run is simulated with it and without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from generated_run import SimulatedRun, step_durations
from numpy.typing import NDArray

from benchmarks.simulated.programs import FIRST_STEP, simulate_spec
from benchmarks.simulated.spec import OF_A_RANK, Spec, Trouble
from traceops.core.findings import Finding

OF_RANKS = ("TO-S001", "TO-S002", "TO-S003")
_GONE = {
    "TO-I001": "host", "TO-I002": "input", "TO-I003": "sync", "TO-I004": "copy", "TO-O001": "transfer",
    "TO-O002": "transfer", "TO-O003": "transfer", "TO-C001": "transfer", "TO-C002": "transfer",
}  # fmt: skip
_HOST = ("late_host", "gc", "gc_by_turns", "checkpoint")
_INPUT, _COPY = ("late_loader", "slow_loader"), ("slow_copy", "exposed_copy")


Steps = NDArray[np.float64]


def steps_ms(run: SimulatedRun) -> Steps:
    """What the median rank takes in each recorded step."""
    steps: Steps = np.median(step_durations(run), axis=0) / 1e6
    return steps


class Truths:
    """The steps of a run and of its cures, ms. Each is simulated once."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.run = spec, simulate_spec(spec)
        self._known = {spec: steps_ms(self.run)}
        self.step = float(self._known[spec].mean())

    def of(self, spec: Spec) -> Steps:
        """The steps of a changed run."""
        if spec not in self._known:
            self._known[spec] = steps_ms(simulate_spec(spec))
        return self._known[spec]

    def gain(self, trouble: Trouble) -> float:
        """What the mean step loses without this trouble."""
        return self.step - float(self.of(self.spec.without(trouble)).mean())

    def gain_of(self, finding: Finding, uneven: Sequence[int] = (), unlike: Sequence[int] = ()) -> float | None:
        """What the cure that a finding tells of saves; None where nothing in a run is its cure.

        uneven: the ranks of which the report says that they have more work: sharing it evens all of them. unlike: the
        numbers of steps that the report leaves out, where it does not speak of them.
        """
        before = self.spec
        for rank in _facts(finding).get("beside") or ():  # what it promises is with these fixed too
            before = _cured(before, rank)
        after = cured(before, finding, uneven)
        if after is None:
            return None
        chosen = np.ones(self.spec.steps, dtype=bool)
        if finding.rule not in ("TO-S002", "TO-T001"):
            chosen[[number - FIRST_STEP for number in unlike]] = False
        return float((self.of(before) - self.of(after))[chosen].mean())


def cured(spec: Spec, finding: Finding, uneven: Sequence[int] = ()) -> Spec | None:
    """The run as it would be if what the finding says were no more."""
    rule = finding.rule
    if rule in OF_RANKS:
        if finding.computes_longer == "more_work" and _facts(finding).get("way") == "shared":
            return replace(spec, shared=True, steady=tuple(sorted({*spec.steady, *uneven})))
        for rank in finding.ranks:
            spec = _cured(spec, rank)
        return spec
    if rule == "TO-B001":
        return replace(spec, shared=True) if _facts(finding).get("way") == "shared" else _cured(spec, finding.ranks[0])
    if rule == "TO-T001":
        return spec.without(*(one for one in spec.troubles if one.steps or one.kind == "gc_by_turns"))
    if rule not in _GONE:
        return None
    gone = _GONE[rule]
    spec = replace(
        spec, no_host=spec.no_host or gone == "host", no_input=spec.no_input or gone == "input",
        no_sync=spec.no_sync or gone == "sync", no_copy=spec.no_copy or gone == "copy",
        no_transfer=spec.no_transfer or gone == "transfer",
    )  # fmt: skip
    if rule == "TO-I001":
        host = _HOST if spec.loader else (*_HOST, *_INPUT)
        spec = spec.without(*(one for one in spec.troubles if one.kind in host))
    if rule == "TO-I002":
        spec = spec.without(*(one for one in spec.troubles if one.kind in _INPUT))
    if rule == "TO-I003":
        spec = spec.without(*(one for one in spec.troubles if one.kind in ("item_sync", *_COPY)))
    return spec


def _cured(spec: Spec, rank: int) -> Spec:
    """This rank as one of its peers."""
    own = [one for one in spec.troubles if one.kind in OF_A_RANK and one.rank == rank]
    own += [one for one in spec.of("slow_stage") if one.rank == spec.stage(rank)]
    hosts, devices = list(spec.hosts), list(spec.devices)
    hosts[rank] = devices[rank] = 1.0
    steady = tuple(sorted({*spec.steady, rank}))
    return replace(spec.without(*own), hosts=tuple(hosts), devices=tuple(devices), steady=steady)


def _facts(finding: Finding) -> dict[str, Any]:
    return finding.facts or {}
