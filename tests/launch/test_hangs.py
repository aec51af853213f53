"""Real trainings that hang or die in every way: noticed, explained, and ended without a process left."""

import json
import pickle
import re
import signal
import time

import pytest
from hang_run import DEADLOCK_S, finish, start

from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import RootKind

pytestmark = [pytest.mark.torch, pytest.mark.slow]


def check_evidence(run, *, dumped, stacks, wrapped=False):
    """The files are those of these ranks and can be read."""
    expected = {f"flight_recorder_{rank}" for rank in dumped} | {f"groups_{rank}.json" for rank in dumped}
    expected |= {f"stacks_{rank}.txt" for rank in stacks}
    expected |= {f"parameters_{rank}.json" for rank in dumped if wrapped}
    assert {name for name in run.evidence if not name.startswith("hang.")} == expected
    for rank in dumped:
        folder = run.folder / "evidence"
        assert pickle.loads((folder / f"flight_recorder_{rank}").read_bytes())["entries"]
        groups = json.loads((folder / f"groups_{rank}.json").read_text())
        assert groups["rank"] == rank and groups["groups"]["0"]["ranks"] == list(range(groups["world_size"]))
    for rank in stacks:
        text = (run.folder / "evidence" / f"stacks_{rank}.txt").read_text()
        header = text.splitlines()[0]
        assert header.startswith(f"# rank {rank}, pid {run.hang['ranks'][rank]['pid']}, main thread 0x")
        assert "hanging.py" in text and f"hread {header.split()[-1]} (most" in text


def check_end(run):
    assert run.code == 124, run.said
    manifest = run.manifest
    assert (manifest["status"], manifest["exit_code"]) == ("hung", 124)
    assert (
        re.search(r"hang: \d+ s without|no first step after \d+ s", run.said) and "next: traceops diagnose " in run.said
    )


def rules(run):
    """(rule, ranks) of each root, and that it was said before the job was ended."""
    found = [(root.rule, root.ranks) for root in diagnose(run.folder).roots]
    for rule, _ in found:
        assert rule in run.said
    return found


@pytest.mark.parametrize(("fault", "ranks"), [("sleep", 3), ("skip", 2), ("loader", 2)])
def test_a_rank_that_does_not_come_to_a_collective(tmp_path, fault, ranks):
    run = finish(start(tmp_path, fault, nproc=ranks, compiler=fault == "skip"), tmp_path)
    check_end(run)
    check_evidence(run, dumped=list(range(ranks)), stacks=list(range(ranks)), wrapped=fault == "loader")
    if fault == "loader":
        assert "The all_reduce has the gradients of weight and 1 more" in " ".join(run.said.split())
    assert (run.hang["schema_version"], run.hang["kind"], run.hang["limit_s"]) == (1, "step", 2.0)
    assert run.hang["stalled_s"] >= 2
    assert [rank["state"] for rank in run.hang["ranks"]] == ["S"] * ranks
    assert all(rank["exit_code"] is None and rank["heartbeat_age_s"] >= 1 for rank in run.hang["ranks"])
    assert all("sequence" not in rank for rank in run.hang["ranks"])  # null behind every short step
    assert rules(run) == [("TO-H001", (1,))]
    for rank in run.manifest["ranks"]:
        assert rank["traces"], "a rank that waits for its peers is freed to save its trace"


def test_another_collective(tmp_path):
    run = finish(start(tmp_path, "collective", nproc=3), tmp_path)
    check_end(run)
    check_evidence(run, dumped=[0, 1, 2], stacks=[0, 1, 2])
    assert rules(run) == [("TO-H002", (1,))]


def test_a_stopped_rank(tmp_path):
    run = finish(start(tmp_path, "stop"), tmp_path)
    check_end(run)
    check_evidence(run, dumped=[0], stacks=[0])
    assert [rank["state"] for rank in run.hang["ranks"]] == ["S", "T"]
    assert "rank 1 gave no stack" in run.hang["notes"]
    assert rules(run) == [("TO-H001", (1,))]


def test_a_rank_that_is_gone_where_the_others_cannot_see_it(tmp_path):
    run = finish(start(tmp_path, "exit-0-unseen"), tmp_path)
    check_end(run)
    check_evidence(run, dumped=[0], stacks=[0])
    assert [(rank["state"], rank["exit_code"]) for rank in run.hang["ranks"]] == [("S", None), ("gone", 0)]
    assert run.hang["notes"] == ["rank 1 is gone while others wait"]
    assert rules(run) == [("TO-H004", (1,))]


def test_a_rank_that_never_comes_to_initialise(tmp_path):
    # Ranks that start slowly on a busy machine move, or use the processor, and are not taken for hanging.
    options = ("--hang-timeout", "30", "--init-timeout", "2", "--kill-on-hang")
    run = finish(start(tmp_path, "init", options=options), tmp_path)
    check_end(run)
    check_evidence(run, dumped=[], stacks=[0, 1])
    assert run.hang["kind"] == "init"
    assert [(rank["step"], rank["phase"]) for rank in run.hang["ranks"]] == [(0, "starting")] * 2
    assert rules(run) == [("TO-H005", (1,))]


def test_a_job_that_only_waits_goes_on_to_its_end(tmp_path):
    """It was ended with 124 while it waited for a shard. Nothing that is seen from outside tells that from a hang."""
    run = finish(start(tmp_path, "pause", 8, options=("--hang-timeout", "2")), tmp_path)
    assert run.code == 0 and run.manifest["status"] == "finished", run.said
    assert re.search(r"hang: \d+ s without a step; .*the job goes on \(--kill-on-hang would end it\)", run.said)
    assert "TO-H001" in run.said and re.search(r"the ranks go on after \d+ s", run.said)
    assert not [name for name in run.evidence if not name.startswith("nccl")], "the run has no hang"
    (root,) = diagnose(run.folder / "stalls" / "1").roots
    assert (root.rule, root.ranks) == ("TO-H001", (1,))


def test_ctrl_c_at_a_hang_saves_what_the_ranks_are_doing(tmp_path):
    """People press it just then; it took 36 s, and nothing was saved."""
    process = start(tmp_path, "sleep", options=("--hang-timeout", "600"))
    deadline = time.monotonic() + DEADLOCK_S
    line = ""
    while "step 6" not in line:
        line = process.stderr.readline()
        assert process.poll() is None and time.monotonic() < deadline, line
    # Where the launcher saw none of the quick steps, only ten seconds without a step look like a stall.
    time.sleep(15)
    process.send_signal(signal.SIGINT)
    run = finish(process, tmp_path)
    manifest = run.manifest
    assert (run.code, manifest["status"], manifest["signal"]) == (130, "interrupted", "SIGINT"), run.said
    check_evidence(run, dumped=[0, 1], stacks=[0, 1])
    assert run.hang["notes"] == ["the user ended the job"]
    assert "stacks of ranks 0–1; flight records of ranks 0–1" in run.said
    assert "next: traceops diagnose " in run.said and "next: traceops analyze" not in run.said
    assert [(root.rule, root.ranks) for root in diagnose(run.folder).roots] == [("TO-H001", (1,))]
    for rank in manifest["ranks"]:
        assert rank["traces"], "what was captured is kept too"


@pytest.mark.parametrize(
    ("fault", "code", "reason"),
    [("exit-3", 3, "rank 1 on .* failed first, exit code 3\n"), ("exit-0", 1, "rank 1 on .* ended first, exit code 0")],
)
def test_the_rank_that_died_is_the_cause(tmp_path, fault, code, reason):
    """One that raises, exits in Python or is killed: test_run.py."""
    run = finish(start(tmp_path, fault, options=("--hang-timeout", "30")), tmp_path)
    assert run.code == code, run.said
    assert re.search(reason, run.said), run.said
    manifest = run.manifest
    assert (manifest["status"], manifest["exit_code"], manifest["failed_rank"]) == ("failed", code, 1)
    dead, waiting = manifest["ranks"][1], manifest["ranks"][0]
    assert dead["exit_code"] == (0 if fault == "exit-0" else code)
    assert waiting["exit_code"] in (1, 143)
    (root,) = diagnose(run.folder).roots
    assert (root.rule, root.ranks) == ("TO-H004", (1,))
    if fault == "exit-0":  # it failed nowhere: "Rank 1 died: it ended with exit code 0" was said
        assert (root.cause, root.kind) == ("ended_early", RootKind.LEFT)
    else:
        assert root.kind is RootKind.DIED


def test_another_shape(tmp_path):
    """gloo aborts the process that gets more than it asked for, where NCCL would hang."""
    run = finish(start(tmp_path, "shape", options=("--hang-timeout", "30"), nproc=3), tmp_path)
    assert run.code in (134, 139) and "failed first" in run.said, run.said
    assert run.manifest["status"] == "failed"
    if "expected size" in run.said:  # said before it aborts; a crash (139) says nothing
        assert [(root.rule, root.ranks) for root in diagnose(run.folder).roots] == [("TO-H002", (1,))]


@pytest.mark.parametrize("fault", ["evaluate", "evaluate-last"])
def test_a_slow_step_is_not_a_hang(tmp_path, fault):
    run = finish(start(tmp_path, fault, 5, active=2), tmp_path)
    assert run.code == 0, run.said
    assert re.search(r"slow step: no step for \d+ s; rank 1 is still working in evaluate \(hanging.py:", run.said)
    assert run.manifest["status"] == "finished" and [len(r["traces"]) for r in run.manifest["ranks"]] == [1, 1]
    assert run.evidence == set(), "a healthy run leaves nothing that looks like a hang"
