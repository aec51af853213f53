"""`traceops explain`: a rule in one screen."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator

from traceops.core.claims import Wording
from traceops.core.errors import UsageError
from traceops.core.rule import JudgedBy, Rule
from traceops.core.text import broken_at_words, meant, width_of
from traceops.rules.registry import RULES
from traceops.words.catalogue import texts

_text = Wording("cli", "explain")
_WIDTH = 100
_SENTENCES = 2  # of when it fires
_EXAMPLES = {
    JudgedBy.ANALYZE: ("traceops show RUN finding {id}", "traceops view RUN --around {id}"),
    JudgedBy.COMPARE: ("traceops compare profile/main profile/pr",),
    JudgedBy.DOCTOR: ("traceops doctor --verbose",),
    JudgedBy.NOBODY: (),
}


def main(args: argparse.Namespace) -> int:
    """Raises UsageError where no rule is called so, with the one that may be meant."""
    asked = args.rule.upper()
    asked = asked if asked.startswith("TO") else f"TO-{asked}"
    found = [rule for rule in RULES if rule.id.startswith(asked)]
    found = found or [rule for rule in RULES if args.rule.lower() in rule.title.lower()]
    if not found:
        ids = [rule.id for rule in RULES]
        begin = asked if re.search(r"\d", asked) else "TO"
        while not any(one.startswith(begin) for one in ids):
            begin = begin[:-1]
        raise UsageError(_text("none", asked=repr(args.rule), meant=meant(asked, ids), begin=begin))
    if len(found) > 1:
        print("\n".join(f"{rule.id}  {rule.title}" for rule in found))
        return 0
    width = min(width_of(sys.stdout) or _WIDTH, _WIDTH)
    for line in _lines(found[0], whole=args.verbose):
        print("\n".join(broken_at_words(line, width, 2)))
    return 0


def _lines(rule: Rule, *, whole: bool) -> Iterator[str]:
    yield f"{rule.id}: {rule.title}"
    yield ""
    if rule.judged_by is JudgedBy.NOBODY:
        yield _text("reserved")
        return
    first = ". ".join(rule.fires.split(". ")[: None if whole else _SENTENCES]).removesuffix(".")
    yield _text("when", first=first, more=len(first) + 1 < len(rule.fires))
    yield ""
    yield f"What to do: {rule.advice}"
    yield from (f"  {cause}: {advice}" for cause, advice in rule.by_cause)
    yield ""
    if (example := texts("examples", "rules").get(rule.id)) is not None:
        yield _text("example", text=example)
        yield ""
    yield "In a run:"
    yield from (f"  {example.format(id=rule.id)}" for example in _EXAMPLES[rule.judged_by])
