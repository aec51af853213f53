"""The section about the whole run: every step of all ranks, what the odd ones do, hosts and machine."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from traceops.across.plain_step import much_longer
from traceops.core.rank_text import who
from traceops.core.units import ms_text, percent_text
from traceops.measure.host_places import CodePlace, Unit
from traceops.measure.recording import SLOWED
from traceops.render.cells import Cell, Column, Table, table_of
from traceops.render.document import Block, Chart, Heading, Section, TableBlock, soft, text
from traceops.render.report.figures import Figure, axis, dots, hover, laid_out, line, worded
from traceops.render.report.terms import say, say_first, section_of
from traceops.report.model import Report
from traceops.report.step_times import HostRow, StepsRow, UndisturbedRows, WholeRunRows
from traceops.rules.whole_run_machine import MACHINE
from traceops.words.catalogue import texts

# The undisturbed step in words and as a table: beside the light and the full window, and where it goes.

_PARTS = (
    ("compute_ms", "computes for"),
    ("comm_transfer_ms", "transfers for"),
    ("comm_wait_ms", "waits for other ranks for"),
    ("comm_unmatched_ms", "communicates for"),
    ("memory_ms", "copies for"),
    ("idle_ms", "is idle for"),
)
_LEAST_PCT = 0.5  # of the step: what is less is not listed
_UNSEEN = 0.05  # of the step, beyond the light window's: where it goes is not known
_APART = 0.02  # of the typical step: what differs less is shown as one
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
    behind, unseen_ms = rows.behind_ms, rows.step_ms - rows.light_ms
    apart = typical_ms is not None and rows.before is None and abs(rows.step_ms / typical_ms - 1) >= _APART
    as_light = apart and rows.step_ms < (typical_ms or 0.0) and rows.light_ms <= rows.step_ms  # without recording too
    return say(
        "undisturbed", "sentence", step=rows.step_ms, light=rows.light_ms, recorded=rows.recorded_ms,
        window_name="light windows" if len(rows.windows) > 1 else "light window", before=rows.before,
        as_light=typical_ms if as_light else None, typical=typical_ms if apart else None, scaled=rows.scaled,
        over_ranks=len(rows.ranks) > 1, unseen_ms=unseen_ms if unseen_ms >= _UNSEEN * rows.step_ms else None,
        parts=", ".join(parts), behind_ms=behind,
        behind_pct=None if behind is None else 100 * (behind / rows.step_ms - 1), **_stayed(rows),
    )  # fmt: skip


def _stayed(rows: UndisturbedRows) -> dict[str, Any]:
    """Where the profiler stays in the process, and why, as facts."""
    known = [f"on {who(one.ranks)} ({one.why_not})" for one in rows.stayed if one.why_not is not None]
    unasked = [rank for one in rows.stayed if one.why_not is None for rank in one.ranks]
    unasked_of = who(unasked) if known and unasked else None
    return {"stayed": " and ".join(known), "may_end": bool(unasked) or not known, "unasked": unasked_of}


def _who_waits(rows: UndisturbedRows) -> dict[str, Any]:
    """Whether the same rank is waited for in all windows, as facts: of one nobody knows, and none where none waits."""
    least_ms = _TURNS_PCT / 100 * rows.step_ms
    waits = [{one.rank: one.comm_wait_ms for one in window.ranks} for window in rows.windows]
    if not waits or max(max(own.values(), default=0.0) for own in waits) < least_ms or len(rows.ranks) < 2:
        return {}
    if len(waits) == 1:
        return {"once": True}
    least = [min(own, key=lambda rank: own[rank]) for own in waits]
    for (one, first, a), (other, second, b) in combinations(zip(waits, least, rows.windows, strict=True), 2):
        more = one.get(second, 0.0) - one[first], other.get(first, 0.0) - other[second]
        if min(more) >= least_ms:
            steps = {"first_steps": f"{a.first} to {a.last}", "second_steps": f"{b.first} to {b.last}"}
            return {"first": first, "second": second, **steps}
    return {}


def undisturbed(report: Report, _: Sequence[int]) -> Section | None:
    """Where the undisturbed step goes on each rank."""
    if (rows := undisturbed_of(report)) is None:
        return None
    main = sentence(rows, typical_of(report))
    # 'the light window', or 'the mean of 2 light windows (steps 17 to 22, 129 to 134)'
    steps = ", ".join(f"{one.first} to {one.last}" for one in rows.windows)
    several = len(rows.windows) if len(rows.windows) > 1 else None
    windows = say_first("undisturbed", "windows", several=several, steps=steps)
    blocks = (
        text(main[0].upper() + main[1:]),
        soft(say("undisturbed", "from", windows=windows, **_who_waits(rows))),
        TableBlock(table_of("undisturbed", rows.ranks[:MOST_ROWS]), "narrow"),
    )
    return section_of("undisturbed", blocks, undisturbed_ms=rows.step_ms)


MOST_LINES = 8  # ranks that have a line of their own in the figure
_MOST_PLACES = 24
_COLOURS = ("#4e79a7", "#f28e2b", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#bab0ac")
_MUCH_PCT = 10.0  # of the run, in steps that came again: told although nothing shows why
_MARKS = ("#d62728", "#1f77b4", "#9467bd", "#2ca02c", "#8c564b", "#e377c2", "#17becf", "#7f7f7f", "#bcbd22")


def whole_run(report: Report, shown: Sequence[int]) -> Section | None:
    """Every step of the training, recorded or not."""
    if (rows := rows_of_run(report)) is None:
        return None
    blocks: list[Block] = [
        text(whole_run_sentence(rows, report)),
        Chart("all-steps", say("all-steps-of-run", "chart"), all_steps_figure(rows)),
    ]
    if rows.occasions:
        cells = {
            "cause": lambda row: Cell(_cause_text(row.cause)),
            "where": lambda row: Cell(row.where or ""),
            "ranks": lambda row: Cell(", ".join(map(str, row.ranks[:8]))),
        }
        blocks.append(TableBlock(table_of("occasions", rows.occasions, make=cells), "narrow"))
    if rows.hosts:
        blocks += [Heading("Where hosts are"), soft(say("all-steps-of-run", "hosts")), TableBlock(_hosts_table(rows))]
    if rows.machine:
        blocks += [Heading(say("all-steps-of-run", "machine")), TableBlock(_machine_table(rows))]
    return section_of("all-steps-of-run", blocks, run_steps=rows.steps)


def rows_of_run(report: Report) -> WholeRunRows | None:
    """What the report has of the whole run."""
    return report.whole_run if isinstance(report.whole_run, WholeRunRows) else None


def whole_run_sentence(rows: WholeRunRows, report: Report) -> str:
    """How many steps there were, and what part of the run the odd ones take. That others take much longer than the
    recorded ones is said, as what is found is of those alone."""
    rounds = rows.rounds if rows.rounds is not None and rows.rounds.steps > 1 and len(rows.rounds.phases) > 1 else None
    slowed = bool(rows.before_ms and rows.behind_ms and rows.behind_ms >= SLOWED * rows.before_ms)
    own = rows.own_profiler
    return say(
        "all-steps-of-run", "sentence", steps=rows.steps, by_turns=rows.typical_ms if rows.input_by_turns else None,
        typical_ms=rows.typical_ms, before=rows.before_ms if slowed else None, behind=rows.behind_ms,
        longer_times=much_longer(rows.typical_ms, report.summary.step_time_ms.typical), rounds=rounds,
        odd=None if rounds else rows.steps - rows.typical_steps - rows.start_steps or None,
        occasions="; ".join(_occasions(rows, report, in_rounds=rounds is not None)),
        left_out=rows.skipped_steps or None, every=rows.steps + rows.recorded_steps + 1,  # the first is not timed
        profiler_of=own, one=own is not None and own.first == own.last,
        whole=own is not None and 1 < own.steps == own.last - own.first + 1,
        where=(own.where or "").replace(chr(92), "/").rpartition("/")[2] if own is not None else "",
        ended=rows.ended_after,
    )  # fmt: skip


def _occasions(rows: WholeRunRows, report: Report, *, in_rounds: bool) -> list[str]:
    """What part of the run goes to steps of each cause; in_rounds: steps of several kinds are the rule there."""
    waits = any(one.rule == MACHINE.id and one.cause == "shared_cores" for one in report.findings)
    explained, unexplained = [], []
    for one in rows.occasions:
        facts = {"share": one.share_pct, "times": one.times, "more": one.more_ms}
        if one.cause == "unknown":
            much = one.times > 1 and one.share_pct >= _MUCH_PCT
            if much and report.summary.step_kinds is None and not in_rounds:
                rule = MACHINE.id if waits else ""
                unexplained.append(say("all-steps-of-run", "unexplained", rule=rule, **facts))
        elif one.share_pct >= 1 and not (in_rounds and one.cause in ("host", "inference")):
            cause = _cause_text(one.cause)
            explained.append(say_first("all-steps-of-run", "occasion", cause=cause, once=one.times <= 1, **facts))
    return explained + unexplained


def _cause_text(cause: str) -> str:
    return texts("page", "all-steps-of-run").get(f"cause.{cause}", cause)


def unlike_run(report: Report) -> str:
    """That what holds of the recorded steps need not hold of the run; '' where they are like the others."""
    if (rows := rows_of_run(report)) is None or report.summary.steps_found_by == "window":
        return ""
    times = much_longer(rows.typical_ms, report.summary.step_time_ms.typical)
    facts = {"longer_times": times, "typical_ms": rows.typical_ms, "early": rows.early_window}
    told = say_first("all-steps-of-run", "unlike", **facts)
    return f" {told}" if told else ""


def all_steps_figure(rows: WholeRunRows) -> Figure:
    """Each rank's steps as a line, up to eight ranks; of more ranks the least, median and most of each step."""
    by_rank: dict[int, list[StepsRow]] = defaultdict(list)
    for row in rows.timeline:
        by_rank[row.rank].append(row)
    traces = [] if len(by_rank) <= MOST_LINES else _spread(by_rank)
    for i, (rank, own) in enumerate(() if traces else by_rank.items()):
        name, x, y = f"rank {rank}", [row.first for row in own], [row.most_ms for row in own]
        traces.append(line(name, x, y, _COLOURS[i % len(_COLOURS)], 1.2, hovertemplate=hover("run_step", name=name)))
    most, lasts = dict[int, float](), {row.first: row.last for row in rows.timeline}
    for row in rows.timeline:
        most[row.first] = max(most.get(row.first, 0.0), row.most_ms)
    for i, one in enumerate(one for one in rows.occasions if one.steps):
        places = [first for step in one.steps for first in sorted(most) if first <= step <= lasts[first]]
        symbol = "circle-open" if one.cause == "unknown" else "circle"
        marker, name = {"color": _MARKS[i % len(_MARKS)], "size": 7, "symbol": symbol}, _cause_text(one.cause)
        traces.append(dots(name, places, [most[at] for at in places], marker, worded("run_step", name=name)))
    recorded = sorted({(row.first, row.last) for row in rows.timeline if row.recorded})
    shapes = [
        {"type": "rect", "x0": first - 0.5, "x1": last + 0.5, "xref": "x", "y0": 0, "y1": 1, "yref": "y domain",
         "fillcolor": "rgba(128,128,128,0.15)", "line": {"width": 0}, "layer": "below"}
        for first, last in recorded
    ]  # fmt: skip
    yaxis = axis("ms", rangemode="tozero")
    return laid_out(traces, 10, pixels=22, xaxis=axis(worded("run_axis")), yaxis=yaxis, grid_y=True, shapes=shapes)


def _spread(by_rank: dict[int, list[StepsRow]]) -> list[dict[str, Any]]:
    at: dict[int, list[float]] = defaultdict(list)
    for own in by_rank.values():
        for row in own:
            at[row.first].append(row.most_ms)
    steps = sorted(at)
    chosen = (("least", min, "#9bb8d6"), ("median rank", statistics.median, "#4e79a7"), ("most", max, "#d6a09b"))
    return [line(name, steps, [pick(at[step]) for step in steps], colour, 1.2) for name, pick, colour in chosen]


def _hosts_table(rows: WholeRunRows) -> Table:
    by_place: dict[tuple[Unit, bool], dict[int, HostRow]] = defaultdict(dict)
    for row in rows.hosts:
        by_place[CodePlace(row.function, row.file, row.line).unit, row.waits][row.rank] = row
    ranks = sorted({row.rank for row in rows.hosts})[:MOST_LINES]
    ordered = sorted(by_place.values(), key=lambda own: -max(row.ms for row in own.values()))[:_MOST_PLACES]
    made = []
    for own in ordered:
        worst = max(own.values(), key=lambda row: row.ms)
        file = worst.file.rpartition("/")[2]
        where = f"{file}:{worst.line}"
        where = where if worst.function == "<module>" else f"{worst.function} ({where})"
        values = {f"rank_{rank}": own[rank].ms if rank in own else 0.0 for rank in ranks}
        made.append({"where": where, "text": worst.text or "", "waits": worst.waits, **values})
    columns = [Column(f"rank_{rank}", f"Rank {rank} ms", "a typical step", worst="max") for rank in ranks]
    cells = {
        "text": lambda row: Cell(row["text"], css="name"),
        "waits": lambda row: Cell("yes" if row["waits"] else ""),
    }
    return table_of("host_places", made, make=cells, columns=columns)


_SELDOM = ("host_cores", "received_mbs", "sent_mbs", "read_mbs", "from_storage_mbs", "storage")  # in later logs


def _machine_table(rows: WholeRunRows) -> Table:
    cells = {
        "lower": lambda row: Cell(
            ", ".join(
                f"{why.replace('_', ' ')} {percent_text(pct)}" for why, pct in (row.lower_clock_pct or {}).items()
            )
        ),
        "others": lambda row: Cell(", ".join(f"pid {pid}" for pid in row.others_on_gpu[:4])),
    }
    gpu = any(row.mhz is not None or row.most_mhz is not None for row in rows.machine)
    of_gpu = ("mhz", "most_mhz", "power_w", "limit_w", "celsius", "lower", "others", "gpu_busy_pct")
    none: tuple[str, ...] = () if gpu else of_gpu
    none += tuple(name for name in _SELDOM if all(getattr(row, name) is None for row in rows.machine))
    return table_of("machine", rows.machine, make=cells, without=none)
