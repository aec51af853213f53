"""What follows a failure in a log, judged by what it says: steps that were made meanwhile, or shown late."""

from __future__ import annotations

import pytest

RAISED = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in sample\n    act(answer)\n'
    "ValueError: no answer in it\n"
)
BAR = "\r{0:3}%|#  | {0}/100 [00:{0:02}<01:30,  1.00it/s]"
LOGGED = "2026-03-01 10:{0:02}:05,123 - INFO - step {0}: loss 2.1\n"
PLAIN = "step {} loss 2.1\n"
TALK = "saving samples of this epoch to the folder that the configuration names\n"
OF_TORCHRUN = (
    "E0509 20:23:48.4 17 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 0 "
    "(pid: 17) of binary: /usr/bin/python3\n"
)


def steps(first: int, last: int, line: str = PLAIN) -> str:
    return "".join(line.format(step) for step in range(first, last))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (steps(1, 9, LOGGED) + RAISED + steps(9, 40, LOGGED), "a logger flushes each line"),
        (steps(1, 9, BAR) + "\n" + RAISED + steps(9, 40, BAR) + "\n", "so does a progress bar"),
        (steps(1, 9, BAR) + RAISED + steps(9, 40, BAR) + "\n", "also on the line of the bars before"),
        (steps(1, 9) + RAISED + steps(9, 40), "the steps before it would still be in a buffer"),
        (TALK * 400 + steps(1, 9) + RAISED + (steps(9, 40) + TALK * 9) * 3 + steps(40, 60) + TALK * 300 + steps(60, 90),
         "more than a buffer holds"),
        (
            f"{TALK * 400}2026-03-01 10:00:00 ERROR lost a sample\n{RAISED}"
            + steps(1, 9, "[2026-03-01 10:{0:02}:00] step {0}\n"),
            "later by the lines' own times",
        ),
        (f"{TALK * 400}{steps(1, 9)}{RAISED}{steps(9, 12)}{{'train_runtime': 81.2, 'epoch': 1.0}}\n", "it completed"),
        (f"{TALK * 400}{RAISED}`Trainer.fit` stopped: `max_epochs=1` reached.\n", "Lightning says so"),
    ],
)  # fmt: skip
def test_steps_made_after_a_failure_say_that_the_program_went_on(told, text: str, why: str) -> None:
    """Up to 64 kB of healthy lines counted as what a buffer had held: 'ValueError' was the job's end."""
    diagnosis = told(text)
    assert diagnosis.roots == (), why
    assert [event.kind for event in diagnosis.evidence.log] == ["outlived"]


def test_what_may_have_been_in_a_buffer_is_told_and_lowers_confidence(told) -> None:
    (root,) = told(f"{TALK * 400}{steps(100, 180)}{RAISED.replace('ValueError', 'MemoryError')}{steps(180, 240)}").roots
    assert (root.rule, root.confidence) == ("TO-E002", "medium")
    assert (
        "behind it",
        "the log shows steps up to 239: printed before and shown late, or the program went on",
    ) in root.evidence


@pytest.mark.parametrize(
    "behind",
    [
        steps(9, 12, LOGGED),  # other ranks make a few steps more
        steps(9, 40, BAR) + "\n" + OF_TORCHRUN,  # another rank went on until the launcher ended it
        TALK * 9 + "Training finished\n",  # the script's own echo
        steps(1, 9, "[2026-03-01 09:{0:02}:00] step {0}\n"),
    ],
)
def test_other_ranks_go_on_a_little_after_the_end_of_one(told, behind: str) -> None:
    (root,) = told(f"{TALK * 400}{steps(1, 9, LOGGED)}2026-03-01 10:09:00 ERROR lost\n{RAISED}{behind}").roots
    assert "no answer in it" in str(root.evidence)


def test_bars_on_the_line_of_the_failure_came_before_it(told) -> None:
    """Carriage returns divide them, so all of an epoch's bars are in one line with the traceback."""
    (root,) = told(f"{steps(1, 90, BAR)}{RAISED}").roots
    assert "no answer in it" in str(root.evidence) and "behind it" not in dict(root.evidence)


def test_a_failure_that_was_outlived_leaves_the_end_to_the_next_one(told) -> None:
    end = RAISED.replace("no answer in it", "the disk is gone")
    (root,) = told(steps(1, 9, LOGGED) + RAISED + steps(9, 40, LOGGED) + end + OF_TORCHRUN).roots
    assert "the disk is gone" in str(root.evidence) and "no answer" not in root.statement


@pytest.mark.parametrize(
    "end",
    [
        "I1102 10:03:02 140 torch/distributed/elastic/agent/server/api.py:910] worker group successfully finished",
        "[2026-11-02 10:00:22,100] [INFO] [launch.py:351:main] Process 8813 exits successfully.",
        "wandb: Waiting for W&B process to finish... \x1b[32m(success).\x1b[0m",
        "Job 'raysubmit_1f' succeeded",
        "======================== 41 passed, 3 skipped in 8.12s =========================",
        "\x1b[32m== \x1b[32m\x1b[1m41 passed\x1b[0m, \x1b[33m2 warnings\x1b[0m in 8.12s\x1b[0m\x1b[32m ==\x1b[0m",
        "Ran 2 tests in 0.812s\n\nOK",
    ],
)
def test_a_launcher_or_tests_that_end_well_outlived_what_was_raised(told, end: str) -> None:
    """An exception that the program caught and logged was its end, though its launcher said that all went well."""
    text = f"step 1\n{RAISED}step 2\n"
    assert told(text).roots and told(f"{end}\n{text}").roots
    diagnosis = told(f"{text}{end}\n")
    assert diagnosis.roots == ()
    assert [event.kind for event in diagnosis.evidence.log] == ["outlived"]


@pytest.mark.parametrize(
    "end",
    [
        "=================== 1 failed, 40 passed in 8.12s ===================",
        "Ran 2 tests in 0.812s\n\nFAILED (errors=1)",
        f"[2026-11-02 10:00:22,100] [INFO] [launch.py:351:main] Process 8813 exits successfully.\n{OF_TORCHRUN}",
    ],
)
def test_one_that_fails_among_others_that_end_well_is_told(told, end: str) -> None:
    assert told(f"step 1\n{RAISED}step 2\n{end}\n").roots


def test_a_service_of_docker_compose_that_exits_with_0_outlived_its_own_failures(told) -> None:
    """Another one's good end says nothing of it."""
    raised = "".join(f"trainer-1  | {line}\n" for line in RAISED.splitlines())
    assert told(f"{raised}trainer-1 exited with code 0\n").roots == ()
    assert told(f"{raised}loader-1 exited with code 0\n").roots
