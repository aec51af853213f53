"""Numbers behind findings are looked up by an enum; its words can change, and old reports are still understood."""

import pytest
from sample_report import sample_report

from traceops.core.facts import Fact, fact_of, label_of
from traceops.core.findings import Evidence
from traceops.report.document import report_of, to_json_object
from traceops.words.catalogue import texts


def test_every_fact_has_a_label_and_every_label_a_fact():
    assert set(texts("facts")) == {fact.value for fact in Fact}
    assert set(texts("facts", "earlier")) <= set(texts("facts"))


@pytest.mark.parametrize("fact", [fact for fact in Fact if label_of(fact) and label_of(fact, "X") != "X"])
def test_a_label_is_understood_where_the_fact_is_not_said(fact: Fact):
    subject = "a kernel" if "{subject}" in texts("facts")[fact.value] else ""
    found, about = fact_of(label_of(fact, subject))
    assert label_of(found, about) == label_of(fact, subject)
    assert about == subject


def test_labels_of_earlier_reports_become_facts():
    report = to_json_object(sample_report())
    finding = {"rule": "TO-S001", "severity": "error", "confidence": "high", "title": "t", "message": "m"}
    evidence = [{"metric": "waiting for it", "value": 3.5}, {"metric": "grew: gemm", "value": 1.0}]
    report["findings"] = [{**finding, "evidence": [*evidence, {"metric": "of another version", "value": 1}]}]
    read = report_of(report, "report.json").findings[0]
    assert read.number(Fact.WAITING_FOR_IT) == 3.5
    assert read.evidence[1] == Evidence(Fact.GREW, 1.0, subject="gemm")
    assert read.evidence[2].metric == "of another version"
