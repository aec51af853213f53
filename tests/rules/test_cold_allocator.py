"""Calls of the allocator in one cold step: they are no calls of a typical step, and they are why that one is long."""

import json

from traceops.core.claims import claim_of
from traceops.pipeline.analyze import analyze
from traceops.rules.steps import LongSteps


def write(folder, mallocs):
    """Five steps of 10 ms on a GPU; mallocs: so many calls of 8 ms in the first one, in an operator."""
    events, at = [], 0.0

    def add(cat, name, ts, dur, tid=1, **args):
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args})

    for number in range(5):
        calls = mallocs if number == 0 else 0
        add("user_annotation", f"ProfilerStep#{number}", at, 10_000.0 + 8000 * calls)
        if calls:
            add("cpu_op", "aten::empty", at + 10, 8000 * calls)
        for one in range(calls):
            add("cuda_runtime", "cudaMalloc", at + 11 + 8000 * one, 7990)
        at += 8000 * calls
        add("cuda_runtime", "cudaLaunchKernel", at + 100, 5, correlation=number + 1)
        add("kernel", "gemm", at + 110, 9800, 7, stream=7, correlation=number + 1)
        at += 10_000
    (folder / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return {found.rule: found for found in analyze(folder).findings}


def test_a_typical_step_has_none_of_them_and_the_long_one_is_explained_by_them(tmp_path):
    """ "12 calls a step, and they take 107 ms of a recorded step of 110": all were in step 0, which took 641."""
    found = write(tmp_path, 6)
    assert "TO-M005" not in found
    assert found["TO-T001"].cause == "allocation"
    claim = claim_of(found["TO-T001"], LongSteps)
    assert (claim.does, claim.ranks, claim.place) == ("allocation", (0,), "aten::empty")
