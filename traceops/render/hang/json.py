"""hang.json, and the `hang` object that report.json shares with it, as docs/formats.md and their schemas say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from traceops.core.findings import Check, Finding
from traceops.hangs.model import Diagnosis
from traceops.render.hang.rows import merged_waits
from traceops.render.hang.text import hang_level, hang_sentence, shown_path, unknown_ranks
from traceops.version import __version__

SCHEMA_VERSION = 1
SCHEMA_PATH = Path(__file__).parents[2] / "schemas" / "hang.schema.json"
MOST_WAITS = 2000  # after merging


def hang_document(
    diagnosis: Diagnosis, findings: Sequence[Finding], checks: Sequence[Check]
) -> dict[str, Any]:
    """What hang.json holds, with Python's numbers still as they are."""
    evidence = diagnosis.evidence
    unknown = set(unknown_ranks(diagnosis))
    known = sorted(int(row["rank"]) for row in diagnosis.ranks if row["rank"] not in unknown)
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "traceops", "version": __version__},
        "run": {
            "name": evidence.name,
            "world_size": evidence.world_size,
            "ranks_present": known,
            "ranks_missing": sorted(unknown | (set(range(evidence.world_size or 0)) - set(known))),
            "hosts": sorted({str(row["host"]) for row in diagnosis.ranks if row.get("host")}),
        },
        "hang": hang_object(diagnosis),
        "findings": [asdict(finding) for finding in findings],
        "checks": [asdict(check) for check in checks],
    }


def hang_object(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis: causes, a row a rank, who waits for whom (equal waits merged), and what was read."""
    evidence = diagnosis.evidence
    waits = merged_waits(diagnosis.waits)
    return {
        "level": hang_level(diagnosis),
        "sentence": hang_sentence(diagnosis),
        "roots": [{**asdict(root), "evidence": _pairs(root.evidence)} for root in diagnosis.roots],
        "ranks": [dict(row) for row in diagnosis.ranks],
        "waits": [asdict(wait) for wait in waits[:MOST_WAITS]],
        "waits_left_out": max(len(waits) - MOST_WAITS, 0),
        "stall": None if evidence.stall is None else asdict(evidence.stall),
        "files": [shown_path(diagnosis, path) for path in evidence.files],
        "problems": [
            {"file": shown_path(diagnosis, path), "problem": problem} for path, problem in evidence.problems
        ],
        "notes": list(diagnosis.notes),
        "not_evaluated": dict(diagnosis.not_evaluated),
    }


def _pairs(evidence: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"what": what, "value": value} for what, value in evidence]
