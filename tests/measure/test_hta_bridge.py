"""HTA answers the same through our columns as through its own loader, and our tables the same as HTA.

Where HTA errs, its value stands beside ours.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hta_reference import TABLES, differences, hta_analysis, hta_answers, write_rebased

from traceops.core.arrays import intersect
from traceops.measure import hta_bridge
from traceops.measure.activity import COMM, COMPUTE, MEMORY, find_activity
from traceops.measure.hta_bridge import hta_frames, tables_by_hta
from traceops.measure.hta_tables import hta_tables
from traceops.measure.inventory import measure_kernels
from traceops.measure.ledger import find_lane, ledger_of
from traceops.measure.steps import find_steps
from traceops.pipeline.analyze import analyze
from traceops.traces.kineto import load_trace

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
SHARED = ROOT.parent / "shared"
DDP = DATA / "ddp4/rank_0.pt.trace.json.gz"
(AMD,) = (DATA / "hta/amd").glob("*.gz")
(CPU_ONLY,) = (DATA / "hta/cpu_only").glob("*.gz")
NS = DATA / "hta/ns/rank-0.json.gz"
(CUPTI,) = (DATA / "hta/cupti").glob("*.gz")
RANKS = [("ddp4", 0), ("ddp4", 3), ("fsdp2_4", 1), ("hsdp4", 2), ("item_sync4", 2), ("slow_loader4", 2)]
RANKS += [("slow_gpu4", 2)]
SAMPLE = [DATA / f"{run}/rank_{rank}.pt.trace.json.gz" for run, rank in RANKS]
SAMPLE += [AMD, NS, *sorted((DATA / "hta/pair").glob("*.gz"))]

# HTA reports these rounded, to 0.01 µs, 0.01 % and whole µs; a sum of floats may fall on either side, and
# each interval of a kernel type is cut to whole µs before they are summed.
ROUNDED = {
    "idle_time": 0.0101,
    "idle_time_ratio": 0.0101,
    "comp_comm_overlap_pctg": 0.0101,
    "percentage": 0.101,
    "sum": 5,
}
NOISE_US = 1e-6


def frame_of(table):
    import pandas as pd  # by the worker that needs it, and not by each that collects the tests

    return pd.DataFrame(table)


def check_parity(path, rebased):
    answers, errors = hta_answers(write_rebased(path, rebased))
    trace = load_trace(str(path))
    frames, failed = hta_frames(0, trace)
    assert (errors, failed) == ({}, ())
    check_same(answers, frames)
    tables = hta_tables(0, trace.events)
    assert tables.failed == ()
    described = answers["launches"][["cpu_duration", "gpu_duration", "launch_delay"]].describe([0.05, 0.95])
    ours = {name: getattr(tables, name) for name in TABLES}
    check_same(
        {**answers, "launches": described.T.reset_index(names="quantity")},
        {name: frame_of(table) for name, table in ours.items() if table is not None},
    )
    return answers


def check_same(theirs, ours):
    for table in TABLES:
        for column, difference in differences(theirs.get(table), ours.get(table)).items():
            limit = ROUNDED.get(column, NOISE_US) if table not in ("kernels",) else NOISE_US
            assert difference <= limit, (table, column, difference)


@pytest.mark.parametrize("path", SAMPLE, ids=lambda path: f"{path.parent.name}/{path.name.split('.')[0]}")
def test_tables_are_the_same_by_us_by_hta_and_by_hta_with_its_own_loader(path, tmp_path):
    answers = check_parity(path, tmp_path / "rank_0.json")
    assert answers["temporal"]["kernel_time(us)"][0] > 0
    assert len(answers["kernels"]) > 2


@pytest.mark.skipif(not SHARED.exists(), reason="the larger set of traces is not here")
@pytest.mark.skipif("TRACEOPS_ALL_TRACES" not in os.environ, reason="minutes: set TRACEOPS_ALL_TRACES=1")
def test_tables_are_the_same_on_every_trace_there_is(tmp_path):
    paths = [*SHARED.glob("traces/**/*.json.gz"), *SHARED.glob("outside/**/*.json.gz")]
    paths = [path for path in paths if "cpu_only" not in path.parts]
    assert len(paths) > 80
    for path in paths:
        check_parity(path, tmp_path / "rank_0.json")


def test_on_the_file_as_it_is_hta_differs_by_what_a_float_of_its_times_loses():
    answers, _ = hta_answers(DDP)
    frames, _ = hta_frames(0, load_trace(str(DDP)))
    spacing = np.spacing(4361298540000.0)  # µs: this file's times
    assert 0 < differences(answers["launches"], frames["launches"])["launch_delay"] <= 2 * spacing
    assert max(differences(answers["temporal"], frames["temporal"]).values()) < 50 * spacing


def test_absolute_times_cost_hta_a_quarter_of_a_microsecond_each(tmp_path):
    ours, _ = hta_frames(0, load_trace(str(NS)))
    absolute, _ = hta_answers(NS)
    from_zero, _ = hta_answers(write_rebased(NS, tmp_path / "rank_0.json"))
    assert differences(absolute["launches"], ours["launches"])["launch_delay"] > 0.1
    assert differences(from_zero["launches"], ours["launches"])["launch_delay"] < NOISE_US
    assert differences(absolute["idle"], ours["idle"])["idle_time"] > 10
    assert differences(from_zero["idle"], ours["idle"])["idle_time"] < ROUNDED["idle_time"]


def test_nothing_of_hta_reaches_the_terminal():
    code = (
        "import sys, logging; logging.basicConfig(level=logging.INFO)\n"
        "import traceops.measure.hta_bridge as bridge; from traceops.traces.kineto import load_trace\n"
        "for path in sys.argv[1:]: print(bridge.tables_by_hta(0, load_trace(path)).failed)"
    )
    paths = [str(path) for path in (DDP, AMD, CPU_ONLY)]
    result = subprocess.run(
        [sys.executable, "-W", "always", "-c", code, *paths], text=True, capture_output=True, cwd=ROOT
    )
    assert result.stderr == ""
    assert result.stdout == "()\n()\n(('all', 'the trace has no GPU activity'),)\n"


def test_one_failing_analysis_costs_its_own_table_only(monkeypatch):
    def fail(*args):
        raise KeyError("stream")

    monkeypatch.setitem(hta_bridge._ANALYSES, "idle time breakdown", fail)
    tables = tables_by_hta(0, load_trace(str(AMD)))
    assert tables.failed == (("idle time breakdown", "KeyError: 'stream'"),)
    assert tables.idle is None
    assert tables.temporal is not None
    assert tables.queue_length is not None


# What HTA gets wrong, beside ours


def ledger(path):
    events = load_trace(str(path)).events
    activity = find_activity(events)
    steps = find_steps(events, activity)
    return ledger_of(find_lane(events, activity, steps), steps)


def test_without_a_gpu_hta_fails_and_the_ledger_answers():
    _, errors = hta_answers(CPU_ONLY)
    assert errors["temporal"].startswith("IndexError")
    assert errors["idle"].startswith("ValueError")
    ours = ledger(CPU_ONLY)
    assert sum(ours.buckets.values()).tolist() == ours.duration.tolist()
    assert ours.buckets["comm"].sum() > 0


def test_hta_finds_no_stragglers_where_the_kernels_are_called_nccldevkernel():
    analysis = hta_analysis({rank: DATA / f"slow_loader4/rank_{rank}.pt.trace.json.gz" for rank in range(4)})
    with pytest.raises(Exception, match=r".") as error:
        analysis.get_potential_stragglers()
    assert isinstance(error.value, (KeyError, ValueError, IndexError))
    late = {row.rank: row.late_share for row in analyze(DATA / "slow_loader4").ranks}
    assert max(late, key=late.get) == 1


def test_hta_gives_kernels_their_sum_as_mean_and_extremes_where_there_are_more_than_ten():
    events = load_trace(str(DDP)).events
    activity = find_activity(events)
    ours = {kernel.name: kernel for kernel in measure_kernels(events, activity, find_steps(events, activity))}
    table = frame_of(hta_tables(0, events).kernels)
    folded = table[(table.kernel_type == "COMPUTATION") & (table.name != "others")]
    assert len(folded) > 5
    for kernel in folded.to_dict("records"):
        assert kernel["min (us)"] == kernel["max (us)"] == kernel["mean (us)"] == kernel["sum (us)"]
        mine = ours[kernel["name"]]
        assert mine.count > 1
        assert mine.min_us < mine.total_us / mine.count < mine.max_us < kernel["max (us)"]


def test_hta_misses_launches_through_the_driver():
    events = load_trace(str(DDP)).events
    activity = find_activity(events)
    by_driver = events.in_cats("cuda_driver")[activity.launch] & (activity.launch >= 0)
    frames, _ = hta_frames(0, load_trace(str(DDP)))
    correlations = set(frames["launches"].correlation)
    assert by_driver.sum() > 100
    assert not correlations & set(events.correlation[activity.row[by_driver]].tolist())


def gpu(name, cat, ts, dur, stream, correlation):
    args = {"stream": stream, "correlation": correlation}
    return {"ph": "X", "name": name, "cat": cat, "pid": 0, "tid": stream, "ts": ts, "dur": dur, "args": args}


def host(name, cat, ts, correlation=None):
    args = {} if correlation is None else {"correlation": correlation}
    return {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "ts": ts, "dur": 1.0, "args": args}


def write(path, rows):
    path.write_text(json.dumps({"traceEvents": rows, "distributedInfo": {"rank": 0}}))
    return path


def test_hta_counts_a_stream_that_waits_as_computing(tmp_path):
    rows = [
        host("cudaLaunchKernel", "cuda_runtime", 0.0, 1), host("cudaLaunchKernel", "cuda_runtime", 2.0, 2),
        gpu("ncclDevKernel_AllReduce", "kernel", 10.0, 100.0, 20, 1), gpu("gemm", "kernel", 200.0, 50.0, 7, 2),
        gpu("Stream Wait Event", "cuda_sync", 10.0, 190.0, 7, 3),
    ]  # fmt: skip
    trace = load_trace(str(write(tmp_path / "rank_0.json", rows)))
    for tables in (hta_tables(0, trace.events), tables_by_hta(0, trace)):
        assert tables.overlap["comp_comm_overlap_pctg"] == [100]
        assert tables.temporal["idle_time(us)"] == [0]
    activity = find_activity(trace.events)
    assert intersect(activity.union_of(COMM), activity.union_of(COMPUTE)).total == 0
    assert activity.union_of(COMPUTE, COMM, MEMORY).total == 150_000


def test_hta_takes_event_0_for_the_launch_of_a_kernel_that_has_none(tmp_path):
    rows = [
        host("cudaStreamSynchronize", "cuda_runtime", 500.0, 99),  # has launched nothing
        gpu("gemm", "kernel", 10.0, 10.0, 7, 1), gpu("gemm", "kernel", 120.0, 10.0, 7, 2),
    ]  # fmt: skip
    path = write(tmp_path / "rank_0.json", rows)
    theirs, _ = hta_answers(path)
    trace = load_trace(str(path))
    idle = [
        dict(zip(table["idle_category"], table["idle_time"], strict=True))
        for table in (theirs["idle"], tables_by_hta(0, trace).idle, hta_tables(0, trace.events).idle)
    ]
    assert idle[0]["host_wait"] == 100
    assert idle[1] == idle[2] == {"other": 100}


def test_hta_rounds_times_unless_told_otherwise_and_our_columns_are_not_rounded():
    theirs = (
        "from hta.trace_analysis import TraceAnalysis\n"
        "table = TraceAnalysis(trace_files={0: sys.argv[1]}).get_temporal_breakdown(visualize=False)"
    )
    ours = (
        "from traceops.measure.hta_bridge import tables_by_hta; from traceops.traces.kineto import load_trace\n"
        "table = tables_by_hta(0, load_trace(sys.argv[1])).temporal"
    )
    env = {key: value for key, value in os.environ.items() if key != "HTA_DISABLE_NS_ROUNDING"}
    idle = []
    for code in (theirs, ours):
        code = f"import sys, warnings; warnings.simplefilter('ignore')\n{code}\nprint('idle', *table['idle_time(us)'])"
        run = subprocess.run(
            [sys.executable, "-c", code, str(DDP)], text=True, capture_output=True, cwd=ROOT, env=env, check=True
        )
        idle.append(float(run.stdout.split("idle ")[1]))
    assert idle[1] == hta_tables(0, load_trace(str(DDP)).events).temporal["idle_time(us)"][0]
    assert idle[0] > 1.2 * idle[1]


def test_the_runs_own_analysis_has_the_frames_of_htas_reader():
    import pandas as pd

    paths = {rank: str(DATA / f"slow_loader4/rank_{rank}.pt.trace.json.gz") for rank in (0, 1)}
    ours, theirs = hta_bridge.hta_analysis(paths), hta_analysis(paths)
    for rank in paths:
        # HTA moves ts to zero and forgets `end`.
        one, other = (made.t.get_trace(rank).drop(columns=["end", "cat", "name"]) for made in (ours, theirs))
        assert (one["pid"].astype(str) == other["pid"].astype(str)).all()
        same = one.drop(columns="pid").columns
        for column in same:
            if one[column].dtype == object or other[column].dtype == object:
                assert one[column].astype(str).tolist() == other[column].astype(str).tolist(), column
            else:
                assert np.allclose(one[column], other[column], atol=1e-3, rtol=0), column
        names = [
            [made.t.symbol_table.get_sym_table()[at] for at in made.t.get_trace(rank)["name"]]
            for made in (ours, theirs)
        ]
        assert names[0] == names[1]
    for method in ("get_temporal_breakdown", "get_comm_comp_overlap"):
        pd.testing.assert_frame_equal(getattr(ours, method)(visualize=False), getattr(theirs, method)(visualize=False))
    assert ours.get_memory_bw_summary().round(3).equals(theirs.get_memory_bw_summary().round(3))


def test_htas_trace_diff_takes_runs():
    from hta.trace_diff import LabeledTrace, TraceDiff

    import traceops

    runs = [traceops.load(DATA / name / "rank_0.pt.trace.json.gz") for name in ("ddp4", "slow_loader4")]
    moved = TraceDiff.compare_traces(*(LabeledTrace(run.name, t=run.hta.t) for run in runs))
    assert len(moved) > 50


# What only HTA has


def test_sequences_are_those_that_hta_finds_with_its_own_loader(tmp_path):
    ours = tables_by_hta(0, load_trace(str(DDP)), more=True)
    assert ours.failed == ()
    table = frame_of(ours.sequences)
    assert len(table) > 3
    operator = table["pattern"][0].split("|")[0]
    theirs = hta_analysis({0: DDP}).get_frequent_cuda_kernel_sequences(operator, str(tmp_path), visualize=False)
    same = table[table["pattern"].isin(theirs["pattern"])].set_index("pattern")
    assert len(same) == len(theirs) > 0
    wanted = theirs.set_index("pattern").loc[same.index]
    assert same["count"].tolist() == wanted["count"].tolist()
    for column in ("GPU kernel duration (us)", "CPU op duration (us)"):
        assert np.allclose(same[column], wanted[column], rtol=1e-6)


def test_the_search_writes_no_copy_of_the_trace(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert tables_by_hta(0, load_trace(str(SAMPLE[-1])), more=True).sequences
    assert list(tmp_path.iterdir()) == []


def test_counters_are_htas_means_by_operator_and_kernel():
    table = tables_by_hta(0, load_trace(str(CUPTI)), more=True).counters
    (theirs,) = hta_analysis({0: CUPTI}).get_cupti_counter_data_with_operators(ranks=[0])
    assert sum(table["count"]) == len(theirs) > 0
    counters = [name for name in table if "__" in name]
    assert counters
    for at, name in enumerate(table["name"]):
        own = theirs[
            (theirs["name"] == name)
            & (theirs["top_level_op"] == table["top_level_op"][at])
            & (theirs["bottom_level_op"] == table["bottom_level_op"][at])
        ]
        assert len(own) == table["count"][at]
        for counter in counters:
            assert table[counter][at] == pytest.approx(own[counter].mean())
