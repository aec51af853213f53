"""Logs as strangers paste them: cut at the top, several runs in one file, one launcher's words or another's."""

from __future__ import annotations

import pytest
from quiet import is_quiet

from traceops.report.hang_seen import seen_lines
from traceops.report.hang_text import hang_level, hang_sentence, root_advice, unknown_ranks

WATCHDOG = (
    "[rank{r}]:[E321 02:07:08.4 ProcessGroupNCCL.cpp:607] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=80, OpType=ALLREDUCE, NumelIn=4661, NumelOut=4661, Timeout(ms)=600000) ran for 600060 "
    "milliseconds before timing out.\n"
)
STATUS = (
    "[rank{r}]:[E321 02:07:08.5 ProcessGroupNCCL.cpp:1664] [PG 1 Rank {r}] Exception (either an error or timeout) "
    "detected by watchdog at work: 80, last enqueued NCCL work: 82, last completed NCCL work: 79.\n"
)
FINGERPRINT = "CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[{n}], TensorDtypes=Float)"


@pytest.mark.parametrize(
    ("text", "rule", "cause", "says"),
    [
        (
            "../aten/src/ATen/native/cuda/Indexing.cu:11: indexSelectLargeIndex: block: [6,0,0], thread: [1,0,0] "
            "Assertion `srcIndex < srcSelectDimSize` failed.",
            "TO-E003", "device_assert", "failed an assertion on its GPU",
        ),
        (
            "/pytorch/aten/src/ATen/native/hip/Indexing.hip:12: f: Device-side assertion `i < n' failed.",
            "TO-E003", "device_assert", "failed an assertion on its GPU",
        ),
        (
            "41%|███ | 366/903 [5:15<6:53, 46.16s/it]HW Exception by GPU node-9 (Agent handle: 0x63) reason :GPU Hang",
            "TO-E003", "gpu_hang", "saw its GPU hang, as ROCm reports",
        ),
        ("[ 1843.3] NVRM: fallen off the bus and is not responding to commands.", "TO-E003", "gpu_hardware", "GPU"),
        (
            "a:1:2 [0] bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in",
            "TO-E004", "rank_twice", "two processes that call themselves the same rank",
        ),
        (
            "a:1:2 [7] NCCL INFO 24 coll channels\n[a:52 :0:57] Caught signal 7 (Bus error: no physical address)",
            "TO-E005", "bus_error", "crashed with a bus error",
        ),
        (
            "RuntimeError: Failed to import transformers.models.bloom because of the following error (look up to see "
            "its traceback):\n/a/flash_attn_2_cuda.so: undefined symbol: _ZN2at4",
            "TO-E005", "import_error", "crashed while importing",
        ),
        (
            "[rank0]:[E907 22:34:22.8 ProcessGroupNCCL.cpp:1515] [PG 0 (default_pg) Rank 0] Process group watchdog "
            "thread terminated with exception: CUDA error: an illegal memory access was encountered",
            "TO-E003", "illegal_access", "Rank 0 made an illegal memory access",
        ),
    ],
)  # fmt: skip
def test_a_message_that_stands_alone_is_told(told, text: str, rule: str, cause: str, says: str):
    (root,) = told(text + "\n").roots
    assert (root.rule, root.cause) == (rule, cause)
    assert says in root.statement


def test_a_gpu_of_amd_is_not_looked_at_with_nvidias_program(told):
    diagnosis = told("HW Exception by GPU node-9 (Agent handle: 0x63) reason :GPU Hang\n")
    assert "nvidia-smi" not in root_advice(diagnosis.roots[0])


def test_a_bus_error_sends_to_shared_memory(told):
    (root,) = told("[a:52 :0:57] Caught signal 7 (Bus error: no physical address)\n").roots
    assert "/dev/shm" in root_advice(root)


CUT = """\
  File "/venv/site-packages/flash_attn/__init__.py", line 3, in <module>
    from flash_attn.interface import f
  File "/venv/site-packages/flash_attn/interface.py", line 8, in <module>
    import flash_attn_2_cuda
{last}
INFO next epoch
"""


def test_a_traceback_without_its_first_line_ends_with_its_exception(told):
    (root,) = told(CUT.format(last="ImportError: /a/b.so: undefined symbol: _ZN3c10")).roots
    assert (root.rule, root.cause) == ("TO-E005", "import_error")
    assert is_quiet(told(CUT.format(last="INFO that was the stack")))  # a program printed it and went on


def test_an_error_that_names_no_rank_is_that_of_the_one_that_the_launcher_names(told):
    report = "Root Cause (first observed failure):\n[0]:\n"
    report += "  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: {pid})\n"
    run = 'Traceback (most recent call last):\n  File "train.py", line 5, in main\n    f()\n{error}\n' + report
    diagnosis = told(
        run.format(error="KeyError: 'first run'", pid=11) + run.format(error="KeyError: 'second run'", pid=22)
    )
    (root,) = diagnosis.roots
    assert "second run" in root.message and "first run" not in root.message
    assert root.ranks == (0,) and root.crash is not None


def test_a_job_that_slurm_ended_explains_nothing_of_the_next_in_the_file(told):
    cancelled = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2025-08-17T01:22:18 ***\n"
    error = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\nValueError: {}\n'
    (root,) = told(error.format("old") + cancelled + error.format("new") + cancelled).roots
    assert "new" in root.message and "old" not in root.message


def test_a_log_with_a_hole_is_read(told):
    text = b"step 1\n" + b"\0" * 5000 + b'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    g()\n'
    (root,) = told(text + b"ValueError: after the hole\n").roots
    assert "after the hole" in root.message


def test_slurm_says_who_was_killed_for_memory_and_nobody_else_is_said_to_wait(told):
    diagnosis = told(
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0. Some of the step tasks have been OOM Killed.\n"
        "srun: error: n1: tasks 1-2: Out Of Memory\n"
    )
    assert [root.ranks for root in diagnosis.roots] == [(1, 2)]
    assert all("Out Of Memory" in root.message and not root.waiting for root in diagnosis.roots)
    assert all("Nothing in the log says who" not in root_advice(root) for root in diagnosis.roots)


LIMIT = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-11-23T10:00:00 DUE TO TIME LIMIT ***\n"
EXITED = "srun: error: n1: task 1: Exited with exit code 1\n"
CUDA_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
OOM_KILL = "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0. Some of the step tasks have been OOM Killed.\n"


@pytest.mark.parametrize(
    "before, rule, ranks",
    [
        (LIMIT, "TO-E008", ()),
        (EXITED, "TO-H004", (1,)),
        (CUDA_OOM + EXITED, "TO-H004", (1,)),
        (OOM_KILL + LIMIT, "TO-H004", (0, 2, 3)),
        ("", "TO-H004", (0, 2, 3)),
    ],
)
def test_what_srun_kills_behind_a_failure_or_the_time_limit_is_no_cause(told, before, rule, ranks):
    """'Ranks 0-3 died: each was killed by SIGKILL (often the kernel's out-of-memory killer)' of a time limit."""
    first = told(f"step 1\n{before}srun: error: n1: tasks 0,2-3: Killed\n").roots[0]
    assert (first.rule, first.ranks) == (rule, ranks)


def test_a_rank_that_fails_behind_a_kill_explains_none(told):
    roots = told(f"srun: error: n1: tasks 0,2-3: Killed\n{EXITED}").roots
    assert (0, 2, 3) in [root.ranks for root in roots]


LOST = (
    '[rank0]: Traceback (most recent call last):\n[rank0]:   File "train.py", line 11, in <module>\n'
    "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:30630\n"
)
FAILED = '[rank{0}]: Traceback (most recent call last):\n[rank{0}]:   File "train.py", line 13, in <module>\n'
FAILED += "[rank{0}]: ValueError: bad sample\n"


def test_who_only_lost_a_peer_that_failed_did_not_die_by_itself(told):
    """srun tells that both tasks exited, rank 0 first: 'Rank 0 died: it ended with exit code 1'."""
    log = f"{LOST}{FAILED.format(1)}{EXITED}srun: error: n2: task 0: Exited with exit code 1\n"
    (root,) = told(log).roots
    assert root.ranks == (1,) and "bad sample" in root.message


@pytest.mark.parametrize("said", ["rank 9 on n2 failed first, exit code 1", "rank 9 ended first, exit code 0"])
def test_our_own_launcher_counts_ranks_where_sruns_tasks_are_nodes(told, said):
    """'Ranks 0-1 died: each ended with exit code 1' of two nodes of eight ranks, each with a launcher."""
    ended = "srun: error: n1: task 0: Exited with exit code 1\nsrun: error: n2: task 1: Exited with exit code 1\n"
    (root,) = told(f"{LOST}traceops: {said}\n{FAILED.format(9)}{ended}").roots
    assert root.ranks == (9,) and "bad sample" in root.message


def test_ranks_that_ended_alike_are_one_cause(told):
    ended = "srun: error: n{}: tasks {}: Exited with exit code 1\n"
    (root,) = told(ended.format(1, "0-3") + ended.format(2, "4-7")).roots
    assert root.ranks == tuple(range(8)) and root.statement == "Ranks 0\u20137 died: each ended with exit code 1"


def test_a_loop_of_the_shell_that_it_killed_is_no_training(told):
    assert is_quiet(
        told("DONE\nrun.sh: line 151: 107629 Killed                  ( while true; do\n    sleep 90\ndone )\n")
    )
    assert told("run.sh: line 151: 107629 Killed                  python train.py\n").roots


def test_a_rank_that_did_not_finish_has_not_finished_what_it_queued(told):
    watchdog = (
        "[rank{0}]:[E1122 06:40:00.5 ProcessGroupNCCL.cpp:6] [Rank {0}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={1}, OpType={2}, NumelIn=8, NumelOut=4, Timeout(ms)=600000) ran for 600080 milliseconds "
        "before timing out.\n[rank{0}]:[E1122 06:40:00.5 P.cpp:7] [PG ID 0 PG GUID 0(default_pg) Rank {0}] "
        "Exception (either an error or timeout) detected by watchdog at work: {1}, last enqueued NCCL work: {3}, last "
        "completed NCCL work: {4}.\n"
    )
    diagnosis = told(
        watchdog.format(0, 122, "_REDUCE_SCATTER_BASE", 127, 121) + watchdog.format(1, 126, "_ALLGATHER_BASE", 128, 125)
    )
    (root,) = diagnosis.roots
    assert (root.ranks, root.waiting, root.confidence) == ((0,), (1,), "low")
    assert "Or #122 is another operation on rank 1" in root.statement


def test_ranks_that_a_launcher_ended_are_dead_and_known(told):
    diagnosis = told(
        "0: [h:5:2:6] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x20)\n"
        "srun: error: h: task 0: Segmentation fault\nsrun: error: h: task 1: Terminated\n"
    )
    assert [rank.state for rank in diagnosis.ranks] == ["dead", "dead"]
    assert unknown_ranks(diagnosis) == () and diagnosis.roots[0].waiting == ()
    assert "Caught signal 11" in diagnosis.roots[0].message


def test_crays_launcher_says_which_rank_was_ended(told):
    waits = "".join(WATCHDOG.format(r=rank) for rank in (0, 2, 3))
    (root,) = told(waits + "x3200.alcf: rank 1 died from signal 15\n").roots
    assert root.ranks == (1,) and "left no evidence at all" not in root.message
    assert "of default_pg" in root.message  # who is in it is a guess


def test_a_timeout_without_a_group_is_of_the_group_of_the_others_and_so_is_a_status_alone(told):
    diagnosis = told(WATCHDOG.format(r=0) + STATUS.format(r=0) + WATCHDOG.format(r=4) + STATUS.format(r=3))
    assert diagnosis.roots == () and hang_level(diagnosis) == "warning"  # of ranks 1 and 2 there is no line
    assert {rank.rank: rank.sequence for rank in diagnosis.ranks if rank.state == "waiting"} == {0: 80, 3: 80, 4: 80}


def test_who_waits_elsewhere_is_not_said_to_wait_in_this_call(told):
    later = WATCHDOG.format(r=0).replace("SeqNum=80", "SeqNum=120")
    diagnosis = told(later + WATCHDOG.format(r=3))
    said = hang_sentence(diagnosis)
    assert said.startswith(
        "Ranks 0, 3 wait: rank 0 in all_reduce #120; rank 3 in all_reduce #80. Nothing in these files"
    )


def test_ranks_whose_calls_torch_compares_are_known(told):
    diagnosis = told(
        f"RuntimeError: Detected mismatch between collectives on ranks. Rank 1 is running collective: "
        f"{FINGERPRINT.format(n=8)}, but Rank 0 is running collective: {FINGERPRINT.format(n=9)}.\n"
    )
    assert diagnosis.roots[0].ranks == (0, 1) and unknown_ranks(diagnosis) == ()


@pytest.mark.parametrize(
    "line",
    [
        "(EngineCore pid=2) INFO 08-13 [shm_broadcast.py:802] No available shared memory broadcast block found in 60 s",
        "n1:1:2 [5] misc/socket.cc:483 NCCL WARN Connect to fe80::1%ib1<1> failed : Software caused connection abort",
    ],
)
def test_what_tells_of_trouble_and_of_no_cause_is_shown(told, line: str):
    diagnosis = told(f"{line}\n")
    assert not diagnosis.roots and hang_level(diagnosis) == "warning"
    assert "not in this log" in hang_sentence(diagnosis) and len(list(seen_lines(diagnosis))) == 1
