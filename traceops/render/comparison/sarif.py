"""compare.sarif: regressions and new findings as SARIF 2.1.0, for code scanning and editors."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath
from urllib.parse import quote

from traceops.compare.model import Comparison
from traceops.core.findings import CONFIDENCES, SEVERITIES, Finding, Severity
from traceops.core.short_text import one_line
from traceops.render.comparison import method_text
from traceops.report.write import json_text
from traceops.rules.registry import BY_ID
from traceops.rules.regression import REGRESSED
from traceops.version import __version__

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FALLBACK_FILE = "traceops.toml"
_LEVEL: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
_PROBLEM: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "recommendation"}
_MOST_RESULTS = 5000  # GitHub shows that many of a run
_MESSAGE = 4000


def render_sarif(comparison: Comparison, *, name: str = "") -> str:
    """The text of compare.sarif: TO-R001 and what head's report finds that base's did not.

    Code scanning wants a place in the repository for each result, and a run of a training has none. So it is line 1
    of the training script where head's command names one inside the repository. Else it is line 1 of traceops.toml,
    which holds the thresholds. `name` tells several comparisons of one commit apart.
    """
    findings = [*comparison.findings, *comparison.new_findings][:_MOST_RESULTS]
    ids = list(dict.fromkeys([REGRESSED.id, *(finding.rule for finding in findings)]))
    seen: Counter[str] = Counter()
    run = {
        "tool": {
            "driver": {
                "name": "traceops",
                "version": __version__,
                "semanticVersion": __version__,
                "rules": [_rule(rule, findings) for rule in ids],
            }
        },
        "automationDetails": {"id": f"traceops-compare/{quote(name, safe='')}{'/' if name else ''}"},
        "columnKind": "unicodeCodePoints",
        "invocations": [
            {
                "executionSuccessful": True,
                "toolExecutionNotifications": [
                    *(_notification("warning", said) for said in comparison.refusals),
                    *(_notification("warning", said) for said in comparison.warnings),
                    *(_notification("note", said) for said in comparison.notes),
                ],
            }
        ],
        "results": [_result(finding, ids, location(comparison), seen) for finding in findings],
        "properties": {
            "verdict": comparison.verdict,
            "sentence": comparison.sentence,
            "method": dict(method_text.method(comparison)),
        },
    }
    return json_text({"$schema": SCHEMA_URI, "version": "2.1.0", "runs": [run]})


def location(comparison: Comparison) -> str:
    """The file all results point to, relative to the repository: the training script, else traceops.toml."""
    for word in comparison.head.run.get("command") or ():
        path = PurePosixPath(str(word))
        if path.suffix == ".py":
            inside = not path.is_absolute() and ".." not in path.parts and str(word).isprintable()
            return str(path) if inside else FALLBACK_FILE
    return FALLBACK_FILE


def _rule(rule_id: str, findings: Sequence[Finding]) -> dict[str, object]:
    """What a rule is and what to do; its level is that of its worst finding."""
    rule = BY_ID.get(rule_id)
    own = [finding for finding in findings if finding.rule == rule_id]
    worst = max([f.severity for f in own] or list(SEVERITIES), key=SEVERITIES.index)
    title = rule.title if rule else next((finding.title for finding in own), rule_id)
    how = rule.fires if rule else ""
    advice = (rule.advice if rule else "") or next((finding.advice for finding in own), "")
    return {
        "id": rule_id,
        "shortDescription": {"text": title},
        "fullDescription": {"text": how or title},
        "help": {"text": " ".join(filter(None, (how, f"What to do: {advice}" if advice else ""))) or title},
        "defaultConfiguration": {"level": _LEVEL[worst]},
        "properties": {
            "tags": ["performance"],
            "precision": max((f.confidence for f in own), key=CONFIDENCES.index, default="high"),
            "problem.severity": _PROBLEM[worst],
        },
    }


def _result(finding: Finding, ids: Sequence[str], file: str, seen: Counter[str]) -> dict[str, object]:
    fingerprint = _fingerprint(finding, seen)
    return {
        "ruleId": finding.rule,
        "ruleIndex": ids.index(finding.rule),
        "level": _LEVEL[finding.severity],
        "kind": "fail",
        "message": {"text": _message(f"{finding.title}. {finding.message}")},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": quote(file), "uriBaseId": "%SRCROOT%"},
                    "region": {"startLine": 1},
                }
            }
        ],
        # primaryLocationLineHash is what GitHub tells alerts apart by; all results share a line
        "partialFingerprints": {"primaryLocationLineHash": f"{fingerprint[:16]}:1", "traceopsFinding/v1": fingerprint},
        "baselineState": "new",
        "properties": {
            "confidence": finding.confidence,
            "impact_ms": finding.impact_ms,
            "cause": finding.cause,
            "ranks": finding.ranks,
            "advice": finding.advice,
        },
    }


def _fingerprint(finding: Finding, seen: Counter[str]) -> str:
    """The same for the same thing on the next commit: numbers, ranks and steps are left out of it."""
    what = finding.evidence[0].metric if finding.rule == REGRESSED.id and finding.evidence else ""
    key = "\0".join((finding.rule, finding.cause or "", what))
    seen[key] += 1
    return hashlib.sha256(f"{key}\0{seen[key]}".encode("utf-8", "replace")).hexdigest()


def _notification(level: str, said: str) -> dict[str, object]:
    return {"level": level, "message": {"text": _message(said)}}


def _message(said: str) -> str:
    """One line in which nothing reads as a link ([text](target) is one in SARIF, 3.11.6)."""
    return one_line(said, _MESSAGE).replace("](", "] (") or "-"
