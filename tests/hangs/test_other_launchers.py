"""Launchers, collectors and handlers of others: Determined, Open MPI, Horovod, XLA, Kubernetes, torchrun's store."""

from __future__ import annotations

import pytest
from quiet import is_quiet

from traceops.report.hang_seen import what_would_decide
from traceops.report.hang_text import hang_sentence

FRAMES = 'Traceback (most recent call last):\n  File "test.py", line 9, in main\n    run()\n'
REPORT = (
    "{} detected that one or more processes exited with non-zero status, thus causing the job to be terminated. "
    "The first "
)


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
    assert "did not find all ranks" not in sentence and "lost torchrun's rendezvous" in sentence


def test_a_ctrl_c_that_torchs_import_words_as_a_runtime_error_is_no_crash(told):
    assert is_quiet(told(f"{FRAMES}RuntimeError: KeyboardInterrupt: \n"))


def test_frames_behind_determineds_rank_are_a_traceback(told):
    said = "<>        [2021-12-07 10:40:48] 514a56c5 [rank=0] || "
    text = f'{said}    self.model.fit(\n{said}  File "/opt/keras/training.py", line 1095, in fit\n'
    text += f'{said}    logs = self.train_function(iterator)\n{said}  File "/opt/keras/functi'
    assert "training.py:1095" in hang_sentence(told(text)) and "(rank 0)" in hang_sentence(told(text))


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (
            "2m  Warning  BackOff  pod/t-0  Back-off restarting failed container pytorch in pod t-0",
            "logs --previous POD",
        ),
        ("Warning  FailedScheduling  3m  0/12 nodes are available: 12 Insufficient nvidia.com/gpu.", "describe nodes"),
    ],
)
def test_kubernetes_events_say_where_more_is_told(told, line: str, where: str):
    assert where in what_would_decide(told(f"LAST SEEN  TYPE  REASON\n{line}\n"))


def test_mpiruns_report_names_the_rank_that_a_signal_ended(told):
    text = f"{REPORT.format('mpirun')}process to do so was:\n\n  Process name: [[32288,1],3]\n  Exit code:    {{}}\n"
    assert hang_sentence(told(text.format(137))).startswith("Rank 3 died: it was killed by SIGKILL")
    said = hang_sentence(told(f"ERROR: this application must be run on at least 10 nodes\n{text.format(1)}"))
    assert "at least 10 nodes" in said


def test_horovodruns_exception_is_the_end_of_a_slot_and_names_no_rank(told):
    said = f"RuntimeError: {REPORT.format('Horovod')}process to do so was:\nProcess name: worker-1[0]\nExit code: 137\n"
    sentence = hang_sentence(told(f"{FRAMES}{said}"))
    assert sentence.startswith("The program was killed (SIGKILL)") and "ank 0" not in sentence


def test_a_report_behind_determineds_container_is_read(told):
    lines = (
        "Root Cause (first observed failure):", "[0]:", "  time      : 2022-06-09_09:22:31",
        "  host      : 5e4bef3a2da3",
        "  rank      : 0 (local_rank: 0)", "  exitcode  : 1 (pid: 36)", "  error_file: <N/A>",
    )  # fmt: skip
    text = "".join(f"[2022-06-09T09:22:31.405187Z] 8de2ca81 || {line}\n" for line in lines)
    assert hang_sentence(told(text)).startswith("Rank 0 died: it ended with exit code 1")


def test_stars_that_markdown_escaped_are_stars(told):
    line = "**\\* SIGSEGV (@0x73f160000) received by PID 2911 (TID 0x7f7a) from PID 1058406400; stack trace: ***\n"
    assert "SIGSEGV" in hang_sentence(told(line))


def test_errors_of_xlas_client_are_shown_with_their_words(told):
    said = "22:36:41.8072{}: E   44422 tensorflow/compiler/xla/xla_client/xla_util.cc:76]{}\n"
    text = said.format(20, "") + said.format(26, " StackTrace:") + said.format(32, " *** Begin stack trace ***")
    assert "Begin stack trace" in hang_sentence(told(text))
