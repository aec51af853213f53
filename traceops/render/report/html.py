"""summary.html: one self-contained page that works offline, from a Report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from traceops.core.findings import Finding, count_checks
from traceops.core.rank_text import ranks_text, runs_text
from traceops.render.cells import Cell, number, word
from traceops.render.document import Block, Document, Facts, Section, Term, Terms, items, soft, spans
from traceops.render.finding_blocks import checks_block, findings_section
from traceops.render.report import compute, cross_sections, parallel_sections, step_sections
from traceops.render.report.card import card_of, headline, told_first
from traceops.render.report.first_screen import first_screen
from traceops.render.report.memory import memory
from traceops.render.report.rank_groups import shown_ranks
from traceops.render.report.step_timeline import finding_place, fitting
from traceops.render.report.terms import COLUMNS, TERMS, how_found, kinds_sentence, say, section_of, speed_facts
from traceops.render.report.whole_run import undisturbed, whole_run
from traceops.render.writers.html import write_html
from traceops.report.model import Report


def checks(report: Report, shown: Sequence[int]) -> Section:
    """What each rule says."""
    block, counts = checks_block(report.checks, say("checks", "caption")), count_checks(report.checks)
    return section_of("checks", (block,), fired=counts.fired, clear=counts.clear, not_evaluated=counts.not_evaluated)


def definitions(report: Report, shown: Sequence[int]) -> Section:
    """What the numbers mean."""
    buckets = [Term(term.label, term.definition, key, term.colour) for key, term in TERMS.items()]
    columns = [Term(label, meaning) for label, meaning in COLUMNS.items()]
    return section_of("definitions", (Terms((*buckets, *columns)), soft(say("definitions", "unknown"))))


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


# The sections in reading order, behind a hang and the findings; one that has nothing to say of a report gives None.
SECTIONS = (
    whole_run,
    undisturbed,
    memory,
    cross_sections.lateness,
    cross_sections.pipelines,
    cross_sections.what_if,
    step_sections.ledger,
    parallel_sections.hosts,
    parallel_sections.roles,
    parallel_sections.experts,
    parallel_sections.passes,
    cross_sections.critical_path,
    cross_sections.longest_step,
    step_sections.steps,
    step_sections.idle,
    cross_sections.collectives,
    cross_sections.fabric,
    compute.compute,
    step_sections.kernels,
    step_sections.blocking_calls,
    step_sections.copies,
    step_sections.hta,
    step_sections.only_htas,
    checks,
    definitions,
)

_NO_COST = 0.9  # profiled ÷ unprofiled step, below which these steps are not alike


def render_html(report: Report, *, plotlyjs: str = "none", files: Iterable[str] = ()) -> bytes:
    """The page in UTF-8. `plotlyjs`: as `write_html` takes it. `files`: those that are written beside it. Everything
    that came from a trace is escaped, and a content security policy admits the page's own scripts only. Raises
    ValueError for another `plotlyjs`."""
    return write_html(replace(describe(report), files=frozenset(files)), plotlyjs=plotlyjs)


def describe(report: Report) -> Document:
    """A report as a document: the verdict, facts, and a section for each thing there is to say."""
    if report.detail is not None:
        report = replace(report, detail=fitting(report.detail))
    shown, card, name = shown_ranks(report), card_of(report), str(report.run.name)
    damage = [f"Rank {row.rank}: {row.damage}" for row in report.ranks if row.damage]
    notes = [note for note in (kinds_sentence(report), *report.summary.notes, *damage) if note]
    intro: list[Block] = [*first_screen(report, card), Facts(tuple(_facts(report)))]
    intro += [items(notes, "notes")] if notes else []
    made = [section for make in SECTIONS if (section := make(report, shown)) is not None]
    hang = [section for section in (cross_sections.hang(report, shown),) if section is not None]
    findings = findings_section(
        report.findings, report.checks, lambda found: proof_of(found, [*hang, *made]),
        lambda found: finding_place(found, report), report.summary.step_words,
    )  # fmt: skip
    # Open are the timeline, and what proves the card; of a healthy run the ledger.
    proofs = {id for finding in told_first(report) for id in _proofs(finding)} or {"ledger"}
    drawn = report.detail is not None
    shows = (("summary", True), ("hang", bool(hang)), ("topology", report.fabric is not None), ("step_timeline", drawn))
    return Document(
        title=name, heading=spans(name), command="traceops analyze", verdict=headline(card), intro=tuple(intro),
        sections=(*hang, findings, *(replace(one, open=one.id in ("timeline", *proofs)) for one in made)),
        footer=say("definitions", "footer"), styles=tuple(f"{style}.css" for style, needed in shows if needed),
        scripts=("step_timeline.js",) if drawn else (),
    )  # fmt: skip


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
    if (slowdown := report.summary.profiler_slowdown) is not None and slowdown >= _NO_COST:
        facts.append(("Profiler's cost", Cell(f"×{slowdown:.2f}", "profiled ÷ unprofiled step")))
    return [(label, cell) for label, cell in facts if cell.css != "unknown"]


def _unit(*cells: Cell) -> Cell:
    if any(cell.css == "unknown" for cell in cells):
        return word(None)
    return Cell(" – ".join(cell.text for cell in cells) + " ms")
