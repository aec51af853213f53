"""What ranks do together: the sections of summary.html, their tables and sentences. `shown` are the ranks that figures
and tables hold where there are too many for all. A section with nothing to show is None."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from traceops.core.rank_text import ranks_text
from traceops.core.units import size_text, us_text
from traceops.core.words import BUCKETS as BUCKET_WORDS
from traceops.core.words import CAUSES, ROLES, SCHEDULES, STEP, StepWords
from traceops.measure.ledger import BUCKETS
from traceops.render.cells import NOT_KNOWN, Cell, Column, Table, blank_or, number, share, size, sizes_apart, table_of
from traceops.render.document import Block, Chart, Heading, Section, TableBlock, bold, fold, soft, text
from traceops.render.report import cross_figures
from traceops.render.report.coverage import check_of, least_note, unfit_note, why_no_what_if
from traceops.render.report.rank_groups import MOST_RANKS, groups_of, groups_text, lateness_by_group, rank_column
from traceops.render.report.step_timeline import how_to_open, step_timeline
from traceops.render.report.terms import COMM_TRANSFER, TERMS, meanings, say, section_of, term_of
from traceops.report.model import Report
from traceops.report.rows import CollectiveRow, PipelineRow, ReferenceRow
from traceops.report.tables import ArrivalRow, LatenessRow
from traceops.rules import stragglers
from traceops.words.catalogue import texts

MOST_LATE = 8
MOST_ARRIVALS = 40
MOST_PIECES = 60
MOST_COLLECTIVES = 40
_MOST_REFERENCES = 40
FEW_RUNS = 200  # of the timeline where a script draws it in full


def lateness_table(report: Report) -> Table | None:
    """The ranks that the others wait for most, with the reasons, ms per step; None where nothing is known."""
    by_rank: dict[int, list[LatenessRow]] = defaultdict(list)
    for step in lateness_by_group(report):
        by_rank[step.rank].append(step)
    rows = sorted(map(_mean_lateness, by_rank.values()), key=lambda row: (-row.caused_wait_ms, row.rank))
    if not rows:
        return None
    causes = [
        Column(f"{cause}_ms", f"{words.label} ms", f"of it because {words.clause}")
        for cause, words in CAUSES.items()
        if any(row.cause_ms(cause) for row in rows)
    ]
    cells = {"worst_step": lambda row: blank_or(row.worst_step, 0)}
    columns = [rank_column(report), *causes]
    return table_of("lateness", rows, report.summary.step_words, columns=columns, make=cells, most=MOST_LATE)


def arrivals_table(report: Report) -> Table | None:
    """Each kind of collective: how far apart its members arrive, and who comes last."""

    def group(row: ArrivalRow) -> Cell:
        members = ranks_text(row.ranks)
        return Cell(f"{row.group[:40]}: {members[:40]}", f"{row.group}: ranks {members}")

    rows = report.tables.arrivals
    cells = {"group": group, "bytes": lambda row: size(row.bytes)}
    return table_of("arrivals", rows, make=cells, most=MOST_ARRIVALS) if rows else None


def path_table(report: Report) -> Table | None:
    """The longest pieces of the critical path in time order; None without a path."""

    def blank_or_ms(bucket: str) -> Any:
        return lambda row: blank_or(row.spent_ms.get(bucket) or None, 3)

    if not (rows := report.tables.critical_path):
        return None
    kept = sorted(range(len(rows)), key=lambda i: -rows[i].duration_ms)[:MOST_PIECES]
    shown = [rows[i] for i in sorted(kept)]
    columns = [
        Column(f"{bucket}_ms", f"{TERMS[bucket].label} ms", "of the piece", make=blank_or_ms(bucket))
        for bucket in BUCKETS
        if any(row.spent_ms.get(bucket) for row in shown)
    ]
    cells = {
        "kind": lambda row: Cell(term_of(row.kind).label, str(row.kind), "swatch", colour=term_of(row.kind).colour),
        # The collective; of own work the kind already says it.
        "what": lambda row: Cell("") if row.what == row.kind else Cell(str(row.what)[:60], str(row.what)),
    }
    return table_of("critical_path", shown, columns=columns, make=cells, total=len(rows))


def collectives_table(report: Report) -> Table:
    """Each kind of collective: what it moves, how long it takes, how fast the link was."""
    shown = report.collectives[:MOST_COLLECTIVES]
    size_cell, told = sizes_apart([row.bytes for row in shown]), {None, "unknown"}
    cells = {
        "group": _group_cell,
        "role": lambda row: NOT_KNOWN if row.role in told else Cell(ROLES[row.role]),
        "bytes": lambda row: size_cell(row.bytes),
        "places": lambda row: (
            Cell(f"{ranks_text(row.places, 6)} of {row.places_of}", value=float(row.places[0]))
            if row.places
            else NOT_KNOWN
        ),
    }
    unknown = ("role",) if told.issuperset(row.role for row in shown) else ()
    return table_of(
        "collectives", report.collectives, report.summary.step_words, make=cells, without=unknown,
        facts=meanings(), most=MOST_COLLECTIVES,
    )  # fmt: skip


def what_if_table(report: Report) -> Table | None:
    """Predicted step time for one change at a time; None where nothing was predicted."""
    cells = {"ranks": lambda row: Cell(ranks_text(row.ranks) or "all")}
    return table_of("what_if", report.what_if, report.summary.step_words, make=cells) if report.what_if else None


def stages_table(pipeline: PipelineRow, words: StepWords = STEP) -> Table:
    """A row a stage of a pipeline: its work and its bubble."""
    whole = pipeline.schedule_bubble_pct is None
    facts = {"ranks": ranks_text(pipeline.ranks, 8), "late": say("pipelines", "late", whole=whole)}
    unknown = ("fill_drain_ms", "fill_ms", "drain_ms") if whole else ()
    return table_of("stages", pipeline.stages, words, without=unknown, facts=facts)


class _Lateness(LatenessRow, frozen=True, kw_only=True):
    """A rank's means over its steps, and its worst step; that is null where nobody waited for it."""

    worst_ms: float
    worst_step: int | None


def _mean_lateness(rows: Sequence[LatenessRow]) -> _Lateness:
    worst = max(rows, key=lambda row: row.caused_wait_ms)
    names = ("caused_wait_ms", "waited_ms", *(f"{cause}_ms" for cause in CAUSES))
    means: dict[str, Any] = {name: sum(getattr(row, name) for row in rows) / len(rows) for name in names}
    step = worst.step if worst.caused_wait_ms > 0 else None
    return _Lateness(rank=worst.rank, step=None, **means, worst_ms=worst.caused_wait_ms, worst_step=step)


def _group_cell(row: CollectiveRow | ReferenceRow) -> Cell:
    """A process group by name and number of ranks; hovering names them."""
    group, count = str(row.group), f"{len(row.ranks)} ranks"
    return Cell(count if group == count else f"{group[:40]} · {count}", f"{group}: ranks {ranks_text(row.ranks)}")


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
    return say(
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
    if (residual := clocks.residual_p95_us) is None:
        return say("timeline", "clocks", unknown=True)
    unaligned = ranks_text(clocks.unaligned, 8) if clocks.unaligned else ""
    return say("timeline", "clocks", residual=us_text(residual), count=clocks.anchors, unaligned=unaligned)


def pipeline_sentence(pipeline: PipelineRow, words: StepWords) -> str:
    """'Ranks 0 to 3: 1F1B, 8 micro-batches per step. Its stages wait 29 % of a step; by the schedule alone, 27 %.'"""
    held, ranks = pipeline.stages_per_rank, pipeline.ranks
    return say(
        "pipelines", "sentence", words, ranks=", ".join(map(str, ranks[:16])) + " …" * (len(ranks) > 16),
        schedule=SCHEDULES[pipeline.schedule], stages=held if held is not None and held > 1 else None,
        batches=pipeline.micro_batches, bubble=pipeline.bubble_pct, even=pipeline.schedule_bubble_pct,
    )  # fmt: skip


def path_sentence(report: Report) -> str:
    """'90 % of the path runs through rank 2's computation, 7 % through transfer.'; empty without a path."""
    # Sum the path by bucket ('transfer' among them) and rank, and as a whole, in ms.
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
    if not total:
        return ""
    parts: list[tuple[float, str]] = []
    for bucket, by_rank in spent.items():
        ms = sum(by_rank.values())
        parts.append((100 * ms / total, _part_text(bucket, by_rank, ms)))
    named = [part for part in sorted(parts, reverse=True) if part[0] >= _LEAST_PART_PCT][:_MOST_PARTS]
    if not named:
        return ""
    (pct, most), *rest = named
    return say("path", "sentence", pct=pct, most=most, rest=[f"{pct:.0f} % through {what}" for pct, what in rest])


def waiting_sentence(report: Report) -> str:
    """Why nobody is blamed, or why that was not judged; empty where a straggler was found."""
    if (check := check_of(report, stragglers.PERSISTENTLY_LATE.id)) is None or check.status == "fired":
        return ""
    if check.status == "not_evaluated":
        return say("lateness", "sentence", unknown=check.reason)
    sometimes = check_of(report, stragglers.SOMETIMES_LATE.id)
    late = sometimes is not None and sometimes.status == "fired"
    return say("lateness", "sentence", clear=check.reason, sometimes=late)


def _part_text(bucket: str, by_rank: Mapping[int, float], ms: float) -> str:
    if (words := BUCKET_WORDS.get(bucket)) is None or not words.of_rank:
        return bucket if bucket == "transfer" else "other work"
    most = max(by_rank, key=lambda rank: by_rank[rank])
    if by_rank[most] >= _MOSTLY * ms:
        return f"rank {most}'s {words.of_rank}"
    ranks = [rank for rank, own in by_rank.items() if own > 0.1 * by_rank[most]]
    return f"{words.of_several} on {f'ranks {ranks_text(ranks, 3)}' if len(ranks) <= 3 else f'{len(ranks)} ranks'}"


def hang(report: Report, shown: Sequence[int]) -> Section | None:
    """The diagnosis of a hang."""
    if report.hang is None:
        return None
    from traceops.render.hang.html import hang_blocks

    return Section("hang", say("hang", "heading"), hang_blocks(report.hang))


def lateness(report: Report, shown: Sequence[int]) -> Section | None:
    """Who is waited for, and why."""
    table, words = lateness_table(report), report.summary.step_words
    sentence = f"{waiting_sentence(report)} {_tied_sentence(report)}".strip() if len(report.ranks) > 1 else ""
    if not sentence and table is None:
        return None
    blocks: list[Block] = [text(sentence)] if sentence else []
    if table is not None:
        figure = cross_figures.lateness_figure(report, list(shown))
        chart = Chart("lateness", say("lateness", "chart", words), figure)
        blocks += [soft(say("lateness", "intro")), chart, TableBlock(table)]
    blamed = max(report.ranks, key=lambda row: row.caused_wait_ms or 0.0, default=None)
    facts = {} if blamed is None else {"caused_ms": blamed.caused_wait_ms, "caused_by": blamed.rank}
    return section_of("lateness", blocks, words, **facts)


def pipelines(report: Report, shown: Sequence[int]) -> Section | None:
    """What the stages of each pipeline wait for each other."""
    if not report.pipelines:
        return None
    blocks: list[Block] = [soft(say("pipelines", "intro"))]
    words = report.summary.step_words
    for pipeline in report.pipelines:
        blocks += [text(pipeline_sentence(pipeline, words)), TableBlock(stages_table(pipeline, words))]
    most = max(pipeline.bubble_pct for pipeline in report.pipelines)
    return section_of("pipelines", blocks, words, bubble_pct=most)


def what_if(report: Report, shown: Sequence[int]) -> Section | None:
    """What a change would save."""
    if (table := what_if_table(report)) is None:
        no_replay = len(report.ranks) > 1 and report.summary.no_replay is not None
        return section_of("what-if", (text(why_no_what_if(report, 0.0)),)) if no_replay else None
    replay, words = replay_sentence(report), report.summary.step_words
    blocks: list[Block] = [soft(say("what-if", "intro", words)), *((text(replay),) if replay else ())]
    chart = Chart("what-if", say("what-if", "chart", words), cross_figures.what_if_figure(report))
    best = max(report.what_if, key=lambda row: row.saved_pct or 0.0)
    worth = (best.saved_pct or 0.0) >= cross_figures.WORTH_PCT
    return section_of(
        "what-if", (*blocks, chart, TableBlock(table, "narrow")), what_if=best.change if worth else "",
        what_if_pct=best.saved_pct,
    )  # fmt: skip


def critical_path(report: Report, shown: Sequence[int]) -> Section | None:
    """What set how long the median step took."""
    table, words = path_table(report), report.summary.step_words
    if table is None:
        return None
    sentence, step = path_sentence(report), report.tables.critical_path[0].step
    blocks: list[Block] = [text(bold(sentence))] if sentence else []
    blocks += [
        soft(say("path", "intro", words)),
        Chart("path", say("path", "chart"), cross_figures.critical_path_figure(report)),
        fold(say("path", "fold"), TableBlock(table)),
    ]
    return section_of("path", blocks, words, step=step, path=sentence.rstrip("."))


def longest_step(report: Report, shown: Sequence[int]) -> Section | None:
    """What every rank did in the longest step."""
    if not report.tables.timeline:
        return None
    words = report.summary.step_words
    clocks, several = clocks_sentence(report), len(report.ranks) > 1
    runs = cross_figures.MOST_RUNS if report.detail is None else FEW_RUNS
    figure = cross_figures.timeline_figure(report, list(shown), runs)
    longest = words.choose("longest step", "window")
    chart = Chart("timeline", say("timeline", "chart", longest=longest), figure)
    moments = soft(say("timeline", "said", several=several, clocks=clocks, kinds=groups_text(report)))
    drawn = step_timeline(report, (moments, chart))
    blocks: tuple[Block, ...] = (moments, chart)
    if drawn is not None:
        blocks = (soft(say("timeline", "intro", words, clocks=clocks)), drawn, how_to_open(report))
    return section_of(
        "timeline", blocks, words, drawn=drawn is not None, step=report.tables.timeline[0].step, several=several,
        recorded=len(report.run.steps), ranks=len(report.ranks),
    )  # fmt: skip


def collectives(report: Report, shown: Sequence[int]) -> Section:
    """Matching, late arrivals and bandwidth of collectives."""
    table, arrivals, matching = collectives_table(report), arrivals_table(report), report.summary.matching
    pct = None if matching is None else matching.matched_pct
    sentence = say("collectives", "matching", none=True)
    if matching is not None and matching.events:
        left = ", ".join(f"{count} ({reason})" for reason, count in matching.unmatched.items())
        matched = None if pct is None else number(pct, 1).text
        sentence = say(
            "collectives", "matching", events=matching.events, outside=pct is None, matched=matched, left=left
        )
    blocks: list[Block] = [text(sentence)]
    if table.rows:
        blocks.append(TableBlock(table))
    if arrivals is not None:
        blocks += [
            Heading("Late arrivals"),
            soft(say("collectives", "arrivals")),
            Chart("arrivals", say("collectives", "arrivals_chart"), cross_figures.arrivals_figure(report)),
            fold(say("collectives", "arrivals_fold"), TableBlock(arrivals)),
        ]
    if any(row.bytes for row in report.tables.bandwidth):
        blocks += [
            Heading("Bandwidth against size"),
            soft(say("collectives", "bandwidth")),
            Chart("bandwidth", say("collectives", "bandwidth_chart"), cross_figures.bandwidth_figure(report)),
        ]
    return section_of("collectives", blocks, collectives=len(report.collectives), matched_pct=pct)


def fabric(report: Report, shown: Sequence[int]) -> Section | None:
    """Machines, how NCCL connected them, and collectives against what their links can do."""
    if report.fabric is None and not report.tables.reference:
        return None
    blocks: list[Block] = []
    if references := reference_table(report):
        blocks += [soft(say("fabric", "intro")), TableBlock(references)]
    if report.fabric is not None:
        from traceops.render.report.fabric_html import fabric_blocks  # most reports have none

        blocks += fabric_blocks(report)
    return section_of("fabric", blocks)


def reference_table(report: Report) -> Table | None:
    """What collectives achieved against what their links can do, most time lost first; None without rows."""
    rows, unknown = report.tables.reference, replace(NOT_KNOWN, title=say("fabric", "no_share"))
    cells = {
        "group": _group_cell,
        "bytes_p50": _reference_size,
        "busbw_gbs": lambda row: number(row.busbw_gbs),
        "reference_gbs": lambda row: number(row.reference_gbs),
        "reference_source": _reference_source,
        "reference_pct": lambda row: (
            unknown if row.reference_pct is None else share(row.reference_pct, COMM_TRANSFER.colour)
        ),
    }
    if not rows:
        return None
    words = report.summary.step_words
    return table_of("reference", rows, words, make=cells, facts=meanings(), most=_MOST_REFERENCES)


def _reference_size(row: ReferenceRow) -> Cell:
    middle = size(row.bytes_p50)
    least, most = row.bytes_min, row.bytes_max
    if least is None or most is None or least == most:
        return middle
    return Cell(middle.text, f"{size_text(least)} to {size_text(most)}")


def _reference_source(row: ReferenceRow) -> Cell:
    source, link, own = row.reference_source, row.reference_link, texts("page", "fabric")
    if source is None:
        return replace(NOT_KNOWN, title=own["no_source"])
    label, _, title = own.get(f"source.{source}", str(source)).partition(" | ")
    return Cell(label, f"{title}: {link}" if link else title)


def _tied_sentence(report: Report) -> str:
    """That the rank which comes last is one of many alike: its cure alone changes nothing."""
    last = max(report.ranks, key=lambda row: row.late_share or 0.0, default=None)
    if last is None or not last.late_share or len(report.ranks) <= MOST_RANKS:
        return ""
    group = next((group for group in groups_of(report) if last.rank in group.ranks), None)
    if group is None or not 1 < len(group.ranks) < len(report.ranks):
        return ""
    return say("lateness", "tied", last=last.rank, alike=len(group.ranks))
