"""Two troubles in one folder: both are told, the earlier as the cause and what follows from it as that."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from traceops.core.rank_text import who_first
from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Diagnosis
from traceops.report.hang_seen import seen_lines
from traceops.report.hang_text import hang_sentence, read_text, root_sentence
from traceops.rules.diagnosis import fabric_findings, judge_diagnosis


def raised(rank: int, error: str) -> str:
    lines = (
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 41, in step',
        "    loss = model(batch)",
        error,
    )
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)


def timed_out(*ranks: int) -> str:
    work = "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000)"
    return "".join(
        f"[rank{rank}]:[E1120 10:00:00.561 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: {work} ran for 600029 milliseconds before timing out.\n"
        for rank in ranks
    )


CRASHES = {
    "memory": (raised(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."), "GPU memory"),
    "import": (raised(2, "ModuleNotFoundError: No module named 'apex'"), "apex"),
    "illegal": (raised(2, "RuntimeError: CUDA error: an illegal memory access was encountered"), "illegal memory"),
    "disk": (raised(2, "OSError: [Errno 28] No space left on device"), "disk or the quota"),
    "assertion": (raised(2, "AssertionError: batch is empty"), "batch is empty"),
}
CANCELLED = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-04-20T09:09:37{} ***\n"
SLURM = {
    "time limit": (CANCELLED.format(" DUE TO TIME LIMIT"), "time limit"),
    "node failure": ("srun: error: Node failure on node2\n", "node2"),
    "preempted": (CANCELLED.format(" DUE TO PREEMPTION"), "preempted"),
}
# Two GPUs of different processors, P2P between them: the cause of the hang where there is one.
FABRIC = {
    "topo.txt": (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-15\t0\nGPU1\tSYS\t X \t16-31\t1\n"
        "\nLegend:\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"
    ),
    "nccl.log": (
        "node1:100:100 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "node1:101:101 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\n"
    ),
}


@pytest.fixture
def told(tmp_path: Path):
    def tell(log: str, more: dict[str, str] | None = None) -> Diagnosis:
        for name, text in {"train.log": log, **(more or {})}.items():
            (tmp_path / name).write_text(text)
        return diagnose(tmp_path)

    return tell


def fabric(diagnosis: Diagnosis):
    return fabric_findings(judge_diagnosis(diagnosis))


def answer(diagnosis: Diagnosis) -> str:
    seen = [f"{event.text} {who_first(said_by)}" for event, said_by in seen_lines(diagnosis)]
    roots = [root_sentence(root) for root in diagnosis.roots]
    return "\n".join([hang_sentence(diagnosis), *roots, *diagnosis.notes, *seen])


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_and_the_others_that_wait_for_it(told, crash: str) -> None:
    text, words = CRASHES[crash]
    diagnosis = told(text + timed_out(0, 1, 3))
    assert diagnosis.roots[0].ranks == (2,) and len(diagnosis.roots) == 1
    assert words in answer(diagnosis) and "0–1, 3" in answer(diagnosis)


@pytest.mark.parametrize(("crash", "slurm"), list(product(CRASHES, SLURM)))
def test_a_crash_and_what_slurm_did_then(told, crash: str, slurm: str) -> None:
    diagnosis = told(CRASHES[crash][0] + SLURM[slurm][0])
    assert diagnosis.roots[0].ranks == (2,)
    assert CRASHES[crash][1] in hang_sentence(diagnosis)
    (note,) = diagnosis.notes
    assert note.startswith("After that the program ") and SLURM[slurm][1] in note and "(train.log:5)" in note


@pytest.mark.parametrize("slurm", SLURM)
def test_a_hang_and_what_slurm_did_then(told, slurm: str) -> None:
    diagnosis = told(timed_out(0, 1, 3) + SLURM[slurm][0])
    assert diagnosis.roots == () and hang_sentence(diagnosis).startswith("Ranks 0–1, 3 wait in all_reduce #3")
    assert "all_reduce" in answer(diagnosis)
    assert any(SLURM[slurm][1] in note and note.startswith("After that") for note in diagnosis.notes)


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_beside_what_nccl_and_the_machine_tell(told, crash: str) -> None:
    text = CRASHES[crash][0].replace("[rank2]", "[rank1]")
    diagnosis = told(text, FABRIC)
    assert diagnosis.roots[0].ranks == (1,) and CRASHES[crash][1] in hang_sentence(diagnosis)
    assert "topology of 1 machine" in read_text(diagnosis) and "NCCL's lines in 1 log" in read_text(diagnosis)
    assert any("SYS" in finding.message or "P2P" in finding.message for finding in fabric(diagnosis))


def test_a_hang_over_a_path_that_is_broken(told) -> None:
    diagnosis = told(timed_out(0, 1), FABRIC)
    assert (diagnosis.roots[0].rule, diagnosis.roots[0].cause) == ("TO-H006", "p2p")


def test_two_ranks_that_crash_in_different_ways(told) -> None:
    diagnosis = told(CRASHES["memory"][0] + CRASHES["assertion"][0].replace("rank2", "rank3"))
    assert diagnosis.roots[0].ranks == (2,)
    assert "GPU memory" in answer(diagnosis) and "batch is empty" in answer(diagnosis)


def test_there_are_thirty() -> None:
    assert len(CRASHES) * (2 + len(SLURM)) + len(SLURM) + 2 == 30


MACHINE = {
    "slurm": ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.\n", "the host's memory"),
    "kernel": ("[ 99.1] Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:2kB\n", "the host's memory"),
    "xid": ("[ 12.5] NVRM: Xid (PCI:0000:3B:00): 79, pid=1, GPU has fallen off the bus.\n", "its GPU fail (hardware)"),
}


@pytest.mark.parametrize("machine", MACHINE)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ranks", [(0, 2), (0, 1)])
def test_what_the_machine_did_may_be_why_ranks_wait(told, machine: str, late: bool, ranks: tuple[int, ...]) -> None:
    """Slurm says it at the job's end, and dmesg is put behind the log: it was left out there."""
    text, words = MACHINE[machine]
    waiting = timed_out(*ranks)
    (root,) = told(waiting + text if late else text + waiting).roots
    assert root.statement.endswith(f"This may be why: a process of unknown rank {_did(words)}")
    assert root.confidence == "low"


def _did(words: str) -> str:
    return f"ran out of {words}" if "memory" in words else f"saw {words}"


def test_a_rank_s_own_memory_error_after_the_timeouts_is_their_echo(told) -> None:
    echo = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    diagnosis = told(timed_out(0, 2) + echo)
    assert diagnosis.roots == () and hang_sentence(diagnosis).startswith("Ranks 0, 2 wait in all_reduce #3")


LIMIT = "slurmstepd: error: *** JOB 44 ON node03 CANCELLED AT 2026-11-02T13:10:00 DUE TO TIME LIMIT ***\n"
ENDED = (
    "E1102 10:00:05 140 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 17) local_rank: 3 "
    "(pid: 812) of binary: python\n"
)


def test_a_rank_that_exits_by_itself_did_not_die_of_a_time_limit_told_elsewhere(tmp_path) -> None:
    """'Rank 3 died: it ended with exit code 17: … DUE TO TIME LIMIT' joined two files that nothing joins."""
    (tmp_path / "launcher.log").write_text(ENDED)
    (tmp_path / "slurm.log").write_text(LIMIT)
    diagnosis = diagnose(tmp_path)
    [root] = diagnosis.roots
    assert root.ranks == (3,) and "LIMIT" not in root.statement and root.crash is None
    assert any("time limit" in note for note in diagnosis.notes)

    (tmp_path / "slurm.log").unlink()
    (tmp_path / "launcher.log").write_text(ENDED + LIMIT)
    [root] = diagnose(tmp_path).roots
    assert root.ranks == (3,) and "LIMIT" not in root.statement
