"""Texts as people paste them: without their spaces, wrapped, and cut off."""

from __future__ import annotations

import pytest

from traceops.report.hang_seen import seen_lines, what_would_decide
from traceops.report.hang_text import hang_sentence, root_advice

FLAT = (
    "Traceback (most recent call last):\n"
    'File "/x/bin/lightning", line 8, in\n'
    "sys.exit(_cli_entry_point())\n"
    'File "/home/me/train.py", line 109, in main\n'
    "_main()\n"
    'File "/x/lib/python3.9/site-packages/click/core.py", line 1157, in call\n'
)
WRAPPED = (
    "[rank{rank}]:[E424 01:11:21.1 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=4, OpTy\npe=BROADCAST, NumelIn=112, Nume"
)
REST = "lOut=112, Timeout(ms)=1800000) ran for 1800010 milliseconds before timing out.\n"


def test_a_line_of_code_is_no_exception(told):
    """Markdown takes '<module>' and the spaces away: 'sys.exit(…)' was told as what the program crashed with."""
    diagnosis = told(FLAT + "return ctx.invoke(self.callback, **ct")
    assert diagnosis.roots == () and "main (/home/me/train.py:109)" in hang_sentence(diagnosis)


@pytest.mark.parametrize("code", ["return self.main(*args, **kwargs)\n", ""], ids=["with code", "without"])
def test_the_exception_behind_such_frames_is(told, code):
    (root,) = told(f"{FLAT}{code}ValueError: no such option\n").roots
    assert "ValueError: no such option" in root.statement


def test_a_rank_whose_last_line_is_wrapped_and_cut_waits_too(told):
    """Nothing was said of rank 2."""
    diagnosis = told(WRAPPED.format(rank=1) + REST + WRAPPED.format(rank=2))
    assert {rank.rank for rank in diagnosis.ranks if rank.state == "waiting"} == {1, 2} and diagnosis.roots == ()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[22340.220490] amdgpu: sq_intr: error, detail 0x00000000, type 1, sh 1, priv 1, wave_id 4", "sq_intr: error"),
        ("==========\ntorchtitan.train FAILED\n----------", "torchtitan.train FAILED"),
        (
            'Lmod has detected the following error: The following module(s) are unknown:\n"cuda/11.8"',
            'unknown: "cuda/11.8"',
        ),
    ],
    ids=["amdgpu", "torchrun", "the next line"],
)
def test_what_a_line_means_is_shown(told, line, shown):
    diagnosis = told(f"step 1 loss 2.0\n{line}\n\nbye\n")
    assert diagnosis.roots == () and any(shown in event.text for event, _ in seen_lines(diagnosis))


@pytest.mark.parametrize(
    "line",
    [
        "[    3.1] amdgpu 0000:03:00.0: amdgpu: SMU is initialized successfully!",
        "[    3.1] [drm] amdgpu kernel modesetting enabled, error reporting on",
        "val FAILED 0",
        "validation error rate: 0.02",
    ],
)
def test_healthy_lines_of_the_same_words(told, line):
    diagnosis = told(f"step 1 loss 2.0\n{line}\nstep 2 loss 1.9\n")
    assert hang_sentence(diagnosis) == "No failure found: training was at step 2 when job.out ends."


TORN = FLAT + 'File "/x/site-packages/accelerate/config_args.py"\n'


def test_what_a_traceback_that_is_cut_off_lacks_comes_behind_it(told):
    """'Bring the whole log, with the lines before these.' Of the frame that is cut the file is told."""
    diagnosis = told(TORN)
    assert "accelerate/config_args.py" in hang_sentence(diagnosis)
    assert "lines behind these" in what_would_decide(diagnosis)


@pytest.mark.parametrize(
    ("line", "more"),
    [
        ("/bin/sh: 1: torchrun: not found", "PATH"),
        ("bash: torchrun: command not found", "PATH"),
        ("(raylet) A worker died or was killed while executing a task by an unexpected system error.", "worker-"),
    ],
)
def test_what_would_tell_more_of_such_a_line(told, line, more):
    assert more in what_would_decide(told(f"{line}\n"))


def test_a_title_is_told_only_where_the_text_does_not_say_it(told):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.27 GiB. GPU 0 has a total capacity of 23.99 "
        "GiB of which 168.00 MiB is free. Of the allocated memory 16.64 GiB is allocated by PyTorch, and 4.49 GiB is "
        "reserved by PyTorch but unallocated.\n"
    )
    (root,) = told(f"# CUDA out of memory\n\nit says\n\n{text}").roots
    assert root.cause == "fragmented"
    (root,) = told("# CUDA out of memory\n\nwhat is it?\n").roots
    assert root.cause == "gpu_memory"


def test_an_exception_behind_a_box_is_why_the_launcher_saw_its_process_end(told):
    """'Rank 0 died: it ended with exit code 1.'"""
    end = (
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 24) of binary: "
        "/opt/conda/bin/python\n"
    )
    box = "│   113 │   tokenizer = convert(slow)      │\n╰──────────────────────────────────╯\n"
    (root,) = told(f"{box}Exception: expected value at line 1\n{end}").roots
    assert root.ranks == (0,) and "expected value at line 1" in root.statement
    (root,) = told(f"{end}Exception: of something later\n").roots
    assert "later" not in root.statement


def test_a_call_of_nccl_that_failed_in_the_words_of_old_torch(told):
    (root,) = told("  what(): NCCL Error 1: unhandled cuda error\n").roots
    assert root.cause == "nccl_gpu"


def test_a_bus_error_that_a_launcher_tells_has_its_cure(told):
    """It was told as 'crashed in compiled code'."""
    (root,) = told("[launch.py:321:sigkill_handler] ['python', 'main.py'] exits with return code = -7\n").roots
    assert root.cause == "bus_error"


def test_an_actor_of_ray_that_is_gone_is_no_error_of_the_program(told):
    text = "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."
    (root,) = told(f'Traceback (most recent call last):\n  File "a.py", line 5, in f\n    x()\n{text}\n').roots
    assert root.cause == "actor_died" and "is gone" in root_advice(root)


def test_operations_that_timed_out_are_told_without_the_watchdog_s_line(told):
    """'Nobody is seen to wait for another rank.'"""
    line = "[rank0]:[E307 05:30:18.2 ProcessGroupNCCL.cpp:744] [Rank 0] Some NCCL operations have failed or timed out."
    assert "failed or timed out" in hang_sentence(told(f"{line}\n"))
