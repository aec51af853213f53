"""Progress in logs: since when steps took longer, and what a progress bar's average is worth."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.hangs.diagnose import diagnose

LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:589] Connection reset by peer\n"


def notes(folder: Path, text: str, name: str = "train.log") -> tuple[str, ...]:
    (folder / name).write_text(text + LOST)
    return diagnose(folder).notes


def lines(*points: tuple[int, str]) -> str:
    return "".join(f"2024-04-10 {time} | INFO | loss at epoch 5, step at {step}, loss=31\n" for step, time in points)


def test_steps_that_took_longer_before_the_end(tmp_path: Path) -> None:
    text = lines((58400, "04:59:03"), (58600, "05:01:07"), (58800, "05:03:10"), (59000, "07:05:01"))
    (note,) = notes(tmp_path, text)
    assert note == (
        "Steps took 0.62 s each up to step 58800, and 36.6 s each from there to step 59000: the job was slow before "
        "it failed (train.log)."
    )


def test_the_average_of_a_progress_bar_after_a_stall(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, " 12%|█▏  | 3708/30000 [53:10<5839:00:12, 800.31s/it]\n", "rank3.log")
    assert note == (
        "3708 steps in 53 min are 0.86 s each: the 800 s a step that the progress bar shows are an average after a "
        "stall (rank 3, rank3.log)."
    )


@pytest.mark.parametrize(
    "text",
    [
        lines((100, "04:59:03"), (200, "05:00:03"), (300, "05:01:04"), (400, "05:02:04")),
        lines((100, "04:59:03"), (200, "05:00:03"), (10, "05:21:04"), (20, "05:22:04")),
        "  1%| | 10/1752 [00:29<1:22:01,  2.83s/it]\n  1%| | 11/1752 [00:31<1:21:50,  2.82s/it]\n",
        "100%|██| 3708/3708 [53:10<00:00,  1.16it/s]\n",
        "step 5 of the plan, loss 3\n",
    ],
)
def test_even_steps_are_not_mentioned(tmp_path: Path, text: str) -> None:
    assert notes(tmp_path, text) == ()
