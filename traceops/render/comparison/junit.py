"""compare.junit.xml: a test case a gated metric, for Jenkins, GitLab and whatever else shows test results."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from xml.etree import ElementTree as ET

from traceops.compare.model import Comparison, MetricChange
from traceops.core.units import UNKNOWN
from traceops.render.comparison import method_text, text
from traceops.version import __version__

SUITE = "traceops compare"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2


def render_junit(comparison: Comparison) -> str:
    """The text of compare.junit.xml.

    A regression is a failure, a metric that could not be judged is skipped with the reason, all others pass;
    a waived regression passes and says so in its output. Without any gated metric there is one skipped case.
    """
    cases = [_case(metric, comparison.power) for metric in comparison.gated] or [_no_case(comparison)]
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": "0",
    }
    suites = ET.Element("testsuites", {"name": SUITE, **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": SUITE, **counts, **_timestamp(comparison)})
    properties = ET.SubElement(suite, "properties")
    for name, value in (
        ("verdict", comparison.verdict),
        ("traceops", __version__),
        *((label.lower(), value) for label, value in method_text.method(comparison)),
    ):
        ET.SubElement(properties, "property", {"name": _xml(name), "value": _xml(value)})
    suite.extend(cases)
    ET.SubElement(suite, "system-out").text = _xml(_output(comparison))
    if problems := [*comparison.refusals, *comparison.warnings]:
        ET.SubElement(suite, "system-err").text = _xml("\n".join(problems))
    ET.indent(suites, " ")
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _case(metric: MetricChange, power: float) -> ET.Element:
    case = ET.Element("testcase", {"classname": "traceops.compare", "name": _xml(metric.label), "time": "0"})
    numbers = (
        f"{metric.label}: {text.base_text(metric)} → {text.head_text(metric)}, {text.effect_text(metric)}, "
        f"limit {text.threshold_text(metric)}"
    )
    said = "\n".join(filter(None, (numbers, text.reason_text(metric), text.found_text(metric, power))))
    if metric.outcome == "regression":
        failure = {"message": _xml(f"{metric.label} {text.effect_text(metric)}"), "type": "regression"}
        ET.SubElement(case, "failure", failure).text = _xml(said)
    elif metric.outcome in ("inconclusive", "informative"):
        message = f"{text.outcome_text(metric)}: {text.reason_text(metric)}"
        ET.SubElement(case, "skipped", {"message": _xml(message)}).text = _xml(said)
    else:
        ET.SubElement(case, "system-out").text = _xml(f"{text.outcome_text(metric)}\n{said}")
    return case


def _no_case(comparison: Comparison) -> ET.Element:
    case = ET.Element("testcase", {"classname": "traceops.compare", "name": "verdict", "time": "0"})
    ET.SubElement(case, "skipped", {"message": _xml(f"no metric is gated: {comparison.sentence}")})
    return case


def _output(comparison: Comparison) -> str:
    """The verdict and why, as text."""
    reasons = [f"{text.signed(reason.ms, 'ms')} a step: {reason.text}" for reason in comparison.explanations]
    return "\n".join([comparison.sentence, *reasons])


def _timestamp(comparison: Comparison) -> dict[str, str]:
    """When head was captured, as the schema of JUnit files has it: ISO 8601 without a zone, in UTC."""
    known = [c.started_ns for c in comparison.head.captures if c.started_ns is not None]
    if not known or method_text.started_text(max(known)) == UNKNOWN:
        return {}
    moment = datetime.fromtimestamp(max(known) // 10**9, tz=timezone.utc)
    return {"timestamp": moment.replace(tzinfo=None).isoformat()}


def _xml(said: str) -> str:
    """Text without what XML 1.0 cannot hold."""
    return _NOT_XML.sub("\ufffd", said)
