"""How fast the workers of each rank's data loader give batches, and how many would give them as fast as needed."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from traceops.across.rank_times import RankTimes
from traceops.across.run_steps import WholeRun
from traceops.measure.host_places import LoaderWork
from traceops.measure.summary import RankSummary

_WORKERS = re.compile(r"_MultiProcessingDataLoaderIter")
# Times as busy as the workers are together: what differs less is chance, of some dozens of looks.
_APART = 1.5


def has_workers(summary: RankSummary) -> bool:
    """Whether a DataLoader that the rank waits for has worker processes."""
    return bool(_WORKERS.search(" ".join(summary.host.input_names)))


def loader_paces(ranks: Sequence[RankSummary], whole: WholeRun | None) -> dict[int, float]:
    """By rank: what the workers of its loader take for the batches of a step, ms, as far as they were looked at. They
    are at work for so much of a step, and while a late rank is waited for they have loaded ahead and rest."""
    if whole is None:
        return {}
    return {
        summary.rank: _busy_pct(whole.loaders[summary.rank]) / 100 * whole.typical_ms
        for summary in ranks
        if summary.rank in whole.loaders and has_workers(summary)
    }


def slowest_other(paces: Mapping[int, float], ranks: Sequence[int]) -> tuple[int, float] | None:
    """The rank beside these whose loader takes longest for the batches of a step, and how long, ms; None without one.
    With the input of these ranks alone in time, no step is shorter."""
    others = {rank: ms for rank, ms in paces.items() if rank not in ranks}
    slowest = max(others, key=lambda rank: (others[rank], -rank), default=None)
    return None if slowest is None else (slowest, others[slowest])


def _busy_pct(work: LoaderWork) -> float:
    """Of the workers' time. Batches come in order, so one that is far busier than all together holds them up."""
    return work.busiest_pct if work.busiest_pct > _APART * work.busy_pct else work.busy_pct


def without_pace(ranks: Sequence[RankSummary], paces: Mapping[int, float]) -> tuple[int, ...]:
    """Ranks whose loader has workers of which nobody knows how fast they are."""
    return tuple(summary.rank for summary in ranks if has_workers(summary) and summary.rank not in paces)


_ALONE = re.compile(r"_SingleProcessDataLoaderIter")
_SPARE = 1.1  # loaders that are just fast enough are late at every second batch
_HANDED_OVER_MS = 2.0  # public traces: 0.15 to 1.6 ms in the training process for a small batch of a worker


class LoadingNeed(Struct, frozen=True):
    """What a rank's loading takes, and what would keep up.

    now: worker processes of the rank's DataLoader. load_ms: what one process needs for the batches of a step. rest_ms:
    the step without waiting for them. workers: how many would do. most_workers: the same where all of the rest that may
    be recording is. cores: that a rank and its workers have, None where not known.
    """

    now: int
    load_ms: float
    rest_ms: float
    workers: int
    most_workers: int
    cores: float | None = None


def loading_need(
    times: RankTimes,
    saved_ms: float | None,
    workers: int | None = None,
    cores: float | None = None,
    *,
    step_ms: float | None = None,
    recording_ms: float = 0.0,
) -> LoadingNeed | None:
    """What would do for a rank that waits for its DataLoader; None where no DataLoader is behind it, one whose workers
    nobody counts, or one that takes no longer than a worker's batch does to arrive. saved_ms: what the replay says that
    a step gains with input in time, None without one. workers: as the run told. step_ms: the step that it is a part of,
    None for the recorded one. recording_ms: what of the rest may be recording. The loaders of a rank without workers
    take what is recorded; workers that are behind are busy all the time."""
    names, step_ms = " ".join(times.summary.host.input_names), times.step_ms if step_ms is None else step_ms
    rest_ms = step_ms - (times.mean_ms("idle_input") if saved_ms is None else saved_ms)
    if rest_ms <= 0:
        return None
    # As much more where the rest is that much shorter.
    more = rest_ms / (rest_ms - recording_ms) if 0 < recording_ms < rest_ms else 1.0
    if _ALONE.search(names):
        load_ms = times.loading_ms
        if load_ms < _HANDED_OVER_MS:
            return None
        now = 0
    elif has_workers(times.summary) and workers:
        now, load_ms = workers, workers * step_ms
    else:
        return None
    share = _SPARE * load_ms / rest_ms
    need, most = max(math.ceil(share), 1), max(math.ceil(share * more), 1)
    return LoadingNeed(now, load_ms, rest_ms, need, max(most, need), cores)


def told_workers(manifest: Mapping[str, Any]) -> int | None:
    """Workers of each rank's DataLoader, as the training says; None where it does not."""
    training = manifest.get("training")
    settings = training.get("config") if isinstance(training, dict) else None
    told = (one.get(key) for one in (settings, training) if isinstance(one, dict) for key in ("workers", "num_workers"))
    return next((value for value in told if type(value) is int and 0 <= value <= 4096), None)


def cores_of_rank(manifest: Mapping[str, Any], rank: int) -> float | None:
    """Cores that a rank has for itself and its workers: those its host lets it use, over the ranks there."""
    entries = [entry for entry in manifest.get("ranks") or () if isinstance(entry, dict)]
    own = next((entry for entry in entries if entry.get("rank") == rank), None)
    cores = None if own is None else own.get("cores")
    if own is None or not isinstance(cores, int) or isinstance(cores, bool) or cores < 1:
        return None
    return float(cores / sum(entry.get("host") == own.get("host") for entry in entries))
