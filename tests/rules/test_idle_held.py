"""TO-I001 of a host that does one long thing: what it is, and no advice to give the GPU more work a launch."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import pytest

from traceops.across.agreed_steps import as_one_window
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.measure.summary import summarize
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping.summary_file import check_summary
from traceops.render.report.card import card_of
from traceops.rules.idle_claims import Held, HostBound
from traceops.traces.discover import TraceFile

COLLECTED = Path(__file__).parents[1] / "data" / "plain_profiler" / "collected" / "trace.json.gz"


def starves(path):
    [found] = [one for one in analyze(path).findings if one.rule == "TO-I001"]
    return found


def written(folder, change):
    """The trace with more events, made of what it holds."""
    trace = json.loads(gzip.decompress(COLLECTED.read_bytes()))
    trace["traceEvents"] += change(trace["traceEvents"])
    (folder / "trace.json").write_text(json.dumps(trace))
    return folder


def value(found, metric):
    return next(e.value for e in found.evidence if e.metric == metric)


def test_what_the_trace_does_not_show_is_told_as_that():
    """156 ms of gc.collect() behind each step were 'give the GPU more work per launch: a larger batch'."""
    found = starves(COLLECTED.parent)
    first = claim_of(found, HostBound).first
    assert first == Held(ms=first.ms, steps=2, of=3) and first.ms == pytest.approx(107.2, abs=0.1)
    assert value(found, "of it in what the trace does not show") == pytest.approx(107.2, abs=0.1)
    assert found.cause == "host"
    assert "larger batch" not in found.advice and "`traceops run` names it" in found.advice


def holes(events):
    """Where its main thread is in nothing recorded for 100 ms, as an operator there."""
    ops = [e for e in events if e.get("cat") in ("cpu_op", "cuda_runtime", "cuda_driver")]
    main = max({e["tid"] for e in ops}, key=lambda tid: sum(e["tid"] == tid for e in ops))
    ops.sort(key=lambda e: e["ts"])
    reach = ops[0]["ts"]
    for event in ops:
        if event["ts"] - reach > 100_000:
            own = {"ts": reach + 1, "dur": event["ts"] - reach - 2, "name": "aten::unique_dim", "tid": main}
            yield {"ph": "X", "cat": "cpu_op", "pid": event["pid"], "args": {}, **own}
        reach = max(reach, event["ts"] + event["dur"])


def test_the_first_sentence_names_what_holds_the_host_most():
    """It said that the GPU waits for launches, and not that one thing takes nearly all of that."""
    report = analyze(COLLECTED.parent)
    card = card_of(report)
    assert (card.rule, card.now_ms) == ("TO-I001", pytest.approx(141, abs=0.5))
    assert starves(COLLECTED.parent).number(Fact.HELD_IN) == pytest.approx(107, abs=0.5)


def test_an_operator_that_takes_long_is_named(tmp_path):
    found = starves(written(tmp_path, lambda events: list(holes(events))))
    first = claim_of(found, HostBound).first
    assert first == Held(ms=first.ms, what="aten::unique_dim", steps=2, of=3)
    assert first.ms == pytest.approx(107.2, abs=0.5)
    assert "larger batch" not in found.advice and "single operators or calls" in found.advice


def launches(events):
    """The same full of short operators."""
    for hole in holes(events):
        for at in range(0, int(hole["dur"]) - 100, 100):
            yield {**hole, "name": "aten::view", "ts": hole["ts"] + at, "dur": 20}


def test_many_short_ones_keep_their_advice(tmp_path):
    found = starves(written(tmp_path, lambda events: list(launches(events))))
    assert claim_of(found, HostBound).held is None and "larger batch" in found.advice


def test_nothing_recorded_is_not_told_of_a_damaged_trace(tmp_path):
    """What it has lost looks the same."""
    text = gzip.decompress(COLLECTED.read_bytes())
    broken = text.rindex(b'"ph": "X"', 0, len(text) // 2)
    (tmp_path / "trace.json").write_bytes(text[:broken] + b'"ph: "X"' + text[broken + 9 :])
    report = analyze(tmp_path)
    assert "1 event is not readable" in next(one for one in report.findings if one.rule == "TO-V002").message
    assert claim_of(starves(tmp_path), HostBound).held is None


def test_long_calls_of_a_trace_without_operators_are_told_too(tmp_path):
    """Of a trace with activities=[CUDA] nothing was read: a call lies in no operator."""
    trace = json.loads(gzip.decompress(COLLECTED.read_bytes()))
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "cpu_op"]
    calls = [e for e in trace["traceEvents"] if e.get("cat") == "cuda_runtime" and e["dur"] > 0]
    calls.sort(key=lambda e: e["ts"])
    idle = [
        {**one, "name": "cudaMalloc", "ts": one["ts"] + one["dur"] + 1, "dur": other["ts"] - one["ts"] - one["dur"] - 2,
         "args": {}}
        for one, other in pairwise(calls)
        if other["ts"] - one["ts"] - one["dur"] > 50_000
    ]  # fmt: skip
    (tmp_path / "trace.json").write_text(json.dumps({**trace, "traceEvents": trace["traceEvents"] + idle}))
    assert claim_of(starves(tmp_path), HostBound).first.what == "cudaMalloc"


@pytest.mark.parametrize("name", ["anomaly", "collected"])
def test_all_that_is_by_step_is_of_the_window_where_steps_are_one(name):
    """Anomaly detection's reads kept their steps, and the report of several such ranks failed."""
    path = COLLECTED.parents[1] / name / "trace.json.gz"
    summary = as_one_window(summarize(TraceFile(rank=0, path=str(path), rank_from="name")))
    assert summary.anomaly is not None or summary.held
    check_summary(summary)
