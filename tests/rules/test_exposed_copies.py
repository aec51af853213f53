"""TO-I004: copies while no kernel runs, of known and unknown sizes, on real runs."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from changed import replace

from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.units import size_text
from traceops.measure.copies import CopyKind
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.rules.explained import merge_overlapping
from traceops.rules.idle_claims import BlockedOnDevice
from traceops.rules.idle_copies import ExposedCopying, _of_kind
from traceops.rules.registry import BY_ID

COPIES = Path(__file__).parents[1] / "data" / "copies"


@pytest.fixture(scope="module")
def reports():
    return {path.name: analyze(path) for path in sorted(COPIES.iterdir())}


def found(report, rule="TO-I004"):
    return [one for one in report.findings if one.rule == rule]


def value(finding, metric):
    return next(one.value for one in finding.evidence if one.metric == metric)


# What the same program took with its cure, measured without a profiler: benchmarks/copies.
@pytest.mark.parametrize(
    ("name", "cause", "severity", "cured_ms", "within"),
    [
        ("pageable", "pageable_input", "error", 5.979, 0.05),
        ("same_stream", "pinned_input", "error", 7.855, 0.05),
        ("to_host", "output", "error", 3.614, 0.12),
    ],
)
def test_the_step_that_is_promised_is_the_one_that_the_cure_gave(reports, name, cause, severity, cured_ms, within):
    (one,) = found(reports[name])
    assert (one.cause, one.severity, one.ranks) == (cause, severity, (0,))
    assert value(one, "step") - one.impact_ms == pytest.approx(cured_ms, rel=within)
    assert card_of(reports[name]).fixed_ms == pytest.approx(value(one, "step") - one.impact_ms)


@pytest.mark.parametrize(("name", "cured_ms"), [("saved_on_host", 9.109), ("adam_on_host", 5.502)])
def test_offload_is_a_warning_at_most_and_promises_no_more_than_pinned_memory_gives(reports, name, cured_ms):
    (one,) = found(reports[name])
    assert (one.cause, one.severity) == ("offload", "warning")
    assert value(one, "step") - one.impact_ms >= cured_ms
    assert "DataLoader" not in one.advice and claim_of(one, ExposedCopying).offloaded


def test_copies_beside_kernels_are_fine(reports):
    report = reports["to_host_ahead"]
    assert found(report) == [] and found(report, "TO-I003") == []
    (check,) = [one for one in report.checks if one.rule == "TO-I004"]
    assert (check.status, check.reason) == ("clear", "at most 1.9 % of the step (bound 5 %)")
    assert sum(one.pct for one in report.summary.unjudged if one.bucket == "memory") < 2  # memsets


def test_size_speed_and_place_are_told_and_where_the_links_speed_is_from(reports):
    (one,) = found(reports["pageable"])
    claim = claim_of(one, ExposedCopying)
    assert (claim.count, size_text(claim.typically), claim.memory, claim.operator) == (
        1,
        "168 MB",
        "pageable",
        "aten::to",
    )
    assert claim.gbs == pytest.approx(9.8, abs=0.05) and claim.pinned == pytest.approx(3.5, abs=0.005)
    assert (round(claim.link_gbs), claim.link, claim.generation, claim.lanes) == (48, "pcie", 5, 16)
    (own,) = found(reports["same_stream"])
    assert value(own, "link from pinned memory") == pytest.approx(55.5, abs=0.2)  # more than the table
    assert "pinned already" in own.advice


def test_a_wait_for_copies_is_told_once_and_not_as_item_calls(reports):
    """'Keep values on the device: no .item()' of a program that reads none."""
    (many,) = found(reports["many_small"], "TO-I003")
    assert many.cause == "copies" and ".item()" not in many.advice
    assert claim_of(many, BlockedOnDevice).copies_pct == 100
    (idle,) = found(reports["saved_on_host"], "TO-I003")
    assert idle.severity == "info" and idle.message.endswith("TO-I004 explains it.")


def test_the_table_has_all_copies(reports):
    (first, *_) = reports["pageable"].tables.copies
    assert (first.direction, first.memory, first.purpose, first.operator) == (
        "to_device", "pageable", "input", "aten::to",
    )  # fmt: skip
    assert first.exposed_ms == pytest.approx(17.12, abs=0.01)
    purposes = {row.purpose for row in reports["adam_on_host"].tables.copies if row.exposed_ms > 0.1}
    assert purposes == {"offload"}


@pytest.mark.parametrize(("cause", "severity"), [("copies", "info"), ("host", "warning")])
def test_copies_explain_no_other_wait(cause, severity):
    def one(rule, cause):
        return BY_ID[rule].finding(
            "warning", "high", "said.", [Evidence(Fact.OTHER, 1, subject="x")], ranks=(0,), cause=cause
        )

    merged = merge_overlapping([one("TO-I004", "pageable_input"), one("TO-I003", cause)])
    assert {each.rule: each.severity for each in merged} == {"TO-I004": "warning", "TO-I003": severity}


def test_a_late_rank_whose_copies_take_longer_explains_them():
    def one(rule, cause, ranks):
        return BY_ID[rule].finding(
            "error", "high", "said.", [Evidence(Fact.OTHER, 1, subject="x")], ranks=ranks, cause=cause
        )

    late, copies = one("TO-S001", "copy", (1,)), one("TO-I004", "pageable_input", (1,))
    assert merge_overlapping([late, copies])[1].severity == "info"
    assert merge_overlapping([late, replace(copies, ranks=(0, 1))])[1].severity == "error"


@pytest.mark.parametrize(("total", "typically", "whole"), [(12_585_000, None, 12_585_000), (6_300, 2_048, None)])
def test_one_large_copy_among_small_ones_is_told_by_all_bytes(total, typically, whole):
    """A batch of pictures, its labels and a loss: '3 copies of typically 2.0 kB' took 2.1 ms."""
    steps = 4
    numbers = {name: np.full(steps, 0) for name in ("blocked_ns", "alone_ns", "exposed_ns")}
    kind = CopyKind(
        direction="to_device", memory="pageable", purpose="input", operator="aten::to", region="", beside=False,
        count=np.full(steps, 3), bytes=np.full(steps, 2_048), total_bytes=np.full(steps, total),
        device_ns=np.full(steps, 2_100_000), **numbers,
    )  # fmt: skip
    facts = _of_kind(kind, SimpleNamespace(steps=steps, link=None))
    assert (facts["count"], facts["typically"], facts["total"]) == (3, typically, whole)


def without_sizes(name, folder, in_the_calls=False):
    trace = json.loads(gzip.decompress((COPIES / name / "trace.json.gz").read_bytes()))
    copies = [event for event in trace["traceEvents"] if event.get("cat") == "gpu_memcpy"]
    size = {event["args"]["correlation"]: str(event["args"]["bytes"]) for event in copies}
    for event in copies:
        event["args"] = {key: told for key, told in event["args"].items() if "byte" not in key.lower()}
    for event in trace["traceEvents"] if in_the_calls else ():
        if event.get("cat") == "cuda_runtime" and (args := event["args"])["correlation"] in size:
            args["size"] = size[args["correlation"]]
    (folder / "trace.json").write_text(json.dumps(trace))
    return analyze(folder)


def exposed(report):
    return [one for one in report.findings if one.rule == "TO-I004"]


@pytest.mark.parametrize("name", ["adam_on_host", "pageable", "to_host", "many_small", "saved_on_host"])
def test_rocm_tells_the_size_in_the_call(name, tmp_path):
    """As in tests/data/hta/amd: nothing was known of such copies' sizes."""
    whole = exposed(analyze(COPIES / name))
    assert exposed(without_sizes(name, tmp_path, in_the_calls=True)) == whole
    assert all("gbs" in one.facts for one in whole)


def test_a_trace_of_rocm():
    report = analyze(COPIES.parent / "hta" / "amd")
    [copies] = report.tables.copies
    assert (copies.count, copies.bytes, copies.purpose) == (2, 2560, "input") and copies.gbs


@pytest.mark.parametrize("name", ["adam_on_host", "saved_on_host"])
def test_offload_is_no_input_and_no_result(name, tmp_path):
    """Weights and activations that are kept on the host were two errors: batches to pin, and results."""
    (one,) = exposed(without_sizes(name, tmp_path))
    assert (one.cause, one.severity) == ("offload", "warning")
    assert "DataLoader" not in one.advice


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("pageable", "pageable_input"),
        ("same_stream", "pinned_input"),
        ("to_host", "output"),
        ("many_small", "pageable_input"),
    ],
)
def test_what_goes_one_way_is_told_as_before(name, cause, tmp_path):
    assert [one.cause for one in exposed(without_sizes(name, tmp_path))] == [cause]
