"""Words of failures in lines that only quote them: a data set, a prompt, a metric."""

from __future__ import annotations

import pytest

from traceops.hangs.crashes import crash_kind
from traceops.hangs.readers.messages import told_by
from traceops.hangs.readers.trouble import Suspects

PANIC = "Kernel panic - not syncing: Fatal exception in interrupt"


@pytest.mark.parametrize(
    "before",
    [
        "",
        "  ",
        "[ 12.1] ",
        "Nov 23 13:00:00 node3 kernel: ",
        "<0>[ 12.1] ",
        "kern  :emerg : 2024-12-02T16:55:44,213+00:00 ",
        '{"log": "',
        '{"MESSAGE":"',
    ],
)
def test_the_kernel_says_that_it_panics(before: str) -> None:
    assert crash_kind(before + PANIC, raised=False) == "node_failure"


@pytest.mark.parametrize(
    "before", ["sample: 'the server showed ", "what does `", "response: ", "2025-01-01 INFO eval: ", "a "]
)
def test_a_text_about_a_panic_is_none(before: str) -> None:
    assert crash_kind(before + PANIC, raised=False) is None


@pytest.mark.parametrize(
    ("line", "severe"),
    [
        ("HCCL demo error: In function initDevice(): the call of it failed", True),
        ("[ 99.1] INFO: task pt_main_thread:4711 blocked for more than 122 seconds.", True),
        ("Nov 23 13:00:00 n1 kernel: watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:123]", True),
        ("[ 9.1] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=3", True),
        ("INFO: task scheduler: nothing is blocked for now", False),
        ("Mean squared error: Model A has a lower value than B", False),
        ("Test set error: The mean over all 5 folds is 0.1", False),
        ("Rounding error: this run uses bf16 which rounds to nearest", False),
        ("Reconstruction error: lower than before by a third in all", False),
    ],
)
def test_a_metric_called_error_is_no_trouble(line: str, severe: bool) -> None:
    suspects = Suspects()
    suspects.take(1, None, line)
    assert bool(list(suspects.found())) is severe


@pytest.mark.parametrize(
    "line",
    [
        "  --oom-retry           on CUDA out of memory, try a smaller batch",
        "Note: to avoid CUDA out of memory errors, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "Tips: if you see 'CUDA out of memory', lower --batch-size.",
        "If training stops with No space left on device, clean /ckpt.",
        "in case of NCCL error set NCCL_DEBUG=INFO",
    ],
)
def test_advice_and_the_help_of_an_option_tell_of_no_failure(line: str) -> None:
    """'The program ran out of GPU memory' was said of a program that printed its help."""
    assert told_by(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. If reserved memory is >> allocated memory try setting it",
        "could not check if it fits: CUDA out of memory",
        "-bash: /ckpt/a.pt: No space left on device",
        "warm-up failed (if enabled) with CUDA error: an illegal memory access was encountered",
    ],
)
def test_what_happened_beside_an_if_is_told(line: str) -> None:
    assert told_by(line) is not None
