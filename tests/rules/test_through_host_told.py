"""TO-C003: what it costs that hosts exchange what is on their GPUs."""

import json

import pytest
from changed import replace
from generated_run import Mesh, Size, SlowInput, ddp, simulate, write_traces
from measured_runs import across

from traceops.core.claims import claim_of
from traceops.core.rank_files import COLLECTIVES
from traceops.pipeline.analyze import analyze
from traceops.rules.bandwidth import ThroughHost, judge_low, judge_through_host


def run_of(bandwidth_gbs, faults=(), *, through_host=True):
    made = ddp(steps=4, size=Size(kernel_us=200.0, elements=1 << 21, bandwidth_gbs=bandwidth_gbs))
    return simulate(replace(made, through_host=through_host), 2, faults)


def called(trace, row):
    return trace["baseTimeNanoseconds"] + round(1000 * row["ts"]) - 2000


def told_by(tmp_path, run, gpus):
    """The report of these traces as a capture writes them, with a run.json that says which GPU each rank has."""
    for path in write_traces(run, tmp_path):
        trace = json.loads(path.read_text())
        notes = [row for row in trace["traceEvents"] if row["name"].startswith("gloo:")]
        trace[COLLECTIVES] = [
            [row["name"], "0", "default_pg", number, *2 * row["args"]["Input Dims"][0], "Float", called(trace, row)]
            for number, row in enumerate(sorted(notes, key=lambda row: row["ts"]))
        ]
        path.write_text(json.dumps(trace))
    ranks = [{"rank": rank, "device": {"type": "cuda", "uuid": gpu}} for rank, gpu in enumerate(gpus)]
    (tmp_path / "run.json").write_text(json.dumps({"world_size": 2, "ranks": ranks}))
    return analyze(tmp_path)


@pytest.mark.parametrize("faults", [(), (SlowInput(1, 5000.0),)])
def test_nccl_would_save_the_transfer(tmp_path, faults):
    report = told_by(tmp_path, run_of(4.0, faults), ("a", "b"))
    [found] = [found for found in report.findings if found.rule == "TO-C003"]
    assert found.severity == "error"
    fast = across(run_of(350.0, faults, through_host=False))
    step = report.summary.step_time_ms.typical
    # With NCCL a host waits for no collective: it launches what comes next meanwhile, and no replay tells that.
    assert 0.4 * (step - fast.step_ms) < found.impact_ms < 1.1 * (step - fast.step_ms)
    claim = claim_of(found, ThroughHost)
    assert claim.link == "NVLink 4" and claim.then < claim.step


@pytest.mark.parametrize("gpus", [("a", "a"), ("a", None)])
def test_nothing_is_promised_of_nccl_where_ranks_share_a_gpu_or_may(tmp_path, gpus):
    report = told_by(tmp_path, run_of(4.0), gpus)
    [found] = [found for found in report.findings if found.rule == "TO-C003"]
    assert (found.severity, found.impact_ms) == ("warning", None)
    claim = claim_of(found, ThroughHost)
    assert claim.then is None and claim.shared_gpus == (gpus == ("a", "a"))
    assert "reference bandwidth" not in {row.change for row in report.what_if}


def test_a_transfer_that_computation_hides_is_clear():
    assert judge_through_host(across(run_of(1000.0))).clear


def test_nccl_goes_over_no_host():
    verdict = judge_through_host(across(run_of(4.0, through_host=False)))
    assert verdict.clear and not verdict.findings


def test_the_link_is_not_blamed_for_what_the_hosts_move():
    assert "TO-C003" in judge_low(across(run_of(4.0))).not_evaluated


def test_what_hosts_exchange_without_waiting_for_a_gpu_is_not_called_the_gpus():
    """Metrics or objects over gloo, beside GPUs that exchange nothing in the window."""
    run = across(run_of(4.0))
    own = [replace(one, summary=replace(one.summary, exchanges_of_gpu=False)) for one in run.ranks]
    verdict = judge_through_host(replace(run, ranks=tuple(own)))
    assert not verdict.findings and "the hosts' own data" in verdict.not_evaluated


def test_gpus_that_exchange_over_gloo_beside_nccl_are_no_clean_bill(tmp_path):
    """Two groups in one process: the kernel of one of them hid what the other moves through the hosts."""
    for path in write_traces(run_of(4.0), tmp_path):
        trace = json.loads(path.read_text())
        kernel = next(row for row in trace["traceEvents"] if row.get("cat") == "kernel")
        nccl = kernel | {"name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"}
        trace["traceEvents"].append(nccl | {"tid": 99, "args": kernel["args"] | {"stream": 99}})
        path.write_text(json.dumps(trace))
    [check] = [one for one in analyze(tmp_path).checks if one.rule == "TO-C003"]
    assert check.status == "not_evaluated" and "beside collectives that run on the GPUs" in check.reason


def test_where_the_traces_hold_only_the_hosts_own_data_no_link_is_judged():
    """Accumulation without a synchronisation, and a metric over gloo: 'the hosts move the data'."""
    run = across(run_of(4.0))
    own = [replace(one, summary=replace(one.summary, exchanges_of_gpu=False)) for one in run.ranks]
    assert "their own data" in judge_low(replace(run, ranks=tuple(own))).not_evaluated


def test_sends_over_gloo_between_gpus_are_not_said_to_be_no_pipeline(tmp_path):
    """Nothing of them is matched, and 'no rank hands activations on to another' was a clean bill."""
    write_traces(simulate(replace(Mesh(data=1, pipeline=2).program(), through_host=True), 2), tmp_path)
    report = analyze(tmp_path)
    checks = {one.rule: one for one in report.checks}
    assert report.summary.matching.events == 0
    assert all("over gloo is not matched" in checks[rule].reason for rule in ("TO-B001", "TO-B002", "TO-B003"))
