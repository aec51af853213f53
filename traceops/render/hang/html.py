"""hang.html: one self-contained page of a diagnosis, without scripts."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.findings import Check, Finding
from traceops.core.rank_text import who_runs
from traceops.hangs.model import Diagnosis
from traceops.render.cells import Cell, word
from traceops.render.document import Document, Facts, Headline, Section, soft, spans, text
from traceops.render.finding_blocks import checks_block, findings_section
from traceops.render.hang.answer import hang_answer
from traceops.render.hang.blocks import other_roots, ranks_block, sources_blocks, stacks_blocks, waits_blocks
from traceops.render.writers.html import write_html
from traceops.report.hang_rows import shown_waits
from traceops.report.hang_text import hang_level, hang_sentence, known_ranks, unknown_ranks


def render_hang_html(diagnosis: Diagnosis, findings: Sequence[Finding], checks: Sequence[Check]) -> bytes:
    """The page in UTF-8: no script, nothing from outside, everything that came from a file escaped."""
    return write_html(describe(diagnosis, findings, checks))


def describe(diagnosis: Diagnosis, findings: Sequence[Finding], checks: Sequence[Check]) -> Document:
    """A diagnosis with its findings as a document."""
    name, stacks = diagnosis.evidence.name, stacks_blocks(diagnosis)
    sections = [
        Section("waits", "Who waits for whom", waits_blocks(diagnosis)),
        findings_section(findings, checks),
        Section("ranks", "Ranks", (ranks_block(diagnosis),)),
        Section("stacks", "Stacks", (soft("Innermost frame first."), *stacks)),
        Section("read", "What was read", sources_blocks(diagnosis)),
        Section("checks", "Checks", (checks_block(checks, "What each rule says about this run"),)),
    ]
    return Document(
        title=f"{name}: hang",
        heading=spans(name),
        command="traceops diagnose",
        verdict=Headline(hang_level(diagnosis), hang_sentence(diagnosis)),
        intro=(
            *([answer] if (answer := hang_answer(diagnosis, "#waits")) is not None else []),
            *(text(line, look="verdict level-error another") for line in other_roots(diagnosis)),
            Facts(tuple(_facts(diagnosis))),
        ),
        sections=tuple(section for section in sections if section.id != "stacks" or stacks),
        footer="the same is in hang.json, hang_ranks.csv and hang_waits.csv beside this page",
        styles=("summary.css", "hang.css"),
    )


def _facts(diagnosis: Diagnosis) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    evidence = diagnosis.evidence
    unknown = unknown_ranks(diagnosis)
    known = len(known_ranks(diagnosis))
    stall = evidence.stall
    dumps = sum(record.source == "flight recorder" for record in evidence.records.values())
    versions = {record.nccl_version for record in evidence.records.values() if record.nccl_version}
    hosts = {status.host for status in diagnosis.ranks if status.host}
    waiting = {wait.rank for wait in shown_waits(diagnosis)}
    return [
        ("Ranks", word(evidence.world_size)),
        ("Evidence of", _ranks(known)),
        ("No evidence of", Cell(who_runs(unknown), css="bad") if unknown else Cell("no rank")),
        ("Waiting", _ranks(len(waiting))),
        ("Stalled for", Cell(f"{stall.stalled_s:.0f} s") if stall else word(None)),
        ("Hosts", word(len(hosts) or None)),
        ("NCCL", word(", ".join(sorted(versions)))),
        ("Flight-recorder dumps", _ranks(dumps)),
        ("Stacks", _ranks(len(evidence.stacks))),
        ("Files read", Cell(str(len(evidence.files)))),
        ("Not used", Cell(str(len(evidence.problems)), css="bad") if evidence.problems else Cell("none")),
    ]


def _ranks(count: int) -> Cell:
    return Cell(f"{count} rank{'' if count == 1 else 's'}")
