"""Real trainings in which a rank dies or is only slow: the first cause is named, and nobody is ended early."""

import re

import pytest
from hang_run import finish, start

from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import RootKind

pytestmark = [pytest.mark.torch, pytest.mark.slow]


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
