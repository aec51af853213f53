"""A comparison as files for other programs: CSV, JSON, JUnit XML and SARIF."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timezone
from pathlib import PurePath, PurePosixPath
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree as ET

from msgspec.structs import asdict, replace

from traceops.compare.model import Change, Comparison, MetricChange
from traceops.core.documents import json_text
from traceops.core.findings import CONFIDENCES, SEVERITIES, Finding, Severity
from traceops.core.text import one_line
from traceops.core.units import UNKNOWN
from traceops.render.comparison import text
from traceops.render.writers.csv import csv_text
from traceops.rules.registry import BY_ID
from traceops.rules.regression import REGRESSED
from traceops.version import __version__

CSV_FILES = ("compare_metrics.csv", "compare_changes.csv")
METRIC_COLUMNS = (
    *(name for name in MetricChange.__struct_fields__ if name not in ("samples", "waiver")),
    "base_samples", "head_samples", "waived_until", "waiver_reason", "waiver_limit_pct",
)  # fmt: skip
CHANGE_COLUMNS = Change.__struct_fields__


def render_comparison_csv(comparison: Comparison) -> dict[str, str]:
    """File name -> text. A value that is not known is an empty cell, never 0."""
    metrics = [
        {
            **asdict(metric),
            "base_samples": metric.samples.base,
            "head_samples": metric.samples.head,
            "waived_until": None if metric.waiver is None else metric.waiver.until.isoformat(),
            "waiver_reason": None if metric.waiver is None else metric.waiver.reason,
            "waiver_limit_pct": None if metric.waiver is None else metric.waiver.limit_pct,
        }
        for metric in comparison.metrics
    ]
    changes = [asdict(change) for change in text.important_first(comparison.changes)]
    return {
        "compare_metrics.csv": csv_text(metrics, METRIC_COLUMNS),
        "compare_changes.csv": csv_text(changes, CHANGE_COLUMNS),
    }


# compare.json: the comparison for other programs, as docs/formats.md and compare.schema.json say.


def render_comparison_json(comparison: Comparison) -> str:
    """The text of compare.json: null where a number is not known."""
    return json_text(replace(comparison, settings=_without_python_types(comparison.settings)))


def _without_python_types(value: Any) -> Any:
    """Dates and paths as text, sets as sorted lists: settings may hold them."""
    if isinstance(value, dict):
        return {str(key): _without_python_types(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_python_types(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(map(str, value))
    if isinstance(value, (date, PurePath)):
        return str(value)
    return value


# compare.junit.xml: a test case a gated metric, for Jenkins, GitLab and whatever else shows test results.

SUITE = "traceops compare"
_XML_HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2


def render_junit(comparison: Comparison) -> str:
    """The text of compare.junit.xml. A regression is a failure, a metric that could not be judged is skipped with the
    reason, all others pass; a waived regression passes and says so in its output. Without any gated metric there is one
    skipped case."""
    if not (cases := [_case(metric, comparison.power) for metric in comparison.gated]):
        cases.append(ET.Element("testcase", {"classname": "traceops.compare", "name": "verdict", "time": "0"}))
        ET.SubElement(cases[0], "skipped", {"message": _xml(text.say("none_gated", sentence=comparison.sentence))})
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": "0",
    }
    suites = ET.Element("testsuites", {"name": SUITE, **counts})
    # JUnit's schema wants the time of head's capture as ISO 8601 without a zone, in UTC.
    known = [c.started_ns for c in comparison.head.captures if c.started_ns is not None]
    if not known or text.started_text(max(known)) == UNKNOWN:
        timestamp = {}
    else:
        moment = datetime.fromtimestamp(max(known) // 10**9, tz=timezone.utc)
        timestamp = {"timestamp": moment.replace(tzinfo=None).isoformat()}
    suite = ET.SubElement(suites, "testsuite", {"name": SUITE, **counts, **timestamp})
    properties = ET.SubElement(suite, "properties")
    for name, value in (("verdict", comparison.verdict), ("traceops", __version__), *text.method(comparison)):
        ET.SubElement(properties, "property", {"name": _xml(name.lower()), "value": _xml(value)})
    suite.extend(cases)
    # The verdict and why, as text
    reasons = [f"{text.signed(reason.ms, 'ms')} a step: {reason.text}" for reason in comparison.explanations]
    ET.SubElement(suite, "system-out").text = _xml("\n".join([comparison.sentence, *reasons]))
    if problems := [*comparison.refusals, *comparison.warnings]:
        ET.SubElement(suite, "system-err").text = _xml("\n".join(problems))
    ET.indent(suites, " ")
    return _XML_HEAD + ET.tostring(suites, encoding="unicode") + "\n"


def _case(metric: MetricChange, power: float) -> ET.Element:
    case = ET.Element("testcase", {"classname": "traceops.compare", "name": _xml(metric.label), "time": "0"})
    numbers = (
        f"{metric.label}: {text.base_text(metric)} → {text.head_text(metric)}, {text.effect_text(metric)}, "
        f"limit {text.threshold_text(metric)}"
    )
    sentence = "\n".join(filter(None, (numbers, text.reason_text(metric), text.found_text(metric, power))))
    if metric.outcome == "regression":
        failure = {"message": _xml(f"{metric.label} {text.effect_text(metric)}"), "type": "regression"}
        ET.SubElement(case, "failure", failure).text = _xml(sentence)
    elif metric.outcome in ("inconclusive", "informative"):
        message = f"{text.outcome_text(metric)}: {text.reason_text(metric)}"
        ET.SubElement(case, "skipped", {"message": _xml(message)}).text = _xml(sentence)
    else:
        ET.SubElement(case, "system-out").text = _xml(f"{text.outcome_text(metric)}\n{sentence}")
    return case


def _xml(said: str) -> str:
    """Text without what XML 1.0 cannot hold."""
    return _NOT_XML.sub("\ufffd", said)


# compare.sarif: regressions and new findings as SARIF 2.1.0, for code scanning and editors.

SCHEMA_URI = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FALLBACK_FILE = "traceops.toml"
_LEVEL: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "note"}
_PROBLEM: dict[Severity, str] = {"error": "error", "warning": "warning", "info": "recommendation"}
_MOST_RESULTS = 5000  # GitHub shows that many of a run
_MESSAGE = 4000


def render_sarif(comparison: Comparison, *, name: str = "") -> str:
    """The text of compare.sarif: TO-R001 and what head's report finds that base's did not. Code scanning wants a place
    in the repository for each result, and a run of a training has none. So it is line 1 of the training script where
    head's command names one inside the repository. Else it is line 1 of traceops.toml, which holds the thresholds.
    `name` tells several comparisons of one commit apart."""
    findings = [*comparison.findings, *comparison.new_findings][:_MOST_RESULTS]
    ids = list(dict.fromkeys([REGRESSED.id, *(finding.rule for finding in findings)]))
    seen: Counter[str] = Counter()
    rules = [_rule(rule, findings) for rule in ids]
    driver = {"name": "traceops", "version": __version__, "semanticVersion": __version__, "rules": rules}
    remarks = [("warning", said) for said in (*comparison.refusals, *comparison.warnings)]
    remarks += [("note", said) for said in comparison.notes]
    notifications = [{"level": level, "message": {"text": _message(said)}} for level, said in remarks]
    method = dict(text.method(comparison))
    run = {
        "tool": {"driver": driver},
        "automationDetails": {"id": f"traceops-compare/{quote(name, safe='')}{'/' if name else ''}"},
        "columnKind": "unicodeCodePoints",
        "invocations": [{"executionSuccessful": True, "toolExecutionNotifications": notifications}],
        "results": [_result(finding, ids, location(comparison), seen) for finding in findings],
        "properties": {"verdict": comparison.verdict, "sentence": comparison.sentence, "method": method},
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
    # The same for the same thing on the next commit: numbers, ranks and steps are left out of it.
    what = finding.evidence[0].metric if finding.rule == REGRESSED.id and finding.evidence else ""
    key = "\0".join((finding.rule, finding.cause or "", what))
    seen[key] += 1
    fingerprint = hashlib.sha256(f"{key}\0{seen[key]}".encode("utf-8", "replace")).hexdigest()
    place = {"artifactLocation": {"uri": quote(file), "uriBaseId": "%SRCROOT%"}, "region": {"startLine": 1}}
    return {
        "ruleId": finding.rule,
        "ruleIndex": ids.index(finding.rule),
        "level": _LEVEL[finding.severity],
        "kind": "fail",
        "message": {"text": _message(f"{finding.title}. {finding.message}")},
        "locations": [{"physicalLocation": place}],
        # primaryLocationLineHash is what GitHub tells alerts apart by; all results share a line
        "partialFingerprints": {"primaryLocationLineHash": f"{fingerprint[:16]}:1", "traceopsFinding/v1": fingerprint},
        "baselineState": "new",
        "properties": {
            name: getattr(finding, name) for name in ("confidence", "impact_ms", "cause", "ranks", "advice")
        },
    }


def _message(said: str) -> str:
    """One line in which nothing reads as a link ([text](target) is one in SARIF, 3.11.6)."""
    return one_line(said, _MESSAGE).replace("](", "] (") or "-"
