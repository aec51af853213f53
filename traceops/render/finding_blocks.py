"""Findings, checks and files that could not be used as blocks, the same on every page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from traceops.core.findings import Check, Finding, count_checks
from traceops.core.step_words import STEP, StepWords
from traceops.render.document import Checks, FindingBlock, Items, Place, Section, Span, bold, code, items, text
from traceops.render.report.evidence_table import evidence_table
from traceops.rules.registry import RULES


def finding_block(
    finding: Finding, id: str = "", proof: tuple[str, str] = ("", ""), words: StepWords = STEP
) -> FindingBlock:
    """A finding with the table of its evidence, its id in the page, and the section that shows it."""
    return FindingBlock(finding, evidence_table(finding), id, proof, words=words)


def findings_section(
    findings: Sequence[Finding],
    checks: Sequence[Check],
    proof: Callable[[Finding], tuple[str, str]] = lambda finding: ("", ""),
    place_of: Callable[[Finding], Place | None] = lambda finding: None,
    words: StepWords = STEP,
) -> Section:
    """All findings, or how many rules are clear and how many could not be judged.

    proof: (name, '#id') of the section that shows a finding. place_of: where the page's timeline shows it.
    """
    if findings:
        blocks = [
            replace(finding_block(finding, f"finding-{number}", proof(finding), words), place=place_of(finding))
            for number, finding in enumerate(findings, 1)
        ]
        return Section("findings", "Findings", tuple(blocks))
    counts = count_checks(checks)
    said = text(
        f"No rule fired. {counts.clear} rules are clear and {counts.not_evaluated} were not evaluated; ",
        Span("Checks", href="#checks"),
        " says why.",
    )
    return Section("findings", "Findings", (said,))


def checks_block(checks: Sequence[Check], caption: str) -> Checks:
    """What each rule says, with its title."""
    return Checks(caption, tuple(checks), {rule.id: rule.title for rule in RULES})


def not_used(problems: Sequence[tuple[str, str]]) -> Items:
    """Files that could not be used: (path, what is wrong with it)."""
    return items([text(bold("Not used:"), " ", code(file), f": {problem}") for file, problem in problems], "problems")
