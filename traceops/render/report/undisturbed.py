"""The undisturbed step in words and as a table: beside the light and the full window, and where it goes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import combinations

from traceops.core.rank_text import who
from traceops.core.units import ms_text
from traceops.render.cells import Column, build_table
from traceops.render.document import Section, TableBlock, soft, text
from traceops.report.model import Report
from traceops.report.undisturbed import UndisturbedRows

_PARTS = (
    ("compute_ms", "computes for"),
    ("comm_transfer_ms", "transfers for"),
    ("comm_wait_ms", "waits for other ranks for"),
    ("comm_unmatched_ms", "communicates for"),
    ("memory_ms", "copies for"),
    ("idle_ms", "is idle for"),
)
_LEAST_PCT = 0.5  # of the step: what is less is not told
_UNSEEN = 0.05  # of the step, beyond the light window's: where it goes is not known
_APART = 0.02  # of the typical step: what differs less is told as one
MOST_ROWS = 64
_TURNS_PCT = 5.0  # of the step: ranks that wait so much longer in one window, and shorter in another


def undisturbed_of(report: Report) -> UndisturbedRows | None:
    """What the report has of it."""
    return report.undisturbed if isinstance(report.undisturbed, UndisturbedRows) else None


def share_pct(rows: UndisturbedRows, *parts: str) -> float:
    """Percent of the step that these parts take together: the median over ranks."""
    middle = statistics.median(sum(float(getattr(row, part)) for part in parts) for row in rows.ranks)
    return 100.0 * middle / rows.step_ms


def typical_of(report: Report) -> float | None:
    """The run's typical step, ms; that of the steps that the capture timed where the run was not observed."""
    return report.whole_run.typical_ms if report.whole_run else report.summary.plain_ms


def sentence(rows: UndisturbedRows, typical_ms: float | None = None) -> str:
    """The three steps, and what the device does in the first. typical_ms: of the whole run."""
    parts = [
        f"{verb} {ms_text(ms)}"
        for name, verb in _PARTS
        if (ms := statistics.median(getattr(row, name) for row in rows.ranks)) >= _LEAST_PCT / 100 * rows.step_ms
    ]
    doing = f": the device {', '.join(parts)} ms" if parts else ""
    light = "light windows" if len(rows.windows) > 1 else "light window"
    over = " (medians over ranks)" if len(rows.ranks) > 1 else ""
    behind = (
        ""
        if rows.behind_ms is None
        else f" Behind the recorded steps one takes {ms_text(rows.behind_ms)} ms, "
        f"{100 * (rows.behind_ms / rows.step_ms - 1):.0f} % more: torch's profiler stays in the process and slows its "
        f"host, or the training or the machine is slower there. {_why_it_stays(rows)}"
    )
    of = (
        ""
        if rows.before is None
        else f" ({rows.before.count} steps before the recorded ones, {ms_text(rows.before.least_ms)} to "
        f"{ms_text(rows.before.most_ms)})"
    )
    if typical_ms is not None and rows.before is None and abs(rows.step_ms / typical_ms - 1) >= _APART:
        of = f" (the run's typical one takes {ms_text(typical_ms)})"
        if rows.step_ms < typical_ms and rows.light_ms <= rows.step_ms:  # as short without recording too
            of = f" (as in the {light}; the run's typical one takes {ms_text(typical_ms)})"
    where = f"Without recording, scaled from the {light}" if rows.scaled else "Without recording"
    unseen_ms, unseen = rows.step_ms - rows.light_ms, ""
    if unseen_ms >= _UNSEEN * rows.step_ms:
        where, unseen = f"In the {light}", f"; where the other {ms_text(unseen_ms)} ms go is not known"
    return (
        f"a step takes {ms_text(rows.step_ms)} ms without recording{of}, {ms_text(rows.light_ms)} in the {light}, "
        f"{ms_text(rows.recorded_ms)} as recorded. {where}{doing}{over}{unseen}.{behind}"
    )


def _why_it_stays(rows: UndisturbedRows) -> str:
    """Why torch's profiler was not ended, and on which ranks; or what would end it, where nobody asked for that."""
    told = [f"on {who(one.ranks)} ({one.why_not})" for one in rows.stayed if one.why_not is not None]
    unasked = [rank for one in rows.stayed if one.why_not is None for rank in one.ranks]
    of = f" on {who(unasked)}" if told and unasked else ""
    ends = f"traceops run --detach ends it{of} (CUDA 12.6 or newer; by default from 13.0 on)."
    if not told:
        return ends
    return f"It was not ended {' and '.join(told)}.{f' {ends}' if unasked else ''}"


def _windows(rows: UndisturbedRows) -> str:
    """'the light window', or 'the mean of 2 light windows (steps 17 to 22, 129 to 134)'."""
    if len(rows.windows) < 2:
        return "the light window"
    steps = ", ".join(f"{one.first} to {one.last}" for one in rows.windows)
    return f"the mean of {len(rows.windows)} light windows (steps {steps})"


def _who_waits(rows: UndisturbedRows) -> str:
    """Whether the same rank is waited for in all windows, behind a space; of one nobody knows, and '' if none waits."""
    least_ms = _TURNS_PCT / 100 * rows.step_ms
    waits = [{one.rank: one.comm_wait_ms for one in window.ranks} for window in rows.windows]
    if not waits or max(max(own.values(), default=0.0) for own in waits) < least_ms or len(rows.ranks) < 2:
        return ""
    if len(waits) == 1:
        return (
            " So few steps do not tell whether the same ranks wait in others: of hosts alike, now the one "
            "is late and now the other."
        )
    least = [min(own, key=lambda rank: own[rank]) for own in waits]
    for (one, first, a), (other, second, b) in combinations(zip(waits, least, rows.windows, strict=True), 2):
        more = one.get(second, 0.0) - one[first], other.get(first, 0.0) - other[second]
        if min(more) >= least_ms:
            return (
                f" Rank {first} waits least in steps {a.first} to {a.last}, rank {second} in steps {b.first} to "
                f"{b.last}."
            )
    return ""


def undisturbed(report: Report, _: Sequence[int]) -> Section | None:
    """Where the undisturbed step goes on each rank."""
    rows = undisturbed_of(report)
    if rows is None:
        return None
    said = sentence(rows, typical_of(report))
    columns = (
        Column("rank", "Rank", decimals=0),
        Column("compute_ms", "Compute ms"),
        Column("comm_transfer_ms", "Transfer ms", "exposed communication, less waiting"),
        Column("comm_wait_ms", "Waiting ms", "until the last member came", worst="max"),
        Column("comm_unmatched_ms", "Not told apart ms", "exposed communication: waiting or transfer"),
        Column("memory_ms", "Copies ms"),
        Column("idle_ms", "Idle ms", "nothing runs on the device", worst="max"),
        Column("light_ms", "Light step ms"),
    )
    table = build_table("Where the undisturbed step goes, ms", columns, rows.ranks[:MOST_ROWS])
    return Section(
        "undisturbed",
        "The undisturbed step",
        (
            text(said[0].upper() + said[1:]),
            soft(
                f"From {_windows(rows)}: kernels and copies of a few steps, recorded without the host's part. What "
                "even that made the step longer is taken from idle time and waiting, from both in proportion."
                f"{_who_waits(rows)}"
            ),
            TableBlock(table, "narrow"),
        ),
        "Undisturbed",
    )
