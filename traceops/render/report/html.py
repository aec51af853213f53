"""summary.html: one self-contained page that works offline, from a Report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from traceops.core.rank_text import ranks_text, runs_text
from traceops.render.cells import Cell, number
from traceops.render.document import Block, Document, Facts, items, spans
from traceops.render.finding_blocks import findings_section
from traceops.render.page import word
from traceops.render.report import cross_sections, experts, hosts, passes, roles, sections
from traceops.render.report.first_screen import first_screen
from traceops.render.report.memory import memory
from traceops.render.report.proofs import proof_of
from traceops.render.report.rank_groups import shown_ranks
from traceops.render.report.speed import speed_facts
from traceops.render.report.step_kinds import kinds_sentence
from traceops.render.report.step_timeline import finding_place
from traceops.render.report.steps_found import how_found
from traceops.render.report.undisturbed import undisturbed
from traceops.render.report.verdict import verdict
from traceops.render.report.whole_run import whole_run
from traceops.render.writers.html import write_html
from traceops.report.model import Report

# The sections in reading order, behind a hang and the findings; one that has nothing to say of a report gives None.
SECTIONS = (
    whole_run,
    undisturbed,
    memory,
    cross_sections.lateness,
    cross_sections.pipelines,
    cross_sections.what_if,
    sections.ledger,
    hosts.hosts,
    roles.roles,
    experts.experts,
    passes.passes,
    cross_sections.critical_path,
    cross_sections.longest_step,
    sections.steps,
    sections.idle,
    cross_sections.collectives,
    cross_sections.fabric,
    sections.kernels,
    sections.blocking_calls,
    sections.copies,
    sections.hta,
    sections.checks,
    sections.definitions,
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
    shown, said, name = shown_ranks(report), verdict(report), str(report.run.name)
    notes = [kinds_sentence(report), *report.summary.notes, *_damage(report)]
    notes = [note for note in notes if note]
    intro: list[Block] = [*first_screen(report), Facts(tuple(_facts(report)))]
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
        verdict=said,
        intro=tuple(intro),
        sections=(*hang, findings, *made),
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
    return facts


def _unit(*cells: Cell) -> Cell:
    if any(cell.css == "unknown" for cell in cells):
        return word(None)
    return Cell(" – ".join(cell.text for cell in cells) + " ms")


def _damage(report: Report) -> list[str]:
    return [f"Rank {row.rank}: {row.damage}" for row in report.ranks if row.damage]
