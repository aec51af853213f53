"""No more host time is claimed than a step without the profiler has room for."""

import json
import shutil
from pathlib import Path

import pytest
from changed import replace
from generated_run import HostWork, Size, ddp, simulate, write_traces

from traceops.across.agreed_steps import as_one_window
from traceops.core.claims import claim_of
from traceops.core.step_words import WINDOW
from traceops.pipeline import conclude
from traceops.pipeline.analyze import analyze
from traceops.rules.idle_claims import HostBound

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


def test_a_step_without_room_clears_the_rule(tmp_path):
    report = timed(tmp_path, 12.0)
    assert host_bound(report) is None
    check = next(c for c in report.checks if c.rule == "TO-I001")
    assert check.status == "clear"
    assert "has no room for it" in check.reason


def test_without_such_steps_the_trace_is_believed():
    found = host_bound(analyze(DATA / "fsdp2_4"))
    assert found.evidence[0].value == pytest.approx(27.7, abs=0.1)
    assert claim_of(found, HostBound).plain is None


def test_advice_is_the_optimizers_where_its_step_keeps_the_host():
    found = host_bound(analyze(DATA / "hta" / "pair"))
    claim = claim_of(found, HostBound)
    assert (claim.rank, claim.optimizer) == (1, "Optimizer.step#Shampoo.step")
    assert claim.optimizer_ms == pytest.approx(209.1, abs=0.05) and not claim.optimizer_recorded
    assert "(offload)" in found.advice
    assert found.cause == "host"


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
