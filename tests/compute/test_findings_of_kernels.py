"""What the rules say of kernels, what a fix saves of the replayed step, and that the card agrees."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import numpy as np
import pytest
from events_builder import build, call, kernel, step
from msgspec import structs
from recorded_step import FLOAT, launched_of, op, tensor, write

from traceops.compute.measure import PACES, at_pace, measure_compute, paced_hosts, replayed_ns
from traceops.compute.model import Cause, RankCompute, judged_rank
from traceops.compute.uses import Schedule
from traceops.core.claims import reason
from traceops.core.facts import Fact
from traceops.measure.activity import find_activity
from traceops.measure.launched import find_launched
from traceops.measure.steps import find_steps
from traceops.pipeline.analyze import analyze, analyze_window, find_traces
from traceops.pipeline.mapping.ranks import MapOptions
from traceops.render.report.card import NoProblem, card_of
from traceops.render.report.compute import kernels_sentence
from traceops.rules.compute import OF_CAUSE, RULES, _effect
from traceops.traces.kineto import load_trace
from traceops.words.catalogue import texts

DATA = Path(__file__).parents[1] / "data" / "compute"


def test_each_cause_has_a_headline_and_advice():
    forms = texts("compute", "kernel_loss")
    for cause in get_args(Cause):
        if cause in OF_CAUSE and OF_CAUSE[cause].id != "TO-K008":
            assert f"form.{cause}" in forms
            assert OF_CAUSE[cause].advice_for(cause) != OF_CAUSE[cause].advice, cause
    assert [rule.id for rule in RULES] == [f"TO-K00{number}" for number in range(1, 9)]


def test_the_largest_loss_of_a_run_opens_its_report():
    report = analyze(DATA / "odd_width.pt.trace.json.gz", jobs=1)
    card = card_of(report)
    assert (card.level, card.rule) == ("error", "TO-K003") and "4095" in card.headline
    [found] = [one for one in report.findings if one.rule == "TO-K003"]
    assert found.cause == report.compute.losses[0].cause == "misaligned_shape"
    assert found.impact_ms == pytest.approx(report.compute.losses[0].device_ms)
    assert report.compute.efficiency_pct < 40
    assert "% of attainable speed." in kernels_sentence(report)


def test_a_decode_in_a_graph_at_the_memorys_limit_has_nothing_to_gain_from_its_kernels():
    report = analyze(DATA.parent / "decode_graph2", jobs=1)
    assert not [one for one in report.findings if one.rule.startswith("TO-K")]


def test_fast_kernels_of_a_slow_type_are_not_called_fast():
    """The float32 products ran at 100 % of float32's speed, and the page said so beside the finding."""
    report = analyze(DATA / "fp32_products.pt.trace.json.gz", jobs=1)
    card, compute = card_of(report), report.compute
    assert card.rule == "TO-K001" and "saves 25.0 ms of 30.7 ms" in kernels_sentence(report)
    assert card.now_ms == card.fixed_ms == report.summary.step_time_ms.typical, "it waits 46 ms for the profiler"
    assert card.fixed_least_ms == pytest.approx(card.now_ms - compute.losses[0].device_ms)


def of(tmp_path, calls, **rest):
    report = analyze(write(tmp_path / "trace.json", calls, **rest), jobs=1)
    return report, {check.rule: check for check in report.checks if check.rule.startswith("TO-K")}


def test_a_faster_kernel_saves_nothing_where_the_host_bounds_the_step(tmp_path):
    slow = op("aten::mm", tensor((512, 4095)), tensor((4095, 4095)), us=120, kernel="nvjet_h")
    report, _ = of(tmp_path, [slow] * 4, host_us=4000)
    assert report.compute.bound == "host" and report.compute.losses[0].cause == "misaligned_shape"
    assert not any(one.cause == "misaligned_shape" for one in report.findings)


def test_what_collectives_take_is_busy_time_too(tmp_path):
    """'Float32 loses 0.024 ms' was said of 9.85 ms in which the GPU was busy, nearly all with all-to-alls."""
    slow = op("aten::mm", tensor((512, 4095)), tensor((4095, 4095)), us=120, kernel="nvjet_h")
    sent = op("c10d::allreduce_", tensor((1, 1)), us=90_000, kernel="ncclDevKernel_AllReduce_Sum_f32_RING_LL")
    for calls, named in (([slow] * 4, True), ([slow] * 4 + [sent], False)):
        report, _ = of(tmp_path, calls)
        assert any(one.cause == "misaligned_shape" for one in report.findings) is named


def test_slow_kernels_without_a_known_cause_are_named(tmp_path):
    """Not where the host sets the pace: the smallest kernels of a GPU that saves power take 5 µs, most others 10."""
    slow = [op("aten::sum", tensor((4096, 4096), FLOAT), us=200)] * 3
    assert of(tmp_path, slow, host_us=4000)[1]["TO-K008"].status == "clear"
    report, checks = of(tmp_path, slow)
    [found] = [one for one in report.findings if one.rule == "TO-K008"]
    assert "% of attainable speed" in found.message and "sum" in found.message
    assert checks["TO-K008"].status == "fired"


def test_no_device_is_busy_for_longer_than_its_steps_take(tmp_path):
    """What is launched before the steps, a prefetch on another stream: 25 ms in steps of 23."""
    trace = load_trace(str(write(tmp_path / "trace.json", [op("aten::mul", tensor((4096, 4096)), us=190)] * 4)))
    activity = find_activity(trace.events)
    steps = find_steps(trace.events, activity)
    edges = (steps.edges - steps.edges[0]) // 2 + steps.edges[0]
    assert find_launched(trace.events, activity, structs.replace(steps, edges=edges)).device_ns <= np.diff(edges).mean()


@pytest.mark.parametrize(
    ("cause", "after", "effect"),
    [("recompute_with_free_memory", 3.0, None), ("unfused_elementwise", 3.0, "at_most"),
     ("unfused_elementwise", 1.5, None)],
)  # fmt: skip
def test_what_a_fix_does_to_the_step_is_said_where_it_is_less_than_the_device_loses(cause, after, effect):
    """'At most 11.5 ms shorter' of a step 13.4 shorter without checkpoints; 'lose 63.8 ms, up to 64.7 ms shorter'."""
    loss = SimpleNamespace(cause=cause, device_ns=2.0, paced_ns=((0.0, after), (0.0, 4.5)))  # first at an unlikely pace
    assert _effect(loss, SimpleNamespace(bound="host", paced_ns=(9.0, 4.0)), 9.0, timed=False) == effect


@pytest.mark.parametrize(
    ("one", "said"),
    [(op("aten::fill_", tensor((64, 1024, 1024)), us=60, inside=("aten::empty",)), "deterministic"),
     (op("aten::_unique2", tensor((64, 1024, 1024), "long int"), us=9000), "less often")],
)  # fmt: skip
def test_deterministic_algorithms_are_named_where_they_fill_new_memory(tmp_path, one, said):
    report, _ = of(tmp_path, [one] * 3)
    assert [said in found.advice for found in report.findings if found.cause == "scatter_or_sort"] == [True]


def test_what_other_steps_than_the_typical_ones_lose_is_no_finding(tmp_path):
    """Kernels of 44.5 ms 'per step' of 6.35 ms: cuDNN tried its algorithms in the first one."""
    path = write(tmp_path / "trace.json", [odd(2000)] * 4, host_us=2100, steps=5)
    trace = json.loads(path.read_text())
    first = min(one["ts"] for one in trace["traceEvents"] if one.get("cat") == "kernel")
    for one in trace["traceEvents"]:
        late = one.get("ts", 0) > first + 1000
        one["ts"] = one.get("ts", 0) + 500_000 * late
        if one.get("ts") == first:
            one["dur"] += 490_000
    path.write_text(json.dumps(trace))
    report = analyze(path, jobs=1)
    assert report.compute.busy_ms > 50 > report.summary.step_time_ms.typical
    assert not [one for one in report.findings if one.rule.startswith("TO-K")]
    assert "of other steps than the typical ones" in kernels_sentence(report)


def test_what_is_too_small_to_be_listed_is_no_slow_operator(tmp_path):
    """'Most of the rest is in , aten::mm, aten::cat.'"""
    product = op("aten::mm", tensor((4096, 4096)), tensor((4096, 4096)), us=200, kernel="nvjet_h")
    sums = [op("aten::sum", tensor((4096, 4096 + 8 * at), FLOAT), us=200) for at in range(60)]
    report, _ = of(tmp_path, list(chain.from_iterable((one, product) for one in sums)))
    [found] = [one for one in report.findings if one.rule == "TO-K008"]
    assert "" in {one.name for one in report.compute.operators}
    assert found.facts["operators"] == ["aten::sum"], "the sums, of each shape less than the products, lose most"


def test_short_kernels_are_not_slow_for_what_any_kernel_takes(tmp_path):
    short = op("aten::addmm", tensor((512,)), tensor((141, 512)), tensor((512, 512)), us=5, kernel="nvjet_h")
    check = of(tmp_path, [short] * 40)[1]["TO-K008"]  # nor at 100 % of attainable speed, as was said
    assert (check.status, check.reason) == ("not_evaluated", reason("compute", "unknown_work"))


def test_kernels_that_take_far_longer_than_any_need_are_rated_whatever_they_do(tmp_path):
    long = op("aten::addmm", tensor((512,)), tensor((141, 512)), tensor((512, 512)), us=1000, kernel="nvjet_h")
    report, checks = of(tmp_path, [long] * 4)
    assert report.compute.efficiency_pct < 5 and checks["TO-K008"].status != "not_evaluated"


def test_a_small_finding_does_not_hide_that_kernels_are_slow(tmp_path):
    few = op("aten::mul_", tensor((1024, 1024), FLOAT), tensor((1024, 1024), FLOAT), us=30, kernel="e", grid=20)
    slow = op("aten::sum", tensor((4096, 4096), FLOAT), us=400)
    report, checks = of(tmp_path, [few, slow] * 3)
    assert [one.severity for one in report.findings if one.rule == "TO-K007"] == ["info"]
    assert checks["TO-K008"].status == "fired" and report.findings[0].rule == "TO-K008"


def test_a_convolution_far_below_float32_is_not_slow_for_its_type(tmp_path):
    inputs = [tensor((1, 64, 512, 512), FLOAT), tensor((64, 64, 7, 7), FLOAT)]
    values = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"]
    for us, rules in ((450, {"TO-K001"}), (4500, {"TO-K008"})):
        one = op("aten::cudnn_convolution", *inputs, us=us, kernel="implicit_convolve_sgemm", values=values)
        report, _ = of(tmp_path, [one] * 3)
        assert {found.rule for found in report.findings if found.rule.startswith("TO-K")} == rules
    head = op("aten::mm", tensor((512, 2048), FLOAT), tensor((2048, 1024), FLOAT), us=60, kernel="simt_sgemm")
    [found] = [one for one in of(tmp_path, [*[{**one, "us": 450}] * 3, head])[0].findings if one.rule == "TO-K001"]
    assert "cudnn.allow_tf32" in found.advice and "mm" in [proof.value for proof in found.evidence]


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


def test_a_trace_that_names_no_gpu_gets_no_clean_bill_and_asks_for_the_name(tmp_path):
    """One of sm100 was told to say --gpu H100."""
    one = op("aten::mm", tensor((8192, 8192)), tensor((8192, 8192)), us=1500, kernel="sm100_xmma")
    report, _ = of(tmp_path, [one] * 3, device={"id": 0})
    card = card_of(report)
    assert card.level == "info" and "attainable speed" not in card.headline
    assert "not checked: the trace doesn't name the GPU (--gpu NAME)" in kernels_sentence(report)


def test_slow_kernels_are_no_clean_bill_where_some_of_the_step_was_not_judged():
    """It had 'No problem found in the 82 % of the step we could judge', above 'Kernels run at 4.6 %'."""
    found = NoProblem(judged=82.0, compute=82.4, efficiency=4.6, slow=True)
    assert found.headline() == "82 % of the step is compute, at only 4.6 % of attainable speed"


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


def test_what_no_known_gpu_can_is_said_without_its_name(tmp_path):
    one = tensor((8192, 8192))
    for us, said in ((1000, 0), (300, 1)):  # 1.1 and 3.7 PFLOP/s
        report, _ = of(tmp_path, [op("aten::mm", one, one, us=us, kernel="nvjet_h")] * 3, device={"id": 0})
        found = [one for one in report.findings if one.cause == "impossible_speed"]
        assert len(found) == said
    assert "at least 1.63 times what any known GPU can" in found[0].message
    shapes = ((16, 4096), (64, 22016, 4096), (64, 4096, 11008), (16, 2))  # all 16 tokens may choose the same 2 experts
    experts = op("vllm::rocm_aiter_fused_moe", *map(tensor, shapes), us=280)
    report, _ = of(tmp_path, [experts] * 3, device={"id": 0})
    assert "impossible_speed" not in {one.cause for one in report.findings}


def test_a_kernel_built_for_one_gpu_names_it(tmp_path):
    one = op("aten::mm", *[tensor((4097, 4097))] * 2, us=367, kernel="Cijk_Ailk_Bljk_BBS_BH_MT256x112x64_ISA942_IU1")
    report, _ = of(tmp_path, [one] * 3, device={"id": 0})
    assert (report.compute.gpu, report.compute.rates) == ("AMD Instinct MI300X", "scaled")
    [loss] = report.compute.losses
    # 3 × 137.5 GFLOP at the 708 TFLOP/s that AMD measures; 978, scaled from an H200, made it 0.68 ms
    assert (loss.cause, loss.device_ms) == ("misaligned_shape", pytest.approx(0.5, abs=0.03))


def test_a_product_of_few_tiles_leaves_most_processors_idle(tmp_path):
    """Two by four tiles: each of eight processors sums over 131072."""
    inputs = [tensor((256, 131072)), tensor((131072, 512))]
    report, _ = of(tmp_path, [op("aten::mm", *inputs, us=1000, kernel="nvjet_h", grid=0)] * 3)
    assert (report.compute.losses[0].cause, report.compute.losses[0].sizes) == ("low_occupancy", (8, 132))
    report, _ = of(tmp_path, [op("aten::mm", *inputs, us=130, kernel="nvjet_h", grid=0)] * 3)
    assert report.compute.losses == ()


@pytest.mark.parametrize(
    ("gpu", "causes"), [("NVIDIA H200", {"channels_first_layout"}), ("AMD Instinct MI300X", set())]
)
def test_channels_last_is_no_advice_for_amd(tmp_path, gpu, causes):
    images, weight = tensor((64, 128, 56, 56)), tensor((128, 128, 3, 3))
    values = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"]
    convolution = op("aten::cudnn_convolution", images, weight, us=60, kernel="nchwToNhwcKernel", values=values)
    step = [convolution, op("aten::native_batch_norm", images, us=250)] * 3
    report, _ = of(tmp_path, step, device={"id": 0, "name": gpu})
    assert {loss.cause for loss in report.compute.losses} == causes


def test_kernels_alone_are_rated_where_their_names_tell_enough(tmp_path):
    """A CUDA graph replays kernels that no operator launches: these take 24 bytes an element at 3.7 TB/s and 1 µs."""
    name = (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    )
    path = write(tmp_path / "trace.json", [op("none", us=14, kernel=name, grid=4096)] * 3)
    document = json.loads(path.read_text())
    document["traceEvents"] = [event for event in document["traceEvents"] if event["cat"] != "cpu_op"]
    path.write_text(json.dumps(document))
    report = analyze(path, jobs=1)
    assert report.compute.losses == () and 95 < report.compute.efficiency_pct < 99
    assert "attainable speed" in kernels_sentence(report)


def test_kernels_of_a_graph_have_no_shapes_to_record(tmp_path):
    path = write(tmp_path / "trace.json", [op("none", us=14, kernel="cudnn_flash_fprop", grid=768)] * 3)
    text = path.read_text().replace("cudaLaunchKernel", "cudaGraphLaunch")
    document = json.loads(text)
    document["traceEvents"] = [event for event in document["traceEvents"] if event["cat"] != "cpu_op"]
    path.write_text(json.dumps(document))
    assert "a CUDA graph replays the kernels" in kernels_sentence(analyze(path, jobs=1))


def test_rows_that_may_be_unused_make_no_speed_impossible(tmp_path):
    """A buffer of experts is sized for the worst case: its shape says at most what is computed."""
    fast = op("aten::_grouped_mm", tensor((65536, 8192)), tensor((8, 8192, 8192)), us=4000, kernel="cutlass_grouped")
    report, _ = of(tmp_path, [fast] * 3)
    assert not [one for one in report.findings if one.cause == "impossible_speed"]


def test_the_shape_of_a_sparse_operand_tells_no_work(tmp_path):
    inputs = [tensor((50_000, 50_000)), tensor((50_000, 128))]
    report, _ = of(tmp_path, [op("aten::mm", *inputs, us=80, kernel="void cusparse::csrmm_alg2_kernel<float>")] * 3)
    assert not [one for one in report.findings if one.cause == "impossible_speed"]
    assert report.summary.flops is None or report.summary.flops.tflops_per_s is None


@pytest.mark.parametrize("host_us", [2.0, 3900.0])  # also where host and device take about as long
def test_float32_products_are_told_by_their_kernels_names_and_saved_beside_another_stream(tmp_path, host_us):
    """Without shapes what they lose is a guess, and no clean bill; copies on another stream take half as long."""
    slow = op("aten::mm", us=4000, kernel="cutlass_80_simt_sgemm_256x128")
    path = write(tmp_path / "trace.json", [slow] * 3, host_us=host_us)
    document = json.loads(path.read_text())
    for event in [one for one in document["traceEvents"] if one["cat"] in ("kernel", "cpu_op", "cuda_runtime")]:
        event["args"].pop("Input Dims", None)
        number = event["args"].get("correlation")
        if number is not None:
            beside = {**event, "args": {"device": 0, "correlation": 100 + number}}
            if event["cat"] == "cuda_runtime":  # in front of the operator
                beside |= {"ts": round(event["ts"] - 0.25, 3), "dur": 0.02}
            if event["cat"] == "kernel":
                beside |= {"name": "Memcpy HtoD (Pinned -> Device)", "cat": "gpu_memcpy", "tid": 20, "dur": 2000.0}
                beside["args"] |= {"stream": 20, "bytes": 100_000_000}
            document["traceEvents"].append(beside)
    path.write_text(json.dumps(document))
    report = analyze(path, jobs=1)
    [found] = [one for one in report.findings if one.cause == "float32_products"]
    assert (found.severity, found.confidence, card_of(report).rule) == ("warning", "medium", "TO-K001")
    assert found.number(Fact.KERNELS_TIME) == pytest.approx(12, rel=0.02)
    assert report.compute.losses[0].step_after_ms[0] > 0.9 * 3 * 2


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


def test_of_two_gpus_of_one_process_one_is_judged(tmp_path):
    """'Lose 18.4 ms per step' of 10.8 ms, and an MFU of 152 %: the sums over both."""
    one = op("aten::mm", *[tensor((4096, 4096))] * 2, us=400, kernel="nvjet_h_bf16")
    path = write(tmp_path / "trace.json", [one] * 3)
    alone = analyze(path, jobs=1)
    document = json.loads(path.read_text())
    kernels = [event for event in document["traceEvents"] if event["cat"] == "kernel"]
    others = [{**event, "pid": 2, "args": {**event["args"], "device": 1}} for event in kernels]
    document["traceEvents"] += others
    path.write_text(json.dumps(document))
    report = analyze(path, jobs=1)
    assert report.compute.busy_ms == alone.compute.busy_ms
    assert alone.summary.flops.mfu_pct and report.summary.flops.mfu_pct is None


def test_late_launches_are_told_with_the_loop_that_makes_them(tmp_path):
    body = [op("aten::mm", tensor((64, 256)), tensor((256, 256)), us=3), op("aten::tanh", tensor((64, 256)), us=2)]
    report, _ = of(tmp_path, body * 100, host_us=40)
    [late] = [one for one in report.findings if one.rule == "TO-I001"]
    assert late.advice.startswith("Launch fewer kernels"), "a stack of layers is no loop to batch"
    assert "come from mm, tanh" in late.advice or "come from tanh, mm" in late.advice


@pytest.mark.parametrize("path", sorted(DATA.iterdir()), ids=lambda path: path.name)
def test_the_card_holds_the_range_of_the_loss(path: Path) -> None:
    report = analyze(str(path))
    card = card_of(report)
    assert card.rule is not None and card.rule.startswith("TO-K") and report.compute
    lead = next(one for one in report.findings if one.rule == card.rule)
    loss = next(one for one in report.compute.losses if one.cause == lead.cause)
    assert card.now_ms is not None
    least, most = (min(ms, card.now_ms) for ms in loss.step_after_ms)
    if lead.facts.get("effect") != "certain":  # '380 to 524 ms' of 649 beside 'at most 153 ms shorter'
        least, most = card.now_ms - lead.facts["gain"], card.now_ms
    assert (card.fixed_least_ms, card.fixed_ms) == pytest.approx((least, most), rel=0.01)


def schedule(host, device, waits=()):
    """Launches of which each takes the host and the device so long; the host waits behind those of `waits`."""
    waited = np.zeros(len(device), dtype=bool)
    waited[list(waits)] = True
    host = np.array([*host, 0], dtype=np.int64)
    return Schedule(np.arange(len(device)), host, np.ones(len(host), np.int64), np.array(device), waited)


def step_of(one):
    return float(replayed_ns(one, one.host_ns[np.newaxis].astype(float), one.device_ns[np.newaxis].astype(float))[0])


@pytest.mark.parametrize(("host_us", "effect"), [(1500, "certain"), (2800, "at_most")])
def test_a_fix_of_kernels_is_certain_only_of_a_step_that_the_device_fills(tmp_path, host_us, effect):
    report = analyze(write(tmp_path / "trace.json", [odd(2000)] * 4, host_us=host_us, steps=3), jobs=1)
    assert [one.facts["effect"] for one in report.findings if one.cause == "misaligned_shape"] == [effect]


def test_a_fix_of_kernels_is_not_certain_where_an_eighth_of_the_step_is_idle(tmp_path):
    """A step of 33.8 ms with kernels of 29.7: 'brings the step to 23.8 to 27.5', of a fix that saves 4.7."""
    path = write(tmp_path / "trace.json", [odd(2000)] * 4, host_us=1500, steps=3)
    trace = json.loads(Path(path).read_text())
    kernels = sorted((one for one in trace["traceEvents"] if one.get("cat") == "kernel"), key=lambda one: one["ts"])
    for at, one in enumerate(kernels):
        one["ts"] += 1000 * (at // 4)
    Path(path).write_text(json.dumps(trace))
    found = analyze(path, jobs=1).findings
    assert [one.facts["effect"] for one in found if one.cause == "misaligned_shape"] == ["at_most"]


def test_the_slower_of_host_and_device_makes_the_step():
    assert step_of(schedule([10] * 8, [30] * 8)) == 240
    assert step_of(schedule([30] * 8, [10] * 8)) == 240
    # What the host falls behind in the first half it makes up for in the second one: only the sums count.
    assert step_of(schedule([30] * 4 + [10] * 4, [10] * 4 + [30] * 4)) == 160


def test_behind_a_wait_host_and_device_take_turns():
    assert step_of(schedule([10] * 8, [30] * 8, waits=[7])) == 10 + 8 * 30
    assert step_of(schedule([10] * 8, [30] * 8, waits=range(8))) == 8 * 40


@pytest.mark.parametrize(
    ("name", "took_us", "waits"),
    [("hipMemcpyWithStream", 1000, True), ("cudaMemcpyAsync", 1000, True), ("cudaMemcpyAsync", 700, False),
     ("hipMemcpyWithStream", 100, True)],
)  # fmt: skip
def test_the_host_waits_behind_a_copy_that_began_before_its_call_returned(name, took_us, waits):
    """Of pageable memory; a call that met a full queue returns before its copy begins."""
    copied = kernel(900_000, 50_000, None, "Memcpy HtoD (Host -> Device)", "gpu_memcpy", correlation=77)
    launches = [*kernel(1000, 899_000, 500), call(name, 2000, took_us * 1000, correlation=77), *copied]
    events = build([step(1, 0, 2_000_000), *launches, *kernel(1_200_000, 1000, 1_100_000)])
    activity = find_activity(events)
    one = find_launched(events, activity, find_steps(events, activity)).schedule()
    assert one.waits.tolist() == [False, waits, False]
    assert one.host_ns.sum() == 2_000_000 - took_us * 1000


def measured(tmp_path, calls, **rest):
    launched, device = launched_of(write(tmp_path / "trace.json", calls, **rest))
    return measure_compute(launched, device)


def odd(us):
    return op("aten::mm", tensor((4096, 4095)), tensor((4095, 4096)), us=us, kernel="nvjet_h")


def test_the_replay_at_the_recorded_pace_is_the_recorded_step(tmp_path):
    for us, host_us, step_us in ((2000, 100, 4 * 2000), (200, 1000, 4 * 1000)):
        launched, _ = launched_of(write(tmp_path / "trace.json", [odd(us)] * 4, host_us=host_us, steps=3))
        schedule = launched.schedule()
        host = paced_hosts(schedule)
        steps = replayed_ns(schedule, host, np.tile(schedule.device_ns.astype(float), (len(host), 1)))
        assert steps[len(PACES) - 1] == pytest.approx(1e3 * step_us, rel=0.02)


def test_where_the_replay_is_not_the_recorded_step_a_fix_promises_its_bounds(tmp_path):
    """A mark of 20 ms around 5 ms of work: 'brings the step to 13 ms' of a step of 5 ms."""
    launched, device = launched_of(write(tmp_path / "trace.json", [odd(2000)] * 4, host_us=5000, steps=3))
    schedule = structs.replace(launched.schedule(), step_ns=5_000_000)
    compute = measure_compute(structs.replace(launched, schedule=lambda: schedule), device)
    [loss] = compute.losses
    assert loss.step_after_ns == (max(5e6 - loss.device_ns, 0.0), 5e6) and not compute.paced_ns
    assert at_pace(compute, [4e6]).losses == compute.losses


def test_a_fix_of_kernels_promises_no_shorter_step_where_the_host_is_the_limit(tmp_path):
    compute = measured(tmp_path, [odd(2000)] * 4, host_us=5000, steps=3)
    fixed = at_pace(compute, [15e6])  # 0.75 of the recorded pace: the host has 15 ms to do
    [loss] = fixed.losses
    assert loss.device_ns > 2e6 and loss.step_after_ns == pytest.approx((15e6, 15e6), rel=0.01)
    assert at_pace(compute, [8.1e6]).losses[0].step_after_ns[0] < 7.9e6  # here the device is the limit


def test_an_optimizer_loop_saves_the_host_s_time_and_never_makes_the_step_longer(tmp_path):
    loop = [op("aten::addcdiv_", *[tensor((64, 64))] * 3, us=3, inside=("Optimizer.step#AdamW.step",))] * 60
    calls = [op("aten::mm", tensor((512, 512)), tensor((512, 512)), us=20, kernel="nvjet_h")] * 40
    path = write(tmp_path / "trace.json", [*calls, *loop], host_us=100, steps=3)
    text = path.read_text().replace('"cpu_op", "name": "Optimizer', '"user_annotation", "name": "Optimizer')
    path.write_text(text)
    launched, device = launched_of(path)
    compute = at_pace(measure_compute(launched, device), [6e6])
    loss = next(one for one in compute.losses if one.cause == "optimizer_loop")
    least, most = loss.step_after_ns
    assert 0.35 * 6e6 < least <= most < 0.55 * 6e6  # 40 of 100 launches are left


def test_causes_of_the_host_go_where_the_unprofiled_step_is_the_device_s(tmp_path):
    small = [op("aten::add", tensor((64, 64)), tensor((64, 64)), us=5)] * 200
    compute = measured(tmp_path, small, host_us=20, steps=3)
    assert compute.bound == "host" and compute.losses[0].cause in ("many_small_kernels", "too_small_batch")
    paced = at_pace(compute, [1.01e6])
    assert paced.bound == "device"
    assert not [one for one in paced.losses if one.cause in ("many_small_kernels", "too_small_batch")]


@pytest.mark.parametrize(("turns", "told"), [(40, False), (200, True)])
def test_a_loop_of_few_of_the_launches_is_no_advice(tmp_path, turns, told):
    """Norms of gradients, a fifth of 5727 launches: 'the fix makes the step at most 19.6 ms shorter' of 239 ms."""
    others = [op(f"aten::op{n}", tensor((64, 64)), us=3) for n in range(170)]
    report, _ = of(tmp_path, [*others, *[op("aten::norm", tensor((64, 64)), us=3)] * turns], host_us=40)
    [late] = [one for one in report.findings if one.rule == "TO-I001"]
    assert ("Many launches come from norm." in late.advice) == told
    assert not [one for one in report.findings if one.rule.startswith("TO-K")]


def rank(busy, device):
    return RankCompute(busy, busy, busy, device, 1.0, 1.0, "device", "measured")


def test_of_ranks_with_as_much_work_the_one_that_waits_least_stands_for_all():
    assert judged_rank({0: rank(100.0, 190.0), 1: rank(98.0, 110.0), 2: rank(20.0, 20.0)}) == 1
