"""An attempt that fails with the words of the one before: it is told by its own lines, not as a repetition."""

from __future__ import annotations

import pytest

ELASTIC = "1102 10:00:06 140 torch/distributed/elastic/"
AGAIN = f"I{ELASTIC}agent/server/api.py:900] [default] Worker group FAILED. 1/3 left; will restart worker group\n"
ENDED = f"E{ELASTIC}multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: {{}}) of binary: python\n"
RAISED = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/app/train.py", line 33, in collate\n'
    "[rank1]:     pad(x)\n[rank1]: ValueError: tokenizer has no pad token\n"
)
LATE = (
    "[rank{}]:[E1102 10:10:10 ProcessGroupNCCL.cpp:632] [PG ID 0 PG GUID 0(default_pg) Rank {}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=120, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) "
    "ran for 600011 milliseconds before timing out.\n"
)


def test_the_last_of_three_attempts_that_fail_alike_keeps_its_exception(told) -> None:
    """'Rank 1 died: it ended with exit code 1' was all that was said: the traceback counted as printed again."""
    text = AGAIN.join(RAISED + ENDED.format(800 + attempt) for attempt in range(3))
    (root,) = told(text).roots
    assert root.ranks == (1,) and "tokenizer has no pad token" in root.statement
    assert root.where == "collate (train.py:33)"


@pytest.mark.parametrize("ranks", [(1, 2), (0, 2)])
def test_the_last_attempt_that_times_out_as_the_one_before_keeps_its_timeouts(told, ranks) -> None:
    waited = "".join(LATE.format(rank, rank) for rank in ranks)
    first, last = told(waited), told(waited + AGAIN + waited)
    assert [(rank.rank, rank.state, rank.sequence) for rank in last.ranks] == [
        (rank.rank, rank.state, rank.sequence) for rank in first.ranks
    ]
    assert {rank.rank for rank in last.ranks if rank.state == "waiting"} == set(ranks)
    assert min(event.line for event in last.evidence.log) > len(ranks)
