"""TO-I001 to TO-I003: how long a device is idle for its host, as far as a step without the profiler allows."""

import gzip
import json
import shutil
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
from changed import replace
from generated_run import HostWork, Size, ddp, simulate, write_traces

from traceops.across.agreed_steps import as_one_window
from traceops.across.rank_times import RankTimes
from traceops.across.run_use import MachineUse
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.words import STEP, WINDOW
from traceops.measure.host import BlockingCall, HeldLaunches
from traceops.measure.ledger import BUCKETS
from traceops.measure.summary import summarize
from traceops.pipeline import conclude
from traceops.pipeline.analyze import analyze
from traceops.pipeline.mapping.summary_file import check_summary
from traceops.render.report.card import card_of
from traceops.render.report.coverage import unjudged_sentence
from traceops.rules.idle import BLOCKED_ON_DEVICE, HOST_BOUND, INPUT_BOUND, of_storage, of_synchronize
from traceops.rules.idle_findings import FIRST_USE, _Part, blocking_calls
from traceops.rules.idle_time import (
    BlockedOnDevice,
    Held,
    HostBound,
    InputBound,
    few_steps,
    idle_of,
    in_time_ms,
    recording_ms,
)
from traceops.traces.discover import TraceFile

DATA = Path(__file__).parents[1] / "data"


def timed(tmp_path, unprofiled_ms, folder="fsdp2_4"):
    run = tmp_path / "run"
    shutil.copytree(DATA / folder, run)
    (run / "run.json").write_text(
        json.dumps({"unprofiled_step_ms": unprofiled_ms, "profiled_step_ms": 39.6, "world_size": 4})
    )
    return analyze(run)


def host_bound(report):
    return next((f for f in report.findings if f.rule == "TO-I001"), None)


def busy_ms(row):
    return row.compute_ms + row.comm_transfer_ms + row.comm_unmatched_ms + row.memory_ms


@pytest.mark.parametrize("unprofiled_ms", [20.0, 25.0])
def test_starving_is_bounded_by_the_step_without_the_profiler(tmp_path, unprofiled_ms):
    report = timed(tmp_path, unprofiled_ms)
    found = host_bound(report)
    room = max(min(unprofiled_ms - busy_ms(row), row.idle_host_ms) for row in report.ranks)
    assert found.evidence[0].value == pytest.approx(room, abs=0.01)
    assert found.impact_ms <= room + 0.01
    claim = claim_of(found, HostBound)
    assert claim.profiler == "no_room" and claim.step == unprofiled_ms


def test_a_share_of_the_step_without_the_profiler_says_so(tmp_path):
    """All of it fits there: its share was of that step, the times beside it of the recorded one."""
    row = analyze(DATA / "item_sync4").ranks[1]
    unprofiled_ms = row.typical_step_ms - 0.5
    found = host_bound(timed(tmp_path, unprofiled_ms, "item_sync4"))
    assert found.evidence[0].value == pytest.approx(row.idle_host_ms, abs=0.01)
    assert claim_of(found, HostBound).plain == pytest.approx(unprofiled_ms)


def test_a_window_is_not_held_against_a_step_without_the_profiler(tmp_path, monkeypatch):
    monkeypatch.setattr(conclude, "with_agreed_steps", lambda ranks, world: [as_one_window(own) for own in ranks])
    report = timed(tmp_path, 12.0)
    assert report.summary.step_words is WINDOW
    assert claim_of(host_bound(report), HostBound).plain is None, "12 ms are no bound of several steps"
    assert host_bound(report).proof(Fact.STEP).metric == "window", "'step 806 ms' where no steps are known"
    assert Evidence(Fact.STEP, 1.0, "ms").metric == "step", "in a report of before"


def test_a_step_without_room_clears_the_rule(tmp_path):
    report = timed(tmp_path, 12.0)
    assert host_bound(report) is None
    check = next(c for c in report.checks if c.rule == "TO-I001")
    assert check.status == "clear"
    assert "leaves no time for it" in check.reason


def test_without_such_steps_the_trace_is_believed():
    found = host_bound(analyze(DATA / "fsdp2_4"))
    assert found.evidence[0].value == pytest.approx(27.7, abs=0.1)
    assert claim_of(found, HostBound).plain is None


def test_an_optimizer_that_launches_for_all_parameters_at_once_is_not_to_do_so():
    """Shampoo, which takes neither, was told to use fused=True or foreach=True beside its _foreach_add_."""
    found = host_bound(analyze(DATA / "hta" / "pair"))
    assert "foreach=True" not in found.advice and found.cause == "host"


def test_an_optimizer_is_named_for_what_the_device_idles_meanwhile():
    """Shampoo 'alone keeps the host busy for 209 ms': 79 of the 157 idle ones lie in backward."""
    claim = claim_of(host_bound(analyze(DATA / "hta" / "pair")), HostBound)
    assert not claim.optimizer and claim.first.inside == "## backward ##"


def test_a_short_optimizer_is_not_blamed(tmp_path):
    unprofiled_ms = analyze(DATA / "ddp4").ranks[0].typical_step_ms - 0.5
    found = host_bound(timed(tmp_path, unprofiled_ms, "ddp4"))
    assert not claim_of(found, HostBound).optimizer
    assert "CUDA graphs" in found.advice


def test_a_rank_that_starves_much_less_is_not_named(tmp_path):
    """Of a late host the device starves, of its peers a little: named with them it would not be the late rank's."""
    folder = tmp_path / "run"
    shutil.copytree(DATA / "item_sync4", folder)
    step_ms = max(row.typical_step_ms for row in analyze(folder).ranks)
    measured = {"unprofiled_step_ms": step_ms, "profiled_step_ms": step_ms}  # recording costs nothing
    (folder / "run.json").write_text(json.dumps({"world_size": 4} | measured))
    report = analyze(folder)
    most = max(row.idle_host_ms for row in report.ranks)
    named = [row.rank for row in report.ranks if row.idle_host_ms >= most / 2]
    assert list(host_bound(report).ranks) == named == [1]
    tenth = [row.rank for row in report.ranks if row.idle_host_ms >= 0.1 * row.typical_step_ms]
    assert tenth == [0, 1, 2, 3], "the others are above the bound, too"


def test_a_host_that_waits_for_gloo_is_not_told_to_launch_late(tmp_path):
    """8 ranks of 2 H200 over gloo: the hosts' waiting was 'launched too late', and no gradients synchronised."""
    folder = tmp_path / "run"
    shutil.copytree(DATA / "flops", folder)
    about = {"backend": "gloo", "world_size": 4, "strategy": "pytorch_ddp", "training": {"syncs_in_backward": True}}
    (folder / "run.json").write_text(json.dumps(about))
    checks = {check.rule: check for check in analyze(folder).checks}
    assert "through their hosts (gloo)" in checks["TO-I001"].reason
    assert checks["TO-V004"].status == "not_evaluated" and "gloo" in checks["TO-V004"].reason


def test_gloo_between_gpus_is_known_without_run_json(tmp_path):
    """From a bare folder 93 % of the step was 'launched too late', and no gradients synchronised."""
    made = ddp(steps=4, size=Size(bandwidth_gbs=2.0))
    wrapped = tuple((HostWork("DistributedDataParallel.forward", 5.0), *ops) for ops in made.steps)
    write_traces(simulate(replace(made, steps=wrapped, through_host=True), 2), tmp_path)
    report = analyze(tmp_path)
    checks = {check.rule: check for check in report.checks}
    assert not {found.rule for found in report.findings} & {"TO-I001", "TO-I003", "TO-C001", "TO-V009"}
    assert report.ranks[0].comm_transfer_ms > 0.8 * report.summary.step_time_ms.typical
    assert all(checks[rule].status == "clear" for rule in ("TO-V004", "TO-V009"))


def test_gloo_beside_nccl_does_not_hide_a_late_host(tmp_path):
    """Barriers over gloo in a run whose gradients go over nccl: its hosts are judged as always."""
    made = ddp(steps=4, size=Size(kernel_us=2.0, launch_us=40.0, elements=1 << 16))
    for path in write_traces(simulate(made, 2), tmp_path):
        trace = json.loads(path.read_text())
        first = next(row for row in trace["traceEvents"] if row["name"].startswith("ProfilerStep"))
        trace["traceEvents"].append({**first, "name": "gloo:barrier", "tid": first["tid"] + 1, "dur": 5})
        path.write_text(json.dumps(trace))
    assert "TO-I001" in {found.rule for found in analyze(tmp_path).findings}


@pytest.mark.parametrize(
    "took, few",
    [
        ((0, 0, 61, 0), 1),  # a loss that is read, and a cache that is emptied, behind every tenth step
        ((9, 8, 9, 10), None),
        ((0,) * 9 + (3,) * 6 + (50, 50), None),  # five sixths of it are not nearly all
        ((0, 12, 0, 12), None),  # every second step: as often as the window says
        ((0, 0, 0, 0), None),
        ((0, 61), None),
    ],
    ids=["one of four", "each", "most of it", "every second", "none", "too few steps"],
)
def test_what_lies_in_few_steps_is_told_as_that(took, few):
    times = SimpleNamespace(buckets={"idle_sync": np.array(took)}, typical=np.ones(len(took), dtype=bool))
    assert few_steps(times, "idle_sync") == few


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
    assert first == Held(ms=first.ms) and first.ms == pytest.approx(159.3, abs=0.1)
    assert value(found, "of it in what the trace does not show") == pytest.approx(159.3, abs=0.1)
    assert found.cause == "host"
    assert found.advice.startswith("See what holds the host: `traceops run` names it")


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
    assert (card.rule, card.now_ms) == ("TO-I001", pytest.approx(193.3, abs=0.5))
    assert starves(COLLECTED.parent).number(Fact.HELD_IN) == pytest.approx(159.3, abs=0.5)


def test_an_operator_that_takes_long_is_named(tmp_path):
    found = starves(written(tmp_path, lambda events: list(holes(events))))
    first = claim_of(found, HostBound).first
    assert first == Held(ms=first.ms, what="aten::unique_dim")
    assert first.ms == pytest.approx(159.3, abs=0.5)
    assert found.advice.startswith("Do this work on the GPU")


def test_an_operator_that_computes_nothing_is_not_to_be_moved_to_the_device(tmp_path):
    """aten::empty took 12 ms, twice: a lock or Python's collector, and no tensor on the CPU."""
    found = starves(written(tmp_path, lambda events: [{**hole, "name": "aten::empty"} for hole in holes(events)]))
    assert claim_of(found, HostBound).first.what == "aten::empty"
    assert found.advice.startswith("See what holds the host")


def test_a_compiled_function_does_not_plan_again(tmp_path):
    """What inductor wrote is Python: 37 ms in each step, on the same shapes."""
    compiled = {"name": "CompiledFunction"}
    found = starves(written(tmp_path, lambda events: [{**hole, **compiled} for hole in holes(events)]))
    assert found.advice.startswith("See what holds the host")


def test_an_operator_that_launches_does_not_compute_on_the_cpu(tmp_path):
    """Attention of cuDNN plans for each new length before it launches."""
    found = starves(written(tmp_path, lambda events: [{**one, "dur": one["dur"] + 30} for one in holes(events)]))
    assert claim_of(found, HostBound).first.what == "aten::unique_dim"
    assert found.advice.startswith("See what holds the host")


def test_calls_for_memory_have_the_advice_of_a_cold_allocator(tmp_path):
    """hipFree took 740 of 819 ms where torch caches nothing, and the advice was to pad to few shapes."""
    calls = {"cat": "cuda_runtime", "name": "hipFree"}
    found = starves(written(tmp_path, lambda events: [{**hole, **calls} for hole in holes(events)]))
    assert "while the host allocates and frees GPU memory" in found.message
    assert found.advice.startswith("Let torch cache GPU memory")


def launches(events):
    """The same full of short operators."""
    for hole in holes(events):
        for at in range(0, int(hole["dur"]) - 100, 100):
            yield {**hole, "name": "aten::view", "ts": hole["ts"] + at, "dur": 20}


def test_many_short_ones_keep_their_advice(tmp_path):
    found = starves(written(tmp_path, lambda events: list(launches(events))))
    assert claim_of(found, HostBound).first is None and found.advice.startswith("Launch fewer kernels")


def test_nothing_recorded_is_not_told_of_a_damaged_trace(tmp_path):
    """What it has lost looks the same."""
    text = gzip.decompress(COLLECTED.read_bytes())
    broken = text.rindex(b'"ph": "X"', 0, len(text) // 2)
    (tmp_path / "trace.json").write_bytes(text[:broken] + b'"ph: "X"' + text[broken + 9 :])
    report = analyze(tmp_path)
    assert "1 event is not readable" in next(one for one in report.findings if one.rule == "TO-V002").message
    assert claim_of(starves(tmp_path), HostBound).first is None


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


GPU = [{"id": 0, "name": "NVIDIA A100-SXM4-40GB", "computeMajor": 8, "numSms": 108}]


def row(name, cat, ts, dur, tid=1, **args):
    return {"ph": "X", "name": name, "cat": cat, "ts": ts, "dur": dur, "pid": 1, "tid": tid, "args": args}


def launched(at, dur, number, operator="aten::mm"):
    """A kernel that begins as soon as it is launched, inside an operator if that has a name."""
    own = [
        row("cudaLaunchKernel", "cuda_runtime", at, 5, correlation=number),
        row("gemm", "kernel", at + 6, dur, tid=7, device=0, stream=7, correlation=number),
    ]
    return [row(operator, "cpu_op", at - 2, 9), *own] if operator else own


def small(folder, between, operator="aten::mm", first_ms=2, steps=5, **meta):
    """Steps of 9 ms with a kernel at each end, and these events in between, in µs from a step's begin."""
    rows = []
    for step in range(steps):
        at = 1_000_000 + 9_000 * step
        rows += launched(at + 20, 1_000 * first_ms, 2 * step + 1, operator)
        rows += launched(at + 8_100, 800, 2 * step + 2, operator)
        rows += [{**one, "ts": at + one["ts"]} for one in between]
        rows.append(row(f"ProfilerStep#{step}", "user_annotation", at, 8_990))
    (folder / "trace.json").write_text(json.dumps({"deviceProperties": GPU, "traceEvents": rows, **meta}))
    return analyze(folder / "trace.json")


def test_memory_that_is_pinned_is_no_kernel_that_is_loaded(tmp_path):
    """One step with a cudaHostAlloc of 5 ms was told to record later steps."""
    found = found_host_bound(small(tmp_path, [row("cudaHostAlloc", "cuda_runtime", 2_050, 5_000)], steps=1))
    assert claim_of(found, HostBound).first.what == "cudaHostAlloc" and found.advice.startswith("Take this memory once")


def test_memory_that_is_taken_again_and_again_is_no_first_use(tmp_path):
    """Of ten equal calls that each took and freed memory in one window: 'Record later steps'."""
    rows = [row(f"cuda{'Malloc' if at % 2 else 'Free'}", "cuda_runtime", 2_050 + 500 * at, 450) for at in range(12)]
    assert "torch's allocator" in found_host_bound(small(tmp_path, rows, steps=1)).advice


def test_what_to_do_is_about_most_of_the_long_stretches(tmp_path):
    """One call for memory took longest of all, and nine operators together took twice as long."""
    rows = [row("cudaHostAlloc", "cuda_runtime", 2_050, 1_700)]
    rows += [row(f"aten::op{at}", "cpu_op", 3_800 + 440 * at, 400) for at in range(9)]
    assert found_host_bound(small(tmp_path, rows)).advice.startswith("Do this work on the GPU")


def test_a_call_from_several_operators_is_one_thing(tmp_path):
    """17 of 156 ms were 'in cudaLaunchKernel (aten::bitwise_not)': each operator's first launch was one."""
    rows = [row("cudaLaunchKernel", "cuda_runtime", 2_050 + 700 * at, 600) for at in range(8)]
    rows += [row(f"aten::op{at}", "cpu_op", 2_045 + 700 * at, 610) for at in range(8)]
    report = small(tmp_path, rows, steps=1)
    found = found_host_bound(report)
    assert claim_of(found, HostBound).first == Held(ms=pytest.approx(4.8, abs=0.01), what="cudaLaunchKernel")
    assert found.advice.startswith("Record later steps") and card_of(report).fixed_ms is None


def test_an_optimizer_that_begins_before_the_window_is_named(tmp_path):
    rows = [one for at in range(9) for one in launched(1_000 * at, 200, at + 1, "aten::add_")]
    rows.append(row("Optimizer.step#Own.step", "user_annotation", -50, 9_000))
    (tmp_path / "trace.json").write_text(json.dumps({"deviceProperties": GPU, "traceEvents": rows}))
    found = found_host_bound(analyze(tmp_path / "trace.json"))
    assert claim_of(found, HostBound).optimizer == "Optimizer.step#Own.step"


@pytest.mark.parametrize(
    ("operator", "meta", "to_record"), [("aten::mm", {}, True), ("aten::mm", {"with_stack": 1}, False), ("", {}, True)]
)
def test_what_is_not_recorded_is_told_as_that_and_to_record_it_only_then(tmp_path, operator, meta, to_record):
    """Inside a range of the program the trace 'does not show what the host does'; and with stacks the advice was to
    record them."""
    report = small(tmp_path, [row("tokenize", "user_annotation", 2_050, 6_000)] * bool(operator), operator, **meta)
    found = found_host_bound(report)
    assert ("in the range 'tokenize'" if operator else "in no recorded operator or call") in found.message
    assert ("with_stack=True" in found.advice) == to_record


def test_what_holds_the_host_in_front_of_its_first_call_is_told_too(tmp_path):
    """13.3 s of Triton's compiler in front of the only launch of a marked step: 'use a larger batch'."""
    rows = [*launched(1_900_000, 800, 1), row("ProfilerStep#0", "user_annotation", 1_000_000, 901_000)]
    (tmp_path / "trace.json").write_text(json.dumps({"deviceProperties": GPU, "traceEvents": rows}))
    found = found_host_bound(analyze(tmp_path / "trace.json"))
    assert claim_of(found, HostBound).first.what is None and "larger batch" not in found.advice


def test_the_first_call_may_start_the_profiler_too():
    """'At least 7.47 ms of it is the program's own', of a first launch of 6.5 ms on an MI250."""
    found = starves(DATA / "hta" / "amd")
    assert found.advice.startswith("Record later steps") and "program's own" not in found.message


@pytest.mark.parametrize(
    ("name", "by", "cost"),
    [
        ("cudaGraphLaunch", "profiler", 9.0), ("aten::sort", "profiler", 5.0),
        ("", "window", 5.0),  # 'recording may take up to 76.9 ms' of 87.0, in most of which nothing was recorded
        ("", "profiler", 9.0),  # whose step() may be there
    ],
)  # fmt: skip
def test_what_of_a_long_wait_may_be_recording(name, by, cost):
    """In a long launch of a graph each of its kernels is recorded."""
    held = HeldLaunches(name, "", np.array([5_000_000]), np.array([16]))
    summary = SimpleNamespace(on_gpu=True, held=(held,), steps_by=by, meta=SimpleNamespace(with_stack=False))
    times = SimpleNamespace(summary=summary, typical=[True], recording_ms=9.0, mean_ms=lambda bucket: 10.0)
    assert recording_ms(times) == cost


def test_a_fused_optimizer_is_not_to_be_fused(tmp_path):
    own = [row("Optimizer.step#AdamW.step", "user_annotation", 2_100, 6_000)]
    found = found_host_bound(small(tmp_path, [*own, row("aten::_fused_adamw_", "cpu_op", 8_050, 100)]))
    assert claim_of(found, HostBound).optimizer and "foreach=True" not in found.advice
    assert "foreach=True" in found_host_bound(small(tmp_path, own)).advice


def test_an_optimizer_that_computes_on_the_host_is_to_move_to_the_gpu(tmp_path):
    """Adam over a copy of the weights on the CPU, 64 ms of one long operator after another: 'foreach=True'."""
    own = [
        row("Optimizer.step#Adam.step", "user_annotation", 2_100, 6_000),
        row("aten::addcdiv_", "cpu_op", 2_200, 5_800),
    ]
    assert found_host_bound(small(tmp_path, own)).advice == HOST_BOUND.advice_for("computes_on_cpu")


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaEventSynchronize"])
def test_a_wait_in_no_operator_reads_no_value(tmp_path, call):
    """Its advice was: no .item(), .cpu(), print."""
    [found] = [
        one
        for one in small(tmp_path, [row(call, "cuda_runtime", 40, 7_000)], first_ms=7).findings
        if one.rule == "TO-I003"
    ]
    assert ".item()" not in found.advice and "Wait for the device less often" in found.advice


def test_a_host_in_time_is_the_best_that_a_fix_may_come_to(tmp_path):
    """'Fix it: 2.80 ms (69 % less)' of a larger batch or torch.compile, which leave their own launches."""
    card = card_of(small(tmp_path, []))
    assert (card.rule, card.now_ms) == ("TO-I001", card.fixed_ms) and card.fixed_least_ms < card.now_ms / 3


def gained(busy_ms, recorded_busy_ms, saved_ms, recorded_ms=100.0):
    """Of an undisturbed step of 60 ms, in which each device is idle or waits whenever it does not work."""
    ranks = [SimpleNamespace(busy_ms=ms) for ms in busy_ms]
    times = [
        SimpleNamespace(mean_ms=lambda bucket, ms=ms: ms if bucket == "compute" else 0.0) for ms in recorded_busy_ms
    ]
    idle = [SimpleNamespace(ms=60.0 - ms, wait_ms=0.0) for ms in busy_ms]
    run = SimpleNamespace(step_ms=recorded_ms, ranks=times)
    return in_time_ms(idle, run, SimpleNamespace(step_ms=60.0, ranks=ranks), saved_ms)


def test_what_the_replay_leaves_is_of_the_recorded_step_and_no_part_of_the_undisturbed():
    """It left 30 ms of the recorded step, more than the undisturbed has besides the work: nothing was to gain."""
    assert gained((40, 30), (40, 30), 30.0) == pytest.approx(20 * 30 / 60)
    assert gained((40, 30), (40, 30), 60.0) == pytest.approx(20)
    assert gained((40, 30), (40, 30), 75.0) == pytest.approx(20), "no device works for less"
    assert gained((40, 30), (40, 30), 0.0) == 0


def test_a_device_that_works_all_the_time_leaves_nothing_to_gain():
    assert gained((60, 30), (60, 30), 30.0) == 0


def test_where_the_recorded_step_has_no_such_time_nothing_is_known():
    assert gained((40, 30), (101, 30), 0.0) is None


# Of a Hugging Face Trainer whose collator tokenizes in Python, on an H200, ms: as recorded, and by the light window.
RECORDED = {"idle_input": 103.59, "idle_host": 47.69, "idle_sync": 0.51, "idle_dependency": 0.26, "idle_gap": 0.03}
STEP_MS, IDLE_MS = 137.2, 117.1


def idle(bucket, recorded):
    times = SimpleNamespace(
        mean_ms=lambda name: recorded.get(name, 0.0), step_ms=172.2, summary=SimpleNamespace(on_gpu=True, rank=0)
    )
    own = SimpleNamespace(idle_ms=IDLE_MS, wait_ms=0.0)
    light = SimpleNamespace(step_ms=STEP_MS, of=lambda rank: own)
    share = recorded["idle_host"] / sum(recorded.values())
    return idle_of(times, bucket, None, light, share).ms


def test_input_and_launches_claim_no_more_than_the_device_is_idle():
    """Both together claimed 140 ms of the 117: without its collator the program's launches leave 14 ms idle."""
    assert idle("idle_input", RECORDED) == pytest.approx(103.59)
    assert idle("idle_host", RECORDED) == pytest.approx(IDLE_MS - 103.59)
    assert idle("idle_host", {**RECORDED, "idle_input": 130.0}) == 0.0


def test_without_input_the_host_has_its_recorded_part():
    recorded = {**RECORDED, "idle_input": 0.0}
    assert idle("idle_host", recorded) == pytest.approx(IDLE_MS * 47.69 / (47.69 + 0.51 + 0.26 + 0.03))


PLAIN = DATA / "plain_profiler"


def found_host_bound(report):
    return next((found for found in report.findings if found.rule == "TO-I001"), None)


def check(report):
    return next(check for check in report.checks if check.rule == "TO-I001")


def test_lateness_that_recording_may_explain_is_not_judged():
    """One iteration of a GPT: a quarter 'launched late'. Without the profiler it takes as long as the GPU computes."""
    report = analyze(PLAIN / "one_iteration" / "trace.json.gz")
    assert found_host_bound(report) is None
    assert check(report).status == "not_evaluated"
    assert check(report).reason == "recording may be all of the lateness: launches are 11.7 ms late in the window"
    card, said = card_of(report), unjudged_sentence(report)
    assert card.level == "info" and card.judged_pct == pytest.approx(74, abs=1)
    assert "Not judged: 26 % of the window" in said
    assert "Compare with the time without the profiler" in said
    assert report.summary.recording_ms == pytest.approx(report.ranks[0].idle_host_ms, abs=0.01)


def test_calls_of_python_are_recorded_too(tmp_path):
    """They are no rows here. So more of the longest gaps between the others may be theirs."""
    text = gzip.decompress((PLAIN / "one_iteration" / "trace.json.gz").read_bytes())
    (tmp_path / "trace.json").write_bytes(
        text.replace(b'"record_shapes": 1,', b'"record_shapes": 1, "with_stack": 1,', 1)
    )
    found = summarize(TraceFile(rank=0, path=str(tmp_path / "trace.json"), rank_from="name"))
    assert sum(found.host.recording) / 1e6 == pytest.approx(29.1, abs=0.1)


def test_what_is_certain_alone_is_no_clean_bill_for_what_is_not():
    """A compiled GPT in CUDA graphs: 2.2 of 4.96 ms are late, 1.7 may be recording; without the profiler 2.7 in all.

    It was a remark that said nothing of how little is known, under 'Nothing serious found'.
    """
    report = analyze(PLAIN / "graph" / "trace.json.gz")
    assert found_host_bound(report) is None
    assert check(report).lacking == "may_be_recording"
    assert "most of the lateness: launches are 2.22 ms late per step" in check(report).reason
    assert card_of(report).headline == "52 % of the step is compute; how fast it could be is unknown"


def test_what_is_certainly_the_program_s_is_said():
    """Two ranks of 128: 157 of 615 ms are late on one, and recording takes no more than a sixth of that."""
    report = analyze(DATA / "hta" / "pair")
    found = found_host_bound(report)
    late, claim = found.number(Fact.BUCKET), claim_of(found, HostBound)
    assert 0 < claim.cost < late / 5 and claim.own == pytest.approx(late - claim.cost)


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
        assert "link no calls of the host" in check.reason


def test_it_is_listed_as_unjudged_with_what_would_change_that(without_calls):
    [unknown] = [one for one in without_calls.summary.unjudged if one.bucket == "idle_unknown"]
    assert (unknown.why, unknown.rule) == ("no_launch", None)
    assert unknown.pct > 10
    assert card_of(without_calls).level != "clear"


def test_a_clean_bill_says_so(without_calls):
    """With nothing found the card says what was not judged: first of all where that is more than half of the step.

    A step that idles for two thirds because launches are late, all of it perhaps by recording, had "No problem found
    in the 33 % of the step we could judge".
    """
    import msgspec

    nothing = msgspec.structs.replace(without_calls, findings=())
    card, said = card_of(nothing), unjudged_sentence(nothing)
    assert card.level == "info" and card.headline == "71 % of rank 3's step could not be judged"
    assert "idle: cause unknown, because the traces do not say which call launched" in said
    assert "ProfilerActivity.CPU and CUDA" in said
    assert f"Not judged: {100 - card.judged_pct:.0f} % of rank 3's step" in said


def blocked(report):
    [found] = [one for one in report.findings if one.rule == "TO-I003"]
    return found


def test_reads_behind_each_function_of_backward_are_named():
    """2.9 of 29.6 ms were 'no .item(), .cpu(), print': but it calls none. Without the detection 18.8 ms are 7.3."""
    found = blocked(analyze(PLAIN / "anomaly"))
    assert (found.cause, found.severity) == ("anomaly_detection", "warning")
    assert claim_of(found, BlockedOnDevice).reads == 244
    assert "set_detect_anomaly(False)" in found.advice and ".item()" not in found.advice
    assert claim_of(found, BlockedOnDevice).reads_ms == pytest.approx(10.56, abs=0.01)


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


def cpu_trace(path, sleeps_us):
    """Five steps of one rank on the CPU: 500 µs in an operator, and the rest outside of torch."""
    events, step_us = [], sleeps_us + 500
    for step in range(5):
        at = 1000 + step * step_us
        base = {"ph": "X", "pid": 7, "tid": 7}
        events.append(base | {"cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": at, "dur": step_us})
        events.append(base | {"cat": "cpu_op", "name": "aten::linear", "ts": at + sleeps_us, "dur": 490, "args": {}})
    path.mkdir()
    (path / "rank_0.pt.trace.json").write_text(json.dumps({"traceEvents": events, "distributedInfo": {"rank": 0}}))
    return analyze(path)


@pytest.mark.parametrize(("sleeps_us", "status"), [(20_000, "fired"), (20, "clear")])
def test_a_program_on_the_cpu_that_is_outside_of_torch_gets_no_clean_bill(tmp_path, sleeps_us, status):
    """60 steps of time.sleep(0.02) had "No problem found in the 0.87 % of the step we could judge"."""
    report = cpu_trace(tmp_path / "run", sleeps_us)
    [check] = [one for one in report.checks if one.rule == "TO-I005"]
    assert check.status == status
    if status == "fired":
        [found] = [one for one in report.findings if one.rule == "TO-I005"]
        assert found.severity == "warning"  # nothing timed it without the profiler
        assert found.impact_ms == pytest.approx(20, rel=0.02)
        assert "outside torch's operators" in found.headline, "of Python in torch itself: 'outside torch'"
        card = card_of(report)
        assert card.fixed_least_ms is not None, "how much of it can go is not known"


@pytest.mark.parametrize(
    ("read", "place", "said"),
    [
        (2e8, ("/data", "nfs4"), "read 200.0 MB/s in the run from /data (nfs4), 3.0 MB/s of that from storage"),
        (2e8, None, "read 200.0 MB/s in the run, 3.0 MB/s of that from storage"),
        (2e4, None, "read next to nothing (0.0 MB/s)"),
    ],
)
def test_late_input_says_what_is_read_meanwhile(read, place, said):
    claim = InputBound(ranks=(0,), rank=0, ms=5.0, step=10.0, pct=50.0)
    found = INPUT_BOUND.finding("warning", "high", claim, [Evidence(Fact.STEP, 10.0, "ms")], ranks=[0])
    use = MachineUse(0, "a", 9, read=read, from_storage=3e6, storage=place)
    worst = SimpleNamespace(times=SimpleNamespace(summary=SimpleNamespace(rank=0)))
    assert said in of_storage(found, SimpleNamespace(machine=(use,)), worst).message
    assert of_storage(found, SimpleNamespace(machine=()), worst) is found


@pytest.mark.parametrize(
    "call, advice",
    [
        ("cudaDeviceSynchronize", "Wait for the device less often"),
        ("hipDeviceSynchronize in Torch-Compiled Region: 0/0", "Record later steps: torch.compile"),  # records a graph
        ("cudaStreamSynchronize in aten::item", "as it was"),
    ],
)
def test_a_wait_for_the_device_has_the_advice_of_who_asks_for_it(call, advice):
    """Also where it is less than half of the idle time, if no other call's is more."""
    idle, after = Evidence(Fact.BUCKET, 12.0, "ms"), Evidence(Fact.IDLE_AFTER, 5.0, "ms", subject=call)
    found = BLOCKED_ON_DEVICE.finding("warning", "high", "waits", [idle, after])
    assert of_synchronize(replace(found, advice="as it was")).advice.startswith(advice)
    assert after.metric.startswith("idle time after waits, part of "), (
        "waits in a row share the idle time: 0.16 ms 'idle after' one with 0.03 behind it"
    )


def test_the_many_first_launches_of_a_cold_program_are_no_operator_on_the_cpu():
    """33 calls of cudaLaunchKernel took 5.6 s of a window: 'move tensors to the device'."""
    held = HeldLaunches("cudaLaunchKernel", "", np.array([5_559_000_000]), np.array([33]))
    assert _Part(held, 5_559.0, 33.0, 1).advice == FIRST_USE


def test_calls_of_steps_that_are_left_out_are_none_of_a_typical_one():
    """22.7 calls a step, all of evaluations that are left out, and 3.1 ms after them, of 0.58 ms after all calls."""
    call = BlockingCall("cudaMemcpyAsync", "", 5, 1.0, (5, 0), (4_000_000, 1_000_000))
    summary = SimpleNamespace(rank=0, host=SimpleNamespace(blocking=(call,)))
    times = RankTimes(summary, np.zeros(2), {}, np.array([False, True]), None, None, None)
    assert [(one.fact, one.value) for one in blocking_calls(times, STEP)] == [(Fact.IDLE_AFTER, 1.0)]


def test_input_that_is_late_in_few_steps_says_so():
    """'Waits 12.2 ms per step': 17 steps, and two that wait."""
    claim = InputBound(ranks=(0,), rank=0, ms=12.0, step=170.0, pct=7.0, few=2, of=17)
    assert "Nearly all of it lies in 2 of 17 recorded steps." in claim.message()
