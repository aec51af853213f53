"""Why a rank has no trace, where run.json says so."""

import json

import pytest

from traceops.core.capture_failure import read_failure
from traceops.core.errors import InputError
from traceops.rules.validity import judge_missing
from traceops.traces.discover import discover

FULL = {"rank": 1, "operation": "export", "step": 13, "error": "OSError", "message": "x", "errno": "ENOSPC"}


def test_the_finding_says_what_ended_the_capture_and_what_to_do():
    (finding,) = judge_missing(2, [0], False, [read_failure(FULL)]).findings
    assert "Rank 1: no space left on device while it wrote the trace, in step 13; free some space" in finding.message
    (finding,) = judge_missing(2, [0], False).findings
    assert finding.message == "1 of 2 ranks has no trace: 1."


def test_a_run_without_any_trace_says_why(tmp_path):
    ended = {"rank": 0, "operation": "exit", "step": 12, "exit_code": 0}
    (tmp_path / "run.json").write_text(json.dumps({"failures": [FULL, ended, {"rank": "no"}, 7]}))
    with pytest.raises(InputError, match="rank 0: the process ended itself with exit code 0 while it"):
        discover(str(tmp_path))
