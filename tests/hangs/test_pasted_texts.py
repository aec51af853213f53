"""Texts as people paste them: without their spaces, wrapped, and cut off."""

from __future__ import annotations

import pytest

from traceops.core.errors import InputError
from traceops.report.hang_seen import seen_lines
from traceops.report.hang_text import hang_sentence

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
    """Rank 2 was said to have left no evidence at all."""
    diagnosis = told(WRAPPED.format(rank=1) + REST + WRAPPED.format(rank=2))
    assert {wait.rank for wait in diagnosis.waits} == {1, 2}


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (
            "[22340.220490] amdgpu: sq_intr: error, detail 0x00000000, type 1, sh 1, priv 1, wave_id 4",
            "sq_intr: error",
        ),
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
    with pytest.raises(InputError):
        told(f"step 1 loss 2.0\n{line}\nstep 2 loss 1.9\n")
