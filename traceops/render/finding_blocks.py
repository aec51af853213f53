"""Findings, checks and files that could not be used as blocks, the same on every page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from traceops.core.claims import first_phrase
from traceops.core.facts import Fact
from traceops.core.findings import Check, Evidence, Finding, count_checks
from traceops.core.rank_text import who
from traceops.core.text import short_name
from traceops.core.units import as_measured
from traceops.core.words import STEP, StepWords
from traceops.render.cells import Cell, Table, blank_or, name, number, table_of
from traceops.render.document import Checks, FindingBlock, Items, Place, Section, Span, bold, code, items, text

# The evidence of a finding in lines: its numbers, and the lines of files that it quotes.

_MOST_NAME = 40
_MOST_VALUE = 100
_MOST_QUOTES = 4
_MOST_QUOTE = 160


def place_text(evidence: Evidence) -> str:
    """'log.txt:132', or the file alone; empty for a number."""
    if evidence.file is None:
        return ""
    return evidence.file if evidence.line is None else f"{evidence.file}:{evidence.line}"


def value_text(evidence: Evidence) -> str:
    """The value without its unit."""
    value = evidence.value
    return str(as_measured(value) if isinstance(value, float) else value)


def unit_text(evidence: Evidence) -> str:
    """The unit with a space before it; empty where the label says what is counted: 'ranks without a trace 63'."""
    return f" {evidence.unit}" if evidence.unit and evidence.unit not in evidence.metric.split() else ""


def quote_text(evidence: Evidence) -> str:
    """'log.txt:132  NCCL INFO …', without the tabs of a matrix."""
    value = "" if evidence.value is None else " ".join(str(evidence.value).split())
    return f"{place_text(evidence)}  {value}".rstrip()


def evidence_lines(finding: Finding) -> list[str]:
    """The numbers in one line, then the lines of files that the finding quotes, each cut to what a line holds."""
    numbers = [e for e in finding.evidence if e.value is not None and e.file is None]
    metrics = Counter(e.metric for e in numbers)
    shown = [_evidence(e, of_several=metrics[e.metric] > 1) for e in numbers]
    quotes = [quote_text(e) for e in finding.evidence if e.file is not None]
    lines = ["; ".join(shown)] if shown else []
    lines += [f"{q[:_MOST_QUOTE]}{'…' if len(q) > _MOST_QUOTE else ''}" for q in quotes[:_MOST_QUOTES]]
    if len(quotes) > _MOST_QUOTES:
        lines.append(first_phrase("page", "findings", "more_lines", more=len(quotes) - _MOST_QUOTES))
    return lines


def _evidence(evidence: Evidence, *, of_several: bool) -> str:
    """Metric, value and unit; a long name of a kernel or region shortened, the page has all of it. of_several: other
    evidence has the same metric, so the rank is said."""
    if isinstance(evidence.grown, str):
        usual = "" if evidence.peers is None else f", peers {as_measured(evidence.peers):g}"
        return f"grew: {_short(evidence.grown)} {value_text(evidence)}{unit_text(evidence)}{usual}"
    value = value_text(evidence)
    if len(value) > _MOST_VALUE and isinstance(evidence.value, str):
        value = f"{value[:_MOST_VALUE]}…"
    rank = f" (rank {evidence.rank})" if of_several and evidence.rank is not None else ""
    return f"{evidence.metric} {value}{unit_text(evidence)}{rank}"


def _short(name: str) -> str:
    """A kernel without return type and parameters; of other names the beginning and the end."""
    if "<" in name or len(name) <= _MOST_NAME:
        return short_name(name, _MOST_NAME)
    return f"{name[: _MOST_NAME * 2 // 3]}…{name[-(_MOST_NAME // 3) :]}"


# The numbers behind a finding, as a table.


def evidence_table(finding: Finding) -> Table:
    """The numbers behind a finding, without lines it quotes; columns that none of them fills are left out."""
    numbers = [e for e in finding.evidence if e.file is None]
    whose = f", {who(finding.ranks)}" if finding.ranks else ""
    cells = {
        "metric": lambda e: name(e.metric, 90),
        "value": _evidence_value,
        "threshold": lambda e: _beside(e, e.threshold),
        "peers": lambda e: _beside(e, e.peers),
        "rank": lambda e: blank_or(e.rank, 0),
        "step": lambda e: blank_or(e.step, 0),
    }
    none = [key for key in ("threshold", "peers", "rank", "step") if all(getattr(e, key) is None for e in numbers)]
    facts = {"caption": f"Evidence for {finding.rule}{whose}"}
    return table_of("evidence", numbers, make=cells, without=none, facts=facts)


def _evidence_value(evidence: Evidence) -> Cell:
    if isinstance(evidence.value, str):
        cell = name(evidence.value, 110) if len(evidence.value) > 110 else Cell(evidence.value, css="word")
    elif evidence.fact is Fact.PID:
        cell = Cell(f"{evidence.value:.0f}")
    else:
        cell = number(evidence.value)
        if evidence.value is not None and not cell.css:  # it has the digits that it is worth: none are added
            shown = as_measured(evidence.value) if isinstance(evidence.value, float) else evidence.value
            cell = Cell(f"{shown:,}".replace(",", "\u202f"))
    return Cell(cell.text + (unit_text(evidence) if cell.css != "unknown" else ""), cell.title, cell.css, cell.full)


def _beside(evidence: Evidence, value: float | None) -> Cell:
    """The threshold or the peers' value, in the evidence's unit; empty where there is none."""
    return Cell("" if value is None else f"{as_measured(value):g}{unit_text(evidence)}")


def finding_block(
    finding: Finding, id: str = "", proof: tuple[str, str] = ("", ""), words: StepWords = STEP
) -> FindingBlock:
    """A finding with the table of its evidence, its id in the page, and the section that shows it."""
    return FindingBlock(finding, evidence_table(finding), id, proof, words=words)


def findings_section(
    findings: Sequence[Finding], checks: Sequence[Check],
    proof: Callable[[Finding], tuple[str, str]] = lambda finding: ("", ""),
    place_of: Callable[[Finding], Place | None] = lambda finding: None, words: StepWords = STEP,
) -> Section:  # fmt: skip
    """All findings, or how many rules are clear and how many could not be judged. proof: (name, '#id') of the section
    that shows a finding. place_of: where the page's timeline shows it."""
    if findings:
        blocks = [
            replace(finding_block(finding, f"finding-{number}", proof(finding), words), place=place_of(finding))
            for number, finding in enumerate(findings, 1)
        ]
        return Section("findings", "Findings", tuple(blocks))
    counts = count_checks(checks)
    none = first_phrase("page", "findings", "none", clear=counts.clear, open=counts.not_evaluated)
    return Section("findings", "Findings", (text(f"{none} ", Span("Checks", href="#checks"), " says why."),))


def checks_block(checks: Sequence[Check], caption: str) -> Checks:
    """What each rule says, with its title."""
    from traceops.rules.registry import rules_with

    told = {check.rule for check in checks}
    return Checks(caption, tuple(checks), {rule.id: rule.title for rule in rules_with(told) if rule.id in told})


def not_used(problems: Sequence[tuple[str, str]]) -> Items:
    """Files that could not be used: (path, what is wrong with it)."""
    return items([text(bold("Not used:"), " ", code(file), f": {problem}") for file, problem in problems], "problems")
