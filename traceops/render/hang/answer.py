"""What a reader of a hang sees first: where, what to do, and how sure that is."""

from __future__ import annotations

from traceops.core.rank_text import ranks_text
from traceops.hangs.model import Diagnosis
from traceops.render.answer import SURE
from traceops.render.document import Answer, Block, Span, text
from traceops.report.hang_text import root_advice


def hang_answer(diagnosis: Diagnosis, proof: str) -> Answer | None:
    """Of the first cause; None without one. proof: '#id' of the section that shows who waits for whom."""
    if not diagnosis.roots:
        return None
    root = diagnosis.roots[0]
    lines: list[tuple[str, tuple[Block, ...]]] = []
    if root.ranks:
        hosts = {status.host for status in diagnosis.ranks if status.rank in set(root.ranks) and status.host}
        on = f" on {' and '.join(sorted(hosts))}" if 1 <= len(hosts) <= 2 else ""
        named = f"Rank{'' if len(root.ranks) == 1 else 's'} {ranks_text(root.ranks, 8)}"
        lines.append(("Where", (text(f"{named}{on}"),)))
    if root.waiting:
        waits = f"Rank{'' if len(root.waiting) == 1 else 's'} {ranks_text(root.waiting, 8)}"
        lines.append(("Waiting", (text(waits),)))
    if advice := root_advice(root):
        lines.append(("Do", (text(advice),)))
    lines.append(("How sure", (text(f"{SURE[root.confidence]}."),)))
    lines.append(("Proof", (text(Span("who waits for whom, and what each rank does", href=proof)),)))
    return Answer(tuple(lines))
