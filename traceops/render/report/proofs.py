"""Which section of the page shows what a finding speaks of."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.findings import Finding
from traceops.render.document import Section

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
    ("TO-H", ("hang",)),
    ("TO-E", ("hang",)),
    ("TO-V003", ("steps",)),
    ("TO-V", ("checks",)),
)


def proof_of(finding: Finding, sections: Sequence[Section]) -> tuple[str, str]:
    """(name, '#id') of the section; two empty strings where the page has none."""
    there = {section.id: section for section in sections}
    for prefix, ids in _SHOWN_IN:
        if finding.rule.startswith(prefix):
            shown = next((there[id] for id in ids if id in there), None)
            return ("", "") if shown is None else (shown.nav or shown.heading, f"#{shown.id}")
    return "", ""
