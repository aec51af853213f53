"""What TO-I002 says of data loading: the time in it, and how many workers would load in time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from traceops.across.cross_rank import CrossRank, RankTimes
from traceops.across.loader_pace import slowest_other
from traceops.across.loading import cores_of_rank, loading_need, told_workers
from traceops.core.findings import Evidence
from traceops.core.rank_text import who
from traceops.core.step_words import StepWords
from traceops.core.units import ms_text, stored

OTHER_LOADER = "slowest other loader"  # the evidence that says so
_AS_SLOW = 0.5  # of the step

_MUCH = 0.2  # more workers where the rest of a step is shorter: told as a range


def loading_evidence(times: RankTimes, words: StepWords) -> tuple[Evidence, ...]:
    """The time in data loading, device busy or not, and what it was seen as."""
    host = times.summary.host
    steps = max(len(times.duration), 1)
    return (
        Evidence("time in data loading", stored(host.input_ms / steps), words.unit("ms"), rank=times.summary.rank),
        Evidence("seen as", ", ".join(host.input_names)[:200], rank=times.summary.rank),
    )


def workers_needed(
    times: RankTimes,
    saved: float | None,
    manifest: Mapping[str, Any],
    words: StepWords,
    *,
    step_ms: float | None = None,
    recording_ms: float = 0.0,
) -> tuple[str, tuple[Evidence, ...]]:
    """How many workers would load in time, as a sentence and as numbers; nothing where no DataLoader is behind it.

    step_ms: the step that `saved` is of, None for the recorded one. recording_ms: about what of the rest of the step
    may be the profiler's: without it more workers keep up.
    """
    rank = times.summary.rank
    need = loading_need(
        times, saved, told_workers(manifest), cores_of_rank(manifest, rank), step_ms=step_ms, recording_ms=recording_ms
    )
    if need is None:
        return "", ()
    rest = Evidence(f"{words.noun} without waiting for input", stored(need.rest_ms), "ms", rank=rank)
    if need.workers is None or need.load_ms is None:
        ratio = f"{need.times:.1f}"
        if need.most_times >= (1 + _MUCH) * need.times:
            ratio += f" to {need.most_times:.1f}"
        said = f" Its DataLoader has workers: {ratio} times as many would keep up."
        return said, (rest, Evidence("times as many workers", round(need.times, 2), rank=rank))
    now = f"now {need.now}" if need.now else "now none"
    most = max(need.most_workers or 0, need.workers)
    count = f"{need.workers}" if most == need.workers else f"{need.workers} to {most}"
    workers = f"{count} DataLoader worker{'s' if most > 1 else ''} a rank"
    times_ = (
        f"One process needs {need.load_ms:.2f} ms to load what {words.a} takes, the rest of {words.the}"
        if need.now
        else f"The rest of {words.the} takes"  # the rank loads itself, and what it waits for that is said
    )
    of_it = "" if most == need.workers else f", of which up to {ms_text(recording_ms)} may be recording"
    said = f" {times_} {need.rest_ms:.2f} ms{of_it}: {workers} would keep up ({now})."
    if not need.fits:
        said += (
            f" A rank has {_cores(need.cores)} here: with as many workers loading gets no faster unless it mostly "
            "waits for files."
        )
    cores = () if need.cores is None else (Evidence("cores for a rank", round(need.cores, 2), rank=rank),)
    loaded = Evidence(f"loading of {words.a}'s batches by one process", stored(need.load_ms), "ms", rank=rank)
    return said, (
        loaded,
        rest,
        Evidence("workers that keep up", need.workers if most == need.workers else count, rank=rank),
        *cores,
    )


def other_loaders(run: CrossRank, ranks: Sequence[int], step_ms: float) -> tuple[str, tuple[Evidence, ...]]:
    """That the input of these ranks alone is no cure, because another rank's loader is about as slow; else nothing."""
    slowest = slowest_other(run.loading_ms, ranks)
    if slowest is None or slowest[1] < _AS_SLOW * step_ms:
        return "", ()
    rank, pace = slowest[0], min(slowest[1], step_ms)
    return (
        f" Mend the loaders of all ranks: the workers of rank {rank}'s take {ms_text(pace)} ms for the batches of "
        f"{run.step_words.a}, so with {who(ranks)} alone in time it would take no less.",
        (Evidence(OTHER_LOADER, stored(pace), run.step_words.unit("ms"), rank=rank),),
    )


def _cores(count: float | None) -> str:
    return "1 core" if count == 1 else f"{count or 0:.3g} cores"
