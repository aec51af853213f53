"""Tracebacks as editors, notebooks and rich draw them, and GPU errors in the words of old torch and of others."""

from __future__ import annotations

from pathlib import Path

import pytest
from quiet import is_quiet

from traceops.hangs.diagnose import diagnose
from traceops.report.hang_text import hang_level, hang_sentence

HEAD = 'Traceback (most recent call last):\n  File "a.py", line 1, in main\n    x()\n'
THC = "THCudaCheck FAIL file=/pytorch/aten/src/THC/generic/THCStorage.cu line=58 error=2 : out of memory\n"
OUT_OF_MEMORY = (
    f"{HEAD}RuntimeError: cuda runtime error (2) : out of memory at /opt/conda/THCStorage.cu:58",
    f"step 1\n{THC}{HEAD}",
    "F0926 syncedmem.cpp:56] Check failed: error == cudaSuccess (2 vs. 0)  out of memory",
    f"{HEAD}mxnet.base.MXNetError: [12:00:00] src/pooled.h:157: cudaMalloc failed: out of memory",
    f"{HEAD}MemoryError: std::bad_alloc: CUDA error at: memory.hpp:62: cudaErrorMemoryAllocation out of memory",
    f"{HEAD}ResourceExhaustedError: OOM when allocating tensor with shape[32,128] on /device:GPU:0 by GPU_0_bfc",
    "RuntimeException: [ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : CUDA failure 2: out of memory ; GPU=0",
    "ResourceExhaustedError: \n\nOut of memory error on GPU 0. Cannot allocate 1.0GB memory on GPU 0",
    "Exception has occurred: RuntimeError\nCUDA error: out of memory\n",
    "CUDA Error: out of memory\ndarknet: ./src/cuda.c:36: check_error: Assertion `0' failed.",
)
# What the sentence says, and the log.
RAISED = (
    (
        "KeyError: 'foo'",
        "Exception has occurred: KeyError       (note: full exception trace is shown but execution is paused at: run)\n"
        "'foo'\n",
    ),
    ("ValueError: math domain error", "发生异常: ValueError\nmath domain error\n"),
    (
        "RuntimeError: Caught RuntimeError in replica 1 on device 1.",
        "Exception has occurred: RuntimeError\nCaught RuntimeError in replica 1 on device 1.\n"
        'Original Traceback (most recent call last):\n  File "a.py", line 1, in main\n    x',
    ),
    (
        "cuda runtime error (30) : unknown error at /pytorch/THCGeneral.c:70",
        f"THCudaCheck FAIL file=/pytorch/THCGeneral.c line=70 error=30 : unknown error\n{HEAD}",
    ),
)
CUT_OFF = (
    "│ /opt/conda/lib/python3.9/site-packages/deepspeed/utils/nvtx.py:11 in wrapped_fn       │\n"
    "│ ❱ 11 │   │   ret_val = func(*args, **kwargs)                                          │\n",
    "╭───────────────── Traceback (most recent call last) ──────────────────╮\n"
    "│ C:\\kohya_ss\\venv\\lib\\site-packages\\acceler\n",
    "frame #2: c10d::ProcessGroupNCCL::WorkNCCL::checkTimeout(std::optional<long>) + 0x1d2 (0x1 in /libtorch_cuda.so)\n"
    "frame #3: clone + 0x43 (0x155553e398d3 in /lib64/libc.so.6)\n",
    "Exception raised from ncclCommWatchdog at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1521 (most recent\n",
    "RuntimeError                     Traceback (most recent call last)\nCell In[21], line 1\n----> 1 train(1)\n",
)


@pytest.mark.parametrize("text", OUT_OF_MEMORY)
def test_gpu_memory_is_named_in_whatever_words(tmp_path: Path, text: str) -> None:
    assert "ran out of GPU memory" in said(tmp_path, text)


@pytest.mark.parametrize(("sentence", "text"), RAISED)
def test_the_exception_is_told(tmp_path: Path, sentence: str, text: str) -> None:
    assert sentence in said(tmp_path, text)


@pytest.mark.parametrize("text", CUT_OFF)
def test_a_piece_of_a_drawn_traceback_is_trouble(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.txt").write_text(text, encoding="utf-8")
    assert hang_level(diagnose(str(tmp_path / "log.txt"))) == "warning"


def test_a_call_that_failed_once_and_was_survived_ends_nothing(tmp_path: Path) -> None:
    steps = "".join(f"step {step} loss 0.5\n" for step in range(200))
    assert "ran out" not in said(tmp_path, f"{steps}{THC}| WARNING: skipping batch\n{steps}")


@pytest.mark.parametrize(
    "text", ("│ epoch │ loss │\n│ 1 │ 0.5 │\n", "╭──── Training ────╮\n│ step 5 in 3 s │\n", "Traceback level  2\n")
)
def test_tables_and_boxes_are_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "log.txt").write_text(text, encoding="utf-8")
    assert is_quiet(diagnose(str(tmp_path / "log.txt")))


def said(folder: Path, text: str) -> str:
    (folder / "log.txt").write_text(text, encoding="utf-8")
    return hang_sentence(diagnose(str(folder / "log.txt")))
