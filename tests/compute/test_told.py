"""What the rules say of kernels: words for each cause, how serious, and nothing where nothing can be known."""

import json
from pathlib import Path
from typing import get_args

import pytest
from recorded_step import FLOAT, op, tensor, write

from traceops.compute.model import Cause
from traceops.pipeline.analyze import analyze, analyze_window, find_traces
from traceops.pipeline.mapping.ranks import MapOptions
from traceops.render.report.card import card_of
from traceops.render.report.compute import kernels_sentence
from traceops.rules.compute import OF_CAUSE, RULES
from traceops.words.catalogue import texts

DATA = Path(__file__).parents[1] / "data" / "compute"


def test_each_cause_has_a_headline_and_advice():
    forms = texts("compute", "kernel_loss")
    for cause in get_args(Cause):
        assert f"form.{cause}" in forms
        assert cause in OF_CAUSE and OF_CAUSE[cause].advice_for(cause) != OF_CAUSE[cause].advice, cause
    assert [rule.id for rule in RULES] == [f"TO-K00{number}" for number in range(1, 9)]


def test_the_largest_loss_of_a_run_opens_its_report():
    report = analyze(DATA / "odd_width.pt.trace.json.gz", jobs=1)
    card = card_of(report)
    assert (card.level, card.rule) == ("error", "TO-K003") and "4095" in card.headline
    [found] = [one for one in report.findings if one.rule == "TO-K003"]
    assert found.cause == report.compute.losses[0].cause == "misaligned_shape"
    assert found.impact_ms == pytest.approx(report.compute.losses[0].device_ms)
    assert report.compute.efficiency_pct < 40
    assert "% of attainable speed (most of the rest in aten::" in kernels_sentence(report)


def test_fast_kernels_of_a_slow_type_are_not_called_fast():
    """The float32 products ran at 100 % of float32's speed, and the page said so beside the finding."""
    report = analyze(DATA / "fp32_products.pt.trace.json.gz", jobs=1)
    card, compute = card_of(report), report.compute
    assert card.rule == "TO-K001" and "saves 25.0 of 30.7 ms" in kernels_sentence(report)
    assert card.now_ms == compute.busy_ms, "the recorded step of 77.7 ms waits 46 ms for the profiler"
    assert compute.losses[0].step_after_ms[0] == card.fixed_least_ms < card.fixed_ms < card.now_ms


def of(tmp_path, calls, **rest):
    report = analyze(write(tmp_path / "trace.json", calls, **rest), jobs=1)
    return report, {check.rule: check for check in report.checks if check.rule.startswith("TO-K")}


def test_a_faster_kernel_saves_nothing_where_the_host_bounds_the_step(tmp_path):
    slow = op("aten::mm", tensor((512, 4095)), tensor((4095, 4095)), us=120, kernel="nvjet_h")
    report, _ = of(tmp_path, [slow] * 4, host_us=400)
    [found] = [one for one in report.findings if one.cause == "misaligned_shape"]
    assert found.severity == "info" and found.impact_ms is None
    assert found.facts["effect"] == "host"
    assert report.compute.bound == "host"


def test_slow_kernels_without_a_known_cause_are_named(tmp_path):
    report, checks = of(tmp_path, [op("aten::sum", tensor((4096, 4096), FLOAT), us=200)] * 3)
    [found] = [one for one in report.findings if one.rule == "TO-K008"]
    assert "% of attainable speed" in found.message and "sum" in found.message
    assert checks["TO-K008"].status == "fired"


def test_fast_kernels_are_clear(tmp_path):
    report, checks = of(tmp_path, [op("aten::sum", tensor((4096, 4096), FLOAT), us=28)] * 3)
    assert {check.status for check in checks.values()} == {"clear"}
    assert "attainable speed" in card_of(report).headline


def test_a_gpu_without_known_rates_is_not_judged(tmp_path):
    slow = op("aten::sum", tensor((4096, 4096), FLOAT), us=200)
    _, checks = of(tmp_path, [slow] * 3, device={"id": 0, "name": "NVIDIA Whatever", "numSms": 10})
    assert {check.status for check in checks.values()} == {"not_evaluated"}
    assert "rates" in checks["TO-K001"].reason


def test_a_trace_without_shapes_is_not_judged_but_for_what_names_tell(tmp_path):
    sums = [op("aten::sum", us=20)] * 3
    _, checks = of(tmp_path, sums)
    assert {check.status for check in checks.values()} == {"not_evaluated"}
    attention = [op("aten::bmm"), op("aten::div", us=30), op("aten::_softmax", us=40), op("aten::bmm")]
    report, checks = of(tmp_path, attention * 3)
    assert checks["TO-K002"].status == "fired" and report.compute.losses[0].device_ms == pytest.approx(0.21)


@pytest.mark.parametrize(
    ("kernel", "maker"), [("Cijk_Alik_Bljk_HHS", "MI300X"), ("nvjet_sm90_hsh", "H100"), ("my_kernel", "NAME")]
)
def test_a_trace_that_names_no_gpu_gets_no_clean_bill_and_asks_for_the_name(tmp_path, kernel, maker):
    one = op("aten::mm", tensor((8192, 8192)), tensor((8192, 8192)), us=1500, kernel=kernel)
    report, _ = of(tmp_path, [one] * 3, device={"id": 0})
    card = card_of(report)
    assert card.level == "info" and "attainable speed" not in card.headline
    assert f"not checked: the trace doesn't name the GPU (--gpu {maker})" in kernels_sentence(report)


def test_a_name_that_is_given_rates_the_kernels(tmp_path):
    one = op("aten::mm", tensor((8192, 8192)), tensor((8192, 8192)), us=1500, kernel="nvjet_h")
    found = find_traces(str(write(tmp_path / "trace.json", [one] * 3, device={"id": 0})))
    report = analyze_window(found, found.latest, MapOptions(jobs=1, gpu="H200"))
    assert report.compute.rates == "measured" and "attainable speed" in card_of(report).headline


def test_a_speed_that_no_gpu_has_is_told(tmp_path):
    fast = op("aten::mm", tensor((8192, 8192)), tensor((8192, 8192)), us=500, kernel="nvjet_h")
    report, _ = of(tmp_path, [fast] * 3)
    [found] = [one for one in report.findings if one.cause == "impossible_speed"]
    assert (found.facts["operator"], found.facts["does"]) == ("aten::mm", "computes")
    assert found.facts["factor"] == pytest.approx(2.2, abs=0.05) and report.compute.efficiency_pct is None


def test_rows_that_may_be_unused_make_no_speed_impossible(tmp_path):
    """A buffer of experts is sized for the worst case: its shape says at most what is computed."""
    fast = op("aten::_grouped_mm", tensor((65536, 8192)), tensor((8, 8192, 8192)), us=4000, kernel="cutlass_grouped")
    report, _ = of(tmp_path, [fast] * 3)
    assert not [one for one in report.findings if one.cause == "impossible_speed"]


def test_kernels_whose_calls_have_their_number_find_their_operator(tmp_path):
    """As some tools write traces: no correlation, operators without a number, types by torch's ScalarType."""
    one = op("aten::mm", tensor((4096, 4096)), tensor((4096, 4096)), us=300)
    path = write(tmp_path / "trace.json", [one] * 3, host_us=400)
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        args = event.get("args", {})
        if event.get("cat") == "cpu_op":
            del args["External id"]
            args["Input type"] = ["BFloat16", "BFloat16"]
        elif "correlation" in args:
            args["External id"] = args.pop("correlation")
    path.write_text(json.dumps(trace))
    rows = analyze(path, jobs=1).compute.operators
    assert [(row.name, row.flops) for row in rows] == [("aten::mm", pytest.approx(3 * 2 * 4096**3))]


def test_late_launches_are_told_with_the_loop_that_makes_them(tmp_path):
    body = [op("aten::mm", tensor((64, 256)), tensor((256, 256)), us=3), op("aten::tanh", tensor((64, 256)), us=2)]
    report, _ = of(tmp_path, body * 100, host_us=40)
    late = [one for one in report.findings if one.rule == "TO-I001"]
    assert [one.advice.partition(" Most launches")[0] for one in late] == [
        OF_CAUSE["many_small_kernels"].advice_for("many_small_kernels")
    ]
    assert "come from mm, tanh" in late[0].advice or "come from tanh, mm" in late[0].advice
