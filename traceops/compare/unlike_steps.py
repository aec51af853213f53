"""Where the recorded steps of two sides are not of one kind: what then says nothing of a change is not judged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from traceops.compare.capture import ComparedCapture, inventories
from traceops.compare.metrics import METRICS, enough_unprofiled
from traceops.core.units import ms_text
from traceops.report.whole_run import EarlyWindowRow, WholeRunRows

EVERY = frozenset(metric.name for metric in METRICS)
_OF_STEP_TIME = frozenset({"step_time", "throughput"})
# What the profiler's own cost is a part of, and the unprofiled step is not.
_RECORDED = frozenset(
    metric.name
    for metric in METRICS
    if not metric.exact and metric.name != "busbw" and metric.name not in _OF_STEP_TIME
)
_RECORD_ALIKE = "record both sides alike, or time steps without the profiler on both (--unprofiled 6 or more)"
# Of a side's captures, more than of the other's: fewer are what captures of one program differ in, and widen intervals.
_MORE = 0.5
_UNMARKED = {"window", "cut_off"}  # nothing said where a step begins


@dataclass(frozen=True)
class Unlike:
    """A reason not to judge these metrics; none where it is only told.

    why: a clause of the verdict; short: the same behind a metric's numbers. cure: what makes them judgeable, an order.
    of_profiler: whether only what the profiler cost is not alike, so that what it cannot change still tells.
    """

    why: str
    short: str
    cure: str
    metrics: frozenset[str]
    of_profiler: bool = False


def unlike_steps(base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]) -> tuple[Unlike, ...]:
    """Every reason, those that concern most metrics first, but for what is only told."""
    found = (_one_side_unsettled(base, head), _other_steps(base, head), *_recorded_otherwise(base, head))
    return tuple(one for one in found if one is not None)


def windows_unlike(side: Sequence[ComparedCapture]) -> list[EarlyWindowRow]:
    """Of the captures whose recorded steps are unlike those since: what steps took then and take now."""
    rows = (capture.report.whole_run for capture in side)
    return [own.early_window for own in rows if isinstance(own, WholeRunRows) and own.early_window is not None]


def _one_side_unsettled(base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]) -> Unlike | None:
    """Recorded steps of one side alone are unlike those since: the other's are of a later window, or were even."""
    unlike = {"base": windows_unlike(base), "head": windows_unlike(head)}
    shares = [len(unlike[name]) / max(len(side), 1) for name, side in (("base", base), ("head", head))]
    if shares[0] == shares[1]:
        return None
    more = "base" if shares[0] > shares[1] else "head"
    side, window = (base if more == "base" else head), unlike[more][0]
    of = "" if len(side) == 1 else f" in {len(unlike[more])} of {len(side)} captures"
    return Unlike(
        f"{more}'s recorded steps may not be like its later ones{of}: just before them a step took "
        f"{ms_text(window.before_ms)} ms, later ones take {ms_text(window.later_ms)}",
        f"{more}'s recorded steps may not be like its later ones",
        f"record both sides with the same --skip-first, {window.settled} or more",
        EVERY if abs(shares[0] - shares[1]) >= _MORE else frozenset(),
    )


def _other_steps(base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]) -> Unlike | None:
    """What a step is was told by other things: one of the one side may be several of the other's."""
    sides = {"base": _found_by(base), "head": _found_by(head)}
    known = set[str]().union(*sides.values())
    unmarked = [name for name, found in sides.items() if found & _UNMARKED]
    if not all(sides.values()) or (len(known) == 1 and not unmarked):
        return None
    if unmarked:
        short = f"nothing tells where the steps of {' and '.join(unmarked)} begin"
        why = f"{short}: the times are those of whatever was recorded"
    else:
        short = "the steps of base and head were found in different ways"
        was, now = (" or ".join(sorted(found)) for found in sides.values())
        why = f"{short} (base {was}, head {now}), so that one may be several of the other"
    return Unlike(why, short, "record both sides with traceops run, or mark the steps of both", EVERY)


def _found_by(side: Sequence[ComparedCapture]) -> set[str]:
    return {str(by) for capture in side if (by := capture.report.summary.steps_found_by)}


def _recorded_otherwise(base: Sequence[ComparedCapture], head: Sequence[ComparedCapture]) -> list[Unlike]:
    """The profiler's own cost is a part of recorded steps, and it was not the same."""
    unprofiled = enough_unprofiled((base, head))
    metrics = _RECORDED if unprofiled else _RECORDED | _OF_STEP_TIME
    found = []
    options = [", ".join(sorted(k for k, v in (side[0].run.options or {}).items() if v)) for side in (base, head)]
    if options[0] != options[1]:
        was, now = (named or "nothing more" for named in options)
        found.append(f"the profiler recorded different things (base {was}, head {now}), at different cost")
    whole = [_has_operators(side) for side in (base, head)]
    if None not in whole and whole[0] != whole[1]:
        more, less = ("base", "head") if whole[0] else ("head", "base")
        found.append(f"of {more} the profiler recorded operators too, of {less} the device alone, at different cost")
    versions = [side[0].run.torch_version for side in (base, head)]
    if not unprofiled and all(versions) and versions[0] != versions[1]:
        found.append(
            f"only profiled steps were timed, and torch {versions[1]}'s profiler may not cost what {versions[0]}'s does"
        )
    short = "the profiler's own cost is not the same on both sides"
    return [Unlike(why, short, _RECORD_ALIKE, metrics, of_profiler=True) for why in found]


def _has_operators(side: Sequence[ComparedCapture]) -> bool | None:
    """Whether the traces hold what the host ran; None where no report says, or not all say the same."""
    told = {bool(inventory.operators) for inventory in inventories(side) if inventory.kernels}
    return told.pop() if len(told) == 1 else None
