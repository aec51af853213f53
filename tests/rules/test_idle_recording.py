"""Late launches are judged by what recording cannot explain, where nothing was timed without the profiler."""

import gzip
import re
from pathlib import Path

import msgspec
import pytest

from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.findings import Finding
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.coverage import unjudged_sentence
from traceops.rules.idle_claims import HostBound, InputBound
from traceops.rules.idle_time import MAY_BE_RECORDING

DATA = Path(__file__).parents[1] / "data"
PLAIN = DATA / "plain_profiler"


def host_bound(report):
    return next((found for found in report.findings if found.rule == "TO-I001"), None)


def check(report):
    return next(check for check in report.checks if check.rule == "TO-I001")


def test_lateness_that_recording_may_explain_is_not_judged():
    """One iteration of a GPT: a quarter 'launched late'. Without the profiler it takes as long as the GPU computes."""
    report = analyze(PLAIN / "one_iteration" / "trace.json.gz")
    assert host_bound(report) is None
    assert check(report).status == "not_evaluated"
    assert check(report).reason == (
        f"{MAY_BE_RECORDING} all of it: launches are 11.7 ms late in the window, and recording may take the host up to "
        "24.8 ms"
    )
    card, said = card_of(report), unjudged_sentence(report)
    assert card.level == "info" and card.judged_pct == pytest.approx(74, abs=1)
    assert "Not judged: 26 % of the window" in said
    assert "Compare with a step that is timed without the profiler" in said
    assert report.summary.recording_ms == pytest.approx(report.ranks[0].idle_host_ms, abs=0.01)


def test_calls_of_python_are_recorded_too(tmp_path):
    """They are no rows here. So more of the longest gaps between the others may be theirs."""
    text = gzip.decompress((PLAIN / "one_iteration" / "trace.json.gz").read_bytes())
    (tmp_path / "trace.json").write_bytes(
        text.replace(b'"record_shapes": 1,', b'"record_shapes": 1, "with_stack": 1,', 1)
    )
    assert "recording may take the host up to 29.1 ms" in check(analyze(tmp_path / "trace.json")).reason


def test_what_is_certain_alone_is_no_clean_bill_for_what_is_not():
    """A compiled GPT in CUDA graphs: 2.2 of 4.96 ms are late, 1.7 may be recording; without the profiler 2.7 in all.

    It was a remark that said nothing of how little is known, under 'Nothing serious found'.
    """
    report = analyze(PLAIN / "graph" / "trace.json.gz")
    assert host_bound(report) is None
    assert check(report).reason.startswith(f"{MAY_BE_RECORDING} most of it: launches are 2.2 ms late a step")
    assert re.match(r"No problem found in the \d+ % of the step we could judge", card_of(report).headline)


def test_what_is_certainly_the_program_s_is_said():
    """Two ranks of 128: 157 of 615 ms are late on one, and recording takes no more than a sixth of that."""
    report = analyze(DATA / "hta" / "pair")
    found = host_bound(report)
    cost = next(e.value for e in found.evidence if e.fact is Fact.RECORDING_AT_MOST)
    late = next(e.value for e in found.evidence if e.fact is Fact.BUCKET)
    assert 0 < cost < late / 5
    claim = claim_of(found, HostBound)
    assert (claim.own, claim.cost) == (pytest.approx(late - cost), pytest.approx(cost))


def test_what_recording_may_take_is_said_beside_the_gain():
    """Without the profiler the rest of the step takes less, and more workers keep up."""
    report = analyze(PLAIN / "cold_start" / "trace.json.gz")
    late = report.ranks[0].idle_host_ms
    assert 0 < report.summary.recording_ms <= late
    assert card_of(report).rule == "TO-I002"
    input_bound = next(found for found in report.findings if found.rule == "TO-I002")
    need = claim_of(input_bound, InputBound).need
    assert (need.count, need.most) == (6, 9)


def test_a_small_finding_does_not_hide_that_most_of_a_step_is_not_judged(tmp_path):
    """bert-small, the GPU busy for 7 %: of 4.4 ms the verdict told the 0.15 in which the host waited for the device."""
    report = analyze(PLAIN / "one_iteration" / "trace.json.gz")
    judged = next(check for check in report.checks if check.rule == "TO-I003")
    small = Finding(
        rule="TO-I003",
        severity="warning",
        confidence="high",
        ranks=(0,),
        title="",
        message="",
        evidence=(),
        impact_ms=0.2,
    )
    card = card_of(msgspec.structs.replace(report, findings=(small,)))
    assert judged.status == "clear" and card.level == "warning"
    assert card.judged_pct == pytest.approx(74, abs=1)


def test_what_is_not_judged_is_said_once_beside_missing_ranks(tmp_path):
    for rank in (0, 1, 2):
        name = f"rank_{rank}.pt.trace.json.gz"
        (tmp_path / name).write_bytes((DATA / "ddp4" / name).read_bytes())
    card = card_of(analyze(tmp_path))
    assert "1 of 4 ranks has no trace" in card.headline and card.judged_pct < 90
