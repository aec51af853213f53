"""Failures after which a log shows steps: the program went on, or its next start did."""

from __future__ import annotations

import pytest
from quiet import is_quiet

from traceops.hangs.readers.steps import moment_of
from traceops.report.hang_seen import seen_events, what_would_decide
from traceops.report.hang_text import hang_level, hang_sentence

RAISED = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in sample\n    act(answer)\n'
    "ValueError: no answer in it\n"
)
OF_RANK_6 = "".join(f"[rank6]: {line}" for line in RAISED.splitlines(keepends=True))
EXIT = (
    "E0509 20:23:48.4 1252853 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -6) "
    "local_rank: 6 (pid: 17) of binary: /usr/bin/python3\n"
)
TALK = "the model says something, and says it at length, so that a log grows by what it says\n"


def steps(first: int, last: int, line: str = "[rank0]: INFO - step: {} loss: 2.1\n", talk: int = 12) -> str:
    return "".join(line.format(step) + TALK * talk for step in range(first, last))


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]: INFO - step: {} loss: 2.1\n",
        "\x1b[31mstep: {} \x1b[32mloss: 2.1\x1b[39m\n",
        "(TaskRunner pid=38606) step:{} - rollout/ratio:0.6\n",
        " iteration   {}/ 1000000 | consumed samples: 40 |\n",
        " 10%|#  | {}/5000 [04:56<1:33:50,  1.15s/it]\n",
    ],
)
def test_what_the_program_went_on_after_is_no_cause(told, line):
    diagnosis = told(steps(1, 20, line) + RAISED + steps(20, 120, line))
    assert diagnosis.roots == () and hang_level(diagnosis) == "warning"
    assert "1 message of trouble, after which the log goes on with steps" in hang_sentence(diagnosis)
    assert [event.kind for event in seen_events(diagnosis)] == ["outlived"]


def test_a_start_before_the_one_that_makes_steps_is_no_cause(told):
    began = "starting attempt\n"
    diagnosis = told(began + steps(1, 9) + RAISED + EXIT + began + steps(1, 200))
    assert diagnosis.roots == () and "ended an earlier start at most" in hang_sentence(diagnosis)


def test_the_failure_after_the_last_steps_is_the_cause_alone(told):
    end = 'Traceback (most recent call last):\n  File "train.py", line 9, in save\n    f()\nOSError: gone\n'
    (root,) = told(steps(1, 9) + RAISED + steps(9, 200) + end).roots
    assert "OSError: gone" in root.statement and "no answer" not in root.statement


def test_the_same_exception_again_is_outlived_too_unless_it_ends_the_log(told):
    went_on = steps(1, 9) + RAISED + steps(9, 200) + RAISED
    assert told(went_on + TALK * 60).roots == ()
    (root,) = told(went_on).roots
    assert "no answer in it" in root.statement


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (RAISED + steps(9, 12, talk=1), "a buffer of lines that were printed before"),
        (RAISED + TALK * 2000, "no step"),
        (RAISED + steps(5, 9) * 60, "buffers of several processes: the same steps again"),
        (RAISED + "ValueError: step 4 failed\n" + TALK * 2000 + "ValueError: step 5 failed: step 6\n", "messages"),
        (RAISED + TALK * 1000 + "step 1\n" + TALK, "a single step"),
    ],
)
def test_what_proves_no_step_after_it_leaves_the_cause(told, text, why):
    diagnosis = told(steps(1, 9) + text)
    assert diagnosis.roots and "no answer in it" in diagnosis.roots[0].statement, why


@pytest.mark.parametrize("failure", [RAISED, OF_RANK_6])
def test_what_was_outlived_is_told_beside_the_end_of_a_process_and_not_as_its_cause(told, failure):
    """'Rank 6 died: … Its log tells of one failure', with high confidence, of an exception 4,000 steps before."""
    (root,) = told(steps(1, 9) + failure + steps(9, 200) + EXIT).roots
    assert (root.rule, root.ranks, root.crash) == ("TO-H004", (6,), None) and "no answer" not in root.statement
    assert [what.rpartition(":")[2] for what, said in root.evidence if "no answer in it (the log goes on" in said]


def test_a_loggers_line_ends_no_traceback(told):
    torn = RAISED.replace("ValueError: no answer in it", "ERROR:root:could not act")
    diagnosis = told(f"step 1\n{torn}step 2\n")
    assert diagnosis.roots == () and [event.kind for event in seen_events(diagnosis)] == ["trouble"]


def test_rays_task_says_itself_what_it_raised(told):
    text = (
        'Traceback (most recent call last):\n  File "main.py", line 62, in run\n    ray.get(task)\n'
        "ray.exceptions.RayTaskError(NotImplementedError): ray::main_task() (pid=1, ip=172.17.0.4)\n"
        '  File "score.py", line 37, in score\n    raise NotImplementedError\nNotImplementedError\n'
    )
    (root,) = told(text).roots
    assert root.where == "score (score.py:37)" and "NotImplementedError" in root.statement


@pytest.mark.parametrize("words", ["in: <function f at 0x1>", "while calling deallocator <function f at 0x1>:"])
def test_what_python_ignores_is_no_end(told, words):
    """Python 3.14 has other words than those before."""
    assert is_quiet(told(f"Training completed\nException ignored {words}\n{RAISED}"))


def test_a_warning_of_nccl_before_a_training_that_went_on_ended_nothing(told):
    """A device that NCCL cannot open, then 100 steps: '16 messages of trouble … they ended an earlier start'."""
    warned = "pgut1-0:8717:8718 [5] p2p_plugin.c:565 NCCL WARN NET/IB : Unable to open device mlx5_an0\n"
    diagnosis = told(warned + steps(1, 100))
    assert diagnosis.roots == () and [event.kind for event in seen_events(diagnosis)] == ["outlived"]
    assert hang_level(diagnosis) == "info" and what_would_decide(diagnosis) == ""
    assert hang_sentence(diagnosis).startswith("No rank hangs or fails in these files")
    failed = told(warned + RAISED + steps(1, 100))
    assert hang_level(failed) == "warning" and "they ended an earlier start at most" in hang_sentence(failed)


@pytest.mark.parametrize("head", [b"2026-99-10 10:00:00", b"0000-01-10 10:00:00", b"W9912 10:00:00.123"])
def test_numbers_that_are_no_date_tell_no_time(head):
    """`diagnose` ended with a traceback."""
    assert moment_of(head) is None
