"""Writes docs/rules.md from the rules: `python -m traceops.rules.docs > docs/rules.md`."""

from __future__ import annotations

from traceops.core.rule import JudgedBy
from traceops.rules.registry import RULES


def rules_markdown() -> str:
    """docs/rules.md as text; a test compares the committed file with it."""
    lines = [
        "# Rules",
        "",
        "Generated from `traceops/words/` by `python -m traceops.rules.docs > docs/rules.md`;",
        "edit there.",
        "",
        "Severity (`error`, `warning`, `info`) says how much it matters, confidence (`high`, `medium`, `low`) how",
        "sure the claim is. A rule that could not be judged on the traces at hand is `not_evaluated`, with the",
        "reason, in the report's `checks`; it is never shown as clear.",
        "",
    ]
    for rule in RULES:
        lines += [f"## {rule.id}: {rule.title}", ""]
        if rule.judged_by is not JudgedBy.NOBODY:
            lines += [rule.fires, "", f"What to do: {rule.advice}", ""]
            lines += [f"- `{cause}`: {advice}" for cause, advice in rule.by_cause]
            lines += [""] if rule.by_cause else []
        else:
            lines += ["The id is reserved; no command judges this yet.", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    print(rules_markdown(), end="")
