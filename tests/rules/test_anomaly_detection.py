"""TO-I003 of a program that left autograd's anomaly detection on."""

import gzip
import json
from pathlib import Path

import pytest

from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.pipeline.analyze import analyze
from traceops.rules.idle_claims import BlockedOnDevice

PLAIN = Path(__file__).parents[1] / "data" / "plain_profiler"


def blocked(report):
    [found] = [one for one in report.findings if one.rule == "TO-I003"]
    return found


def test_reads_behind_each_function_of_backward_are_named():
    """2.9 of 29.6 ms were 'no .item(), .cpu(), print': but it calls none. Without the detection 18.8 ms are 7.3."""
    found = blocked(analyze(PLAIN / "anomaly"))
    assert (found.cause, found.severity) == ("anomaly_detection", "warning")
    assert claim_of(found, BlockedOnDevice).reads == 244
    assert "set_detect_anomaly(False)" in found.advice and ".item()" not in found.advice
    assert next(e.value for e in found.evidence if e.fact is Fact.HOST_IN_THEM) == pytest.approx(10.56, abs=0.01)


def test_a_value_that_a_function_of_backward_reads_itself_is_none_of_it(tmp_path):
    """A hook, or a backward of the program's own, that calls .item(): it lies in the function's own row."""
    trace = json.loads(gzip.decompress((PLAIN / "anomaly" / "trace.json.gz").read_bytes()))
    own = []
    for event in trace["traceEvents"]:
        if event["name"].startswith("autograd::engine::evaluate_function: "):
            own.append({**event, "name": event["name"].rpartition(" ")[2], "ts": event["ts"] + 0.001})
            own[-1]["dur"] -= 0.002
    trace["traceEvents"] += own
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    found = blocked(analyze(tmp_path))
    assert found.cause != "anomaly_detection" and claim_of(found, BlockedOnDevice).reads is None
