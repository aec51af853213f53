"""A step in which something is used for the first time: no trouble of the training, and told as what it is."""

import json

import pytest
from observed_run import usual, write_rank

from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.pipeline.analyze import analyze
from traceops.rules.steps import LongSteps

STEP_MS = 40.0
START_MS = 272.0  # of NCCL, in the first gather() of an accelerate program on an H200
GATHERS = 9  # the recorded step in which it gathers first; 6 is another one


def event(name, cat, ms, dur_ms, correlation=None, **more):
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "name": name, "cat": cat, "ts": 1e3 * ms, "dur": 1e3 * dur_ms, "pid": 1, "tid": 1,
            "args": args, **more}  # fmt: skip


def work(at, dur, correlation):
    """An operator that launches a kernel, and the kernel."""
    return [
        event("aten::mm", "cpu_op", at, 0.1),
        event("cudaLaunchKernel", "cuda_runtime", at + 0.02, 0.02, correlation),
        event("gemm", "kernel", at + 0.06, dur, correlation, pid=0, tid=7)
        | {"args": {"correlation": correlation, "stream": 7, "device": 0}},
    ]


def gather(at, calls):
    """A collective whose host sets NCCL up, and waits for it by and by."""
    rows = [event("c10d::_allgather_base_", "cpu_op", at, START_MS)]
    for n, name in enumerate(calls):
        rows.append(event(name, "cuda_runtime", at + 1 + 4 * n, 3.8, 900 + n))
    return rows + [event("cudaStreamSynchronize", "cuda_runtime", at + 265 + n / 10, 0.05) for n in range(60)]


def program(folder, calls, longer=()):
    """A run of one rank: steps 6 to 10 are recorded. longer: steps that take 100 ms more, by their kernels."""
    rows, at = [], 0.0
    for number in range(6, 11):
        begin = at
        if number == GATHERS:
            rows += gather(at + 0.2, calls)
            at += START_MS
        rows += work(at + 1, 37.0 + 100.0 * (number in longer), number)
        at += STEP_MS - 2 + 100.0 * (number in longer)
        rows.append(event("cudaStreamSynchronize", "cuda_runtime", at - 36, 36.1))
        at += 2
        rows.append(event(f"ProfilerStep#{number}", "user_annotation", begin, at - begin))
    (folder / "rank_0").mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"name": "made", "world_size": 1, "ranks": [{"rank": 0}]}))
    (folder / "rank_0" / "rank_0.pt.trace.json").write_text(
        json.dumps({"deviceProperties": [{"id": 0, "name": "H200"}], "traceEvents": rows,
                    "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 1}})
    )  # fmt: skip
    return folder


def long_steps(report):
    return next(one for one in report.findings if one.rule == "TO-T001")


STARTS = ["cudaFuncGetAttributes"] * 60
WORKS = ["cudaMemcpyAsync"] * 60


def test_a_communicator_that_starts_is_named_and_comes_once(tmp_path):
    found = long_steps(analyze(program(tmp_path, STARTS)))
    assert (found.cause, found.severity, found.impact_ms, found.steps) == ("first_use", "info", None, (9,))
    claim = claim_of(found, LongSteps)
    assert (claim.does, claim.ranks, claim.place, claim.once) == ("first_use", (0,), "c10d::_allgather_base_", True)
    assert claim.longer == pytest.approx(272, abs=0.5)
    assert "init_process_group gets device_id" in found.advice
    other = long_steps(analyze(program(tmp_path / "other", WORKS)))
    assert other.cause != "first_use" and claim_of(other, LongSteps).share is None


def test_a_start_is_no_second_time_of_another_slow_step(tmp_path):
    """An fp16 program: its fifth step and NCCL's start were one trouble, 12 % of the time, and a warning."""
    program(tmp_path, STARTS)
    write_rank(tmp_path, 0, [usual(110.0 if at == 5 else STEP_MS, recorded=6 <= at < 11) for at in range(60)])
    found = long_steps(analyze(tmp_path))
    assert (found.cause, found.severity) == ("first_use", "info")
    program(tmp_path / "other", WORKS)
    write_rank(tmp_path / "other", 0, [usual(110.0 if at == 5 else STEP_MS, recorded=6 <= at < 11) for at in range(60)])
    claim = claim_of(long_steps(analyze(tmp_path / "other")), LongSteps)
    assert claim.unlike == 2 and claim.share > 0


def test_long_steps_beside_a_start_are_told_by_themselves(tmp_path):
    found = long_steps(analyze(program(tmp_path, STARTS, longer=(7,))))
    assert found.steps == (7,) and claim_of(found, LongSteps).took == pytest.approx(140)
    assert next(e for e in found.evidence if e.fact is Fact.SUCH_STEPS).unit == "of 4 timed steps"


def test_calls_that_block_are_counted_in_typical_steps(tmp_path):
    """16.2 calls a step of NCCL's start were evidence of blocking in each step."""
    report = analyze(program(tmp_path, STARTS))
    blocked = next(one for one in report.findings if one.rule == "TO-I003")
    calls = {one.metric: one.value for one in blocked.evidence if one.unit.startswith("calls")}
    assert calls == {"cudaStreamSynchronize": pytest.approx(1.0)}
