"""Writes docs/rules.md from the rules: `python -m traceops.rules.docs > docs/rules.md`."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import asdict

from traceops.core.rule import JudgedBy, Rule
from traceops.rules.registry import FAMILIES, Family
from traceops.words.catalogue import texts

_BEGIN = (
    "# Rules",
    "",
    "Generated from `traceops/words/`, which also holds the advice for each cause, by",
    "`python -m traceops.rules.docs > docs/rules.md`; edit there.",
    "",
    "Severity says how much it matters, confidence how sure the claim is. A rule that could not be judged is",
    "`not_evaluated`, with the reason, in the report's `checks`; it is never shown as clear. A finding holds the",
    "advice for its cause.",
    "",
)
_RESERVED = ("The id is reserved; no command judges this yet.", "")


def rules_markdown() -> str:
    """docs/rules.md as text; a test compares the committed file with it."""
    lines = [*_BEGIN]
    for family in FAMILIES:
        for rule in family.rules:
            lines += _rule(rule)
        lines += _bounds(family)
    return "\n".join(lines)


def _rule(rule: Rule) -> Iterator[str]:
    yield from (f"## {rule.id}: {rule.title}", "")
    if rule.judged_by is JudgedBy.NOBODY:
        yield from _RESERVED
        return
    yield from (rule.fires, "", f"Fix: {rule.advice}", "")
    if rule.by_cause:
        yield from (f"By cause: {', '.join(f'`{cause}`' for cause, _ in rule.by_cause)}.", "")


def _bounds(family: Family) -> Iterator[str]:
    """From where on the rules of a family find something: a line a bound."""
    if family.bounds:
        yield from ("Bounds:", "")
    for bounds in family.bounds:
        for name, value in asdict(bounds).items():
            values = ", ".join(f"{one:.3g}" for one in (value if isinstance(value, tuple) else (value,)))
            yield f"- {values} {texts(bounds.words, 'bounds')[name]}"
    if family.bounds:
        yield ""


if __name__ == "__main__":
    print(rules_markdown(), end="")
