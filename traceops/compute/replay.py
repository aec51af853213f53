"""The step of one rank replayed: the host launches at a pace, the device works off what it is given, and both may wait.

A trace has the host's pace with the profiler. Without it the host is faster, by a share of all its time or by so much
for each event that was recorded: the replay tries both at several paces, and the paces at which the replayed step takes
as long as an unprofiled one are the run's.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from traceops.compute.model import OF_HOST, Bound, Loss, RankCompute
from traceops.compute.uses import Schedule

Floats = NDArray[np.float64]

PACES = (0.2, 0.3, 0.4, 0.55, 0.7, 0.85, 1.0)  # of the recorded time that the host needs without the profiler
_LEAST_LEFT = 0.1  # of the host's time between two launches, however many events were recorded in it
_STEPS = 4  # replayed: the last one's length counts
_SURE = 0.9  # of the launches and of the device's time that a fix saves, at least
_GONE = 0.97  # of its launches, at most
_ALIKE = 0.03  # of the step: paces whose replayed step is this near may all be the run's
_FASTEST = 0.4  # of the recorded time, what a host needs at least without the profiler (H200, 54 programs)
_SLOWEST = 0.85  # the same at most, where nothing shows that the host is the limit
_BELOW, _ABOVE = 0.95, 1.08  # beyond the replayed step, where none was timed
_DEVICE_LIMITS = 1.1  # step ÷ device time, up to which the device limits the step


class Fix(Struct, frozen=True):
    """What a fix removes of each launch of a schedule: shares of the host's and the device's time."""

    host: Floats
    device: Floats


def replayed_ns(schedule: Schedule, host: Floats, device: Floats) -> Floats:
    """The step by the host's times (variants by launches and one more) and the device's (variants by launches)."""
    count = device.shape[1]
    variants = host.shape[0]
    if not count:
        alone: Floats = host.sum(axis=1)
        return alone
    ends = np.union1d(np.flatnonzero(schedule.waits), [count - 1]) + 1
    starts = np.concatenate(([0], ends[:-1]))
    issued, done = np.cumsum(host[:, :-1], axis=1), np.cumsum(device, axis=1)
    # Work of a stretch without waits is done `lag` after its first launch could begin, and takes at least `work`.
    before_host = np.where(starts > 0, issued[:, starts - 1], 0.0)
    before_done = np.where(starts > 0, done[:, starts - 1], 0.0)
    lag = np.maximum.reduceat(issued - (done - device), starts, axis=1) - before_host + before_done
    spent, work = issued[:, ends - 1] - before_host, done[:, ends - 1] - before_done
    waits = schedule.waits[ends - 1]
    now, free = np.zeros(variants), np.zeros(variants)
    last = free
    for _ in range(_STEPS):
        last = np.maximum(now, free)
        for at in range(len(ends)):
            free = np.maximum(free, now + lag[:, at]) + work[:, at]
            now = now + spent[:, at]
            if waits[at]:
                now = np.maximum(now, free)
        now = now + host[:, -1]
    step: Floats = np.maximum(now, free) - last
    return step


def paced_hosts(schedule: Schedule) -> Floats:
    """The host's times at all paces: first by a share of all time, then by so much an event."""
    recorded = schedule.host_ns.astype(np.float64)
    shares = np.outer(PACES, recorded)
    spread = recorded.sum() / max(schedule.events.sum(), 1)
    rows = [np.maximum(recorded - (1 - pace) * spread * schedule.events, _LEAST_LEFT * recorded) for pace in PACES]
    return np.concatenate((shares, np.array(rows)))


def with_replays(compute: RankCompute, schedule: Schedule, fixes: Sequence[Fix]) -> RankCompute:
    """The losses with the step after each fix at all paces. fixes: of the losses, in their order."""
    host, device = paced_hosts(schedule), schedule.device_ns.astype(np.float64)[np.newaxis, :]
    paces = len(host)
    parts_host, parts_device = [host], [np.repeat(device, paces, axis=0)]
    for loss, fix in zip(compute.losses, fixes, strict=True):
        more = 1 + loss.more_ns / loss.device_ns if loss.device_ns > 0 else 1.0
        for sure in (1.0, _SURE):
            kept = 1 - np.append(np.minimum(sure * fix.host, _GONE), 0.0)
            left = 1 - np.minimum(fix.device * (more if sure == 1.0 else sure), 1.0)
            parts_host.append(host * kept)
            parts_device.append(np.repeat(device * left, paces, axis=0))
    steps = replayed_ns(schedule, np.concatenate(parts_host), np.concatenate(parts_device)).reshape(-1, paces)
    losses = [
        _at_any_pace(replace(loss, paced_ns=tuple(map(tuple, steps[2 * at + 1 : 2 * at + 3].tolist()))), compute)
        for at, loss in enumerate(compute.losses)
    ]
    return replace(compute, paced_ns=tuple(steps[0].tolist()), losses=tuple(losses))


def _at_any_pace(loss: Loss, compute: RankCompute) -> Loss:
    """The loss with the step after its fix, where no unprofiled step was timed."""
    slowest = 1.0 if compute.bound == "host" else _SLOWEST
    likely = [at for at, pace in enumerate((*PACES, *PACES)) if _FASTEST <= pace <= slowest]
    least, most = (find(ns[at] for at in likely) for find, ns in zip((min, max), loss.paced_ns, strict=True))
    if loss.cause == "many_small_kernels":  # whose launches a CUDA graph may spare all
        least = min(least, compute.device_ns - loss.device_ns)
    if compute.bound == "device":  # a host that is slower than the device would have shown
        most = min(most, compute.device_ns)
    return replace(loss, step_after_ns=(_BELOW * least, _ABOVE * most))


def at_pace(compute: RankCompute, steps_ns: Sequence[float]) -> RankCompute:
    """The losses with the step after their fix, where steps take so long without the profiler: never longer."""
    steps_ns = [ns for ns in steps_ns if ns > 0]
    if not compute.paced_ns or not steps_ns:
        return compute
    most = _DEVICE_LIMITS  # in a device time beyond it collectives wait for ranks that the profiler holds up
    by_device = compute.device_ns / most <= min(steps_ns) <= most * compute.device_ns
    bound: Bound = "device" if by_device else compute.bound
    kept = [loss for loss in compute.losses if not by_device or loss.cause not in OF_HOST]
    losses = tuple(_at_pace(loss, compute, steps_ns) for loss in kept)
    return replace(compute, bound=bound, losses=losses)


def _at_pace(loss: Loss, compute: RankCompute, steps_ns: Sequence[float]) -> Loss:
    found = []
    paces = len(PACES)
    for first, step_ns in product((0, paces), steps_ns):  # by a share, and by the event
        now = np.array(compute.paced_ns[first : first + paces])
        alike = (np.abs(now - step_ns) <= _ALIKE * step_ns) & (np.array(PACES) >= _FASTEST)
        for after in loss.paced_ns:
            # What is beyond the slowest pace is neither the host's nor the device's, and stays.
            saved = now - np.array(after[first : first + paces])
            for one in (np.interp(step_ns, now, saved), *saved[alike]):
                found.append(min(max(step_ns - float(one), 0.0), step_ns))
    if not found:
        return loss
    least, most = min(found), max(found)
    if loss.cause == "many_small_kernels":  # whose launches a CUDA graph may spare all
        least = min(least, compute.device_ns - loss.device_ns)
    return replace(loss, step_after_ns=(max(least, 0.0), most))
