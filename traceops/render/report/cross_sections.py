"""Sections of summary.html about what ranks do together. One with nothing to say of a report is None.

`shown` are the ranks that figures and tables hold where there are too many for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from traceops.render.cells import number
from traceops.render.document import Block, Chart, Heading, Section, TableBlock, bold, fold, soft, text
from traceops.render.report import cross_figures, cross_tables, detail_tables
from traceops.render.report.rank_groups import MOST_RANKS, groups_of, groups_text
from traceops.render.report.step_timeline import how_to_open, step_timeline
from traceops.render.report.then_text import why_no_what_if
from traceops.report.model import Report


def hang(report: Report, shown: Sequence[int]) -> Section | None:
    """The diagnosis of a hang."""
    if report.hang is None:
        return None
    from traceops.render.hang.blocks import hang_blocks  # most reports have none

    return Section("hang", "Hang", hang_blocks(report.hang))


def lateness(report: Report, shown: Sequence[int]) -> Section | None:
    """Who is waited for, and why."""
    table, words = cross_tables.lateness_table(report), report.summary.step_words
    sentence = cross_tables.waiting_sentence(report) if len(report.ranks) > 1 else ""
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
            text(cross_tables.pipeline_sentence(pipeline, report.summary.step_words)),
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
    replay, words = cross_tables.replay_sentence(report), report.summary.step_words
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
    table = cross_tables.path_table(report)
    if table is None:
        return None
    step, sentence = report.tables.critical_path[0].step, cross_tables.path_sentence(report)
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
    table = cross_tables.timeline_table(report, list(shown))
    if table is None:
        return None
    several, longest = len(report.ranks) > 1, report.summary.step_words.choose("longest step", "window")
    clocks = cross_tables.clocks_sentence(report)
    kinds = groups_text(report)
    cut = f" {kinds}" if kinds else ""
    chart = Chart(
        "timeline",
        f"Rows: what each rank did during the {longest}, on one time axis in ms; the folded table has the sums",
        cross_figures.timeline_figure(report, list(shown)),
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
    table, arrivals = detail_tables.collectives_table(report), cross_tables.arrivals_table(report)
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
