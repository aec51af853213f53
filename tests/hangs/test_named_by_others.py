"""Ranks and causes that other programs than torch name in a log, and logs that are cut inside a traceback."""

from __future__ import annotations

import pytest
from quiet import is_quiet

from traceops.hangs.readers.messages import ready_ranks, stalled_ranks
from traceops.report.hang_seen import seen_lines
from traceops.report.hang_text import hang_level, hang_sentence, unknown_ranks

STALL = (
    "WARNING: One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are "
    "waiting for remainder of ranks for more than 60 seconds. Stalled ops: "
)
WATCHDOG = (
    "[rank{r}]:[E227 23:07:54.3 ProcessGroupNCCL.cpp:629] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum={n}, OpType={op}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600034 milliseconds before "
    "timing out.\n"
    "[rank{r}]:[E227 23:07:54.3 ProcessGroupNCCL.cpp:2168] [PG ID 0 PG GUID 0(default_pg) Rank {r}]  failure detected "
    "by watchdog at work sequence id: {n} PG status: last enqueued work: {last}, last completed work: {done}\n"
)


@pytest.mark.parametrize(
    ("line", "missing", "ready"),
    [
        ("HorovodBroadcast_w_0 [missing ranks: 1]", (1,), ()),
        ("Stalled ops:a [missing ranks: 0, 6], b [missing ranks: 6, 7]", (6,), ()),
        (f"{STALL}a [ready ranks: 5, 1, 4, 7, 2, 3], b [ready ranks: 1, 2, 3]", (0,), (1, 2, 3, 4, 5, 7)),
        (f"{STALL}a [ready ranks: 3], b [ready ranks: 2, 0, 1]", (), (0, 1, 2, 3)),
        (STALL, (), ()),
        ("the missing ranks: 3 of them", None, ()),
    ],
)
def test_horovods_list_of_ranks(line, missing, ready):
    assert stalled_ranks(line) == missing
    assert ready_ranks(line) == ready


def test_who_horovod_misses_is_the_cause(told):
    diagnosis = told(f"{STALL}\nHorovodBroadcast_a_0 [missing ranks: 1]\nHorovodBroadcast_b_0 [missing ranks: 1, 2]\n")
    (root,) = diagnosis.roots
    assert (root.rule, root.ranks) == ("TO-H001", (1,))
    assert hang_sentence(diagnosis).startswith("Rank 1 did not come, as Horovod reports. [")


def test_the_ranks_that_came_wait(told):
    diagnosis = told(f"80%|#  | 4/5 [00:10<00:02,  2.00s/it]{STALL}a [ready ranks: 5, 1, 4, 7, 2, 3]\n")
    (root,) = diagnosis.roots
    assert (root.ranks, root.waiting) == ((0, 6), (1, 2, 3, 4, 5, 7))
    assert {status.rank: status.state for status in diagnosis.ranks} == {
        rank: "root" if rank in (0, 6) else "waiting" for rank in range(8)
    }
    assert unknown_ranks(diagnosis) == ((0, 0), (6, 6))


@pytest.mark.parametrize("tag", ["", "[1,0]<stderr>:", "[1,0]:", "0: "])
def test_horovods_list_by_rank(told, tag):
    """As Horovod has written it since 0.16, a line a rank."""
    warned = f"{tag}[2021-03-05 10:00:00.1: W /tmp/horovod/common/stall_inspector.cc:105] {STALL[:-14]}"
    for ranks, named in (
        (("1: [allreduce.a, allreduce.b]", "3: [allreduce.a]"), (1,)),
        (("1!: [a, b]", "3: [b, a]"), (1, 3)),
        (("0: [a]", "2: [b]"), ()),
        (("5: [a, b, c, d, e, f ...]", "7: [a]"), (5,)),
        (tuple(f"{rank}: [a]" for rank in range(1, 64)), tuple(range(1, 64))),
    ):
        lines = [f"{warned} ", *(f"{tag}{line}" for line in ("Stalled ranks:", *ranks))]
        diagnosis = told("\n".join((*lines, f"{tag}step 3 loss 0.1\n")))
        assert [root.ranks for root in diagnosis.roots] == ([named] if named else [])


def test_operations_that_miss_different_ranks_name_nobody(told):
    diagnosis = told(f"{STALL}a [ready ranks: 3], b [ready ranks: 2, 0, 1]\n")
    assert not diagnosis.roots and hang_level(diagnosis) == "warning"


def test_who_only_dumps_names_who_timed_out(told):
    line = (
        "[rank{r}]:[E1006 15:30:20.6 ProcessGroupNCCL.cpp:1772] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Received a "
        "dump signal due to a collective timeout from  rank 3 and we will try our best to dump the debug info. Last "
        "enqueued NCCL work: 41, last completed NCCL work: 41.\n"
    )
    diagnosis = told("".join(line.format(r=rank) for rank in (7, 5)))
    assert not diagnosis.roots and "Nobody" not in hang_sentence(diagnosis)
    ((_, said_by),) = seen_lines(diagnosis)
    assert said_by == (3,)
    states = {status.rank: status.state for status in diagnosis.ranks}
    assert (states[3], states[5], states[7]) == ("unclear", "idle", "idle")


def test_an_absent_rank_has_called_what_another_finished(told):
    """Without a root, a collective ends on a rank only when all have called it."""
    diagnosis = told(
        WATCHDOG.format(r=0, n=25, op="_ALLGATHER_BASE", last=32, done=24)
        + WATCHDOG.format(r=3, n=27, op="_REDUCE_SCATTER_BASE", last=30, done=26)
    )
    (root,) = diagnosis.roots
    assert (root.rule, root.ranks, root.waiting) == ("TO-H003", (0,), (3,))
    assert "rank 3 finished it" in root.statement


def test_a_broadcast_may_end_before_others_come(told):
    diagnosis = told(
        WATCHDOG.format(r=0, n=25, op="BROADCAST", last=32, done=24)
        + WATCHDOG.format(r=3, n=27, op="ALLREDUCE", last=30, done=26)
    )
    assert diagnosis.roots == () and [rank.rank for rank in diagnosis.ranks if rank.state == "waiting"] == [0, 3]


@pytest.mark.parametrize(
    ("line", "kind", "says"),
    [
        ("<0>[ 3098.275469] Kernel panic - not syncing: Fatal exception", "node_failure", "lost a node"),
        (
            "“Memory access fault by GPU node-2 (Agent handle: 0x55) on address 0x7fc1. Reason: Page not present.",
            "illegal_access",
            "illegal memory access",
        ),
        (
            "[Tue Sep  9 02:30:28 2025] amdgpu 0000:c6:00.0: amdgpu: VM_L2_PROTECTION_FAULT_STATUS:0x00341051",
            "illegal_access",
            "illegal memory access",
        ),
        (
            "RuntimeError: MPS backend out of memory (MPS allocated: 15.05 GB, other allocations: 11.91 GB).",
            "gpu_memory",
            "ran out of GPU memory",
        ),
    ],
)
def test_what_kernels_and_rocm_say(told, line, kind, says):
    diagnosis = told(f"{line}\n")
    (root,) = diagnosis.roots
    assert root.cause == kind and says in hang_sentence(diagnosis)


@pytest.mark.parametrize(
    "text",
    [
        "[2026-01-29 13:12:37 PP1 TP1] Scheduler watchdog timeout (self.watchdog_timeout=300, self.soft=False)\n",
        "[rank2]:[W303 08:23:41.0 socket.cpp:487] [c10d] waitForInput: socket SocketImpl(fd=71, addr=[localhost]:4, "
        "remote=[localhost]:29500) timed out after 600000ms\n",
        "INFO:tensorflow:ShutdownHook: lame workers found: HeartbeatManager(/job:worker/replica:0/task:0)\n",
        "2023-11-16 22:21:10,196 INFO    SenderThread:4 [sender.py:send_exit():585] handling exit code: 1\n",
        "  traceback : Signal 6 (SIGABRT) received by PID 592\n",
        "HCCL demo error: In function initDevice(): synDeviceAcquire(&handle, nullptr) failed with synapse error: 20\n",
        'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\n    main()\n',
        '[rank2]: Traceback (most recent call last):\n[rank2]:   File "train.py", line 9, in f\n[rank2]:     g(\n',
    ],
)
def test_trouble_without_a_cause_is_shown(told, text):
    diagnosis = told(text)
    assert not diagnosis.roots and hang_level(diagnosis) == "warning"
    assert "not in this log" in hang_sentence(diagnosis) and seen_lines(diagnosis)


FRAMES = 'File "a.py", line 611, in <module>\n    main()\n  File "a.py", line 605, in main\n    trainer.fit(mo'


@pytest.mark.parametrize("before", ["", "\n", "    return func(*args)\n  "])
def test_a_traceback_without_its_head_and_its_end_is_trouble(told, before):
    diagnosis = told(before + FRAMES)
    assert not diagnosis.roots and hang_level(diagnosis) == "warning"
    assert any("main (a.py:605)" in event.text for event, _ in seen_lines(diagnosis))


@pytest.mark.parametrize("text", [f"epoch 1\n{FRAMES}", f"{FRAMES}\nepoch 1", f"[rank0]: epoch 1\n{FRAMES}"])
def test_a_stack_that_a_program_prints_on_its_way_is_no_trouble(told, text):
    assert is_quiet(told(text))


def test_a_traceback_that_the_program_outlived_is_not_cut_off(told):
    assert is_quiet(
        told(
            'Exception ignored in: <f>\nTraceback (most recent call last):\n  File "a.py", line 1, in f\nTimeoutError\n'
        )
    )


def test_a_timeout_broken_within_its_name(told):
    diagnosis = told(
        "[rank0]:[E305 16:45:41.0 ProcessGroupNCCL.cpp:1515] [PG 1 Rank 0] Process group watchdog thread terminated "
        "with exception: [Rank 0] Watchdog caught collective operation timeout: Work\n"
        "NCCL(SeqNum=3369, OpType=ALLTOALL, NumelIn=6, NumelOut=6, Timeout(ms)=600000) ran for 600000 milliseconds "
        "before timing out.\n"
    )
    assert hang_sentence(diagnosis).startswith("Rank 0 waits in all_to_all #3369. ")


def test_who_has_called_more_than_ended_is_not_idle(told):
    diagnosis = told(
        "[rank0]:[E305 16:45:41.0 ProcessGroupNCCL.cpp:1709] [PG 1 Rank 0] Timeout at NCCL work: 3369, last enqueued "
        "NCCL work: 3372, last completed NCCL work: 3368.\n"
    )
    assert [status.state for status in diagnosis.ranks] == ["waiting"]
    assert hang_sentence(diagnosis) == "Rank 0 waits. The evidence does not show which rank it waits for."


@pytest.mark.parametrize(
    "line",
    ["Mean squared error: 0.03", "Validation error: lower than before", "INFO handling exit code: 0", "Type error: 4"],
)
def test_what_only_sounds_like_an_error(told, line):
    assert is_quiet(told(f"{line}\n"))
