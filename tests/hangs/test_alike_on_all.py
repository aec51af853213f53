"""A start that cannot succeed on any rank: told once, with the count of ranks."""

from __future__ import annotations

import io

import pytest

from traceops.hangs.model import Diagnosis
from traceops.render.hang.terminal import print_diagnosis
from traceops.report.hang_seen import seen_events

IMPORT = "ModuleNotFoundError: No module named 'flash_attn'"
GPU = "RuntimeError: CUDA error: invalid device ordinal"
FILE = "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"


def raised(rank: int, text: str, line: int = 3) -> str:
    said = ("Traceback (most recent call last):", f'  File "/app/train.py", line {line}, in <module>', "    go()", text)
    return "".join(f"[rank{rank}]: {one}\n" for one in said)


def report(root: int, others: tuple[int, ...], code: int = 1) -> str:
    def one(rank: int) -> str:
        return f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {100 + rank})\n"

    failures = "".join(f"[{number}]:\n{one(rank)}" for number, rank in enumerate(others))
    return f"Failures:\n{failures}-----\nRoot Cause (first observed failure):\n[0]:\n{one(root)}=====\n"


def shown(diagnosis: Diagnosis) -> str:
    out = io.StringIO()
    print_diagnosis(diagnosis, out)
    return " ".join(out.getvalue().split())


@pytest.mark.parametrize("text", [IMPORT, GPU, FILE])
def test_what_failed_alike_on_all_ranks_is_told_once(told, text: str) -> None:
    """An ImportError stood in the cause, in how the rank ended, in the line quoted and beside the others' ranks."""
    diagnosis = told("".join(raised(rank, text) for rank in range(4)) + report(1, (0, 2, 3)))
    [root] = diagnosis.roots
    assert root.rule == "TO-H004" and root.ranks == (0, 1, 2, 3)
    assert root.statement.startswith("Ranks 0–3 died: each ") and root.where == "<module> (train.py:3)"
    assert root.evidence[:2] == (("seen to end first", "rank 1"), ("exit code", "1"))
    assert {status.state for status in diagnosis.ranks} == {"dead"} and seen_events(diagnosis) == []
    message = text.partition(": ")[2].partition(": ")[2] or text.partition(": ")[2]
    assert shown(diagnosis).count(message) == 1


@pytest.mark.parametrize(
    "other",
    [
        raised(0, IMPORT.replace("flash_attn", "apex")),
        raised(0, IMPORT, line=9),
        "[rank0]: RuntimeError: Connection closed by peer\n",
    ],
)
def test_ranks_that_failed_in_another_way_are_not_counted(told, other: str) -> None:
    [root, *_] = told(other + raised(1, IMPORT) + report(1, (0,))).roots
    assert root.ranks == (1,) and "flash_attn" in root.statement


def test_where_others_wait_for_a_rank_it_is_told_alone(told) -> None:
    """Rank 0's own end of the same kind is later: it was in a collective."""
    late = (
        "[rank0]:[E1120 10:00:00.561 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=64, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600029 milliseconds "
        "before timing out.\n"
    )
    [root, *_] = told(raised(1, FILE) + late + report(1, (0,))).roots
    assert root.ranks == (1,)


def test_other_words_of_the_same_failure_are_shown(told) -> None:
    """Of a graph that Gaudi cannot compile rank 6 said that a thread failed, and rank 2 what: that was left out."""
    thread = "RuntimeError: [Rank:6] FATAL ERROR :: MODULE:PT_BRIDGE Exception in Launch thread..."
    graph = "RuntimeError: Graph compile failed. synStatus=synStatus 26 [Generic failure]."
    diagnosis = told(raised(6, thread) + raised(2, graph) + raised(3, graph.replace("26", "27")))
    [root] = diagnosis.roots
    assert root.ranks == (2, 3, 6) and "Graph compile failed" in shown(diagnosis)
    alike = told(raised(2, graph) + raised(3, graph.replace("26", "27")))
    assert alike.roots[0].ranks == (2, 3) and seen_events(alike) == []
