"""Without the calls that launched the kernels nobody knows why a device was idle, and nothing says otherwise."""

import gzip
import json
from pathlib import Path

import pytest

from traceops.measure.ledger import BUCKETS
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.coverage import unjudged_sentence

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(scope="module")
def without_calls(tmp_path_factory):
    """The report of a run that starves, as if only the device had been recorded."""
    folder = tmp_path_factory.mktemp("device_only")
    for path in (DATA / "fsdp2_4").iterdir():
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [
            event for event in trace["traceEvents"] if event.get("cat") not in ("cuda_runtime", "cuda_driver")
        ]
        (folder / path.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))
    return analyze(folder)


def test_all_idle_time_is_of_unknown_cause(without_calls):
    assert without_calls.summary.ledger_ms.idle_unknown > 1
    for bucket in ("idle_host", "idle_sync", "idle_input", "idle_dependency"):
        assert without_calls.summary.ledger_ms.of(bucket) == 0
    for row in without_calls.steps:
        assert sum(getattr(row, bucket) for bucket in BUCKETS) == pytest.approx(row.duration_ms, abs=1e-9)


def test_no_cause_of_idle_time_is_ruled_out(without_calls):
    for rule in ("TO-I001", "TO-I002", "TO-I003"):
        [check] = [check for check in without_calls.checks if check.rule == rule]
        assert check.status == "not_evaluated"
        assert "do not hold the host's calls" in check.reason


def test_it_is_listed_as_unjudged_with_what_would_change_that(without_calls):
    [unknown] = [one for one in without_calls.summary.unjudged if one.bucket == "idle_unknown"]
    assert (unknown.why, unknown.rule) == ("no_launch", None)
    assert unknown.pct > 10
    assert card_of(without_calls).level != "clear"


def test_a_clean_bill_says_so(without_calls):
    """Whatever else was found in this run, with nothing found the card says that something was not judged."""
    import msgspec

    nothing = msgspec.structs.replace(without_calls, findings=())
    card, said = card_of(nothing), unjudged_sentence(nothing)
    assert card.level == "info" and "we could judge" in card.headline
    assert "idle: cause unknown, because the traces do not hold the calls that launched" in said
    assert "ProfilerActivity.CPU beside CUDA" in said
