"""A quantity reads alike wherever it is shown: what a finding or report stores is rounded where it is shown, once."""

from __future__ import annotations

import csv
import io
import re

from generated_run import SlowInput, ddp, simulate, write_traces
from measured_runs import program

from traceops.pipeline.analyze import analyze
from traceops.render.finding_blocks import evidence_lines
from traceops.render.report.card import card_of
from traceops.render.report.html import describe
from traceops.render.writers.csv import findings_csv
from traceops.render.writers.html import write_html

LOADS_US = 5914.9  # 5.91 ms; rounded to the µs first it is 5.915, and then 5.92


def waiting(tmp_path):
    made = program(ddp, device="cpu", layers=2, steps=3).without_jitter()
    faults = [SlowInput(rank, LOADS_US - 100) for rank in range(2)]
    write_traces(simulate(made, 2, faults), tmp_path)
    report = analyze(tmp_path)
    return report, next(one for one in report.findings if one.rule == "TO-I002")


def test_a_time_is_rounded_once(tmp_path):
    report, found = waiting(tmp_path)
    shown = {
        "message": re.search(r"up to ([\d.]+) ms", found.message),
        "headline": re.search(r"([\d.]+) ms", card_of(report).headline),
    }
    assert {where: told[1] for where, told in shown.items()} == {"message": "5.91", "headline": "5.91"}
    assert f"{found.evidence[0].value:.2f}" == "5.91" and f"{report.ranks[0].idle_input_ms:.2f}" == "5.91"


def test_evidence_is_shown_to_the_microsecond(tmp_path):
    report, found = waiting(tmp_path)
    assert "idle_input 5.915 ms/step" in evidence_lines(found)[0]
    [row] = [row for row in csv.DictReader(io.StringIO(findings_csv(report.findings))) if row["rule"] == "TO-I002"]
    assert "idle_input=5.915 ms/step" in row["evidence"]
    assert b"5.915 ms/step" in write_html(describe(report))


def test_a_share_is_rounded_once(tmp_path):
    report, _ = waiting(tmp_path)
    summary = report.summary
    step = sum(row.typical_step_ms for row in report.ranks) / len(report.ranks)
    for bucket in ("compute", "idle_input"):
        exact = 100 * getattr(summary.ledger_ms, bucket) / step
        assert abs(getattr(summary.ledger_pct, bucket) - exact) < 1e-3
