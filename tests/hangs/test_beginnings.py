"""Attempts in one file that no launcher tells apart: the log begins once more, with other times and numbers."""

from __future__ import annotations

from traceops.report.hang_text import hang_sentence

FRAMES = 'Traceback (most recent call last):\n  File "test.py", line 9, in main\n    run()\n'


def start(time: str, number: int) -> str:
    return (
        f"[2020-07-22 {time},917 INFO inference.py line 78 {number}] Namespace(batch_size={number}, data='a.txt')\n"
        f"[2020-07-22 {time},918 INFO inference.py line 79 {number}] => creating the model\n"
    )


def failing(time: str, number: int, error: str) -> str:
    return f"{start(time, number)}{FRAMES}{error}\n"


def test_a_later_start_that_goes_further_outlived_what_ended_the_earlier_one(told):
    """'The program crashed: FileNotFoundError' was said of a file whose last attempt goes on."""
    tested = "[2020-07-22 09:00:05,001 INFO inference.py line 99] Test: batch of images\n" * 3
    diagnosis = told(failing("00:28:33", 1309, "FileNotFoundError: no image") + start("09:00:00", 25603) + tested)
    assert diagnosis.roots == ()
    sentence = hang_sentence(diagnosis)
    assert "it ended an earlier start at most" in sentence and "FileNotFoundError: no image" in sentence


def test_of_several_that_failed_the_last_counts(told):
    text = failing("00:28:33", 1, "ValueError: the first") + failing("00:29:33", 27, "TypeError: the last")
    assert "TypeError: the last" in hang_sentence(told(text))


def test_a_later_start_that_only_begins_leaves_the_failure_what_it_was(told):
    text = failing("00:28:33", 1, "ValueError: the first") + start("09:00:00", 2)
    assert "ValueError: the first" in hang_sentence(told(text))


def test_processes_that_begin_alike_before_the_failure_are_no_attempts(told):
    text = start("00:28:30", 1) + failing("00:28:31", 2, "ValueError: the first") + start("00:28:32", 3)
    assert "ValueError: the first" in hang_sentence(told(text + failing("00:28:33", 4, "TypeError: b")))


def test_a_server_that_started_once_more_outlived_what_failed_before(told):
    text = f"INFO: loading\n{FRAMES}ModuleNotFoundError: No module named 'pysolr'\n"
    diagnosis = told(f"{text}loading model config\nINFO:     Application startup complete.\n")
    assert diagnosis.roots == () and "No module named 'pysolr'" in hang_sentence(diagnosis)


def test_jobs_of_slurm_in_one_file_are_told_apart_by_their_numbers(told):
    """'Rank 0 died' was said of a job that others followed, the last of which somebody cancelled."""
    steps = "".join(f"loading shard {number}\n" for number in range(20))
    cancelled = "slurmstepd: error: *** JOB {} ON dgx-06 CANCELLED AT 2025-08-21T02:53:05 ***\n"
    text = f"{FRAMES}ValueError: Unknown split\n{cancelled.format(266997)}{steps}"
    assert "cancelled in Slurm" in hang_sentence(told(f"{text}{cancelled.format(267039)}"))
    assert "ValueError: Unknown split" in hang_sentence(told(f"{text}{cancelled.format(266997)}"))
    close = f"{FRAMES}ValueError: Unknown split\n{cancelled.format(1)}{cancelled.format(2)}"  # tasks of one array
    assert "ValueError: Unknown split" in hang_sentence(told(close))
