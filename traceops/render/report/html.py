"""summary.html: one self-contained page that works offline, from a Report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import UNSET
from msgspec.structs import replace

from traceops.core.claims import Claim
from traceops.core.findings import Finding, count_checks
from traceops.core.rank_text import ranks_text, runs_text, who
from traceops.core.units import percent_text
from traceops.core.words import ROLES, WINDOW
from traceops.measure.ledger import BUCKETS, IDLE_BUCKETS
from traceops.render.cells import Cell, number, word
from traceops.render.document import (
    Block,
    Chart,
    Document,
    Facts,
    Section,
    Span,
    TableBlock,
    Term,
    Terms,
    fold,
    items,
    soft,
    spans,
    text,
)
from traceops.render.finding_blocks import checks_block, findings_section
from traceops.render.report import compute, cross_sections, detail_tables, figures, parallel_sections, rank_tables
from traceops.render.report.card import card_of, headline, told_first
from traceops.render.report.compute import kernels_sentence
from traceops.render.report.cross_sections import path_sentence
from traceops.render.report.detail_tables import copies_table
from traceops.render.report.first_screen import first_screen
from traceops.render.report.memory import memory
from traceops.render.report.rank_groups import MOST_RANKS, groups_text, idle_ms, shown_ranks
from traceops.render.report.run_text import how_found, kinds_sentence, speed_facts
from traceops.render.report.step_timeline import finding_place
from traceops.render.report.terms import COLUMNS, TERMS, said, section_of
from traceops.render.report.whole_run import undisturbed, undisturbed_of, whole_run
from traceops.render.writers.html import write_html
from traceops.report.model import Report

# Sections of summary.html about each rank and about the report itself. One with nothing to say of a report is None.
#
# `shown` are the ranks that figures and tables hold where there are too many for all.


def ledger(report: Report, shown: Sequence[int]) -> Section:
    """Where a step goes."""
    blocks, words = list[Block](), report.summary.step_words
    if report.steps:
        together = all(row.comm_wait_ms is None for row in report.ranks)
        blocks += [
            soft(said("ledger", "intro", words, kernels=kernels_sentence(report), together=together)),
            TableBlock(rank_tables.buckets_table(report)),
            *_ledger_charts(report, shown),
        ]
    else:
        blocks.append(text(said("ledger", "none")))
    blocks.append(TableBlock(rank_tables.ranks_table(report, list(shown))))
    if own := _own_breakdown(report):
        blocks.append(soft(said("ledger", "own", own=who(own, 12), why=True), Span("why", href="#hta"), "."))
    return section_of("ledger", blocks, words)


def steps(report: Report, shown: Sequence[int]) -> Section | None:
    """How long each step took."""
    if len({row.step for row in report.steps if row.step is not None}) < 2 or not report.ranks:
        return None
    chart = Chart("steps", said("steps", "chart"), figures.steps_figure(report, list(shown)))
    table = fold(said("steps", "fold"), TableBlock(rank_tables.steps_table(report), "narrow"))
    return section_of("steps", (soft(said("steps", "intro")), chart, table))


def idle(report: Report, shown: Sequence[int]) -> Section:
    """Why the devices were idle."""
    words = report.summary.step_words
    idles = any(row.bucket_ms(bucket) for row in report.ranks for bucket in IDLE_BUCKETS)
    drawn: Block = text(said("idle", "none", words))
    if report.steps and idles:
        drawn = Chart("idle", said("idle", "chart", words), figures.idle_figure(report, list(shown)))
    return section_of("idle", (drawn, TableBlock(rank_tables.idle_table(report, list(shown)))))


def kernels(report: Report, shown: Sequence[int]) -> Section:
    """Which kernels take the device's time."""
    table = detail_tables.kernels_table(report)
    operators = detail_tables.operators_table(report)
    more = (TableBlock(operators),) if operators is not None else ()
    return section_of("kernels", (TableBlock(table) if table.rows else text(said("kernels", "none")), *more))


def blocking_calls(report: Report, shown: Sequence[int]) -> Section | None:
    """Calls that wait for the device."""
    table = detail_tables.blocking_table(report)
    return None if table is None else section_of("blocking", (TableBlock(table),))


def copies(report: Report, shown: Sequence[int]) -> Section | None:
    """Copies between host and device."""
    table = copies_table(report)
    return None if table is None else section_of("copies", (TableBlock(table),))


def hta(report: Report, shown: Sequence[int]) -> Section:
    """HTA's six analyses in its own columns."""
    own, tables = _own_breakdown(report), detail_tables.hta_tables(report, list(shown))
    blocks: list[Block] = [text(said("hta", "own", own=who(own, 12)))] if own else []
    blocks += [soft(said("hta", "intro"))] if tables else [text(said("hta", "none"))]
    return section_of("hta", (*blocks, *(TableBlock(table, "narrow") for table in tables)))


def checks(report: Report, shown: Sequence[int]) -> Section:
    """What each rule says."""
    return section_of("checks", (checks_block(report.checks, said("checks", "caption")),))


def definitions(report: Report, shown: Sequence[int]) -> Section:
    """What the numbers mean."""
    buckets = [Term(term.label, term.definition, key, term.colour) for key, term in TERMS.items()]
    columns = [Term(label, meaning) for label, meaning in COLUMNS.items()]
    return section_of("definitions", (Terms((*buckets, *columns)), soft(said("definitions", "unknown"))))


def _ledger_charts(report: Report, shown: Sequence[int]) -> list[Block]:
    if not report.ranks:
        return []
    words, total = report.summary.step_words, len(report.ranks)
    groups = groups_text(report)
    blocks: list[Block] = [text(groups)] if groups else []
    blocks.append(Chart("ledger", said("ledger", "chart", words), figures.ledger_figure(report, list(shown))))
    if total > MOST_RANKS:
        blocks += [
            text(said("ledger", "spread", ranks=total)),
            Chart("distribution", said("ledger", "spread_chart", words), figures.distribution_figure(report)),
        ]
    return blocks


def _own_breakdown(report: Report) -> list[int]:
    """Ranks whose idle, compute and overlap are not HTA's."""
    return [row.rank for row in report.ranks if row.breakdown_source == "traceops"]


# Which section of the page shows what a finding speaks of.


# By the beginning of a rule's id: ids of sections, the first that the page has is the proof.
_SHOWN_IN: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("TO-S", ("lateness", "timeline")),
    ("TO-B", ("pipelines",)),
    ("TO-T", ("steps",)),
    ("TO-W", ("all-steps-of-run",)),
    ("TO-O", ("roles", "collectives")),
    ("TO-I003", ("blocking", "idle")),
    ("TO-I004", ("copies", "idle")),
    ("TO-I", ("idle",)),
    ("TO-C", ("fabric", "collectives")),
    ("TO-P", ("fabric",)),
    ("TO-K", ("compute", "kernels")),
    ("TO-H", ("hang",)),
    ("TO-E", ("hang",)),
    ("TO-V003", ("steps",)),
    ("TO-V", ("checks",)),
)


def proof_of(finding: Finding, sections: Sequence[Section]) -> tuple[str, str]:
    """(name, '#id') of the section; two empty strings where the page has none."""
    there = {section.id: section for section in sections}
    section = next((there[id] for id in _proofs(finding) if id in there), None)
    return ("", "") if section is None else (section.nav or section.heading, f"#{section.id}")


def _proofs(finding: Finding) -> tuple[str, ...]:
    return next((ids for prefix, ids in _SHOWN_IN if finding.rule.startswith(prefix)), ())


class Brief(Claim, frozen=True, kw_only=True):
    """What a section says in a line while it is closed: its most telling number."""

    family = "page"
    kind = "brief"
    run_steps: int | None = None
    undisturbed_ms: float | None = None
    peak_bytes: int | None = None
    caused_ms: float | None = None
    caused_by: int | None = None
    bubble_pct: float | None = None
    what_if: str = ""
    what_if_pct: float | None = None
    largest: str = ""
    hosts: int = 0
    roles: str = ""
    path: str = ""
    recorded: int = 0
    ranks: int = 0
    step_low: float | None = None
    step_high: float | None = None
    idle: float | None = None
    idle_by: int | None = None
    collectives: int = 0
    matched_pct: float | None = None
    kernel: str = ""
    kernel_pct: float | None = None
    blocking: int = 0
    copies: int = 0
    copies_ms: float | None = None
    hta: int = 0
    fired: int = 0
    clear: int = 0
    not_evaluated: int = 0


def brief_of(report: Report) -> Brief:
    """The facts of all sections' lines."""
    summary, tables, undisturbed = report.summary, report.tables, undisturbed_of(report)
    pct = {b: own for b in BUCKETS if (own := summary.ledger_pct.of(b)) is not None}
    largest = sorted(pct, key=lambda bucket: -pct[bucket])[:3]
    blamed = max(report.ranks, key=lambda row: row.caused_wait_ms or 0.0, default=None)
    idlest = max(report.ranks, key=idle_ms, default=None)
    change = max(report.what_if, key=lambda row: row.saved_pct or 0.0, default=None)
    saved = change.saved_pct if change is not None else None
    counts = count_checks(report.checks)
    return Brief(
        window=summary.step_words is WINDOW,
        run_steps=report.whole_run.steps if report.whole_run is not UNSET else None,
        undisturbed_ms=None if undisturbed is None else undisturbed.step_ms,
        peak_bytes=max((row.peak_memory_bytes or 0 for row in report.ranks), default=0) or None,
        caused_ms=None if blamed is None else blamed.caused_wait_ms,
        caused_by=None if blamed is None else blamed.rank,
        bubble_pct=max((one.bubble_pct for one in report.pipelines), default=None),
        what_if=change.change if change is not None and (saved or 0.0) >= 1 else "",
        what_if_pct=saved,
        largest=", ".join(f"{TERMS[bucket].label} {percent_text(pct[bucket])}" for bucket in largest if pct[bucket]),
        hosts=len(report.hosts or ()),
        roles=", ".join(dict.fromkeys(ROLES[row.role] for row in report.roles)),
        path=path_sentence(report).rstrip("."),
        recorded=len(report.run.steps),
        ranks=len(report.ranks),
        step_low=min((row.duration_ms for row in report.steps), default=None),
        step_high=max((row.duration_ms for row in report.steps), default=None),
        idle=None if idlest is None else idle_ms(idlest),
        idle_by=None if idlest is None else idlest.rank,
        collectives=len(report.collectives),
        matched_pct=None if summary.matching is None else summary.matching.matched_pct,
        kernel=tables.kernels[0].name if tables.kernels else "",
        kernel_pct=tables.kernels[0].share_pct if tables.kernels else None,
        blocking=len(tables.blocking_calls),
        copies=len(tables.copies),
        copies_ms=max((row.exposed_ms for row in tables.copies), default=None),
        hta=len(tables.hta),
        fired=counts.fired,
        clear=counts.clear,
        not_evaluated=counts.not_evaluated,
    )


def _closed(report: Report, made: Sequence[Section]) -> list[Section]:
    """The sections with their lines: open are the timeline, and what proves the card; of a healthy run the ledger."""
    proofs = {id for finding in told_first(report) for id in _proofs(finding)} or {"ledger"}
    brief = brief_of(report)
    return [
        replace(one, brief="".join(brief.sentences(one.id)[:1]), open=one.id in (*proofs, "timeline")) for one in made
    ]


# The sections in reading order, behind a hang and the findings; one that has nothing to say of a report gives None.
SECTIONS = (
    whole_run,
    undisturbed,
    memory,
    cross_sections.lateness,
    cross_sections.pipelines,
    cross_sections.what_if,
    ledger,
    parallel_sections.hosts,
    parallel_sections.roles,
    parallel_sections.experts,
    parallel_sections.passes,
    cross_sections.critical_path,
    cross_sections.longest_step,
    steps,
    idle,
    cross_sections.collectives,
    cross_sections.fabric,
    compute.compute,
    kernels,
    blocking_calls,
    copies,
    hta,
    checks,
    definitions,
)

_NO_COST = 0.9  # profiled ÷ unprofiled step, below which these steps are not alike


def render_html(report: Report, *, plotlyjs: str = "none", files: Iterable[str] = ()) -> bytes:
    """The page in UTF-8. `plotlyjs`: as `write_html` takes it. `files`: those that are written beside it.

    Everything that came from a trace is escaped, and a content security policy admits the page's own
    scripts only. Raises ValueError for another `plotlyjs`.
    """
    return write_html(replace(describe(report), files=frozenset(files)), plotlyjs=plotlyjs)


def describe(report: Report) -> Document:
    """A report as a document: the verdict, facts, and a section for each thing there is to say."""
    shown, card, name = shown_ranks(report), card_of(report), str(report.run.name)
    notes = [kinds_sentence(report), *report.summary.notes, *_damage(report)]
    notes = [note for note in notes if note]
    intro: list[Block] = [*first_screen(report, card), Facts(tuple(_facts(report)))]
    if notes:
        intro.append(items(notes, "notes"))
    made = [section for make in SECTIONS if (section := make(report, shown)) is not None]
    hang = [section for section in (cross_sections.hang(report, shown),) if section is not None]
    findings = findings_section(
        report.findings,
        report.checks,
        lambda found: proof_of(found, [*hang, *made]),
        lambda found: finding_place(found, report),
        report.summary.step_words,
    )
    styles = ["summary.css", *(["hang.css"] if report.hang is not None else [])]
    styles += ["topology.css"] if report.fabric is not None else []
    drawn = report.detail is not None
    return Document(
        title=name,
        heading=spans(name),
        command="traceops analyze",
        verdict=headline(card),
        intro=tuple(intro),
        sections=(*hang, findings, *_closed(report, made)),
        footer="all numbers are in report.json and the CSV files beside this page",
        styles=(*styles, *(("step_timeline.css",) if drawn else ())),
        scripts=("step_timeline.js",) if drawn else (),
    )


def _facts(report: Report) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    run, step = report.run, report.summary.step_time_ms
    missing, steps = run.missing, run.steps
    typical = number(step.typical)
    facts = [
        ("Ranks", Cell(f"{len(run.ranks_present)} of {run.world_size}")),
        ("Ranks missing", Cell(runs_text(missing), css="bad") if missing else Cell("none")),
        ("Hosts", word(len(run.hosts)) if run.hosts else word(None)),
        ("Device", word(run.device)),
        ("Backend", word(run.backend)),
        ("Strategy", word(run.strategy)),
        ("torch", word(run.torch_version)),
        ("NCCL", word(run.nccl_version)),
        ("Steps", Cell(f"{len(steps)} ({ranks_text(steps, 4)})") if steps else word(None)),
        *((("Steps are", Cell(found)),) if (found := how_found(report)) else ()),
        (report.summary.step_words.typical.capitalize(), _unit(typical)),
        ("p5 – p95", _unit(number(step.p5), number(step.p95))),
        ("Without profiler", _unit(number(report.summary.plain_ms))),
        *speed_facts(report),
    ]
    slowdown = report.summary.profiler_slowdown
    if slowdown is not None and slowdown >= _NO_COST:
        facts.append(("Profiler's cost", Cell(f"×{slowdown:.2f}", "profiled ÷ unprofiled step")))
    return [(label, cell) for label, cell in facts if cell.css != "unknown"]


def _unit(*cells: Cell) -> Cell:
    if any(cell.css == "unknown" for cell in cells):
        return word(None)
    return Cell(" – ".join(cell.text for cell in cells) + " ms")


def _damage(report: Report) -> list[str]:
    return [f"Rank {row.rank}: {row.damage}" for row in report.ranks if row.damage]
