"""Attempts in one file that no launcher tells apart: the log begins once more, with other times and numbers."""

from __future__ import annotations

import pytest

from traceops.core.errors import InputError
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
    diagnosis = told(
        failing("00:28:33", 1309, "FileNotFoundError: no image") + start("09:00:00", 25603) + tested
    )
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


def test_torchruns_store_that_is_lost_while_workers_run_is_no_failed_start(told):
    """'did not find all ranks when the process group was made' was said of a job that had run for minutes."""
    lost = (
        "[2023-11-16 15:09:18,364] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The node 'a_0' "
        "has failed to send a keep-alive heartbeat to the rendezvous '123' due to an error of type "
        "RendezvousConnectionError.\n"
        "[2023-11-16 15:09:18,742] torch.distributed.elastic.multiprocessing.api: [WARNING] Sending process 7 closing "
        "signal SIGTERM\n"
    )
    sentence = hang_sentence(told(f"{lost}{FRAMES}RuntimeError: Connection reset by peer\n"))
    assert "did not find all ranks" not in sentence and "Connection reset by peer" in sentence


def test_a_ctrl_c_that_torchs_import_words_as_a_runtime_error_is_no_crash(told):
    with pytest.raises(InputError, match="holds no evidence"):
        told(f"{FRAMES}RuntimeError: KeyboardInterrupt: \n")


def test_frames_behind_determineds_rank_are_a_traceback(told):
    said = "<>        [2021-12-07 10:40:48] 514a56c5 [rank=0] || "
    text = f'{said}    self.model.fit(\n{said}  File "/opt/keras/training.py", line 1095, in fit\n'
    text += f'{said}    logs = self.train_function(iterator)\n{said}  File "/opt/keras/functi'
    assert "training.py:1095" in hang_sentence(told(text)) and "(rank 0)" in hang_sentence(told(text))
