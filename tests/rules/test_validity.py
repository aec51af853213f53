"""TO-V001 to TO-V009: what a capture lacks, and what cannot be judged for it, such as without a whole step."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fault_runs import unpacked
from generated_run import Size, SlowInput, ddp, simulate
from observed_run import Step, write_rank
from shown_texts import texts
from unmarked import as_is, write_unmarked

from traceops.across.plain_step import profiler_cost
from traceops.across.whole_run import whole_run
from traceops.cli import main
from traceops.core.capture_failure import read_failure, shorter_schedule
from traceops.core.claims import claim_of
from traceops.core.errors import InputError
from traceops.measure.phases import AFTER, UPDATED
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.coverage import unjudged_sentence
from traceops.render.report.html import describe
from traceops.render.report.terminal import describe_summary
from traceops.rules.coverage import unjudged_time
from traceops.rules.validity import judge_backward_sync, judge_missing
from traceops.rules.validity_claims import CutOff
from traceops.rules.validity_time import judge_profiler
from traceops.traces.discover import discover
from traceops.traces.observed import read_observed

DATA = Path(__file__).parents[1] / "data"
COMPARED = ("TO-B", "TO-C", "TO-I", "TO-O", "TO-S")


def cut(folder, name, share=0.8):
    """The folder's traces, of which the last ends too early."""
    *others, last = sorted((DATA / name).glob("*.json.gz"))
    for path in others:
        shutil.copy(path, folder)
    text = gzip.decompress(last.read_bytes())
    (folder / last.name.removesuffix(".gz")).write_bytes(text[: int(share * len(text))])
    return analyze(folder)


def judged(report):
    return {one.rule for one in report.findings if one.rule.startswith(COMPARED)}


@pytest.mark.parametrize("name", ["plain_profiler/graph", "plain_profiler/cold_start", "copies/to_host"])
def test_what_a_gpus_trace_has_lost_is_no_idle_time(tmp_path, name):
    """A GPU that computes all the time was 'idle, because the host has not launched it yet' for 57 % of the step."""
    report = cut(tmp_path, name)
    assert not judged(report)
    [starves] = [check for check in report.checks if check.rule == "TO-I001"]
    assert (starves.status, starves.reason) == ("not_evaluated", "the trace of rank 0 is incomplete, see TO-V002")
    [damaged] = [one for one in report.findings if one.rule == "TO-V002"]
    assert "looks idle" in damaged.message


@pytest.mark.parametrize(("untimed", "severity"), [(2, "info"), (400, "warning")])
def test_events_without_a_time_are_nobody_s_full_disk(tmp_path, untimed, severity):
    """A whole file with one bad time: 'check the disk's free space, take files that are no traces out'."""
    trace = json.loads(gzip.decompress((DATA / "copies" / "to_host" / "trace.json.gz").read_bytes()))
    event = next(one for one in trace["traceEvents"] if one.get("ph") == "X")
    trace["traceEvents"] += [{**event, "dur": -1}] * untimed
    (tmp_path / "trace.json").write_text(json.dumps(trace))
    [found] = [one for one in analyze(tmp_path).findings if one.rule == "TO-V002"]
    assert (found.severity, found.cause) == (severity, "untimed") and "disk" not in found.advice
    assert "damaged" not in found.message


@pytest.mark.parametrize("name", ["pipeline_uneven2", "pipeline_gpipe4", "slow_loader4"])
def test_nobody_waits_for_what_a_trace_has_lost(tmp_path, name):
    """Stages of a pipeline 'waited for sends that come late' for 20 % of the step, which were missing in a file."""
    report = cut(tmp_path, name, 0.6)
    assert judged(report) <= {"TO-I002"}
    late = next(check for check in report.checks if check.rule == "TO-S001")
    assert "incomplete" in late.reason


def test_one_broken_event_costs_itself_only(tmp_path):
    path = DATA / "copies" / "to_host" / "trace.json.gz"
    text = gzip.decompress(path.read_bytes())
    broken = text.rindex(b'"ph": "X"', 0, len(text) // 2)
    (tmp_path / "trace.json").write_bytes(text[:broken] + b'"ph: "X"' + text[broken + 9 :])
    assert "TO-I004" in judged(analyze(tmp_path))


def test_a_long_step_of_an_incomplete_trace_has_no_cause(tmp_path):
    """'Meanwhile the host launches late', by what was missing."""
    [odd] = [one for one in cut(tmp_path, "plain_profiler/cold_start", 0.6).findings if one.rule == "TO-T001"]
    assert odd.cause == "unknown" and "launches late" not in odd.message


def said(folder):
    return next((one for one in analyze(folder).findings if one.rule == "TO-V006"), None)


def test_traces_of_two_jobs_at_once_do_not_have_one_clock(tmp_path):
    """Rank 0 of the one and rank 1 of the other: their collectives are 43 ms apart, and fit once clocks are moved."""
    found = said(unpacked("two_jobs", tmp_path))
    assert (found.severity, found.confidence, found.cause, found.ranks) == ("info", "medium", "one_host", (0, 1))
    assert "the collectives of rank 1 end 42.9 ms before those of rank 0" in found.message
    assert "a folder of its own" in found.advice


def test_hosts_of_several_names_may_have_several_clocks(tmp_path):
    folder = unpacked("two_jobs", tmp_path)
    [second] = folder.glob("vm_503.*")
    second.rename(folder / second.name.replace("vm_", "other_"))
    assert said(folder) is None


def test_a_run_that_tells_of_its_traces_may_be_of_hosts_with_one_name(tmp_path):
    folder = unpacked("two_jobs", tmp_path)
    (folder / "run.json").write_text(json.dumps({"world_size": 2}))
    assert said(folder) is None


SCHEDULE = {"skip_first": 10, "unprofiled": 4, "warmup": 1, "active": 3, "repeat": 1}


def told(**rank: Any) -> tuple[str, str | None, str]:
    ended = {"rank": 1, "status": "finished", "traces": [], "steps": 12, **rank}
    manifest = {"schedule": SCHEDULE, "ranks": [{"rank": 0, "traces": ["a"], "steps": 60}, ended]}
    [found] = judge_missing(2, [0], single_file=False, manifest=manifest).findings
    return found.message, found.cause, found.advice


def test_a_program_that_ended_before_the_window() -> None:
    message, cause, advice = told()
    assert message == ("1 of 2 ranks has no trace: 1. Its program ended after 12 steps, and the schedule needs 18.")
    assert cause == "ended_early" and "Collect" not in advice and "--skip-first" in advice


@pytest.mark.parametrize("rank", [{"status": "failed"}, {"traces": ["rank_1/x.json"]}, {"steps": None}, {"steps": 60}])
def test_another_rank_without_a_trace(rank: dict[str, Any]) -> None:
    message, cause, advice = told(**rank)
    assert (message, cause) == ("1 of 2 ranks has no trace: 1.", None) and advice.startswith("Collect")


def test_several_ranks_of_which_one_ended_early() -> None:
    manifest = {
        "schedule": SCHEDULE,
        "ranks": [{"rank": 1, "status": "finished", "traces": [], "steps": 12}, {"rank": 2, "traces": ["b"]}],
    }
    [found] = judge_missing(3, [0], single_file=False, manifest=manifest).findings
    assert "The program of rank 1 ended after 12 steps" in found.message and found.cause is None


@pytest.mark.parametrize(
    ("ended", "said"),
    [((1, 1), "after 1 step, and"), ((1, 4), "after 1 to 4 steps, and"), ((4, 4), "after 4 steps, and")],
)
def test_one_step_is_no_steps(ended: tuple[int, int], said: str) -> None:
    ranks = [{"rank": n + 1, "status": "finished", "traces": [], "steps": own} for n, own in enumerate(ended)]
    manifest = {"schedule": SCHEDULE, "ranks": ranks}
    [found] = judge_missing(3, [0], single_file=False, manifest=manifest).findings
    assert said in found.message and found.cause == "ended_early"


FULL = {"rank": 1, "operation": "export", "step": 13, "error": "OSError", "message": "x", "errno": "ENOSPC"}


def test_the_finding_says_what_ended_the_capture_and_what_to_do():
    (finding,) = judge_missing(2, [0], False, [read_failure(FULL)]).findings
    assert "Rank 1: no space left on device while it wrote the trace, in step 13; free some space" in finding.message
    (finding,) = judge_missing(2, [0], False).findings
    assert finding.message == "1 of 2 ranks has no trace: 1."


def test_a_run_without_any_trace_says_why(tmp_path):
    ended = {"rank": 0, "operation": "exit", "step": 12, "exit_code": 0}
    (tmp_path / "run.json").write_text(json.dumps({"failures": [FULL, ended, {"rank": "no"}, 7]}))
    with pytest.raises(InputError, match="rank 0: the process ended itself with exit code 0 while it"):
        discover(str(tmp_path))


def rank(phase, elements):
    args = SimpleNamespace(op="allreduce", elements_in=elements, elements_out=elements, dtype="Float")
    comm = SimpleNamespace(start=[0], phase=np.array([phase]), args=[args], name=["gloo:all_reduce"])
    backward = SimpleNamespace(
        promised_by="DistributedDataParallel.forward", steps_with_backward=4, steps_synchronised=0, launches_known=True
    )
    meta = SimpleNamespace(groups=[SimpleNamespace(ranks=(0, 1))], world_size=None)
    return SimpleNamespace(
        rank=0, comm=comm, backward=backward, meta=meta, on_gpu=False, through_host=False, step_numbers=[]
    )


@pytest.mark.parametrize(
    "phase, elements, fires", [(UPDATED, 1_000_000, False), (UPDATED, 1, True), (AFTER, 1_000_000, True)]
)
def test_models_that_are_averaged_need_no_gradients(phase, elements, fires):
    """accelerate's LocalSGD was told that its gradients are not synchronised, which is what it is for."""
    verdict = judge_backward_sync([rank(phase, elements)], {})
    assert bool(verdict.findings) == fires
    assert ("local SGD" in verdict.clear) == (not fires)


def test_counts_of_classes_are_not_taken_for_a_model():
    """100 floats behind the step cleared a DDP whose gradients nobody synchronised."""
    verdict = judge_backward_sync([rank(UPDATED, 100)], {})
    assert not verdict.findings and not verdict.clear
    assert "400 B are reduced after the optimizer's step" in verdict.not_evaluated
    unknown = rank(UPDATED, 100)
    unknown.comm.args = [None]
    assert "something is reduced" in judge_backward_sync([unknown], {}).not_evaluated


@pytest.mark.parametrize(("world", "said"), [(None, "this may be the only one"), (1, "only one rank"), (8, "")])
def test_one_trace_without_collectives_may_be_of_the_only_rank(world, said):
    """An old torch's DDP of one process: nothing tells of other ranks, and it was told that it synchronises nothing."""
    alone = rank(UPDATED, 0)
    alone.meta = SimpleNamespace(groups=[], world_size=world)
    alone.comm = SimpleNamespace(start=[], phase=np.array([]), args=[], name=[])
    verdict = judge_backward_sync([alone], {})
    assert said in (verdict.not_evaluated or "") and bool(verdict.findings) == (not said)


def test_parameters_that_are_averaged_at_the_next_steps_begin(tmp_path):
    """A step ends where its optimizer's returns: what is averaged behind that comes before the next one's forward."""
    run = tmp_path / "run"
    shutil.copytree(DATA / "straggler_gloo2", run)
    for path in run.glob("*.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        rows = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        work = next(event for event in rows if event["name"].startswith("c10d::allreduce"))
        sends = [event for event in rows if event["name"].startswith(("c10d::allreduce", "gloo:all_reduce"))]
        for number, step in enumerate(e for e in rows if e["name"].startswith("ProfilerStep")):
            own = [e for e in sends if step["ts"] <= e["ts"] < step["ts"] + step["dur"]]
            update = next(e for e in rows if e["name"].startswith("Optimizer.step") and e["ts"] > step["ts"])
            name = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
            document["traceEvents"].append({**work, "name": name, "ts": update["ts"] - 2000, "dur": 1000})
            for place, event in enumerate(sorted(own, key=lambda e: e["ts"])):
                if number:
                    event["ts"], event["dur"] = step["ts"] + 10 + 20 * place, 15
                else:
                    document["traceEvents"].remove(event)
        path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    report = analyze(run)
    [check] = [check for check in report.checks if check.rule == "TO-V004"]
    assert check.status == "not_evaluated" and "local SGD" in check.reason  # gloo's rows tell no size
    assert not any(one.rule == "TO-O003" for one in report.findings)


MANIFEST = {"profiled_step_ms": 75.0, "unprofiled_step_ms": 50.0}


def inputs(root, *, waits_ms=0.0, long=0.0, on_gpu=False):
    """Recorded steps of 75 ms that wait for a core; of the others every so many take 80 ms instead of 50."""
    steps = [Step(80 if number % 100 < 100 * long else 50) for number in range(100)]
    for number in range(10, 16):
        steps[number] = Step(75, recorded=True, core_wait_ms=waits_ms)
    write_rank(root, 0, steps)
    observed = (read_observed(str(root), 0)[0],)
    cost = profiler_cost(MANIFEST, observed, whole_run(observed), on_gpu=on_gpu)
    return SimpleNamespace(manifest=MANIFEST, undisturbed=None, plain=None, profiler_cost=cost)


@pytest.mark.parametrize("waits_ms, severity", [(0.0, "warning"), (6.0, "warning"), (15.0, "info"), (24.0, None)])
def test_what_a_rank_waits_for_a_core_is_not_the_profilers(tmp_path, waits_ms, severity):
    """Two runs on two cores were told that the profiler slowed them 1.5 times: 39 % of the steps a rank had no core."""
    given = inputs(tmp_path, waits_ms=waits_ms)
    verdict = judge_profiler(given)
    assert [one.severity for one in verdict.findings] == [severity] * (severity is not None)
    assert given.profiler_cost.slowdown == (None if severity is None else 1.5)
    if severity is None:
        assert "that may be all of it" in verdict.not_evaluated
    else:
        assert ("core_pct" in verdict.findings[0].facts) == (waits_ms > 7)


def test_many_steps_without_the_profiler_that_take_as_long(tmp_path):
    """Steps of a loaded machine, or with batches of uneven length: four against four are no measure."""
    verdict = judge_profiler(inputs(tmp_path / "many", long=0.3))
    assert not verdict.findings and "take as long too" in verdict.not_evaluated
    assert judge_profiler(inputs(tmp_path / "few", long=0.1)).findings, "evaluations"
    assert judge_profiler(inputs(tmp_path / "gpu", long=0.3, on_gpu=True)).findings, "the profiler stays there"


GPU = {"id": 0, "name": "NVIDIA GeForce RTX 4080 SUPER"}
OPERATOR = "aten::mm"


def event(name, start, duration, cat="cpu_op", **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start, "dur": duration, "args": args}


@pytest.fixture
def analysed(tmp_path):
    """The report of operators that take nearly all of two seconds."""

    def read(*more, devices=(GPU,), device=None, backend=None):
        rows = [event(OPERATOR, 1e6 + i * 1e5, 9.9e4, **{"External id": i}) for i in range(20)]
        trace = {"schemaVersion": 1, "deviceProperties": list(devices), "traceEvents": [*rows, *more]}
        trace |= {"distributedInfo": {"rank": 0, "world_size": 1, "backend": backend}} if backend else {}
        (tmp_path / "trace.json").write_text(json.dumps(trace))
        if device is not None:
            (tmp_path / "run.json").write_text(
                json.dumps({"format": "traceops-run", "format_version": 1, "device": device, "ranks": []})
            )
        return analyze(str(tmp_path if device is not None else tmp_path / "trace.json"))

    return read


def unjudged(report):
    return {one.bucket: one.why for one in report.summary.unjudged}


def test_operators_beside_a_gpu_are_not_called_healthy_compute(analysed):
    report = analysed()
    assert unjudged(report)["compute"] == "no_device"
    card, said = card_of(report), unjudged_sentence(report)
    assert card.level == "info" and card.judged_pct < 5
    assert card.headline == "Too little could be judged: the trace shows a GPU and holds only the host's operators"
    assert card.actions == ("If the program used the GPU, record again with ProfilerActivity.CUDA",)
    assert "the trace shows a GPU and holds only the host's operators" in said
    assert "ProfilerActivity.CUDA" in said


def test_memory_on_a_gpu_shows_that_there_is_one(tmp_path):
    """A trace of ProfilerActivity.CPU alone, of a program on a GPU: '1 rank · cpu, 98 % of the window is compute'."""
    took = {"Total Reserved": 0, "Device Type": 1, "Device Id": 0, "Addr": 7, "Bytes": 512, "Total Allocated": 512}
    rows = [
        event("aten::mm", 0, 900, "cpu_op"),
        event("[memory]", 5, 0, "cpu_instant_event") | {"ph": "i", "args": took},
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"profile_memory": 1, "traceEvents": rows}))
    report = analyze(tmp_path / "trace.json")
    assert unjudged(report)["compute"] == "no_device" and report.run.device is None


def test_a_window_too_short_to_judge_is_not_said_to_be_judged(analysed):
    """Nor that the launches of its kernels are unknown, below that."""
    report = analysed(*(event("k", at, 5, "kernel", stream=7) for at in (2.9e6, 2.9005e6)))
    card, said = card_of(report), "".join(map(repr, describe_summary(report, Path("x"), verbose=True)))
    assert "too little to judge" in card.headline and card.judged_pct is None
    assert "too little to judge" in said and "Judged" not in said and "Kernel efficiency" not in said
    assert "Not judged" not in said


def test_without_a_gpu_operators_are_the_compute(analysed):
    assert unjudged(analysed(devices=()))["compute"] == "unrated"


def test_a_launch_says_that_kernels_are_missing(analysed):
    """TO-V008 tells that, and nothing else need."""
    report = analysed(event("cudaLaunchKernel", 1.05e6, 5, "cuda_runtime", correlation=7))
    assert "compute" not in unjudged(report)
    [found] = [finding for finding in report.findings if finding.rule == "TO-V008"]
    assert "compute is" not in found.message and "called compute" not in found.message, (
        "nothing is: the ledger is empty"
    )
    assert "ProfilerActivity.CUDA" not in found.advice, "it was on"
    assert unjudged(analysed(event("cudaDeviceSynchronize", 1.05e6, 5, "cuda_runtime")))["compute"] == "unrated"


def test_kernels_are_missing_too_where_copies_are_there(analysed):
    """A trace that lost its kernels, not its copies: 'the host launches work late'."""
    launch = event("cudaLaunchKernel", 1.05e6, 5, "cuda_runtime", correlation=7)
    copy = event("Memcpy HtoD (Pageable -> Device)", 1.2e6, 9, "gpu_memcpy", device=0, stream=7, correlation=8)
    assert analysed(launch, copy).findings[0].rule == "TO-V008"
    report = analysed(copy)
    assert "TO-V008" not in {finding.rule for finding in report.findings}
    assert {check.reason for check in report.checks if check.rule == "TO-K008"} == {"the traces hold no kernels"}


def test_a_collective_called_in_backward_is_one_whatever_its_kernel_is_called(tmp_path):
    """'No gradient is synchronised inside backward' beside 'communication may be among the kernels of compute'."""
    trace = json.loads(gzip.decompress((DATA / "ddp4" / "rank_0.pt.trace.json.gz").read_bytes()))
    trace["traceEvents"] = [row for row in trace["traceEvents"] if "nccl" not in str(row.get("name")).lower()]
    (tmp_path / "rank_0.json").write_text(json.dumps(trace))
    report = analyze(tmp_path)
    assert {"TO-V004", "TO-V009"} & {found.rule for found in report.findings} == {"TO-V009"}


def test_marks_behind_all_work_are_told(analysed):
    """'The traces mark no steps' was said of three; the only one, in which nothing ran, was a step outside torch."""
    marks = [event(f"ProfilerStep#{at}", 4e6 + at * 1e5, 9e4, "user_annotation") for at in range(3)]
    [found] = [one for one in analysed(*marks, devices=()).findings if one.rule == "TO-V010"]
    assert found.headline == "Nothing runs in the steps that the traces mark"
    assert found.evidence[0].subject == "window", "'steps 0' tells nobody anything"
    report = analysed(marks[0], devices=())
    assert [one.rule for one in report.findings] == ["TO-V010"] and report.summary.steps_found_by == "window"


def test_a_mark_may_be_shorter_than_its_step(analysed):
    """Steps of 18.8 and 9.7 ms were 'step 9.41 ms (mean of 2)', as the last one had its mark's end."""
    marks = [event(f"ProfilerStep#{at}", 1e6 + at * 1e6, 9e4, "user_annotation") for at in range(3)]
    assert [row.duration_ms for row in analysed(*marks, devices=()).steps] == [1000, 1000]


def test_compute_that_nothing_rates_gets_no_clean_bill(analysed):
    card = card_of(analysed(devices=()))
    assert card.level == "info" and card.headline.endswith("is compute; how fast it could be is unknown")
    card, unknown = card_of(analysed(event(OPERATOR, 4e6, 9.9e4), devices=())), "how fast it could be is unknown"
    assert card.headline == f"67 % of the window is compute; {unknown}"
    assert card.judged_pct == 0


@pytest.mark.parametrize(("ms", "lost"), [(3772, True), (40, False)])
def test_an_allocation_that_creates_a_gpus_context_says_that_kernels_are_missing(analysed, ms, lost):
    """Old versions of torch name no GPU: ten squares on one got a clean bill of 99 % compute."""
    report = analysed(event("aten::empty_strided", 3.1e6, 1000 * ms), devices=())
    assert ("TO-V008" in {finding.rule for finding in report.findings}) == lost


@pytest.mark.parametrize(
    ("names", "backend", "lost"),
    [
        (("nccl:all_reduce",), None, True),
        (("record_param_comms",), "nccl", True),
        (("record_param_comms",), "cpu:gloo,cuda:nccl", False),
        (("gloo:all_reduce",), "gloo", False),
        ((), "nccl", False),
    ],
)
def test_collectives_of_nccl_say_that_kernels_are_missing(analysed, names, backend, lost):
    """They were taken for collectives on the CPU: such a rank was told to make the others wait."""
    report = analysed(*(event(name, 1.05e6, 5) for name in names), devices=(), backend=backend)
    assert [finding.rule for finding in report.findings if finding.rule == "TO-V008"] == ["TO-V008"] * lost


def test_idle_time_of_a_gpu_that_was_not_recorded_is_not_told():
    """71 % of such a rank's step was said to be 'launched late'."""
    one, other = (
        SimpleNamespace(rank=rank, kernels_lost=rank == 1, on_gpu=rank == 0, unrecorded_gpu=False) for rank in (0, 1)
    )
    for summary in (one, other):
        summary.gpu_calls, summary.meta, summary.copies = False, SimpleNamespace(device=None), SimpleNamespace(kinds=())
    times = [
        SimpleNamespace(summary=summary, share_pct=lambda name, idle=idle: idle * (name == "idle_host"))
        for summary, idle in ((one, 12.0), (other, 71.0))
    ]
    checks = [SimpleNamespace(rule="TO-I004", status="clear")]
    for own in times:
        own.duration, own.buckets = np.array([100]), {"memory": np.array([0])}
    [idle] = unjudged_time(SimpleNamespace(ranks=times), checks, on_cpu=False)
    assert (idle.bucket, idle.rank, idle.pct) == ("idle_host", 0, 12.0)


def test_marks_of_steps_and_launches_alone_are_a_trace(tmp_path):
    """Its summary did not fit itself: 'it cannot be read as a summary'."""
    rows = [event(f"ProfilerStep#{i}", 1e6 + i * 1e5, 9.9e4, "user_annotation") for i in range(3)]
    launches = [event("cudaLaunchKernel", 1.05e6 + i * 1e5, 5, "cuda_runtime", correlation=i) for i in range(3)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows + launches}))
    report = analyze(str(tmp_path / "trace.json"))
    assert [finding.rule for finding in report.findings] == ["TO-V008"]


def test_a_run_without_kernels_leads_with_that_and_shows_no_compute(tmp_path):
    """'Waits for input for 20 ms of each step' came first, and a table with 'compute 76.2 %'."""
    rows = [
        row
        for at in (1e6 + i * 1e5 for i in range(5))
        for row in (
            event(f"ProfilerStep#{int(at)}", at, 9.9e4, "user_annotation"),
            event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 2e4, "user_annotation"),
            event("cudaLaunchKernel", at + 5e4, 5, "cuda_runtime", correlation=int(at)),
            event(OPERATOR, at + 2.1e4, 7.6e4),
        )
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows}))
    report = analyze(str(tmp_path / "trace.json"))
    assert len(report.findings) > 1
    assert report.findings[0].rule == "TO-V008"
    assert (card_of(report).rule, card_of(report).judged_pct) == ("TO-V008", None)
    assert (report.summary.ledger_pct.compute, report.summary.compute_pct, report.ranks[0].compute_ms) == (None,) * 3


@pytest.mark.parametrize("took_us", [0, 0.02])
def test_a_window_without_length_gets_no_clean_bill(tmp_path, took_us):
    """'No problem found. Judged 100 % of the window' was said of 0.000 ms, and of 20 ns."""
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event(OPERATOR, 1e6, took_us)]}))
    report = analyze(str(tmp_path / "trace.json"))
    card = card_of(report)
    assert (card.level, card.judged_pct) == ("info", None)
    assert card.headline == "No step time was recorded, so nothing could be judged"


def test_kernels_are_the_compute(analysed):
    kernel = event("gemm", 1.2e6, 9e4, "kernel", device=0, stream=7, correlation=7)
    launched = event("cudaLaunchKernel", 1.1e6, 5, "cuda_runtime", correlation=7)
    assert unjudged(analysed(launched, kernel))["compute"] == "unrated"


def test_a_run_that_says_that_it_is_on_the_cpu_is(analysed):
    assert unjudged(analysed(device="cpu"))["compute"] == "unrated"
    assert unjudged(analysed(device="cuda"))["compute"] == "no_device"


SIZE = Size(kernel_us=30.0)
SHORT_SCHEDULE = {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 1}


def one(report, rule):
    return next((f for f in report.findings if f.rule == rule), None)


def slow_input(steps):
    """All ranks wait half of each step for input."""
    return simulate(ddp(steps=steps, size=SIZE), 2, [SlowInput(rank, 5_000.0) for rank in (0, 1)], seed=1)


@pytest.fixture(scope="module")
def window(tmp_path_factory):
    """Two iterations: too few to be found."""
    return write_unmarked(slow_input(2), tmp_path_factory.mktemp("window") / "run", as_is)


def captured(run, folder, steps, *, complete, ran, **more):
    """A run folder as `traceops run` leaves it; `steps` are those that were recorded whole."""
    write_unmarked(run, folder, as_is, drop_marks=False)
    manifest = {
        "name": "run",
        "world_size": run.world,
        "schedule": SHORT_SCHEDULE,
        "steps": ran,
        "ranks": [
            {
                "rank": rank.rank,
                "steps": ran,
                "status": "finished",
                "windows": [
                    {"index": 0, "trace": f"rank_{rank.rank}.pt.trace.json", "steps": list(steps), "complete": complete}
                ],
                **more,
            }
            for rank in run.ranks
        ],
    }
    (folder / "run.json").write_text(json.dumps(manifest))
    return folder


def test_of_a_window_no_error_is_made(window, tmp_path):
    marked = analyze(write_unmarked(slow_input(2), tmp_path / "marked", as_is, drop_marks=False))
    assert one(marked, "TO-I002").severity == "error"
    report = analyze(window)
    assert (report.summary.steps_found_by, report.summary.step_mark) == ("window", None)
    assert one(report, "TO-I002").severity == "warning"
    assert one(report, "TO-V010").severity == "info"


def test_exit_codes_match_that(window, tmp_path):
    options = [str(window), "-o", str(tmp_path / "report"), "-q", "--no-cache", "--format", "json"]
    assert main(["analyze", *options, "--fail-on", "error"]) == 0
    assert main(["analyze", *options, "--fail-on", "warning"]) == 1


def test_a_window_is_called_one_everywhere(window, tmp_path):
    report = analyze(window)
    card = card_of(report)
    assert card.window and not re.search(r"\bstep\b", card.headline)
    shown = [
        *texts(describe_summary(report, Path("x"), verbose=True)[:-1]),
        *texts(describe(report).verdict),
        *(found.message for found in report.findings if found.rule != "TO-V010"),
    ]
    of_a_step = re.compile(r"\b(a|each|the|per|typical) step\b(?! ledger)|ms/step")
    assert not [text for text in shown if of_a_step.search(text)]


def test_found_steps_are_told_in_a_few_words(tmp_path):
    report = analyze(write_unmarked(slow_input(6), tmp_path / "run", as_is))
    assert any(
        said.endswith(" · 5 steps found by Optimizer.step")
        for said in texts(describe_summary(report, Path("x"), verbose=True))
    )
    assert one(report, "TO-I002").severity == "error"
    assert one(report, "TO-V010") is None


def test_a_program_that_ended_before_the_schedule_is_told_so_and_what_would_record_it(tmp_path):
    folder = captured(slow_input(1), tmp_path / "run", [], complete=False, ran=10)
    report = analyze(folder)
    [found] = [f for f in report.findings if f.severity != "info"]
    assert (found.rule, found.severity, found.cause) == ("TO-V010", "warning", "too_short")
    claim = claim_of(found, CutOff)
    assert (claim.ended, claim.needed, claim.active) == ("10 steps", 14, 4)
    assert claim.flags == "--skip-first 2 --unprofiled 2 --warmup 2 --active 4"
    assert report.summary.steps_found_by == "cut_off"
    assert (report.steps, report.summary.step_time_ms.typical) == ((), None)
    assert all(row.compute_ms is None and row.late_share is None for row in report.ranks)
    card = card_of(report)
    assert (card.rule, card.now_ms) == ("TO-V010", None) and "10 steps" in card.headline
    by_rule = {check.rule: check for check in report.checks}
    for rule in ("TO-S001", "TO-I001", "TO-I002", "TO-O001", "TO-V004"):
        assert by_rule[rule].status == "not_evaluated"
    describe(report)


def test_a_program_with_a_profiler_of_its_own_is_told_so(tmp_path):
    folder = captured(slow_input(1), tmp_path / "run", [], complete=False, ran=40)
    manifest = json.loads((folder / "run.json").read_text())
    for rank in manifest["ranks"]:
        rank["status"] = "given_way"
    (folder / "run.json").write_text(json.dumps(manifest))
    found = one(analyze(folder), "TO-V010")
    assert found.cause == "given_way"
    claim = claim_of(found, CutOff)
    assert claim.given_way and claim.flags is None


def foreign(number):
    """Rows of another profiler that the program steps twice in each of our steps."""

    def change(rank, row):
        name = str(row.get("name"))
        if not name.startswith("ProfilerStep#") or row.get("cat") != "user_annotation":
            return [row]
        first = 2 * int(name.partition("#")[2]) + number
        half = row["dur"] / 2
        others = [
            {**row, "name": f"ProfilerStep#{first + i}", "ts": row["ts"] + i * half + 1, "dur": half - 2}
            for i in (0, 1)
        ]
        return [row, *others]

    return change


@pytest.mark.parametrize("number", [100, -2, -6, 0], ids=["other numbers", "some of ours", "earlier", "later"])
def test_steps_of_another_profiler_in_our_trace_are_not_ours(tmp_path, number):
    run = slow_input(4)
    true = analyze(write_unmarked(run, tmp_path / "true", as_is, drop_marks=False))
    folder = captured(run, tmp_path / "run", run.program.numbers[1:], complete=True, ran=20)
    write_unmarked(run, folder, foreign(number), drop_marks=False)
    report = analyze(folder)
    assert report.run.steps == true.run.steps
    assert report.summary.step_time_ms == true.summary.step_time_ms
    assert [(row.step, row.duration_ms) for row in report.steps] == [(row.step, row.duration_ms) for row in true.steps]


def test_a_manifest_of_another_run_hides_no_steps(tmp_path):
    run = slow_input(4)
    folder = captured(run, tmp_path / "run", [70, 71, 72], complete=True, ran=80)
    assert analyze(folder).run.steps == run.program.numbers[1:]


def test_a_folder_without_traces_says_what_would_record_some(tmp_path):
    from traceops.core.errors import InputError

    folder = captured(slow_input(1), tmp_path / "run", [], complete=False, ran=7)
    for trace in folder.glob("*.trace.json"):
        trace.unlink()
    with pytest.raises(InputError, match=r"ended after 7 steps, .* needs 14; .* --skip-first 1 --unprofiled 2"):
        analyze(folder)


@pytest.mark.parametrize(
    "steps, flags",
    [
        (13, "--skip-first 2 --unprofiled 5 --warmup 2 --active 4"),
        (10, "--skip-first 2 --unprofiled 2 --warmup 2 --active 4"),
        (8, "--skip-first 1 --unprofiled 2 --warmup 1 --active 4"),
        (6, "--skip-first 1 --unprofiled 2 --warmup 1 --active 2"),
        (3, "--skip-first 0 --unprofiled 0 --warmup 1 --active 2"),
        (1, "--skip-first 0 --unprofiled 0 --warmup 0 --active 1"),
    ],
)
def test_a_schedule_that_fits_keeps_the_recorded_steps_as_long_as_it_can(steps, flags):
    shorter = shorter_schedule(SHORT_SCHEDULE, steps)
    assert shorter.flags == flags
    assert sum(map(int, re.findall(r"\d+", flags))) <= steps


@pytest.mark.parametrize(
    "schedule, steps", [(SHORT_SCHEDULE, 14), (SHORT_SCHEDULE, 0), (None, 5), ({"active": "4"}, 5)]
)
def test_nothing_is_proposed_where_the_schedule_was_not_too_long(schedule, steps):
    assert shorter_schedule(schedule, steps) is None


def test_gloo_of_older_torch_communicates(tmp_path):
    """torch 1.11 notes what gloo exchanges as an operator, without the call: it was idle time of the host."""
    for path in sorted((DATA / "straggler_gloo2").glob("*.json.gz")):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [
            event | ({"cat": "cpu_op"} if event["name"].startswith("gloo:") else {})
            for event in trace["traceEvents"]
            if not event["name"].startswith(("c10d::", "record_param_comms"))
        ]
        (tmp_path / path.name.removesuffix(".gz")).write_text(json.dumps(trace))
    older, newer = analyze(tmp_path), analyze(DATA / "straggler_gloo2")
    assert older.summary.ledger_ms.idle_host == pytest.approx(newer.summary.ledger_ms.idle_host, rel=0.05)
    assert not [found for found in older.findings if found.rule == "TO-V004"]


def test_what_hta_leaves_out_is_not_idle(tmp_path):
    """Kernels launched before the trace: 16 % idle in HTA's breakdown, 2 % in the ledger beside it."""
    rows = [event("gemm", at, 99, "kernel", device=0, stream=7, correlation=at) for at in range(0, 1000, 100)]
    launch = event("cudaLaunchKernel", 890, 5, "cuda_runtime", correlation=900)
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [*rows, launch]}))
    [row] = analyze(str(tmp_path / "trace.json")).ranks
    assert row.idle_pct == pytest.approx(0.9, abs=0.1) and row.breakdown_source == "traceops"


def test_python_outside_of_operators_is_recorded_too(analysed):
    """'Of 0.311 ms that were recorded', where the stacks span 0.529."""
    [found] = analysed(event("run.py(1): <module>", 0, 6e6, "python_function"), devices=()).findings
    assert found.facts["recorded"] == 6000
