"""TO-V004 where ranks average their parameters behind the optimizer's step."""

import gzip
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from traceops.measure.phases import AFTER, UPDATED
from traceops.pipeline.analyze import analyze
from traceops.rules.validity import judge_backward_sync


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
    assert "400 B are reduced behind the optimizer's step" in verdict.not_evaluated
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


DATA = Path(__file__).parents[1] / "data"


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
