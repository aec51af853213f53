"""Processes that train as a rank that another process is already: Hogwild, or ranks that torchrun starts again."""

import subprocess
import sys
from pathlib import Path

import pytest
from changed import replace

from traceops.capture.folder import is_first, unrecorded
from traceops.capture.manifest import RankManifest
from traceops.core.unrecorded_text import unrecorded_sentences
from traceops.launch.outcome import gone_unseen

JOIN = "import sys; from pathlib import Path; from traceops.capture.folder import is_first; "
JOIN += "print(is_first(Path(sys.argv[1]), 0), flush=True); sys.stdin.read()"


def joins(out: Path) -> subprocess.Popen:
    """A process that is rank 0, or would be, and lives until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", JOIN, str(out)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    process.first = process.stdout.readline().strip() == "True"
    return process


@pytest.mark.slow
def test_a_process_beside_the_recorded_one_and_one_after_it_are_told_apart(tmp_path):
    """Ranks that were started again, and two processes that share a model, passed for one rank that had finished."""
    first = joins(tmp_path)
    beside = joins(tmp_path)
    first.communicate()
    after = joins(tmp_path)
    for process in (beside, after):
        process.communicate()
    assert (first.first, beside.first, after.first) == (True, False, False)
    found = list(unrecorded(tmp_path, [1, 0]))
    assert [(one.rank, one.pid, one.restarted) for one in found] == [(0, beside.pid, False), (0, after.pid, True)]


def test_a_rank_alone_leaves_nothing_to_tell(tmp_path):
    assert is_first(tmp_path, 3) and not list(unrecorded(tmp_path, [0, 3]))
    (tmp_path / "rank_3" / ".joined").write_text("")  # as earlier versions left it
    assert not is_first(tmp_path, 3)
    assert [one.restarted for one in unrecorded(tmp_path, [3])] == []


def test_what_is_said_of_them():
    again = [{"rank": rank, "pid": 10 + rank, "restarted": True} for rank in range(2)]
    assert unrecorded_sentences(again) == [
        "ranks 0–1 were started again after the recorded process had ended: no step since then is recorded"
    ]
    assert unrecorded_sentences([{"rank": 0, "pid": 7, "restarted": False}]) == [
        "another process (pid 7) trained as rank 0 too and is not recorded"
    ]
    assert unrecorded_sentences([{"rank": "0"}, None, 3]) == []


def test_a_rank_that_was_killed_and_started_again_did_not_finish():
    """The command ended with 0, so the rank that was killed at step 17 'finished' with code 0."""
    killed, raised, good = (
        RankManifest(rank, rank, 3, "h", 1, {"type": "cpu"}, {}, {}, status)
        for rank, status in enumerate(("running", "failed", "running"))
    )
    completed = [replace(one, status="finished", exit_code=0) for one in (killed, good)]
    told = gone_unseen([killed, raised, good], [completed[0], raised, completed[1]], {0, 1})
    assert [(one.status, one.exit_code) for one in told] == [("failed", None), ("failed", None), ("finished", 0)]
    assert told[0].error == "it ended in the middle of its training"
