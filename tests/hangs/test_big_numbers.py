"""One number of a rank makes no world: time, memory and output grow with the evidence, not with what it claims."""

import json

import pytest

from traceops.cli import main
from traceops.core.rank_text import first_ranks, ranks_in, runs_of, runs_text, runs_without
from traceops.hangs.diagnose import diagnose
from traceops.hangs.job import World, world_of
from traceops.traces.run_manifest import MOST_RANKS

# As torch 2.9 logs a monitored barrier that two ranks did not reach; the second number was put there.
BARRIER = (
    "[rank0]:[E1121 07:50:32.927786212 ProcessGroupGloo.cpp:67] [Rank 0]: Ranks 1, 999999 failed to pass "
    "monitoredBarrier in 1000 ms\n"
)


def written(tmp_path):
    return sum(path.stat().st_size for path in (tmp_path / "out").iterdir())


def test_a_number_in_a_log_makes_no_rows(tmp_path, capsys):
    (tmp_path / "log.txt").write_text(BARRIER)
    assert main(["diagnose", str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    held = json.loads((tmp_path / "out" / "hang.json").read_text())
    assert held["run"]["world_size"] is None
    assert [row["rank"] for row in held["hang"]["ranks"]] == [0, 1, 999_999]
    assert held["hang"]["roots"][0]["ranks"] == [1, 999_999]
    assert written(tmp_path) < 100_000
    assert "1, 999999" in capsys.readouterr().out


def test_a_rank_that_the_job_does_not_have_is_left_out_and_said(tmp_path):
    (tmp_path / "run.json").write_text('{"world_size": 3, "nnodes": 1}')
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0.stderr.log").write_text(BARRIER)
    found = diagnose(tmp_path)
    assert (found.evidence.world_size, [root.ranks for root in found.roots]) == (3, [(1,)])
    ((path, what),) = found.evidence.problems
    assert path.endswith("rank_0.stderr.log")
    assert what == "it names rank 999999, which is not one of the job's 3 ranks (from line 1); that is left out"


def test_a_large_world_is_told_in_runs(tmp_path, capsys):
    (tmp_path / "run.json").write_text(json.dumps({"world_size": MOST_RANKS}))
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_7.stderr.log").write_text(BARRIER.replace("999999", "9").replace("ank0", "ank7"))
    assert main(["diagnose", str(tmp_path), "-o", str(tmp_path / "out")]) == 0
    run = json.loads((tmp_path / "out" / "hang.json").read_text())["run"]
    assert run["world_size"] == MOST_RANKS and run["ranks_present"] == [7]
    assert run["ranks_missing_runs"] == [[0, 6], [8, MOST_RANKS - 1]]
    assert run["ranks_missing"] == [*range(7), *range(8, 4097)]
    assert f"Nothing is known of ranks 0-6, 8-{MOST_RANKS - 1}." in capsys.readouterr().out
    page = (tmp_path / "out" / "hang.html").read_text()
    assert f"ranks 0–6, 8–{MOST_RANKS - 1}" in page
    assert written(tmp_path) < 200_000


def test_a_large_world_of_a_trace_is_told_in_runs(tmp_path):
    event = '{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 5, "dur": 1}'
    trace = f'{{"distributedInfo": {{"rank": 2, "world_size": {MOST_RANKS}}}, "traceEvents": [{event}]}}'
    (tmp_path / "rank_2.json").write_text(trace)
    assert main(["analyze", str(tmp_path), "-o", str(tmp_path / "out"), "-q"]) == 0
    run = json.loads((tmp_path / "out" / "report.json").read_text())["run"]
    assert run["ranks_missing_runs"] == [[0, 1], [3, MOST_RANKS - 1]] and len(run["ranks_missing"]) == 4096
    assert f"0–1, 3–{MOST_RANKS - 1}" in (tmp_path / "out" / "summary.html").read_text()
    assert (tmp_path / "out" / "report.json").stat().st_size < 200_000


@pytest.mark.parametrize(
    ("told", "own", "named", "world"),
    [
        ([], [], [], None),
        ([], [], [0, 1, 2], 3),
        ([], [], [500], 501),  # few ranks are believed
        ([], [0], [1500], None),  # so many are not, of two that are known
        ([], range(0, 1600, 10), [1500], 1591),  # but of a tenth of them they are
        ([4], [0], [5], 6),
        ([4], [0], [999_999], 4),
        ([4], [999_999], [], None),
        ([MOST_RANKS], [0], [], MOST_RANKS),
        ([MOST_RANKS + 1, -1, 0], [0], [], 1),
    ],
)
def test_how_many_ranks_the_job_has(told, own, named, world):
    found = world_of([World(size, "run") for size in told], set(own), set(named))
    assert (None if found is None else found.size) == world


def test_runs():
    assert runs_of([3, 1, 2, 2, 7]) == ((1, 3), (7, 7))
    assert runs_without(10, [0, 1, 5, 12, -1]) == ((2, 4), (6, 9))
    assert runs_without(3, []) == ((0, 2),) and runs_without(2, [0, 1]) == () == runs_without(0, [])
    assert ranks_in(((1, 3), (7, 7))) == 4
    assert first_ranks(((0, 1), (5, 10**9)), 4) == (0, 1, 5, 6) and first_ranks((), 4) == ()
    assert runs_text(((0, 1), (5, 10**9)), 1) == "0–1 … (999999998 in all)"
