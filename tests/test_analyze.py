"""What analyze says of real runs whose truth is known, and of damaged folders."""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from traceops.across.match import BEFORE_WINDOW, NO_METADATA
from traceops.core.errors import InputError
from traceops.measure.ledger import BUCKETS
from traceops.pipeline.analyze import analyze

DATA = Path(__file__).parent / "data"


def found(report, rule):
    return [finding for finding in report.findings if finding.rule == rule]


def status(report, rule):
    return next(check for check in report.checks if check.rule == rule)


def rank_file(folder, rank):
    return Path(folder) / f"rank_{rank}.pt.trace.json.gz"


@pytest.fixture
def ddp(tmp_path):
    return Path(shutil.copytree(DATA / "ddp4", tmp_path / "ddp4"))


@pytest.mark.parametrize("name", ["ddp4", "fsdp2_4", "hsdp4", "slow_loader4", "item_sync4", "hta/pair", "hta/cpu_only"])
def test_every_step_adds_up(name):
    report = analyze(DATA / name)
    assert report.steps
    for row in report.steps:
        assert sum(getattr(row, bucket) for bucket in BUCKETS) == pytest.approx(row.duration_ms, abs=1e-9)
        assert all(getattr(row, bucket) >= 0 for bucket in BUCKETS)


def test_slow_loader_is_the_first_thing_to_fix():
    report = analyze(DATA / "slow_loader4")
    first = report.findings[0]
    assert (first.rule, first.severity, first.ranks, first.cause) == ("TO-S001", "error", (1,), "input")
    assert first.impact_ms == pytest.approx(30, abs=3)  # it sleeps 30 ms a step
    [merged] = found(report, "TO-I002")
    assert (merged.severity, merged.ranks) == ("info", (1,))
    assert merged.message.endswith("TO-S001 (rank 1) explains it.")
    assert report.ranks[1].late_share > 0.9


def test_item_calls_are_counted_where_they_cost():
    [finding] = found(analyze(DATA / "item_sync4"), "TO-I003")
    assert set(finding.ranks) == {0, 1, 2, 3}
    calls = {evidence.metric: evidence.value for evidence in finding.evidence if evidence.unit == "calls/step"}
    assert calls["cudaStreamSynchronize in aten::item"] == 40


@pytest.mark.parametrize("name", ["ddp4", "fsdp2_4", "hsdp4"])
def test_healthy_run_is_not_accused_of_what_it_does_not_do(name):
    report = analyze(DATA / name)
    # At this size the host really bounds the step, and the report says so; nothing else is wrong.
    assert {f.rule for f in report.findings if f.severity != "info"} <= {"TO-I001"}
    for rule in ("TO-V001", "TO-V002", "TO-V003", "TO-V004", "TO-I002", "TO-I003"):
        assert status(report, rule).status == "clear", rule
    assert report.summary.matching.matched_pct > 95


def test_a_slow_gpu_is_named_with_the_kernel_that_grew():
    report = analyze(DATA / "slow_gpu4")
    first = report.findings[0]
    assert (first.rule, first.severity, first.ranks, first.cause) == ("TO-S001", "error", (2,), "gpu_compute")
    assert any(e.metric.startswith("grew: nvjet") for e in first.evidence)
    assert max(report.ranks, key=lambda row: row.late_share).rank == 2
    assert report.ranks[2].late_share > 0.9
    for row in report.ranks:
        assert (row.comm_wait_ms > 20) == (row.rank != 2)


def test_waiting_and_transfer_are_the_kernels_own_time():
    report = analyze(DATA / "ddp4")
    for row in report.ranks:
        exposed = row.comm_transfer_ms + row.comm_wait_ms + row.comm_unmatched_ms
        assert exposed == pytest.approx(row.exposed_comm_ms, abs=2e-6)
    all_reduce = [row for row in report.collectives if "reduce" in row.op]
    assert all(row.ranks == (0, 1, 2, 3) for row in all_reduce)
    assert max(row.busbw_gbs for row in all_reduce if row.busbw_gbs) < 900  # NVLink's limit


def test_one_rank_alone_says_what_it_cannot_know():
    report = analyze(rank_file(DATA / "ddp4", 2))
    [missing] = found(report, "TO-V001")
    assert (missing.severity, missing.ranks) == ("info", (0, 1, 3))
    assert report.ranks[0].comm_wait_ms is None
    assert report.ranks[0].wait_ms is None
    assert "cannot be separated" in status(report, "TO-O001").reason
    assert report.summary.ledger_ms.comm_transfer is None


def test_missing_rank_is_named(ddp):
    rank_file(ddp, 1).unlink()
    report = analyze(ddp)
    [finding] = found(report, "TO-V001")
    assert (finding.severity, finding.ranks) == ("warning", (1,))
    assert report.run.ranks_missing == (1,)


def test_cut_off_trace_is_used_as_far_as_it_goes(ddp):
    whole = analyze(ddp)
    path = rank_file(ddp, 3)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    report = analyze(ddp)
    [finding] = found(report, "TO-V002")
    assert finding.ranks == (3,)
    assert "cut off" in finding.message
    assert str(path) in finding.message
    assert 0 < report.ranks[3].events < whole.ranks[3].events
    assert len(report.ranks) == 4


@pytest.mark.parametrize("keep", [0, 40], ids=["empty", "header-only"])
def test_useless_trace_costs_its_rank_only(ddp, keep):
    path = rank_file(ddp, 0)
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text[: text.index(b'"traceEvents"') + keep]) if keep else b"")
    report = analyze(ddp)
    assert report.run.ranks_present == (1, 2, 3)
    assert str(path) in found(report, "TO-V002")[0].message


def test_no_usable_trace_is_an_error_that_names_the_files(tmp_path):
    for rank in range(2):
        (tmp_path / f"rank_{rank}.json").write_text('{"traceEvents": [')
    with pytest.raises(InputError, match=r"(?s)rank_0\.json.*rank_1\.json"):
        analyze(tmp_path)


def test_ranks_with_different_steps_are_told_apart(ddp):
    path = rank_file(ddp, 2)
    text = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(text.replace(b"ProfilerStep#5", b"ProfilerStep#9")))
    [finding] = found(analyze(ddp), "TO-V003")
    assert finding.steps == (5, 9)


def test_accumulation_window_without_synchronisation(ddp):
    for path in ddp.iterdir():
        text = gzip.decompress(path.read_bytes()).replace(b"AllReduce", b"Other")
        for said, other in (
            (b"ncclDevKernel", b"otherKernel__"),
            (b"Collective name", b"no name"),
            (b"c10d::", b"aten::"),
        ):
            text = text.replace(said, other)
        path.write_bytes(gzip.compress(text))
    report = analyze(ddp)
    [finding] = found(report, "TO-V004")
    assert "DistributedDataParallel.forward" in finding.message
    assert status(report, "TO-O001").status == "not_evaluated"


@pytest.mark.parametrize(("plain", "severity"), [(22.0, None), (18.0, "info"), (12.0, "warning")])
def test_the_profilers_own_cost(ddp, plain, severity):
    (ddp / "run.json").write_text(f'{{"unprofiled_step_ms": {plain}, "profiled_step_ms": 23.0, "world_size": 4}}')
    report = analyze(ddp)
    assert [f.severity for f in found(report, "TO-V005")] == ([severity] if severity else [])
    host = found(report, "TO-I001")
    # A step of 12 ms has no room for the host time that the profiled steps show.
    assert [f.confidence for f in host] == {22.0: ["high"], 18.0: ["low"], 12.0: []}[plain]


def test_without_unprofiled_steps_nobody_claims_the_profiler_is_cheap():
    check = status(analyze(DATA / "ddp4"), "TO-V005")
    assert check.status == "not_evaluated"


def test_cpu_run_has_numbers_where_hta_has_none():
    report = analyze(DATA / "hta/cpu_only")
    [row] = report.ranks
    assert row.breakdown_source == "traceops"
    assert row.idle_pct == pytest.approx(14.9, abs=0.1)
    assert status(report, "TO-I001").reason == "the traces hold no GPU activity"


def test_processes_and_one_process_agree():
    one, two = analyze(DATA / "hsdp4", jobs=1), analyze(DATA / "hsdp4", jobs=2)
    assert one.ranks == two.ranks
    assert one.findings == two.findings


def test_clock_skew_does_not_touch_waiting_and_transfer(ddp):
    before = analyze(ddp)
    path = rank_file(ddp, 1)
    text = gzip.decompress(path.read_bytes())
    start = text.index(b'"baseTimeNanoseconds": ') + len(b'"baseTimeNanoseconds": ')
    end = text.index(b",", start)
    path.write_bytes(gzip.compress(text[:start] + str(int(text[start:end]) + 7_000_000_000).encode() + text[end:]))
    after = analyze(ddp)
    for key in ("comm_wait_ms", "comm_transfer_ms", "late_share"):
        assert np.allclose([getattr(row, key) for row in before.ranks], [getattr(row, key) for row in after.ranks]), key


def test_in_a_mesh_the_root_is_named_not_the_rank_that_came_last():
    report = analyze(DATA / "slow_hsdp4")
    [first] = found(report, "TO-S001")
    assert first is report.findings[0]
    assert (first.severity, first.ranks, first.cause, first.confidence) == ("warning", (1,), "gpu_compute", "high")
    # Of the replicas (0, 2) rank 0 comes last every time, because it waits for rank 1 in its shard group.
    replicas = [row for row in report.tables.arrivals if row.ranks == (0, 2)]
    assert {(row.last_rank, row.last_rank_pct) for row in replicas} == {(0, 100.0)}
    assert report.ranks[1].late_share > 0.95
    assert report.ranks[0].late_share < 0.05


def test_what_if_of_a_slow_rank_comes_near_the_healthy_run():
    # The same model on the same machine took 61.2 ms a step without the fault.
    rows = {row.change: row for row in analyze(DATA / "slow_hsdp4").what_if}
    assert rows["rank 1 as its peers"].predicted_step_time_ms == pytest.approx(61.16, rel=0.1)
    assert rows["input free"].saved_pct == pytest.approx(0, abs=0.1)


def test_stages_of_a_pipeline_are_matched_by_their_two_ends():
    report = analyze(DATA / "pipeline4")
    sends = [row for row in report.collectives if row.op == "send_recv"]
    assert sorted(tuple(row.ranks) for row in sends) == [(0, 1), (1, 2), (2, 3)]
    assert all(row.count == 12 for row in sends)
    assert report.summary.matching.unmatched.keys() <= {NO_METADATA, BEFORE_WINDOW}


@pytest.mark.parametrize("name", ["slow_gpu4", "slow_hsdp4", "fsdp2_4"])
def test_shifted_and_drifting_clocks_change_nothing(name, tmp_path):
    for rank in range(4):
        raw = json.loads(gzip.decompress((DATA / name / f"rank_{rank}.pt.trace.json.gz").read_bytes()))
        if rank % 2:
            raw["baseTimeNanoseconds"] += 7_300_000_000
            for event in raw["traceEvents"]:
                if "ts" in event and event.get("ph") == "X":
                    event["ts"] = round(event["ts"] * (1 + 50e-6), 3)
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(raw))
    plain, shifted = analyze(DATA / name), analyze(tmp_path)
    assert [(f.rule, f.ranks, f.cause, f.severity) for f in plain.findings] == [
        (f.rule, f.ranks, f.cause, f.severity) for f in shifted.findings
    ]
    for one, other in zip(plain.findings, shifted.findings, strict=True):
        assert one.impact_ms == pytest.approx(other.impact_ms, rel=0.02, abs=0.05)
    # Ends of collectives that agreed before agree again: the shift was found to within 50 µs.
    spread = shifted.summary.clocks.residual_p95_us
    assert spread <= plain.summary.clocks.residual_p95_us + 50
    assert abs(shifted.summary.clocks.offset_us["1"]) > 7_000_000


@pytest.mark.parametrize(
    "program",
    [
        "import traceops; one = traceops.analyze(path); two = traceops.analyze(path)",
        "import traceops.pipeline.analyze; one = traceops.analyze(path); two = traceops.pipeline.analyze.analyze(path)",
        "from traceops import analyze as a; import traceops; one = a(path); two = traceops.analyze(path)",
    ],
)
def test_analyze_is_callable_in_every_import_order_and_more_than_once(program):
    same = "assert one.report.run == getattr(two, 'report', two).run and traceops.load(one) is one"
    program = f"path = {str(DATA / 'hta' / 'pair')!r}; {program}; {same}"
    subprocess.run([sys.executable, "-c", program], check=True)
