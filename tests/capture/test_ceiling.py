"""What a window may record is bounded: 400,000 small operators a step took 17.9 GB, and longer than the group waits."""

import pytest
from capture_reading import run_json

from traceops.capture import recorder as ceiling
from traceops.capture.recorder import Ceiling, may_record_early


@pytest.fixture
def seen(monkeypatch):
    """What the ceiling sees, to be changed."""
    told = {"operators": 0, "bytes": 10**9, "timeout_s": 1800.0}
    monkeypatch.setattr(ceiling, "_operators", lambda: told["operators"])
    monkeypatch.setattr(ceiling, "_resident_bytes", lambda: told["bytes"])
    monkeypatch.setattr(ceiling, "_timeout_s", lambda: told["timeout_s"])
    return told


def steps(seen, operators, grown, *, recorded):
    """The steps that are recorded before the ceiling says stop, 50 at most, and what it says."""
    counted = Ceiling()
    for number in range(50):
        seen["operators"] += operators
        seen["bytes"] += grown
        if (why := counted.step_ended(recorded=recorded)) is not None:
            return number + recorded, why
    return 50, None


def test_an_ordinary_step_is_recorded_as_often_as_is_asked(seen):
    assert steps(seen, 2_000, 1 << 20, recorded=True) == (50, None)


def test_a_window_ends_before_its_operators_are_too_many(seen):
    recorded, why = steps(seen, 70_000, 100 << 20, recorded=True)
    assert recorded == 4 and why.startswith("a step runs 70,000 operators; ") and "52 s and 3.1 GB" in why


def test_one_step_that_is_too_large_is_known_in_the_warmup(seen):
    assert steps(seen, 400_000, 0, recorded=False)[0] == 0


def test_the_timeout_of_the_group_counts(seen):
    seen["timeout_s"] = 15.0
    assert steps(seen, 9_000, 0, recorded=True)[0] == 2 and not may_record_early(2)


def test_operators_that_autograd_does_not_see_are_known_by_their_memory(seen):
    assert steps(seen, 0, 300 << 20, recorded=True)[0] == 1
    assert steps(seen, 0, 300 << 20, recorded=False) == (50, None), "the program's own"


SCRIPT = """
import torch
weight = torch.ones(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(16):
    value = weight
    for _ in range(200):
        value = value + 1
    value.sum().backward()
    optimizer.step()
print("trained")
"""


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_says_why_its_window_ended(python, tmp_path):
    low = "import sys, traceops.capture.recorder as c; c.MOST_OPERATORS = 450; sys.argv = sys.argv[1:]\n"
    start = tmp_path / "start.py"
    start.write_text(low + "from traceops.capture.script import run_and_end; run_and_end(sys.argv, frozenset())")
    (tmp_path / "train.py").write_text(SCRIPT)
    done = python(start, "train.py", env={"TRACEOPS_CAPTURE": '{"out": "run"}'})
    assert done.returncode == 0 and done.stdout == "trained\n", done.stderr
    (rank,) = run_json(tmp_path / "run")["ranks"]
    assert rank["status"] == "given_way" and "a step runs 201 operators" in rank["note"]
    assert [len(window["steps"]) for window in rank["windows"]] == [2]
