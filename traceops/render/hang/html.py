"""hang.html, and the section on a hang that summary.html shares with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from traceops.core.findings import Check, Finding
from traceops.core.rank_text import ranks_text
from traceops.hangs.model import Diagnosis, RankStacks, ThreadStack
from traceops.render import page
from traceops.render.cells import Cell, number
from traceops.render.hang import tables as hang_tables
from traceops.render.hang.graph import LINE, PADDING, WIDTH, wait_graphs
from traceops.render.hang.rows import merged_ranks, shown_waits
from traceops.render.hang.text import (
    hang_level,
    hang_sentence,
    read_text,
    root_label,
    root_sentence,
    shown_path,
    stall_text,
    subject,
    unknown_ranks,
)
from traceops.render.report import detail_tables
from traceops.render.report.terms import COLUMNS
from traceops.render.report.verdict import Verdict
from traceops.rules.registry import RULES
from traceops.version import __version__

_MOST_STACKS = 16
_MOST_FRAMES = 60
_MOST_FILES = 200


def render_hang_html(diagnosis: Diagnosis, findings: Sequence[Finding], checks: Sequence[Check]) -> str:
    """The page as text: no script, nothing from outside, everything that came from a file escaped."""
    template = page.environment().get_template("hang.html.j2")
    return template.render(
        css=page.template_text("summary.css") + page.template_text("hang.css"),
        policy=page.policy([]),
        version=__version__,
        name=diagnosis.evidence.name,
        verdict=Verdict(hang_level(diagnosis), hang_sentence(diagnosis)),
        facts=_facts(diagnosis),
        findings=[(finding, detail_tables.evidence_table(finding)) for finding in findings],
        checks=checks,
        counts=Counter(check.status for check in checks),
        rule_titles={rule.id: rule.title for rule in RULES},
        definitions=COLUMNS,
        number=number,
        ranks_text=ranks_text,
        hang=hang_content(diagnosis),
    )


def hang_content(diagnosis: Diagnosis) -> dict[str, Any]:
    """What the templates need of a diagnosis beside its findings."""
    groups = merged_ranks(diagnosis, hang_tables.MOST_ROWS)
    stacks, more_stacks = _stacks(diagnosis)
    files = diagnosis.evidence.files
    unknown = unknown_ranks(diagnosis)
    return {
        "roots": [f"{root_sentence(root)} {root_label(root)}" for root in diagnosis.roots[1:]],
        "sentence": hang_sentence(diagnosis),
        "level": hang_level(diagnosis),
        "read": f"Read: {read_text(diagnosis)}.",
        "has_cause": bool(diagnosis.roots),
        "unknown": f"Nothing is known of {subject(unknown).lower()}." if unknown else "",
        "stall": stall_text(diagnosis),
        "graphs": [
            {"graph": graph, "css": css}
            for graph, css in zip(wait_graphs(diagnosis) or (), ("wide", "tall"), strict=False)
        ],
        "box": {"width": WIDTH, "line": LINE, "padding": PADDING},
        "waits_table": hang_tables.waits_table(diagnosis),
        "ranks_table": hang_tables.ranks_table(diagnosis, groups),
        "stacks": stacks,
        "more_stacks": more_stacks,
        "files": [shown_path(diagnosis, path) for path in files[:_MOST_FILES]],
        "more_files": max(len(files) - _MOST_FILES, 0),
        "problems": [(shown_path(diagnosis, path), problem) for path, problem in diagnosis.evidence.problems],
        "notes": list(diagnosis.notes),
        "not_evaluated": diagnosis.not_evaluated,
    }


def _facts(diagnosis: Diagnosis) -> list[tuple[str, Cell]]:
    """The strip of facts under the verdict."""
    evidence = diagnosis.evidence
    unknown = unknown_ranks(diagnosis)
    known = len(diagnosis.ranks) - len(unknown)
    stall = evidence.stall
    dumps = sum(record.source == "flight recorder" for record in evidence.records.values())
    versions = {record.nccl_version for record in evidence.records.values() if record.nccl_version}
    hosts = {row["host"] for row in diagnosis.ranks if row.get("host")}
    waiting = {wait.rank for wait in shown_waits(diagnosis)}
    return [
        ("Ranks", page.word(evidence.world_size)),
        ("Evidence of", _ranks(known)),
        ("No evidence of", Cell(subject(unknown).lower(), css="bad") if unknown else Cell("no rank")),
        ("Waiting", _ranks(len(waiting))),
        ("Stalled for", Cell(f"{stall.stalled_s:.0f} s") if stall else page.word(None)),
        ("Hosts", page.word(len(hosts) or None)),
        ("NCCL", page.word(", ".join(sorted(versions)))),
        ("Flight-recorder dumps", _ranks(dumps)),
        ("Stacks", _ranks(len(evidence.stacks))),
        ("Files read", Cell(str(len(evidence.files)))),
        ("Not used", Cell(str(len(evidence.problems)), css="bad") if evidence.problems else Cell("none")),
    ]


def _ranks(count: int) -> Cell:
    return Cell(f"{count} rank{'' if count == 1 else 's'}")


def _stacks(diagnosis: Diagnosis) -> tuple[list[dict[str, Any]], int]:
    """Stacks of the causes' ranks, then of one rank that waits to compare with; how many more causes have some."""
    held = diagnosis.evidence.stacks
    causes = [rank for root in diagnosis.roots for rank in root.ranks if rank in held]
    waiting = [wait.rank for wait in diagnosis.waits if wait.rank in held and wait.rank not in causes]
    chosen = list(dict.fromkeys(causes))[:_MOST_STACKS]
    shown = [(rank, "") for rank in chosen] + [(rank, ", which waits, to compare") for rank in waiting[:1]]
    return [
        {
            "title": f"Rank {rank}{why}",
            "threads": [_thread(thread) for thread in _main_first(held[rank])],
        }
        for rank, why in shown
    ], len(set(causes)) - len(chosen)


def _main_first(stacks: RankStacks) -> list[ThreadStack]:
    return sorted(stacks.threads, key=lambda thread: not thread.main)


def _thread(thread: ThreadStack) -> dict[str, Any]:
    """Frames innermost first, as they hang in each other; the rest only counted."""
    title = "main thread" if thread.main else f"thread {thread.name or ''}".strip()
    return {
        "title": title + (" (compiled code too)" if thread.native else ""),
        "main": thread.main,
        "frames": [str(frame) for frame in thread.frames[:_MOST_FRAMES]],
        "more": max(len(thread.frames) - _MOST_FRAMES, 0),
    }
