"""What ranks do together: the sections of summary.html, their tables and sentences.

`shown` are the ranks that figures and tables hold where there are too many for all. A section with nothing to show is
None.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from traceops.core.cause_words import BUCKETS as BUCKET_WORDS
from traceops.core.cause_words import CAUSES
from traceops.core.rank_text import ranks_text
from traceops.core.units import percent_text, us_text
from traceops.core.words import SCHEDULES, StepWords
from traceops.measure.ledger import BUCKETS
from traceops.render.cells import Cell, Column, Table, number, rows_of, size, table_of
from traceops.render.document import Block, Chart, Heading, Section, TableBlock, bold, fold, soft, text
from traceops.render.report import cross_figures, detail_tables
from traceops.render.report.coverage import check_of, least_note, unfit_note, why_no_what_if
from traceops.render.report.rank_groups import MOST_RANKS, groups_of, groups_text, lateness_by_group, rank_column
from traceops.render.report.step_timeline import how_to_open, step_timeline
from traceops.render.report.terms import TERMS, term_of
from traceops.report.model import Report
from traceops.report.rows import PipelineRow
from traceops.report.tables import ArrivalRow, LatenessRow, PathRow
from traceops.rules import stragglers

MOST_LATE = 8
MOST_ARRIVALS = 40
MOST_PIECES = 60
FEW_RUNS = 400  # of the timeline where a script draws it in full


def lateness_table(report: Report) -> Table | None:
    """The ranks that the others wait for most, with the reasons, ms a step; None where nothing is known."""
    rows = _lateness_means(report)
    if not rows:
        return None
    causes = [
        Column(f"{cause}_ms", f"{words.label} ms", f"of it because {words.clause}")
        for cause, words in CAUSES.items()
        if any(row.cause_ms(cause) for row in rows)
    ]
    shown = sorted(rows, key=lambda row: (-row.caused_wait_ms, row.rank))[:MOST_LATE]
    note = (
        f"The {MOST_LATE} worst of {len(rows)} {'ranks' if len(rows) == len(report.ranks) else 'rows'}; all are in "
        "lateness.csv."
        if len(rows) > MOST_LATE
        else ""
    )
    cells = {"worst_step": lambda row: _step_cell(row.worst_step)}
    columns = [rank_column(report), *causes]
    return table_of("lateness", shown, report.summary.step_words, columns=columns, make=cells, note=note)


def arrivals_table(report: Report) -> Table | None:
    """Each kind of collective: how far apart its members arrive, and who comes last."""
    rows = report.tables.arrivals
    if not rows:
        return None
    cells = {"group": _group_cell, "bytes": lambda row: size(row.bytes)}
    return table_of("arrivals", rows, make=cells, most=MOST_ARRIVALS)


def path_table(report: Report) -> Table | None:
    """The longest pieces of the critical path in time order; None without a path."""
    rows = report.tables.critical_path
    if not rows:
        return None
    kept = sorted(range(len(rows)), key=lambda i: -rows[i].duration_ms)[:MOST_PIECES]
    shown = [rows[i] for i in sorted(kept)]
    buckets = [bucket for bucket in BUCKETS if any(row.spent_ms.get(bucket) for row in shown)]
    columns = [
        Column(f"{bucket}_ms", f"{TERMS[bucket].label} ms", "of the piece", make=_blank_or_ms(bucket))
        for bucket in buckets
    ]
    note = f"The {MOST_PIECES} longest of {len(rows)} pieces; all are in critical_path.csv."
    cells = {"kind": lambda row: _kind_cell(row.kind), "what": _what_cell}
    return table_of("critical_path", shown, columns=columns, make=cells, note=note if len(rows) > MOST_PIECES else "")


def timeline_table(report: Report, shown: Sequence[int]) -> Table | None:
    """What the longest step consists of on each shown rank, ms; None without a timeline."""
    sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    begins: dict[int, float] = {}
    for row in report.tables.timeline:
        sums[row.rank][str(row.kind)] += row.duration_ms
        begins[row.rank] = min(begins.get(row.rank, row.start_ms), row.start_ms)
    if not sums:
        return None
    rows = [
        {"rank": rank, "begins_ms": begins[rank], "step_ms": sum(own.values()), **own} for rank, own in sums.items()
    ]
    kinds = [bucket for bucket in BUCKETS if any(row.get(bucket) for row in rows)]
    columns = [
        rank_column(report),
        *(Column(kind, f"{TERMS[kind].label} ms", TERMS[kind].definition) for kind in kinds),
    ]
    filled = [{**dict.fromkeys(kinds, 0.0), **row} for row in rows_of(rows, shown)]
    cut = len(rows) - len(filled)
    note = f"{cut} more ranks in timeline.csv." if cut else ""
    return table_of("timeline", filled, report.summary.step_words, columns=columns, note=note)


class _Lateness(LatenessRow, frozen=True, kw_only=True):
    """A rank's means over its steps, and its worst step; that is null where nobody waited for it."""

    worst_ms: float
    worst_step: int | None


def _lateness_means(report: Report) -> list[_Lateness]:
    by_rank: dict[int, list[LatenessRow]] = defaultdict(list)
    for row in lateness_by_group(report):
        by_rank[row.rank].append(row)
    means = []
    for rank, rows in by_rank.items():
        worst = max(rows, key=lambda row: row.caused_wait_ms)
        means.append(
            _Lateness(
                rank=rank,
                step=None,
                caused_wait_ms=sum(row.caused_wait_ms for row in rows) / len(rows),
                waited_ms=sum(row.waited_ms for row in rows) / len(rows),
                **{f"{cause}_ms": sum(row.cause_ms(cause) for row in rows) / len(rows) for cause in CAUSES},
                worst_ms=worst.caused_wait_ms,
                worst_step=worst.step if worst.caused_wait_ms > 0 else None,
            )
        )
    return means


def _step_cell(step: Any) -> Cell:
    return Cell("") if step is None else number(step, 0)


def _kind_cell(kind: Any) -> Cell:
    return Cell(term_of(kind).label, str(kind), "swatch", colour=term_of(kind).colour)


def _what_cell(row: PathRow) -> Cell:
    """The collective; of own work the kind already says it."""
    return Cell("") if row.what == row.kind else Cell(str(row.what)[:60], str(row.what))


def _blank_or_ms(bucket: str) -> Any:
    def cell(row: PathRow) -> Cell:
        value = row.spent_ms.get(bucket)
        return Cell("") if not value else number(value, 3)

    return cell


def _group_cell(row: ArrivalRow) -> Cell:
    members = ranks_text(row.ranks)
    return Cell(f"{row.group[:40]}: {members[:40]}", f"{row.group}: ranks {members}")


# What the page says in one sentence about the replay, the clocks, the critical path and the waiting.


_LEAST_PART_PCT = 4.0  # of the critical path, to be named
_MOST_PARTS = 4
_MOSTLY = 0.75  # of a bucket's time on the path, to be one rank's
_DOUBTFUL_PCT = 5.0  # error of the replay from which predictions are to be taken with care
_NO_SLOWDOWN = 1.02


def replay_sentence(report: Report) -> str:
    """How far the replay is from the measured steps, and what the stragglers cost the whole job."""
    replay = report.summary.replay
    if replay is None:
        return ""
    said, words = "", report.summary.step_words
    error = replay.error_pct
    if error is not None:
        doubt = ", so take the predictions with care" if error > _DOUBTFUL_PCT else ""
        steps = replay.steps
        which = f"steps {ranks_text(steps, 4)}" if len(steps) > 1 else words.the
        said = f"Unchanged, the replay of {which} is within {percent_text(error)} of what was measured{doubt}."
    if note := least_note(report):
        said += f" {note[:1].upper()}{note[1:]}."
    slowdown = replay.straggler_slowdown
    if unfit := unfit_note(report):
        said += f" {unfit[:1].upper()}{unfit[1:]}."
        slowdown = None
    late = any(found.rule in stragglers.IDS and found.severity != "info" for found in report.findings)
    if slowdown is not None and slowdown < _NO_SLOWDOWN and late:
        slowdown = None  # with half of the ranks late their median is no measure
    if slowdown is not None and slowdown < _NO_SLOWDOWN:
        said += f" Making all ranks equal would save next to nothing (straggler slowdown S = {slowdown:.2f})."
    elif slowdown is not None:
        they = words.choose("they", "it")
        said += (
            f" {words.choose('Steps take', 'The window takes')} {slowdown:.2f} times as long as {they} would if every "
            "rank ran as the median rank does "
            f"(straggler slowdown S = {slowdown:.2f})."
        )
    return said.strip()


def clocks_sentence(report: Report) -> str:
    """How well the ranks' clocks fit together; empty for one rank."""
    clocks = report.summary.clocks
    if len(report.ranks) < 2 or clocks is None:
        return ""
    residual = clocks.residual_p95_us
    if residual is None:
        return "No collective synchronises the ranks, so the clocks are as the traces have them."
    said = f"Clocks agree within {us_text(residual)} (p95 over {clocks.anchors} collectives)."
    if clocks.unaligned:
        said += f" Not aligned: ranks {ranks_text(clocks.unaligned, 8)}."
    return said


def pipeline_sentence(pipeline: PipelineRow, words: StepWords) -> str:
    """'Ranks 0 to 3: 1F1B, 8 micro-batches a step. Stages wait 29 % of it; by the schedule alone, 27 %.'"""
    held = pipeline.stages_per_rank
    said = f"Ranks {', '.join(map(str, pipeline.ranks[:16]))}{' …' if len(pipeline.ranks) > 16 else ''}: "
    said += SCHEDULES[pipeline.schedule]
    if held is not None and held > 1:
        said += f", {held} stages a rank"
    if pipeline.micro_batches is not None:
        said += f", {pipeline.micro_batches} micro-batches {words.per}"
    said += f". Its stages wait {pipeline.bubble_pct:.0f} % of {words.a} for each other"
    if pipeline.schedule_bubble_pct is not None:
        said += f"; even ones would wait {pipeline.schedule_bubble_pct:.0f} % by the schedule alone"
    return f"{said}."


def path_sentence(report: Report) -> str:
    """'90 % of the path runs through rank 2's computation, 7 % through transfer.'; empty without a path."""
    spent, total = _path_parts(report)
    if not total:
        return ""
    parts: list[tuple[float, str]] = []
    for bucket, by_rank in spent.items():
        ms = sum(by_rank.values())
        parts.append((100 * ms / total, _part_text(bucket, by_rank, ms)))
    named = [part for part in sorted(parts, reverse=True) if part[0] >= _LEAST_PART_PCT][:_MOST_PARTS]
    if not named:
        return ""
    first, *rest = named
    others = "".join(f", {pct:.0f} % through {what}" for pct, what in rest)
    return f"{first[0]:.0f} % of the path runs through {first[1]}{others}."


def waiting_sentence(report: Report) -> str:
    """Why nobody is blamed, or why that was not judged; empty where a straggler was found."""
    check = check_of(report, stragglers.PERSISTENTLY_LATE.id)
    if check is None or check.status == "fired":
        return ""
    if check.status == "not_evaluated":
        return f"Not evaluated: {check.reason}."
    sometimes = check_of(report, stragglers.SOMETIMES_LATE.id)
    which = "No rank is late in most steps" if sometimes and sometimes.status == "fired" else "No straggler"
    return f"{which}: {check.reason}."


def _path_parts(report: Report) -> tuple[dict[str, dict[int, float]], float]:
    """ms of the path by bucket ('transfer' among them) and rank, and all of it."""
    spent: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    total = 0.0
    for row in report.tables.critical_path:
        rank, whole = row.rank, row.duration_ms
        told = {b: ms for b in BUCKETS if (ms := row.spent_ms.get(b))}
        for bucket, ms in told.items():
            spent[bucket][rank] += ms
        # What no bucket holds is own work that communication masked: the host's, as the kind says.
        spent[row.kind if not told else "idle_host"][rank] += max(whole - sum(told.values()), 0.0)
        total += whole
    return spent, total


def _part_text(bucket: str, by_rank: Mapping[int, float], ms: float) -> str:
    words = BUCKET_WORDS.get(bucket)
    if words is None or not words.of_rank:
        return bucket if bucket == "transfer" else "other work"
    most = max(by_rank, key=lambda rank: by_rank[rank])
    if by_rank[most] >= _MOSTLY * ms:
        return f"rank {most}'s {words.of_rank}"
    ranks = [rank for rank, own in by_rank.items() if own > 0.1 * by_rank[most]]
    return (
        f"{words.of_several} on ranks {ranks_text(ranks, 3)}"
        if len(ranks) <= 3
        else f"{words.of_several} on {len(ranks)} ranks"
    )


def hang(report: Report, shown: Sequence[int]) -> Section | None:
    """The diagnosis of a hang."""
    if report.hang is None:
        return None
    from traceops.render.hang.html import hang_blocks

    return Section("hang", "Hang", hang_blocks(report.hang))


def lateness(report: Report, shown: Sequence[int]) -> Section | None:
    """Who is waited for, and why."""
    table, words = lateness_table(report), report.summary.step_words
    sentence = waiting_sentence(report) if len(report.ranks) > 1 else ""
    sentence = " ".join(said for said in (sentence, _tied_sentence(report)) if said)
    if not sentence and table is None:
        return None
    blocks: list[Block] = [text(sentence)] if sentence else []
    if table is not None:
        blocks += [
            soft(
                "Waiting is charged to the rank whose own work made it late; a rank that was late because it had to "
                "wait passes the charge on. Summed over the ranks that wait."
            ),
            Chart(
                "lateness",
                f"Heat map: waiting that each rank caused in {words.each}, ms; the table below has the "
                f"{words.choose('means and the worst step', 'numbers')}",
                cross_figures.lateness_figure(report, list(shown)),
            ),
            TableBlock(table, "narrow"),
        ]
    return Section("lateness", "Who is waited for, and why", tuple(blocks), "Who is waited for")


def pipelines(report: Report, shown: Sequence[int]) -> Section | None:
    """What the stages of each pipeline wait for each other."""
    if not report.pipelines:
        return None
    blocks: list[Block] = [
        soft(
            "The bubble is what a stage waits for activations and gradients with nothing else to do: for a slower "
            "stage, while the pipeline fills and drains, or for sends that come late."
        )
    ]
    for pipeline in report.pipelines:
        blocks += [
            text(pipeline_sentence(pipeline, report.summary.step_words)),
            TableBlock(detail_tables.stages_table(pipeline, report.summary.step_words)),
        ]
    return Section("pipelines", "What stages wait for each other", tuple(blocks), "Pipelines")


def what_if(report: Report, shown: Sequence[int]) -> Section | None:
    """What a change would save."""
    table = detail_tables.what_if_table(report)
    if table is None:
        no_replay = len(report.ranks) > 1 and report.summary.no_replay is not None
        why = (text(why_no_what_if(report, 0.0)),)
        return Section("what-if", "What a change would save", why, "What if") if no_replay else None
    replay, words = replay_sentence(report), report.summary.step_words
    return Section(
        "what-if",
        "What a change would save",
        (
            soft(
                f"The measured {words.choose('steps', 'window')} replayed with one thing different at a time; "
                "savings do not add up."
            ),
            *((text(replay),) if replay else ()),
            Chart(
                "what-if",
                f"Bars: predicted step time for one change at a time, ms, and a line at {words.the} as it is; the "
                "table below has the numbers",
                cross_figures.what_if_figure(report),
            ),
            TableBlock(table, "narrow"),
        ),
        "What if",
    )


def critical_path(report: Report, shown: Sequence[int]) -> Section | None:
    """What set how long the median step took."""
    table = path_table(report)
    if table is None:
        return None
    step, sentence = report.tables.critical_path[0].step, path_sentence(report)
    words = report.summary.step_words
    return Section(
        "path",
        f"Critical path of the {words.choose('median step', 'window')}{_of_step(step)}",
        (
            *((text(bold(sentence)),) if sentence else ()),
            soft(
                f"The chain of work and transfers that set how long {words.the} took: making anything off it faster "
                "changes nothing. A piece is shown as what it consists of, times of one kind together."
            ),
            Chart(
                "path",
                "Lanes: the pieces of the critical path on each rank in ms; the folded table lists them",
                cross_figures.critical_path_figure(report),
            ),
            fold("Pieces as a table", TableBlock(table)),
        ),
        "Critical path",
    )


def longest_step(report: Report, shown: Sequence[int]) -> Section | None:
    """What every rank did in the longest step."""
    table = timeline_table(report, list(shown))
    if table is None:
        return None
    several, longest = len(report.ranks) > 1, report.summary.step_words.choose("longest step", "window")
    clocks = clocks_sentence(report)
    kinds = groups_text(report)
    cut = f" {kinds}" if kinds else ""
    chart = Chart(
        "timeline",
        f"Rows: what each rank did during the {longest}, on one time axis in ms; the folded table has the sums",
        cross_figures.timeline_figure(
            report, list(shown), cross_figures.MOST_RUNS if report.detail is None else FEW_RUNS
        ),
    )
    sums = fold("Sums as a table", TableBlock(table))
    said = soft(
        f"What the device did at each moment{', all ranks on one time axis' if several else ''}."
        f"{f' {clocks}' if clocks else ''}{cut}"
    )
    if drawn := step_timeline(report, (said, chart)):
        return Section(
            "timeline",
            "Timeline",
            (
                soft(
                    f"{report.summary.step_words.choose('Any recorded step', 'The window')}, as the traces have it: "
                    "what the host did, what the device computed, and for each collective how long a rank waited "
                    "before the transfer began. Zoom in to see the names."
                    f"{f' {clocks}' if clocks else ''}"
                ),
                drawn,
                how_to_open(report),
                sums,
            ),
        )
    return Section(
        "timeline",
        f"The {longest}{_of_step(report.tables.timeline[0].step)}{' on all ranks' if several else ''}",
        (said, chart, sums),
        longest.capitalize(),
    )


def collectives(report: Report, shown: Sequence[int]) -> Section:
    """Matching, late arrivals and bandwidth of collectives."""
    table, arrivals = detail_tables.collectives_table(report), arrivals_table(report)
    blocks: list[Block] = [text(_matching_sentence(report))]
    if table.rows:
        blocks.append(TableBlock(table))
    if arrivals is not None:
        blocks += [
            Heading("Late arrivals"),
            soft("From the first member's arrival to the last one's, median to p95, and who comes last in how many."),
            Chart(
                "arrivals",
                "Bars: spread of arrivals for each kind of collective, ms; the folded table has the numbers",
                cross_figures.arrivals_figure(report),
            ),
            fold("Arrivals as a table", TableBlock(arrivals)),
        ]
    if any(row.bytes for row in report.tables.bandwidth):
        blocks += [
            Heading("Bandwidth against size"),
            soft(
                "A point a collective. Small messages are bound by latency: the curve should rise and then level off "
                "near what the link gives."
            ),
            Chart(
                "bandwidth",
                "Scatter: bus bandwidth in GB/s against bytes of a collective; the table of collectives has the "
                "medians",
                cross_figures.bandwidth_figure(report),
            ),
        ]
    return Section("collectives", "Collectives", tuple(blocks))


def fabric(report: Report, shown: Sequence[int]) -> Section | None:
    """Machines, how NCCL connected them, and collectives against what their links can do."""
    if report.fabric is None and not report.tables.reference:
        return None
    from traceops.render.report.fabric_html import fabric_blocks  # most reports have none

    return Section("fabric", "Fabric", fabric_blocks(report))


def _tied_sentence(report: Report) -> str:
    """That the rank which comes last is one of many alike: its cure alone changes nothing."""
    last = max(report.ranks, key=lambda row: row.late_share or 0.0, default=None)
    if last is None or not last.late_share or len(report.ranks) <= MOST_RANKS:
        return ""
    group = next((group for group in groups_of(report) if last.rank in group.ranks), None)
    if group is None or not 1 < len(group.ranks) < len(report.ranks):
        return ""
    return (
        f"Rank {last.rank} is one of {len(group.ranks)} ranks that are alike: which of them comes last is chance, and "
        "curing one of them changes little."
    )


def _matching_sentence(report: Report) -> str:
    matching = report.summary.matching
    if matching is None or not matching.events:
        return "The traces hold no communication."
    pct = matching.matched_pct
    told = (
        "none of them belongs to the window."
        if pct is None
        else f"{number(pct, 1).text} % of those that belong to the window were matched across ranks."
    )
    left_out = ", ".join(f"{count} ({reason})" for reason, count in matching.unmatched.items())
    return f"{matching.events} communication events; {told}{f' Left out: {left_out}.' if left_out else ''}"


def _of_step(step: int | None) -> str:
    return "" if step is None else f" (step {step})"
