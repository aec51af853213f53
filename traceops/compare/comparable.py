"""Whether two runs can be compared at all, and what else differs between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from traceops.compare.capture import (
    Captures,
    ComparedCapture,
    damaged_ranks,
    half_known_ranks,
    inventories,
    steps_of_whole_run,
    unseen_ranks,
)
from traceops.compare.changes import say
from traceops.compare.metrics import METRICS, MIN_STEPS, enough_unprofiled
from traceops.core.capture_failure import FIRST_STEPS
from traceops.core.rank_text import runs_text, who
from traceops.report.step_times import EarlyWindowRow, MachineRow, WholeRunRows

EVERY = frozenset(metric.name for metric in METRICS)
_OF_STEP_TIME = frozenset({"step_time", "throughput"})
# What the profiler's own cost is a part of, and the unprofiled step is not.
_RECORDED = frozenset(
    metric.name
    for metric in METRICS
    if not metric.exact and metric.name != "busbw" and metric.name not in _OF_STEP_TIME
)
# Of a side's captures, more than of the other's: fewer are what captures of one program differ in, and widen intervals.
_MORE = 0.5
_UNMARKED = {"window", "cut_off"}  # nothing said where a step begins


class Unlike(Struct, frozen=True):
    """A reason not to judge these metrics; none where it is only told. why: a clause of the verdict; short: the same
    behind a metric's numbers. cure: what makes them judgeable, an order. of_profiler: whether only what the profiler
    cost is not alike, so that what it cannot change still tells."""

    why: str
    short: str
    cure: str
    metrics: frozenset[str]
    of_profiler: bool = False


def unlike_steps(base: Captures, head: Captures) -> tuple[Unlike, ...]:
    """Every reason, those that concern most metrics first, but for what is only told."""
    found = (_one_side_unsettled(base, head), _other_steps(base, head), *_recorded_otherwise(base, head))
    return tuple(one for one in found if one is not None)


def windows_unlike(side: Captures) -> list[EarlyWindowRow]:
    """Of the captures whose recorded steps are unlike those since: what steps took then and take now."""
    rows = (capture.report.whole_run for capture in side)
    return [own.early_window for own in rows if isinstance(own, WholeRunRows) and own.early_window is not None]


def _one_side_unsettled(base: Captures, head: Captures) -> Unlike | None:
    """Recorded steps of one side alone are unlike those since: the other's are of a later window, or were even."""
    unlike = {"base": windows_unlike(base), "head": windows_unlike(head)}
    shares = [len(unlike[name]) / max(len(side), 1) for name, side in (("base", base), ("head", head))]
    if shares[0] == shares[1]:
        return None
    more = "base" if shares[0] > shares[1] else "head"
    side, window = (base if more == "base" else head), unlike[more][0]
    of = "unlike_later" if len(side) == 1 else "unlike_later_in_some"
    counts = {"count": len(unlike[more]), "captures": len(side)}
    return Unlike(
        say(of, side=more, before=window.before_ms, later=window.later_ms, **counts),
        say("unlike_later_short", side=more),
        say("skip_first", settled=window.settled),
        _of_early_steps(base, head) if abs(shares[0] - shares[1]) >= _MORE else frozenset(),
    )


def _of_early_steps(base: Captures, head: Captures) -> frozenset[str]:
    """The metrics that early steps spoil: not the step time, where most steps without the profiler are later ones."""
    for side in (base, head):
        timed = later = 0
        for capture in side:
            settled = max((window.settled for window in windows_unlike((capture,))), default=0)
            steps = steps_of_whole_run(capture.report)
            timed, later = timed + len(steps), later + sum(first >= settled for first in steps)
        if later < max(MIN_STEPS, timed / 2):
            return EVERY
    return EVERY - _OF_STEP_TIME


def _other_steps(base: Captures, head: Captures) -> Unlike | None:
    """What a step is was told by other things: one of the one side may be several of the other's."""
    sides = {"base": _found_by(base), "head": _found_by(head)}
    known = set[str]().union(*sides.values())
    unmarked = [name for name, found in sides.items() if found & _UNMARKED]
    if not all(sides.values()) or (len(known) == 1 and not unmarked):
        return None
    was, now = (" or ".join(sorted(found)) for found in sides.values())
    kind = "unmarked" if unmarked else "other_marks"
    short = say(f"{kind}_short", sides=" and ".join(unmarked))
    return Unlike(say(kind, short=short, base=was, head=now), short, say("mark_steps"), EVERY)


def _found_by(side: Captures) -> set[str]:
    return {str(by) for capture in side if (by := capture.report.summary.steps_found_by)}


def _recorded_otherwise(base: Captures, head: Captures) -> list[Unlike]:
    """The profiler's own cost is a part of recorded steps, and it was not the same."""
    unprofiled = enough_unprofiled((base, head))
    metrics = _RECORDED if unprofiled else _RECORDED | _OF_STEP_TIME
    found = []
    options = [", ".join(sorted(k for k, v in (side[0].run.options or {}).items() if v)) for side in (base, head)]
    if options[0] != options[1]:
        was, now = (named or "nothing more" for named in options)
        found.append(say("recorded_otherwise", base=was, head=now))
    whole = [_has_operators(side) for side in (base, head)]
    if None not in whole and whole[0] != whole[1]:
        more, less = ("base", "head") if whole[0] else ("head", "base")
        found.append(say("operators_too", more=more, less=less))
    versions = [side[0].run.torch_version for side in (base, head)]
    if not unprofiled and all(versions) and versions[0] != versions[1]:
        found.append(say("other_torch", head=versions[1], base=versions[0]))
    return [Unlike(why, say("profiler_cost_short"), say("record_alike"), metrics, of_profiler=True) for why in found]


def _has_operators(side: Captures) -> bool | None:
    """Whether the traces hold what the host ran; None where no report says, or not all say the same."""
    told = {bool(inventory.operators) for inventory in inventories(side) if inventory.kernels}
    return told.pop() if len(told) == 1 else None


# What must be the same for a difference in time to mean anything: (name for people, keys of the training).
_WORKLOAD: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("model", ("model", "model_name", "parameters", "layers", "dim", "heads", "vocab", "hidden_size", "n_layers")),
    ("batch", ("batch_size", "samples_per_step", "tokens_per_step", "seq_len", "global_batch_size")),
    ("precision", ("precision", "dtype")),
)  # fmt: skip
_WORKLOAD_KEYS = frozenset(key for _, keys in _WORKLOAD for key in keys)
_NO_SETTING = frozenset({"planted", "seed", "steps"})
_VERSIONS = (
    ("GPU", "device"), ("torch", "torch_version"), ("NCCL", "nccl_version"), ("CUDA", "cuda_version"),
    ("driver", "driver_version"), ("backend", "backend"), ("strategy", "strategy"),
)  # fmt: skip


def refusals(base: Captures, head: Captures) -> list[str]:
    """Why the two should not be compared: world size, GPU, hosts, model, batch or precision differ."""
    everyone = [*base, *head]
    found = [
        *_refuse(base, head, "world size", lambda c: c.run.world_size),
        *(() if _same_work(base, head) else _refuse(base, head, "device", lambda c: c.run.device)),
        *_refuse(base, head, say("gpu_activity"), _gpu_activity),
        *_refuse(base, head, "number of hosts", lambda c: None if c.run.missing else len(c.run.hosts) or None),
    ]
    for label, keys in _WORKLOAD:
        for key in keys:
            found += _refuse(base, head, f"{label} ({key})", partial(_setting, key))
    found += [say("same_schedule", why=why) for why in _refuse(base, head, "recorded steps", _which_steps)]
    starts = [(c.info.started_ns, c.info.path) for c in everyone if c.info.started_ns is not None]
    twice = sorted({c.info.path for c in everyone if [x.info.path for x in everyone].count(c.info.path) > 1})
    if twice:
        found.append(say("given_twice", path=twice[0]))
    elif len({ns for ns, _ in starts}) < len(starts):
        same = [path for ns, path in starts if [n for n, _ in starts].count(ns) > 1]
        found.append(say("same_capture", paths=" and ".join(same[:2])))
    return found


def _refuse(base: Captures, head: Captures, what: str, value: Callable[[ComparedCapture], Any]) -> list[str]:
    """A refusal where two captures say different things; one that says nothing contradicts nobody."""
    sides = [{_text(value(c)) for c in side if value(c) is not None} for side in (base, head)]
    if len(sides[0] | sides[1]) < 2:
        return []
    if any(len(side) > 1 for side in sides):
        which = "base" if len(sides[0]) > 1 else "head"
        mixed = sides[0] if len(sides[0]) > 1 else sides[1]
        return [say("differ_among_themselves", side=which, what=what, values=" and ".join(sorted(mixed)))]
    return [f"{what}: base {next(iter(sides[0]))}, head {next(iter(sides[1]))}"]


_SAME_WORK = 0.02  # operations per step may differ by this share


def _same_work(base: Captures, head: Captures) -> bool:
    """Whether all captures do as many operations per step: then GPUs of different kinds compare."""
    work = [sum(row.flops or 0.0 for row in c.report.compute.operators) if c.report.compute else 0.0
            for c in (*base, *head)]  # fmt: skip
    return min(work) > 0 and max(work) <= (1 + _SAME_WORK) * min(work)


def _gpu_activity(capture: ComparedCapture) -> str | None:
    """Whether any rank's GPU was recorded; None where no GPU was used, as far as is known."""
    if capture.run.device_type == "cuda":
        return "recorded"
    return "not recorded" if unseen_ranks(capture) else None


def _which_steps(capture: ComparedCapture) -> str | None:
    """Whether a capture is of a program's first steps or of later ones; None where its numbers do not tell."""
    if capture.report.summary.first_steps:
        return say("first_steps")
    numbers = [row.step for row in capture.report.steps if row.step is not None]
    return "later ones" if numbers and min(numbers) >= FIRST_STEPS else None


def differences(base: Captures, head: Captures) -> list[str]:
    """What differs and may matter, or is not known; no reason to refuse."""
    before, now = base[0].run, head[0].run
    found = [
        f"{name}: base {was}, head {value}"
        for name, key in _VERSIONS
        if (was := getattr(before, key)) and (value := getattr(now, key)) and was != value
    ]
    found += _trainings(base[0], head[0])
    hosts = [sorted({host for c in side for host in c.run.hosts}) for side in (base, head)]
    if all(hosts) and hosts[0] != hosts[1]:
        found.append(f"hosts: base {', '.join(hosts[0][:3])}, head {', '.join(hosts[1][:3])}")
    found += [
        say("missing_ranks", side=side, missing=runs_text(missing))
        for side, run in (("base", before), ("head", now))
        if (missing := run.missing)
    ]
    found += _machines(base, head)
    unlike = unlike_steps(base, head)
    found += [say("may_be_that", why=one.why, cure=one.cure) for one in unlike]
    if not any(one.metrics is EVERY for one in unlike) and all(map(windows_unlike, (base, head))):
        found.append(say("both_unlike_later"))
    return found


def _trainings(base: ComparedCapture, head: ComparedCapture) -> list[str]:
    """Settings that differ between the trainings, and commands where the settings of a side are not known."""
    old, new = settings(base), settings(head)
    found = list[str]()
    if old and new:
        found = [
            f"setting {key}: base {_text(old.get(key))}, head {_text(new.get(key))}"
            for key in sorted((old.keys() | new.keys()) - _WORKLOAD_KEYS - _NO_SETTING - {"strategy"})
            if old.get(key) != new.get(key)
        ]
    commands = [one.run.command for one in (base, head)]
    if (not old or not new) and all(commands):  # the same command is the same job, as far as it says
        if commands[0] != commands[1]:
            words = [" ".join(command or ())[:200] for command in commands]
            found.append(f"command: base {words[0]}, head {words[1]}")
    elif not old or not new:
        side = "both" if not old and not new else "base" if not old else "head"
        found.append(say("unknown_training", side=say(f"training.{side}")))
    return found


def _machines(base: Captures, head: Captures) -> list[str]:
    """GPUs of one name that are not set alike."""
    found = []
    for what, unit, key in (("power limit", "W", "limit_w"), ("highest clock", "MHz", "most_mhz")):
        rows = (_machines_of(base), _machines_of(head))
        sides = [sorted({round(value) for row in side if (value := getattr(row, key))}) for side in rows]
        if all(sides) and sides[0] != sides[1]:
            was, now = (" and ".join(map(str, side)) for side in sides)
            found.append(say("gpus_set_otherwise", what=what, base=was, head=now, unit=unit))
    return found


def _machines_of(side: Captures) -> list[MachineRow]:
    runs = (capture.report.whole_run for capture in side)
    return [row for run in runs if isinstance(run, WholeRunRows) for row in run.machine]


def damaged(base: Captures, head: Captures) -> list[str]:
    """Traces that are half known: their ranks are left out, and what runs in a step is not compared."""
    return [
        say("half_known", side=side, capture=capture.info.name or ".", ranks=who(sorted(ranks)), how=how)
        for side, captures in (("base", base), ("head", head))
        for capture in captures
        for how, ranks in (
            ("is damaged", damaged_ranks(capture)),
            (say("no_gpu_activity"), half_known_ranks(capture) - damaged_ranks(capture)),
        )
        if ranks
    ]


def settings(capture: ComparedCapture) -> dict[str, Any]:
    """What the run says of its training, one level deep: {} for traces without a manifest."""
    if (training := capture.run.training) is None:
        return {}
    flat = {key: value for key, value in training.items() if not isinstance(value, (dict, list))}
    config = training.get("config")
    return {**flat, **(config if isinstance(config, dict) else {})}


def _setting(key: str, capture: ComparedCapture) -> Any:
    return settings(capture).get(key)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "not set" if value is None else str(value)
