"""A log with several starts: the last one is judged, and what ended those before it is said in one line."""

from __future__ import annotations

import io

import pytest

from traceops.hangs.model import Diagnosis
from traceops.render.hang.terminal import print_diagnosis

STEPS = "".join(f"[rank1]: step {step} loss 2.{step}\n" for step in range(1, 40))
RAISED = 'Traceback (most recent call last):\n  File "train.py", line 7, in f\n    g()\n{}\n'
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."
AGAIN = (
    "INFO:torch.distributed.elastic.agent.server.api:[default] Worker group FAILED. "
    "{}/3 attempts left; will restart worker group\n"
)


def of_rank(error: str) -> str:
    return "".join(f"[rank1]: {line}\n" for line in RAISED.format(error).splitlines())


def terminal(diagnosis: Diagnosis) -> str:
    shown = io.StringIO()
    print_diagnosis(diagnosis, shown)
    return " ".join(shown.getvalue().split())


def test_what_ended_the_starts_before_is_said(told) -> None:
    """Nothing of them was said: that memory ran out at first, and another error came after the restart."""
    text = STEPS + of_rank(OUT_OF_MEMORY) + AGAIN.format(3) + STEPS + of_rank("KeyError: 'labels'")
    diagnosis = told(text)
    (root,) = diagnosis.roots
    assert "KeyError" in root.statement
    assert (
        "Note: Before it, in the same log, an earlier start ended: rank 1 ran out of GPU memory (job.out:40)."
    ) in terminal(diagnosis)
    many = "".join(STEPS + of_rank(f"ValueError: {n}") + AGAIN.format(n) for n in range(5))
    said = terminal(told(many + STEPS + of_rank(OUT_OF_MEMORY)))
    assert "5 earlier starts ended, the last 3 so: rank 1 crashed (job.out:128); rank 1 crashed" in said


def test_ranks_that_torchrun_started_again_and_that_made_steps_outlived_the_failure(told) -> None:
    """'Rank 1 ran out of GPU memory' was the cause, 39 steps behind it: their lines have no time and no rank."""
    steps = STEPS.replace("[rank1]: ", "")
    text = of_rank(OUT_OF_MEMORY) + AGAIN.format(3)
    assert told(text + steps).roots == ()
    assert [root.cause for root in told(text + steps[:60]).roots] == ["gpu_memory"]  # two steps
    assert [root.cause for root in told(text.replace(AGAIN.format(3), "") + steps).roots] == [
        "gpu_memory"
    ]  # of a buffer


@pytest.mark.parametrize(
    "text",
    [
        STEPS + of_rank(OUT_OF_MEMORY),
        STEPS + AGAIN.format(3) + STEPS + of_rank(OUT_OF_MEMORY),  # how the first ended is not told
        STEPS + of_rank(OUT_OF_MEMORY) + AGAIN.format(3) + 3 * STEPS,  # it went on: the first sentence says so
    ],
)
def test_nothing_is_said_where_no_start_before_the_judged_one_is_known_to_have_failed(told, text: str) -> None:
    assert "earlier start ended" not in terminal(told(text))


def test_an_import_that_failed_before_is_not_said_to_have_ended_a_start(told) -> None:
    """'Before it, an earlier start ended: the program crashed while importing': it printed that, and went on."""
    optional = RAISED.replace("in f\n    g()", "in <module>\n    import flash_attn")
    optional = optional.format("ModuleNotFoundError: No module named 'flash_attn'")
    ended = RAISED.replace("line 7, in f\n    g()", "line 168, in <module>\n    main()").format("KeyError: 'x'")
    diagnosis = told(f"starting\n{optional}flash attention is not there\nstep 1\n{ended}")
    assert ["KeyError" in root.statement for root in diagnosis.roots] == [True]
    assert "earlier start" not in terminal(diagnosis)
