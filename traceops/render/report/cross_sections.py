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
from traceops.core.units import size_text, us_text
from traceops.core.words import SCHEDULES, StepWords
from traceops.measure.ledger import BUCKETS
from traceops.render.cells import Cell, Column, Table, number, rows_of, share, size, table_of
from traceops.render.document import Block, Chart, Heading, Section, TableBlock, bold, fold, soft, text
from traceops.render.report import cross_figures, detail_tables
from traceops.render.report.coverage import check_of, least_note, unfit_note, why_no_what_if
from traceops.render.report.detail_tables import group_cell
from traceops.render.report.rank_groups import MOST_RANKS, groups_of, groups_text, lateness_by_group, rank_column
from traceops.render.report.step_timeline import how_to_open, step_timeline
from traceops.render.report.terms import COLUMNS, COMM_TRANSFER, TERMS, said, section_of, term_of
from traceops.report.model import Report
from traceops.report.rows import PipelineRow, ReferenceRow
from traceops.report.tables import ArrivalRow, LatenessRow, PathRow
from traceops.rules import stragglers

MOST_LATE = 8
MOST_ARRIVALS = 40
MOST_PIECES = 60
_MOST_REFERENCES = 40
_REFERENCE_SOURCES = {
    "doctor": ("traceops doctor", "measured on this machine by traceops doctor"),
    "graph": ("NCCL", "what NCCL's own search expects of these links, from its log"),
    "table": ("table", "what NCCL reaches over this GPU's NVLink inside one host"),
    "siblings": ("best sibling", "the best group of the same kind in this run"),
}
FEW_RUNS = 200  # of the timeline where a script draws it in full


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
    replay, words = report.summary.replay, report.summary.step_words
    if replay is None:
        return ""
    unfit, slowdown = unfit_note(report), replay.straggler_slowdown
    late = any(found.rule in stragglers.IDS and found.severity != "info" for found in report.findings)
    if unfit or (slowdown is not None and slowdown < _NO_SLOWDOWN and late):
        slowdown = None  # with half of the ranks late their median is no measure
    return said(
        "what-if", "replay", words, error=replay.error_pct, doubt=(replay.error_pct or 0.0) > _DOUBTFUL_PCT,
        which=f"steps {ranks_text(replay.steps, 4)}" if len(replay.steps) > 1 else words.the,
        least=least_note(report), unfit=unfit, slowdown=slowdown,
        even=slowdown is not None and slowdown < _NO_SLOWDOWN, uneven=slowdown is not None and slowdown >= _NO_SLOWDOWN,
    )  # fmt: skip


def clocks_sentence(report: Report) -> str:
    """How well the ranks' clocks fit together; empty for one rank."""
    clocks = report.summary.clocks
    if len(report.ranks) < 2 or clocks is None:
        return ""
    residual = clocks.residual_p95_us
    if residual is None:
        return said("timeline", "clocks", unknown=True)
    unaligned = ranks_text(clocks.unaligned, 8) if clocks.unaligned else ""
    return said("timeline", "clocks", residual=us_text(residual), count=clocks.anchors, unaligned=unaligned)


def pipeline_sentence(pipeline: PipelineRow, words: StepWords) -> str:
    """'Ranks 0 to 3: 1F1B, 8 micro-batches per step. Its stages wait 29 % of a step; by the schedule alone, 27 %.'"""
    held, ranks = pipeline.stages_per_rank, pipeline.ranks
    return said(
        "pipelines", "sentence", words, ranks=", ".join(map(str, ranks[:16])) + " …" * (len(ranks) > 16),
        schedule=SCHEDULES[pipeline.schedule], stages=held if held is not None and held > 1 else None,
        batches=pipeline.micro_batches, bubble=pipeline.bubble_pct, even=pipeline.schedule_bubble_pct,
    )  # fmt: skip


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
        return said("lateness", "sentence", unknown=check.reason)
    sometimes = check_of(report, stragglers.SOMETIMES_LATE.id)
    late = sometimes is not None and sometimes.status == "fired"
    return said("lateness", "sentence", clear=check.reason, sometimes=late)


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
    sentence = f"{waiting_sentence(report)} {_tied_sentence(report)}".strip() if len(report.ranks) > 1 else ""
    if not sentence and table is None:
        return None
    blocks: list[Block] = [text(sentence)] if sentence else []
    if table is not None:
        figure = cross_figures.lateness_figure(report, list(shown))
        chart = Chart("lateness", said("lateness", "chart", words), figure)
        blocks += [soft(said("lateness", "intro")), chart, TableBlock(table)]
    return section_of("lateness", blocks)


def pipelines(report: Report, shown: Sequence[int]) -> Section | None:
    """What the stages of each pipeline wait for each other."""
    if not report.pipelines:
        return None
    blocks: list[Block] = [soft(said("pipelines", "intro"))]
    for pipeline in report.pipelines:
        blocks += [
            text(pipeline_sentence(pipeline, report.summary.step_words)),
            TableBlock(detail_tables.stages_table(pipeline, report.summary.step_words)),
        ]
    return section_of("pipelines", blocks)


def what_if(report: Report, shown: Sequence[int]) -> Section | None:
    """What a change would save."""
    table = detail_tables.what_if_table(report)
    if table is None:
        no_replay = len(report.ranks) > 1 and report.summary.no_replay is not None
        return section_of("what-if", (text(why_no_what_if(report, 0.0)),)) if no_replay else None
    replay, words = replay_sentence(report), report.summary.step_words
    blocks: list[Block] = [soft(said("what-if", "intro", words)), *((text(replay),) if replay else ())]
    chart = Chart("what-if", said("what-if", "chart", words), cross_figures.what_if_figure(report))
    return section_of("what-if", (*blocks, chart, TableBlock(table, "narrow")))


def critical_path(report: Report, shown: Sequence[int]) -> Section | None:
    """What set how long the median step took."""
    table, words = path_table(report), report.summary.step_words
    if table is None:
        return None
    blocks: list[Block] = [text(bold(sentence))] if (sentence := path_sentence(report)) else []
    blocks += [
        soft(said("path", "intro", words)),
        Chart("path", said("path", "chart"), cross_figures.critical_path_figure(report)),
        fold(said("path", "fold"), TableBlock(table)),
    ]
    return section_of("path", blocks, words, step=report.tables.critical_path[0].step)


def longest_step(report: Report, shown: Sequence[int]) -> Section | None:
    """What every rank did in the longest step."""
    table, words = timeline_table(report, list(shown)), report.summary.step_words
    if table is None:
        return None
    clocks, several = clocks_sentence(report), len(report.ranks) > 1
    runs = cross_figures.MOST_RUNS if report.detail is None else FEW_RUNS
    figure = cross_figures.timeline_figure(report, list(shown), runs)
    longest = words.choose("longest step", "window")
    chart = Chart("timeline", said("timeline", "chart", longest=longest), figure)
    sums = fold(said("timeline", "fold"), TableBlock(table))
    moments = soft(said("timeline", "said", several=several, clocks=clocks, kinds=groups_text(report)))
    if drawn := step_timeline(report, (moments, chart)):
        intro = soft(said("timeline", "intro", words, clocks=clocks))
        return section_of("timeline", (intro, drawn, how_to_open(report), sums))
    heading = said("timeline", "instead", words, step=report.tables.timeline[0].step, several=several)
    return Section("timeline", heading, (moments, chart, sums), said("timeline", "nav_instead", words))


def collectives(report: Report, shown: Sequence[int]) -> Section:
    """Matching, late arrivals and bandwidth of collectives."""
    table, arrivals = detail_tables.collectives_table(report), arrivals_table(report)
    blocks: list[Block] = [text(_matching_sentence(report))]
    if table.rows:
        blocks.append(TableBlock(table))
    if arrivals is not None:
        blocks += [
            Heading("Late arrivals"),
            soft(said("collectives", "arrivals")),
            Chart("arrivals", said("collectives", "arrivals_chart"), cross_figures.arrivals_figure(report)),
            fold(said("collectives", "arrivals_fold"), TableBlock(arrivals)),
        ]
    if any(row.bytes for row in report.tables.bandwidth):
        blocks += [
            Heading("Bandwidth against size"),
            soft(said("collectives", "bandwidth")),
            Chart("bandwidth", said("collectives", "bandwidth_chart"), cross_figures.bandwidth_figure(report)),
        ]
    return section_of("collectives", blocks)


def fabric(report: Report, shown: Sequence[int]) -> Section | None:
    """Machines, how NCCL connected them, and collectives against what their links can do."""
    if report.fabric is None and not report.tables.reference:
        return None
    blocks: list[Block] = []
    if references := reference_table(report):
        blocks += [
            soft(
                "What each kind of collective achieved against what its links can do. Where that is not known, "
                "traceops doctor on this machine measures it."
            ),
            TableBlock(references),
        ]
    if report.fabric is not None:
        from traceops.render.report.fabric_html import fabric_blocks  # most reports have none

        blocks += fabric_blocks(report)
    return Section("fabric", "Fabric", tuple(blocks))


def reference_table(report: Report) -> Table | None:
    """What collectives achieved against what their links can do, most time lost first; None without rows."""
    rows = report.tables.reference
    if not rows:
        return None
    cells = {
        "group": group_cell,
        "bytes_p50": _reference_size,
        "reference_source": _reference_source,
        "reference_pct": _reference_pct,
    }
    cells |= {"busbw_gbs": lambda row: number(row.busbw_gbs), "reference_gbs": lambda row: number(row.reference_gbs)}
    return table_of(
        "reference", rows, report.summary.step_words, make=cells, facts={"busbw": COLUMNS["Bus bandwidth"]},
        most=_MOST_REFERENCES,
    )  # fmt: skip


def _reference_size(row: ReferenceRow) -> Cell:
    middle = size(row.bytes_p50)
    least, most = row.bytes_min, row.bytes_max
    if least is None or most is None or least == most:
        return middle
    return Cell(middle.text, f"{size_text(least)} to {size_text(most)}")


def _reference_source(row: ReferenceRow) -> Cell:
    source = row.reference_source
    if source is None:
        return Cell("–", "nothing says what these links can do", "unknown")
    label, title = _REFERENCE_SOURCES.get(str(source), (str(source), ""))
    link = row.reference_link
    return Cell(label, f"{title}: {link}" if link else title)


def _reference_pct(row: ReferenceRow) -> Cell:
    pct = row.reference_pct
    if pct is None:
        return Cell("–", "not known, or messages too small for it", "unknown")
    return share(pct, COMM_TRANSFER.colour)


def _tied_sentence(report: Report) -> str:
    """That the rank which comes last is one of many alike: its cure alone changes nothing."""
    last = max(report.ranks, key=lambda row: row.late_share or 0.0, default=None)
    if last is None or not last.late_share or len(report.ranks) <= MOST_RANKS:
        return ""
    group = next((group for group in groups_of(report) if last.rank in group.ranks), None)
    if group is None or not 1 < len(group.ranks) < len(report.ranks):
        return ""
    return said("lateness", "tied", last=last.rank, alike=len(group.ranks))


def _matching_sentence(report: Report) -> str:
    matching = report.summary.matching
    if matching is None or not matching.events:
        return said("collectives", "matching", none=True)
    pct = matching.matched_pct
    left = ", ".join(f"{count} ({reason})" for reason, count in matching.unmatched.items())
    matched = None if pct is None else number(pct, 1).text
    return said("collectives", "matching", events=matching.events, outside=pct is None, matched=matched, left=left)
