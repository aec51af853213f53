"""Which ranks and steps to show, checked against those the run has."""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from traceops.across.cross_rank import CrossRank
from traceops.core.errors import UsageError
from traceops.core.findings import Finding
from traceops.core.rank_text import ranks_in, runs_of
from traceops.measure.summary import RankSummary
from traceops.pipeline.mapping.executors import map_in_processes
from traceops.timeline.keep import step_windows
from traceops.traces.discover import Window

# The few ranks and steps that show one finding: who it names, who suffers, and where it is plainest.

_NAME = re.compile(r"(?P<rule>TO-[A-Z]\d{3})(?:[.#](?P<place>[1-9]\d{0,3}))?", re.I)
_MOST_NAMED = 4


class Around(Struct, frozen=True):
    """Which ranks and steps to show; steps is None where the ranks mark none in common."""

    finding: Finding
    ranks: tuple[int, ...]
    steps: tuple[int, ...] | None


def around_finding(name: str, findings: Sequence[Finding], run: CrossRank, present: Collection[int]) -> Around:
    """The ranks and the step for a finding called as `TO-S001`, or `TO-S001.2` for the second of a rule. Ranks: the
    first few that the finding names, the one that waits longest for them, and the one that waits least, of those
    `present`. Step: the longest of those it names, else of all. Raises UsageError where there is no such finding."""
    finding = find_named(name, findings)
    times = {own.summary.rank: own for own in run.ranks}
    lengths: dict[int, int] = defaultdict(int)
    for own in run.ranks:
        for number, ns in zip(own.summary.step_numbers.tolist(), own.duration.tolist(), strict=True):
            if number >= 0:
                lengths[number] = max(lengths[number], int(ns))
    named_steps = [step for step in finding.steps if step in lengths]
    step = max(named_steps or lengths, key=lambda number: lengths[number], default=None)
    named = [rank for rank in finding.ranks if rank in times and rank in present][:_MOST_NAMED]
    waits = {rank: _wait(run, rank, step) for rank in times if rank in present}
    others = [rank for rank in sorted(waits, key=lambda rank: (-waits[rank], rank)) if rank not in named]
    shown = {*named, *others[:1], *others[-1:]} if named else {*others[:2], *others[-2:]}
    return Around(finding, tuple(sorted(shown)), None if step is None else (step,))


def finding_name(name: str, example: str = "TO-S001") -> str:
    """A finding's name in one spelling: 'TO-S001', 'TO-S001.2'. Raises UsageError where it is none."""
    match = _NAME.fullmatch(name.strip()) or _NAME.fullmatch(f"TO-{name.strip()}")
    if match is None:
        raise UsageError(f"{name!r} is no finding; take one such as {example}")
    return match["rule"].upper() + (f".{match['place']}" if match["place"] not in (None, "1") else "")


def find_named(name: str, findings: Sequence[Finding]) -> Finding:
    """The finding of that name; raises UsageError where there is none."""
    rules = list(dict.fromkeys(finding.rule for finding in findings))
    rule, _, place = finding_name(name, rules[0] if rules else "TO-S001").partition(".")
    own = [finding for finding in findings if finding.rule == rule]
    if int(place or 1) > len(own):
        raise UsageError(
            f"this run has no finding {name.strip()}; it has {', '.join(rules) if rules else 'none at all'}"
        )
    return own[int(place or 1) - 1]


def _wait(run: CrossRank, rank: int, step: int | None) -> int:
    """How long a rank waited in collectives of a step, of all steps if None; ns."""
    summary = next(own.summary for own in run.ranks if own.summary.rank == rank)
    total = 0
    for collective in run.matching.collectives:
        for (member, position), wait in zip(collective.members, collective.wait_ns, strict=True):
            if member == rank and (step is None or summary.step_number(position) == step):
                total += wait
    return total


FILE_NAME = "timeline.pftrace.gz"
_STEM, _ENDING = "timeline", ".pftrace.gz"
_LONGEST = 60  # characters of a list


def file_name(around: str | None, ranks: Sequence[int] | None, steps: Sequence[int] | None) -> str:
    """'timeline.TO-S001.pftrace.gz', 'timeline.ranks_0_4-7.steps_5.pftrace.gz'."""
    parts = [] if around is None else [finding_name(around)]
    parts += [] if ranks is None else [f"ranks_{_listed(ranks)}"]
    parts += [] if steps is None else [f"steps_{_listed(steps)}"]
    return f"{'.'.join((_STEM, *parts))}{_ENDING}"


def _listed(numbers: Sequence[int]) -> str:
    runs = runs_of(numbers)
    text = "_".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
    return text if len(text) <= _LONGEST else f"{len(set(numbers))}_{zlib.crc32(text.encode()):08x}"


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
    runs = runs_of(numbers)
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:_MOST_LISTED]]
    several = "" if ranks_in(runs) == 1 else "s"
    return f"{noun}{several} {', '.join(texts)}{' …' if len(runs) > len(texts) else ''}"
