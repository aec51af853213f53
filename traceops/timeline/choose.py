"""Which ranks and steps to show, checked against those the run has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from traceops.core.errors import UsageError
from traceops.measure.summary import RankSummary
from traceops.pipeline.mapping.executors import map_in_processes
from traceops.timeline.keep import step_windows
from traceops.traces.discover import Window

_MOST_LISTED = 20


def choose_ranks(window: Window, ranks: Sequence[int] | None) -> dict[int, str]:
    """Path by rank, in order of rank. Raises UsageError for a rank without a trace, or with a summary only."""
    present = {file.rank: file for file in sorted(window.files, key=lambda file: file.rank)}
    missing = set(ranks or ()) - present.keys()
    if missing:
        raise UsageError(f"there is no trace of {listed('rank', missing)}, only of {listed('rank', present)}")
    chosen = {rank: file for rank, file in present.items() if ranks is None or rank in set(ranks)}
    if summarized := [rank for rank, file in chosen.items() if file.summarized]:
        raise UsageError(
            f"{listed('rank', summarized)}: there is only a summary, such as {chosen[summarized[0]].path}; a timeline "
            "shows the events of the traces: bring those, or choose other ranks with --ranks"
        )
    return {rank: file.path for rank, file in chosen.items()}


def choose_steps(ranks: Sequence[RankSummary], steps: Sequence[int] | None) -> frozenset[int] | None:
    """The steps, checked to be marked on some rank; None for all. Raises UsageError for others."""
    if steps is None:
        return None
    known = {int(n) for own in ranks for n in (*own.step_numbers, *own.empty_steps) if n >= 0}
    missing = set(steps) - known
    if not known:
        raise UsageError("the traces mark no steps, so --steps cannot choose any")
    if missing:
        raise UsageError(f"the traces do not hold {listed('step', missing)}, only {listed('step', known)}")
    return frozenset(steps)


def windows_of(
    chosen: Mapping[int, str], summaries: Mapping[int, RankSummary], steps: frozenset[int] | None, jobs: int
) -> dict[int, tuple[tuple[int, int], ...]]:
    """Each rank's time at the chosen steps (ns, its own clock), none where it is not known; {} for all steps."""
    if steps is None:
        return {}
    known = [summaries[rank] for rank in chosen if rank in summaries]
    windows = dict.fromkeys(chosen, ())
    found = map_in_processes(partial(step_windows, steps=steps), known, jobs)
    return windows | dict(zip((own.rank for own in known), found, strict=True))


def listed(noun: str, numbers: Iterable[int]) -> str:
    """`ranks 0-2, 5`."""
    ordered = sorted(numbers)
    runs: list[tuple[int, int]] = []
    for number in ordered:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:_MOST_LISTED]]
    return f"{noun}{'' if len(ordered) == 1 else 's'} {', '.join(texts)}{' …' if len(runs) > len(texts) else ''}"
