"""What one folder holds: one run or several, of one host or several, and ranks that are there twice."""

import json
import re
import shutil
from pathlib import Path

import pytest
from fault_runs import unpacked

from traceops.core.claims import claim_of
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.coverage import unjudged_sentence
from traceops.render.report.html import describe
from traceops.render.report.terminal import describe_summary
from traceops.render.writers.csv import render_csv_files
from traceops.render.writers.terminal import write_terminal
from traceops.rules.bandwidth import LowBandwidth
from traceops.traces.windows import host_in_name

EPOCH_NS = 1_790_857_026 * 10**9
HOUR_US = 3_600_000_000


def write(path, rank, *, begin_us=0, steps=(3, 4, 5), host=None, inside=None, world=2, salt=0, group=(0, 1), pid=1):
    """Two ranks' traces: one all-reduce a step; `begin_us` after the epoch that the file names."""
    events = []
    for i, step in enumerate(steps):
        at = begin_us + 1000 * i
        mark = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{step}", "pid": pid, "tid": 1}
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "dur": 2}
        comm = {"stream": 7, "correlation": 50 + i, "Collective name": "allreduce", "In msg nelems": 8,
                "dtype": "Float", "Process Group Ranks": str(list(group)), "Seq": step}  # fmt: skip
        kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7}
        events += [
            {**mark, "ts": at, "dur": 999},
            {**launch, "ts": at + 5, "args": {"correlation": 1 + i}},
            {**launch, "ts": at + 9, "args": {"correlation": 50 + i}},
            {**kernel, "name": "k", "ts": at + 20, "dur": 500 + rank + salt,
             "args": {"stream": 7, "correlation": 1 + i}},
            {**kernel, "name": "ncclDevKernel_AllReduce", "ts": at + 600, "dur": 300 - rank, "args": comm},
        ]  # fmt: skip
    trace = {"distributedInfo": {"rank": rank if inside is None else inside, "world_size": world}}
    trace |= {"baseTimeNanoseconds": EPOCH_NS, "traceEvents": events} | ({"host_name": host} if host else {})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(trace))


def said(report, rule):
    return [finding.message for finding in report.findings if finding.rule == rule]


def assert_not_clean(report):
    assert card_of(report).level in ("warning", "error")


def test_a_rank_of_a_world_that_nothing_records_misses_no_others(tmp_path):
    """'1 of 2 ranks has no trace: 0', from a rank's number alone."""
    write(tmp_path / "trace.json", 1, world=None)
    report = analyze(tmp_path)
    assert not said(report, "TO-V001") and not report.run.ranks_missing


def test_one_run_is_not_doubted(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"rank_{rank}.json", rank, begin_us=3 * rank)
    report = analyze(tmp_path)
    assert report.run.ranks_present == (0, 1)
    assert said(report, "TO-V002") == said(report, "TO-V007") == []


def test_two_captures_an_hour_apart_are_not_one_run(tmp_path):
    write(tmp_path / "rank_0.json", 0)
    write(tmp_path / "rank_1.json", 1, begin_us=HOUR_US)
    report = analyze(tmp_path)
    assert report.run.ranks_present == (1,) and report.run.ranks_missing == (0,)
    (message,) = said(report, "TO-V002")
    assert "rank_0.json: begins 1:00:00 before rank 1 does: it is of another capture. It is left out" in message
    assert_not_clean(report)
    assert said(report, "TO-V001") == ["1 of 2 ranks has no usable trace: 0."]
    assert card_of(report).headline == "1 of 2 ranks has no usable trace: 0"


@pytest.mark.parametrize("why", ["hosts", "manifest"])
def test_clocks_that_may_be_wrong_leave_nobody_out_and_are_said(tmp_path, why):
    for rank in (0, 1):
        host = f"node{rank}" if why == "hosts" else None
        write(tmp_path / f"rank_{rank}.json", rank, begin_us=HOUR_US * rank, host=host)
    if why == "manifest":
        (tmp_path / "run.json").write_text('{"world_size": 2, "ranks": [{"rank": 0}, {"rank": 1}]}')
    report = analyze(tmp_path)
    assert report.run.ranks_present == (0, 1)
    (message,) = said(report, "TO-V007")
    assert "1:00:00 before rank 1 does: a clock is off by that, or it is of another capture" in message
    assert_not_clean(report)


def test_a_copy_is_no_rank(tmp_path):
    write(tmp_path / "rank_1.json", 1)
    shutil.copy(tmp_path / "rank_1.json", tmp_path / "rank_0.json")
    report = analyze(tmp_path)
    assert report.run.ranks_present == (1,)
    (message,) = said(report, "TO-V002")
    assert f"is a copy of {tmp_path / 'rank_1.json'}: the same events" in message
    assert_not_clean(report)


def test_a_file_that_holds_another_rank_than_it_is_named_after(tmp_path):
    write(tmp_path / "rank_0.json", 1)
    write(tmp_path / "rank_1.json", 0)
    report = analyze(tmp_path)
    assert [(row.rank, row.trace[-11:]) for row in report.ranks] == [(0, "rank_1.json"), (1, "rank_0.json")]
    first, second = said(report, "TO-V007")
    assert "rank_0.json: is named as rank 0 and holds rank 1. It is taken as rank 1" in first
    assert "rank_1.json: is named as rank 1 and holds rank 0" in second
    assert_not_clean(report)


def test_steps_with_one_number_twice(tmp_path):
    write(tmp_path / "rank_0.json", 0)
    write(tmp_path / "rank_1.json", 1, steps=(3, 4, 4))
    (message,) = said(analyze(tmp_path), "TO-V007")
    assert "rank_1.json: marks step 4 more than once" in message


@pytest.mark.parametrize(
    ("manifest", "what"),
    [
        ({"world_size": 4}, "it tells of a run of 4 ranks, the traces of one of 2"),
        ({"started_ns": EPOCH_NS + 3600 * 10**9}, "its run began 1:00:00 after the traces did"),
        ({"ended_ns": EPOCH_NS - 3600 * 10**9}, "its run ended 1:00:00 before the traces began"),
    ],
)
def test_the_manifest_of_another_run(tmp_path, manifest, what):
    for rank in (0, 1):
        write(tmp_path / f"rank_{rank}.json", rank)
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    (message,) = said(analyze(tmp_path), "TO-V007")
    assert what in message


def lives(*spans, host="node0"):
    """run.json with the seconds in which each rank's process ran."""
    ranks = [
        {"rank": r, "host": host, "started_ns": EPOCH_NS + int(a * 1e9), "ended_ns": EPOCH_NS + int(b * 1e9)}
        for r, (a, b) in enumerate(spans)
    ]
    return json.dumps({"world_size": len(spans), "ranks": ranks})


@pytest.mark.parametrize(
    "seconds, how",
    [
        (-15, "was recorded 0:05 before the process of rank 1 began"),
        (25, "was recorded 0:15 after the process of rank 1 ended"),
    ],
)
def test_a_trace_of_a_run_just_before_or_after_is_left_out(tmp_path, seconds, how):
    """A trace of another run that lay under a rank's name was used without a word."""
    write(tmp_path / "rank_0.json", 0)
    write(tmp_path / "rank_1.json", 1, begin_us=seconds * 10**6)
    (tmp_path / "run.json").write_text(lives((-10, 10), (-10, 10)))
    report = analyze(tmp_path)
    assert report.run.ranks_present == (0,) and report.run.ranks_missing == (1,)
    (message,) = said(report, "TO-V002")
    assert f"rank_1.json: {how}: it is of another run. It is left out" in message
    assert_not_clean(report)


def test_a_host_whose_clock_was_set_keeps_its_ranks(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"rank_{rank}.json", rank)
    manifest = json.loads(lives((-10, 10), (20, 30)))
    manifest["ranks"][1]["host"] = "node1"
    (tmp_path / "run.json").write_text(json.dumps(manifest))
    report = analyze(tmp_path)
    assert report.run.ranks_present == (0, 1)
    (message,) = said(report, "TO-V007")
    assert "the host's clock was set, or it is of another run. It is used" in message


def test_without_run_json_a_rank_apart_in_time_whose_collectives_match_none_is_said(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"rank_{rank}.json", rank, world=3)
    write(tmp_path / "rank_2.json", 2, begin_us=15 * 10**6, world=3, group=(0, 1, 2))
    report = analyze(tmp_path)
    (message,) = said(report, "TO-V007")
    assert "rank_2.json: begins 0:15 after the traces of ranks 0–1 with the same steps" in message
    assert_not_clean(report)


def test_a_clock_that_is_off_is_no_other_capture_where_collectives_match(tmp_path):
    for rank in (0, 1):
        write(tmp_path / f"rank_{rank}.json", rank, begin_us=15 * 10**6 * rank)
    assert said(analyze(tmp_path), "TO-V007") == []


def processes(pids, hosts=("node0", "node0")):
    """run.json with the process and the lifetime of each rank."""
    manifest = json.loads(lives((-10, 10), (-10, 10)))
    for entry, pid, host in zip(manifest["ranks"], pids, hosts, strict=True):
        entry |= {"pid": pid, "host": host}
    return json.dumps(manifest)


def test_a_trace_of_a_run_of_the_same_minute_is_left_out_by_its_process(tmp_path):
    """Ranks of two runs at the same time were taken for one run without a word."""
    write(tmp_path / "rank_0.json", 0, pid=40)
    write(tmp_path / "rank_1.json", 1, pid=91)
    (tmp_path / "run.json").write_text(processes((40, 41)))
    report = analyze(tmp_path)
    assert report.run.ranks_present == (0,)
    (message,) = said(report, "TO-V002")
    assert "rank_1.json: was recorded by process 91, and rank 1 was 41: it is of another run. It is left" in message
    assert_not_clean(report)


@pytest.mark.parametrize(
    "pids", [(40, 41), (40, 40), (91, 91), (91, 92)], ids=["its own", "of rank 0", "a parent's", "of nobody"]
)
def test_a_process_that_does_not_tell_leaves_nobody_out(tmp_path, pids):
    for rank, pid in enumerate(pids):
        write(tmp_path / f"rank_{rank}.json", rank, pid=pid)
    (tmp_path / "run.json").write_text(processes((40, 41)))
    report = analyze(tmp_path)
    assert report.run.ranks_present == (0, 1)
    assert said(report, "TO-V002") == said(report, "TO-V007") == []


def test_a_process_of_another_host_is_said_and_used(tmp_path):
    for rank, pid in enumerate((40, 91)):
        write(tmp_path / f"rank_{rank}.json", rank, pid=pid)
    (tmp_path / "run.json").write_text(processes((40, 41), ("node0", "node1")))
    report = analyze(tmp_path)
    assert report.run.ranks_present == (0, 1)
    (message,) = said(report, "TO-V007")
    assert "by process 91, and rank 1 was 41: it is of another run. It is used" in message


def kept_windows(folder, steps):
    """The traces of ranks that recorded these steps, and run.json that says so."""
    schedule = {"skip_first": 2, "unprofiled": 6, "warmup": 2, "active": 4, "repeat": 1}
    ranks = []
    for rank, own in enumerate(steps):
        write(folder / f"rank_{rank}.json", rank, steps=own, world=len(steps), group=range(len(steps)))
        window = {"index": 0, "trace": f"rank_{rank}.json", "steps": list(own), "complete": True}
        ranks.append({"rank": rank, "windows": [window]})
    manifest = {"world_size": len(steps), "ranks": ranks, "schedule": schedule, "steps": 20}
    (folder / "run.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("steps", "left"),
    [
        ([(10, 11, 12), (1, 2), (10, 11, 12)], (1,)),
        ([(1, 2), (10, 11, 12)], (0,)),
        ([(1, 2), (1, 2), (10,)], (2,)),
        ([(10,), (10, 11, 12), (1, 2)], (2,)),
    ],
    ids=["the most ranks", "of two the later", "most ended early", "some in common"],
)
def test_ranks_with_other_steps_are_left_out_of_all_numbers(tmp_path, steps, left):
    """The headline was a median of a program's first steps and of later ones, which is the time of no step."""
    kept_windows(tmp_path, steps)
    report = analyze(tmp_path)
    assert report.run.ranks_present == tuple(rank for rank in range(len(steps)) if rank not in left)
    (message,) = [text for text in said(report, "TO-V003") if "recorded other steps" in text]
    assert f"Rank {left[0]} recorded other steps" in message and "All numbers are of" in message
    assert said(report, "TO-V001") == [], "they have a trace"
    assert_not_clean(report)


def test_ranks_with_a_step_in_common_all_count(tmp_path):
    kept_windows(tmp_path, [(10, 11, 12), (10, 11)])
    report = analyze(tmp_path)
    assert report.run.ranks_present == (0, 1)
    assert "2 steps are common to all ranks" in said(report, "TO-V003")[0]


def test_steps_that_nobody_says_are_counted_alike_leave_no_rank_out(tmp_path):
    kept_windows(tmp_path, [(10, 11, 12), (1, 2)])
    (tmp_path / "run.json").unlink()
    report = analyze(tmp_path)
    assert report.run.ranks_present == (0, 1)
    assert "No step is common to all ranks" in said(report, "TO-V003")[0]


@pytest.mark.parametrize(
    ("later", "analysed"),
    [
        ([(60, 61, 62), (60, 61, 62)], 1),
        ([(60, 61), (60, 61)], 1),
        ([(60, 61, 62), ()], 0),
        ([(60, 61, 62)], 0),
        ([(60,), (60,)], 0),
    ],
    ids=["whole", "two steps", "without a whole step on a rank", "on one rank only", "one step"],
)
def test_a_window_that_the_programs_end_cut_short_costs_no_earlier_one(tmp_path, later, analysed):
    """The last window was analysed whatever it held, and the whole one before it left alone."""
    ranks = [{"rank": rank, "windows": []} for rank in (0, 1)]
    for number, steps in enumerate(([(3, 4, 5)] * 2, later)):
        for rank, own in enumerate(steps):
            name = f"rank_{rank}/trace.window_{number}.json"
            write(tmp_path / name, rank, begin_us=10_000 * number, steps=own or (60, 61, 62))
            window = {"index": number, "trace": name, "steps": list(own), "complete": len(own) == 3}
            ranks[rank]["windows"].append(window)
    (tmp_path / "run.json").write_text(json.dumps({"world_size": 2, "ranks": ranks}))
    report = analyze(tmp_path)
    assert report.run.ranks_present == (0, 1)
    assert report.run.steps == ((3, 4, 5) if not analysed else later[0])
    notes = [note for note in report.summary.notes if "window 0 is analysed, and not window 1" in note]
    assert len(notes) == (not analysed)


@pytest.mark.parametrize(
    ("why", "ms", "analysed"), [("slower", 30.0, 1), ("slower", 50.0, 0), ("slower", None, 1), (None, 50.0, 1)]
)
def test_a_window_that_was_to_be_better_and_is_not_is_not_analysed(tmp_path, why, ms, analysed):
    """Something else came up on the machine just then. One that the user asked for is analysed all the same."""
    ranks = []
    for rank in (0, 1):
        entry = {"rank": rank, "windows": [], "profiled_steps": [], "profiled_step_ms": []}
        for number, (steps, took) in enumerate((((3, 4, 5), 40.0), ((60, 61, 62), ms))):
            name = f"rank_{rank}/trace.window_{number}.json"
            write(tmp_path / name, rank, begin_us=10_000 * number, steps=steps)
            window = {"index": number, "trace": name, "steps": list(steps), "complete": True}
            entry["windows"].append({**window, "why": why if number else None})
            if took is not None:
                entry["profiled_steps"] += steps
                entry["profiled_step_ms"] += [took] * 3
        ranks.append(entry)
    (tmp_path / "run.json").write_text(json.dumps({"world_size": 2, "ranks": ranks}))
    report = analyze(tmp_path)
    assert report.run.steps == ((60, 61, 62) if analysed else (3, 4, 5))
    assert any("were recorded to show shorter ones" in note for note in report.summary.notes) != analysed


def test_the_names_that_our_capture_gives_tell_the_host_too():
    """Without run.json two captures of one host, half a minute apart, were compared."""
    assert host_in_name("mix/vm_1672.window_0.1795893468323.pt.trace.json", 1672) == "vm"
    assert host_in_name("mix/vm_1672.1795893468323.pt.trace.json.gz", 1672) == "vm"
    assert host_in_name("mix/vm.window_0.1795893468323.pt.trace.json", 1672) is None


# Runs of several hosts: a row a host, and communication inside a host apart from that between hosts.


DATA = Path(__file__).resolve().parents[1] / "data"


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    """A recorded run on a 2×2 mesh, as if ranks 0 and 1 had been on one node and 2 and 3 on another."""
    folder = tmp_path_factory.mktemp("hsdp")
    for path in (DATA / "slow_hsdp4").glob("*.json*"):
        shutil.copy(path, folder / path.name)
    run = json.loads((folder / "run.json").read_text()) if (folder / "run.json").exists() else {"world_size": 4}
    told = {entry["rank"]: entry for entry in run.get("ranks", [])}
    run["hosts"] = ["node-0", "node-1"]
    run["ranks"] = [{**told.get(rank, {}), "rank": rank, "host": f"node-{rank // 2}"} for rank in range(4)]
    (folder / "run.json").write_text(json.dumps(run))
    return analyze(folder)


def test_a_row_a_host_adds_up_to_what_its_ranks_do(two_hosts):
    rows, ranks = two_hosts.hosts, {row.rank: row for row in two_hosts.ranks}
    assert [(row.host, row.ranks) for row in rows] == [("node-0", (0, 1)), ("node-1", (2, 3))]
    for row in rows:
        own = [ranks[rank] for rank in row.ranks]
        for name in ("compute_ms", "comm_wait_ms", "idle_host_ms"):
            assert getattr(row, name) == pytest.approx(sum(getattr(one, name) for one in own) / 2, abs=1e-5)
        assert row.late_share == pytest.approx(sum(one.late_share for one in own), abs=1e-5)
        whole = sum(one.transfer_ms for one in own) / 2, sum(one.wait_ms for one in own) / 2
        split = (row.inside_transfer_ms + row.between_transfer_ms, row.inside_wait_ms + row.between_wait_ms)
        assert split == pytest.approx(whole, rel=1e-4), "all of it lies inside or between"
        assert row.inside_transfer_ms > 0 and row.between_transfer_ms > 0
        assert row.inside_busbw_gbs and row.between_busbw_gbs


def test_hosts_are_in_page_terminal_and_csv(two_hosts, tmp_path, capsys):
    import sys

    write_terminal(describe_summary(two_hosts, tmp_path, verbose=True), sys.stdout)
    shown = capsys.readouterr().out
    assert "4 ranks on 2 hosts" in shown and "node-1  2–3" in shown
    assert "hosts" in [section.id for section in describe(two_hosts).sections]
    lines = render_csv_files(two_hosts)["hosts.csv"].splitlines()
    assert lines[0].startswith("host,ranks,step_ms,") and lines[2].startswith("node-1,2 3,")


def test_one_host_has_no_table_of_hosts():
    report = analyze(DATA / "starved_loader2")
    assert not report.hosts and "hosts.csv" not in render_csv_files(report)
    assert "hosts" not in [section.id for section in describe(report).sections]


# Two ranks that share one H200 and send over sockets, by plain torch.profiler: what their traces do not tell.


def test_steps_that_only_some_ranks_recorded_count_in_no_mean(tmp_path):
    """Of four steps a rank two are shared: 9.3 of 16 ms of transfer were told, and a step of 88.7 ms for 87.3."""
    report = analyze(unpacked("sockets_shifted", tmp_path))
    step = report.summary.step_time_ms
    assert step.unshared == (2, 3, 6, 7)
    assert step.typical == pytest.approx(87.26, rel=0.02)
    assert report.summary.ledger_ms.comm_transfer == pytest.approx(16.3, rel=0.03)
    assert report.summary.ledger_ms.comm_unmatched == 0


def test_nobody_knows_whether_ranks_that_each_see_one_gpu_share_a_host(tmp_path):
    """They were held to NVLink, as an error. Names that the program chose have no host."""
    both = unpacked("sockets_plain", tmp_path)
    for rank, path in enumerate(sorted(both.iterdir())):
        path.rename(both / f"rank{rank}.1795470461619331944.pt.trace.json")
    report = analyze(both)
    [slow] = [one for one in report.findings if one.rule == "TO-C001"]
    assert (slow.severity, slow.confidence) == ("warning", "low")
    assert claim_of(slow, LowBandwidth).may_be_apart


def test_the_name_of_a_trace_says_the_host(tmp_path):
    """tensorboard_trace_handler writes HOST_PID.time.pt.trace.json, unless the program names the worker itself."""
    report = analyze(unpacked("sockets_plain", tmp_path))
    assert report.run.hosts == ("vm",)
    [slow] = [one for one in report.findings if one.rule == "TO-C001"]
    assert slow.confidence == "high" and "of one host." in slow.message


def test_ranks_of_one_host_recorded_minutes_apart_are_of_two_runs(tmp_path):
    """Their collectives match by number, and clocks that nobody sets may be off by minutes; one host has one clock."""
    both = unpacked("sockets_plain", tmp_path)
    path = sorted(both.iterdir())[1]
    text = path.read_text()
    [base] = re.findall(r'"baseTimeNanoseconds": (\d+)', text)
    path.write_text(text.replace(base, str(int(base) + 120 * 10**9)))
    report = analyze(both)
    assert report.run.ranks_present == (1,)
    [left] = [one.message for one in report.findings if one.rule == "TO-V002"]
    assert "begins 2:00 before rank 1 does: it is of another capture. It is left out" in left


def test_one_rank_alone_says_what_of_its_step_nobody_can_judge(tmp_path):
    """The first sentence had a missing rank, and nothing of a fifth of the step in collectives."""
    both = unpacked("sockets_plain", tmp_path)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(sorted(both.iterdir())[0], alone)
    report = analyze(alone)
    card = card_of(report)
    assert card.headline.startswith("1 of 2 ranks has no trace") and card.judged_pct < 85
    assert "Add the traces of the missing ranks" in unjudged_sentence(report)
