"""hang.json, and the `hang` object that report.json shares with it, as docs/formats.md and their schemas say."""

from __future__ import annotations

from collections.abc import Sequence

from traceops.core.documents import FileProblem, copied
from traceops.core.findings import Check, Finding
from traceops.core.rank_text import first_ranks
from traceops.hangs import json_types
from traceops.hangs.model import Diagnosis, Root
from traceops.hangs.words import WAIT_REASONS
from traceops.report import hang_text
from traceops.report.rows import MOST_MISSING

MOST_WAITS = 2000  # after merging
MOST_SEEN = 200


def hang_document(
    diagnosis: Diagnosis, findings: Sequence[Finding], checks: Sequence[Check]
) -> json_types.HangDocument:
    """What hang.json holds."""
    missing = hang_text.unknown_ranks(diagnosis)
    hosts = sorted({status.host for status in diagnosis.ranks if status.host})
    run = copied(
        json_types.HangRun, diagnosis.evidence, ranks_present=tuple(hang_text.known_ranks(diagnosis)),
        ranks_missing=first_ranks(missing, MOST_MISSING), ranks_missing_runs=missing, hosts=tuple(hosts),
    )  # fmt: skip
    return json_types.HangDocument(run=run, hang=hang_json(diagnosis), findings=tuple(findings), checks=tuple(checks))


def hang_json(diagnosis: Diagnosis) -> json_types.HangJson:
    """The diagnosis: causes, a row a rank, who waits for whom (equal waits merged), and what was read."""
    evidence = diagnosis.evidence
    waits = hang_text.merged_waits(diagnosis.waits)
    return json_types.HangJson(
        level=hang_text.hang_level(diagnosis),
        sentence=hang_text.hang_sentence(diagnosis),
        roots=tuple(map(_root, diagnosis.roots)),
        ranks=diagnosis.ranks,
        waits=tuple(copied(json_types.WaitJson, wait, why=WAIT_REASONS[wait.reason]) for wait in waits[:MOST_WAITS]),
        waits_left_out=max(len(waits) - MOST_WAITS, 0),
        stall=evidence.stall,
        files=tuple(hang_text.shown_path(diagnosis, path) for path in evidence.files),
        problems=tuple(
            FileProblem(hang_text.shown_path(diagnosis, path), problem) for path, problem in evidence.problems
        ),
        notes=diagnosis.notes,
        not_evaluated=diagnosis.not_evaluated,
        seen=tuple(
            copied(json_types.SeenLine, event, file=hang_text.shown_path(diagnosis, event.path))
            for event in hang_text.seen_events(diagnosis)[:MOST_SEEN]
        ),
    )


def _root(root: Root) -> json_types.RootJson:
    evidence = tuple(json_types.RootEvidence(what, value) for what, value in root.evidence)
    return copied(json_types.RootJson, root, carries=root.carried, evidence=evidence)
