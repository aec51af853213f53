"""What logs of jobs that hung or failed tell, in the wording of every torch, NCCL and launcher in use."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose
from traceops.hangs.evidence import GroupStatus
from traceops.hangs.readers.hang_log import read_starts
from traceops.hangs.readers.log_events import records_from_log
from traceops.render.hang.tables import ranks_table
from traceops.report.hang_text import merged_ranks

# ruff: noqa: E501 (messages stand as they are written)


DATA = Path(__file__).parents[1] / "data" / "hang_logs"


@pytest.fixture
def read(tmp_path):
    """The events of a text."""

    def read_text(text: str, rank: int | None = None):
        path = tmp_path / "log.txt"
        path.write_bytes(text.encode())
        return read_starts(str(path), rank)[0]

    return read_text


def events_of(name: str, *kinds: str):
    return [event for event in read_starts(str(DATA / f"{name}.txt"))[0] if not kinds or event.kind in kinds]


def test_a_rank_that_skips_a_collective_is_behind_the_others():
    records = records_from_log(events_of("nccl_skip"))
    assert sorted(records) == [0, 1, 2, 3]
    for rank in (0, 1, 2):
        (call,) = records[rank].operations
        assert (call.op, call.sequence, call.group, call.state) == ("all_reduce", 64, "0", "scheduled")
        assert call.sizes_in == call.sizes_out == ((1048576,),)
        assert [frame.function for frame in call.frames] == ["all_reduce", "wrapper", "step", "<module>"]
        assert call.frames[2].line == 128
        assert records[rank].status["0"] == GroupStatus(64, 63, latest=64)
        assert records[rank].groups["0"].description == "default_pg"
    assert records[3].operations == ()
    assert records[3].status["0"] == GroupStatus(63, 63, latest=63)
    assert all(record.source == "log" for record in records.values())


def test_different_collectives_of_one_number():
    records = records_from_log(events_of("nccl_mismatch"))
    assert {rank: record.operations[0].op for rank, record in records.items()} == {
        0: "all_reduce",
        1: "all_reduce",
        2: "all_reduce",
        3: "_all_gather_base",
    }
    assert records[3].operations[0].sizes_out == ((4194304,),)
    assert records[3].operations[0].frames[0].function == "all_gather_into_tensor"


def test_torchrun_tells_every_exit_and_the_first():
    exits = events_of("nccl_exit")
    assert {event.kind for event in exits} == {"exit"}
    assert {event.accused: (event.exit_code, event.root_cause) for event in exits} == {
        (0,): (-15, False),
        (1,): (-15, False),
        (2,): (-15, False),
        (3,): (17, True),
    }
    assert all(event.rank is None for event in exits)


@pytest.mark.parametrize(("name", "code"), [("raise", 1), ("kill", -9), ("segv", -11), ("oom", 1)])
def test_who_failed_first(name, code):
    (root,) = [event for event in events_of(f"gloo_{name}", "exit") if event.root_cause]
    assert (root.accused, root.exit_code) == ((1,), code)


def test_an_exception_ends_a_rank_and_the_others_lose_their_peer():
    events = events_of("gloo_raise", "error", "connection")
    assert [(event.kind, event.rank) for event in events] == [("error", 1), ("connection", 0), ("connection", 2)]
    assert events[0].text == "ValueError: bad batch"
    assert [str(frame) for frame in events[0].frames] == [
        "step (/home/user/train/work.py:12)",
        "<module> (/home/user/train/work.py:39)",
    ]
    assert "Connection closed by peer" in events[1].text
    assert events[1].op == "all_reduce"
    assert events[1].frames[0].function == "all_reduce"


def test_a_chain_of_exceptions_is_one_error():
    (error,) = events_of("gloo_chain", "error")
    assert error.text == "RuntimeError: no x (after KeyError: 'x')"
    assert error.frames[0].line == 15


def test_a_crash_belongs_to_the_rank_that_torchrun_says_died_of_the_signal():
    (error,) = events_of("gloo_segv", "error")
    assert (error.rank, error.text) == (1, "Fatal Python error: Segmentation fault")
    assert [frame.function for frame in error.frames] == ["step", "<module>"]


def test_out_of_memory_is_not_any_error():
    (memory,) = events_of("gloo_oom", "memory", "error")
    assert (memory.kind, memory.rank) == ("memory", 1)
    assert memory.frames[0].function == "step"


def test_ranks_missing_at_a_monitored_barrier():
    (missing,) = events_of("gloo_barrier", "missing")
    assert (missing.rank, missing.accused) == (0, (1,))
    assert missing.frames[0].function == "monitored_barrier"
    assert [event.accused for event in events_of("gloo_barrierall", "missing")] == [(1,), (2,), (1, 2)]


def test_gloo_waits_in_vain():
    timeouts = events_of("gloo_timeout", "timeout")
    assert [(event.rank, event.op) for event in timeouts] == [(0, "all_reduce"), (2, "all_reduce")]
    assert records_from_log(timeouts) == {}  # without a number nothing can be compared


def test_a_store_that_lacks_a_key():
    (wait,) = [event for event in events_of("gloo_store", "connection") if event.rank == 0]
    assert "wait timeout after 2000ms, keys: /default_pg/0//nokey" in wait.text


@pytest.mark.parametrize(
    ("name", "calls"),
    [
        (
            "mismatch",
            "rank 1 is running broadcast number 1 of [8] Float, but rank 0 is running all_reduce number 1 of [8]",
        ),
        (
            "shape",
            "rank 1 is running all_reduce number 1 of [5] Float, but rank 0 is running all_reduce number 1 of [4]",
        ),
    ],
)
def test_mismatch_names_both_calls(name, calls):
    told = {event.rank: event for event in events_of(f"gloo_{name}", "mismatch")}
    assert sorted(told) == [0, 1, 2]
    assert calls in told[1].text
    assert told[1].accused == (0, 1)
    assert told[1].sequence == 1
    assert told[1].frames[2].function == "step"
    assert events_of(f"gloo_{name}", "error") == []


WORK = "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds"


@pytest.mark.parametrize(
    ("line", "op", "sequence", "group"),
    [  # torch 2.1 to 2.15
        (
            "[E ProcessGroupNCCL.cpp:475] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
            "OpType=_ALLGATHER_BASE, NumelIn=4, NumelOut=16, Timeout(ms)=1800000) ran for 1800101 milliseconds before",
            "_all_gather_base",
            9,
            None,
        ),
        (
            "[E ProcessGroupNCCL.cpp:458] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
            "OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 25624887 milliseconds before timing out.",
            "all_reduce",
            9,
            None,
        ),
        (
            "[E ProcessGroupNCCL.cpp:737] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
            "OpType=BROADCAST, TensorShape=[1], Timeout(ms)=1800000) ran for 1806103 milliseconds before timing out.",
            "broadcast",
            9,
            None,
        ),
        (
            f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank 3] Process group watchdog thread terminated with exception: "
            f"[Rank 3] Watchdog caught collective operation timeout: {WORK} before timing out.",
            "all_reduce",
            5,
            "0",
        ),
        (
            "epoch 1:  6%|█▍ | 320/500 [06:28<94:39, 1.37it/s, loss=2.6][rank3]:[E1003 18:37:01.832 ProcessGroupNCCL.cpp:607] "
            f"[Rank 1] Watchdog caught collective operation timeout: {WORK} before timing out.",
            "all_reduce",
            5,
            None,
        ),
        (f"torch.distributed.DistBackendError: [Rank 3] {WORK[:-28]} timed out in blocking wait.", "all_reduce", 5, None),
    ],
)  # fmt: skip
def test_wording_of_timeouts(read, line, op, sequence, group):
    (event,) = read(line)
    assert (event.kind, event.rank, event.op, event.sequence, event.group) == ("timeout", 3, op, sequence, group)


@pytest.mark.parametrize(
    ("line", "group", "description", "enqueued", "completed"),
    [
        (
            "[rank1]:[E ProcessGroupNCCL.cpp:2303] [PG ID 2 PG GUID 28(mesh_dp) Rank 0]  failure detected by watchdog at "
            "work sequence id: 64 PG status: last enqueued work: 64, last completed work: 63",
            "28", "mesh_dp", 64, 63,
        ),
        (
            "[rank1]:[E1003 ProcessGroupNCCL.cpp:1664] [PG 0 (default_pg) Rank 1] Exception (either an error or timeout) "
            "detected by watchdog at work: 6463, last enqueued NCCL work: 6465, last completed NCCL work: 6462.",
            "0", "default_pg", 6465, 6462,
        ),
        (
            "[rank1]:[E321 ProcessGroupNCCL.cpp:1664] [PG 1 Rank 0] Timeout at NCCL work: 15, last enqueued NCCL work: "
            "16, last completed NCCL work: 14.",
            "1", None, 16, 14,
        ),
        (
            "[rank1]:[E1 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal due to a "
            "collective timeout from  rank 3 and we will try our best to dump the debug info. Last enqueued NCCL work: 1, "
            "last completed NCCL work: -1.This is most likely caused by incorrect usages",
            "0", "default_pg", 1, 0,
        ),
    ],
)  # fmt: skip
def test_wording_of_status(read, line, group, description, enqueued, completed):
    (event,) = [event for event in read(line) if event.kind == "status"]
    assert (event.kind, event.rank) == ("status", 1)
    assert (event.group, event.group_description) == (group, description)
    assert (event.enqueued, event.completed) == (enqueued, completed)


@pytest.mark.parametrize(
    ("line", "kind", "rank"),
    [
        ("[rank2]:[F1 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank 2] [PG ID 0 PG GUID 0(default_pg) Rank "
         "2] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring", "monitor", 2),
        ("[rank2]:[F ProcessGroupNCCL.cpp:1185] [Rank 2] Heartbeat monitor timed out! Process will be terminated after",
         "monitor", 2),
        ("node1:4321:4399 [2] transport/net_socket.cc:493 NCCL WARN Message truncated : received 1024 bytes instead of 256",
         "mismatch", None),
        ("[2025-03-01 10:00:00] node1:4321:4399 [2] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by "
         "remote peer node2<42830>", "connection", None),
        ("node1:4321:4399 [2] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<1> with status=12 opcode=0 len=0",
         "connection", None),
        ("node1:4321:4399 [2] enqueue.cc:1 NCCL WARN Cuda failure 700 'an illegal memory access'", "cuda", None),
        ("node1:4321:4399 [2] graph/xml.cc:1 NCCL WARN Could not find real path of a device", "nccl", None),
        ("[rank4]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, invalid usage", "nccl", 4),
        ("[rank4]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
         "connection", 4),
        ("[rank4]: ncclSystemError: System call (e.g. socket, malloc) or external library call failed", "connection", 4),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda", None),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "cuda", None),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "cuda", None),
        ("[ 12.3] NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.", "cuda", None),
        ("NVRM: Xid (0000:3b:00): 31, Ch 00000010", "cuda", None),
        ("HW Exception by GPU node-9 (Agent handle: 0x5a6c6e4a4680) reason :GPU Hang", "cuda", None),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "memory", None),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", "memory", None),
        ("[9.1] Out of memory: Killed process 123 (python) total-vm:1kB", "memory", None),
        ("[9.1] Memory cgroup out of memory: Killed process 123 (python)", "memory", None),
        ("[9.1] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null)", "memory", None),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=3.0. Some of the step tasks have been OOM Killed.",
         "memory", None),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=3.0.", "memory", None),
        ("[rank0]:[W1 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=54): Broken pipe", "connection", 0),
        ("torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect",
         "connection", None),
        ("torch.distributed.DistStoreError: Timed out after 6 seconds waiting for workers. 1/2 workers joined.",
         "connection", None),
        ("RuntimeError: Socket Timeout", "connection", None),
        ("RuntimeError: [../third_party/gloo/pair.cc:1] Timed out waiting 1800000ms for recv operation to complete",
         "timeout", None),
        ("[Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms", "missing", 0),
    ],
)  # fmt: skip
def test_wording_of_one_line(read, line, kind, rank):
    (event,) = read(f"epoch 1\n{line}\nepoch 2\n")
    assert (event.kind, event.rank, event.line) == (kind, rank, 2)


@pytest.mark.parametrize(
    "line",
    [
        "epoch 3: loss 2.5, timeout 30",
        "[rank1]:[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 97).",
        "[rank0]:[E1 ProcessGroupNCCL.cpp:670] Stack trace of the failed collective not found, potentially because",
        "node1:1:1 [0] NCCL INFO Connected all rings",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        "[rank0]:[E1 ProcessGroupNCCL.cpp:2636] [PG ID 0 PG GUID 0(default_pg) Rank 0] First PG on this rank to signal",
    ],
)
def test_chatter_tells_nothing(read, line):
    assert read(line) == ()


@pytest.mark.parametrize(
    ("line", "accused", "code"),
    [
        ("srun: error: node1: task 3: Killed", (3,), -9),
        ("srun: error: node1: tasks 0-2,5: Exited with exit code 1", (0, 1, 2, 5), 1),
        ("srun: error: node1: task 3: Exited with exit code 137", (3,), -9),
        ("srun: error: node1: task 3: Segmentation fault (core dumped)", (3,), -11),
        ("srun: error: node107: task 0: Out Of Memory", (0,), -9),
        ("mpirun noticed that process rank 3 with PID 0 on node n1 exited on signal 9 (Killed).", (3,), -9),
        ("prterun noticed that process rank 3 with PID 7 on node n1 exited on signal 11 (Segmentation fault).", (3,), -11),
        ("torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGKILL", (1,), -9),
        ("E1120 2975 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: 17) local_rank: 3 (pid: 29) of",
         (3,), 17),
        ("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 178) of binary: py",
         (0,), -9),
    ],
)  # fmt: skip
def test_wording_of_exits(read, line, accused, code):
    (event,) = read(line)
    assert (event.kind, event.accused, event.exit_code) == ("exit", accused, code)


CLOSED = "RuntimeError: Connection closed by peer [10.0.0.1]:80"


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank3]: ", 3),
        ("[rank 3] ", 3),
        ("[rank 3] [rank3]: ", 3),
        ("[default3]:", 3),
        ("[worker3]:", 3),
        ("[default3]:[rank11]: ", 11),
        ("3: ", 3),
        (" 3: [rank11]: ", 11),
        ("[1,3]<stderr>: ", 3),
        ("2025-03-01T10:00:00.000Z [rank3]:", 3),
        ("\x1b[31m[rank3]\x1b[0m: ", 3),
        ("", None),
    ],
)
def test_prefixes_name_the_rank(read, prefix, rank):
    (event,) = read(f"{prefix}{CLOSED}\r\n")
    assert (event.rank, event.text) == (rank, CLOSED)


def test_a_local_rank_is_no_rank_where_the_log_shows_another(read):
    events = read(f"[default1]:[rank9]: {CLOSED}\n[default1]:{CLOSED}\n[default2]:{CLOSED}\n")
    assert [event.rank for event in events] == [9, 9, None]


def test_the_file_tells_the_rank_of_lines_that_do_not(read):
    events = read(f"{CLOSED}\n[rank2]: {CLOSED}\n", rank=7)
    assert [event.rank for event in events] == [7, 2]


def test_a_rank_within_a_subgroup_is_not_the_rank(read):
    text = (
        f"[rank6]:[E1 ProcessGroupNCCL.cpp:1] [Rank 1] Watchdog caught collective operation timeout: {WORK} before\n"
        "[rank6]:[E1 ProcessGroupNCCL.cpp:2] [PG ID 3 PG GUID 12(tp) Rank 1]  failure detected by watchdog at work "
        "sequence id: 5 PG status: last enqueued work: 5, last completed work: 4\n"
        f"  what():  [PG ID 3 PG GUID 12(tp) Rank 1] Process group watchdog thread terminated with exception: [Rank 1] "
        f"Watchdog caught collective operation timeout: {WORK} before timing out.\n"
    )
    timeout, status = read(text)
    assert (timeout.rank, timeout.group, timeout.group_description) == (6, "12", "tp")
    assert status.rank == 6


def test_two_groups_of_a_rank_keep_their_timeouts_apart(read):
    text = "".join(
        f"[rank0]:[E1 P.cpp:1] [Rank 0] Watchdog caught collective operation timeout: {WORK} before timing out.\n"
        f"[rank0]:[E1 P.cpp:2] [PG ID {group} PG GUID {group}(g{group}) Rank 0]  failure detected by watchdog at work "
        "sequence id: 5 PG status: last enqueued work: 6, last completed work: 4\n"
        for group in (1, 2)
    )
    record = records_from_log(read(text))[0]
    assert [(op.group, op.sequence) for op in record.operations] == [("1", 5), ("2", 5)]
    assert {name: group.description for name, group in record.groups.items()} == {"1": "g1", "2": "g2"}


def test_messages_to_one_rank_are_counted_apart(read):
    work = WORK.replace("ALLREDUCE", "RECV")
    text = (
        f"[rank0]:[E1 P.cpp:1] [Rank 0] Watchdog caught collective operation timeout: {work} before\n"
        "[rank0]:[E1 P.cpp:2] [PG ID 1 PG GUID 1(pp) Rank 0]  failure detected by watchdog at work sequence id: 5 PG "
        "status: last enqueued work: 6, last completed work: 4\n"
    )
    record = records_from_log(read(text))[0]
    assert record.operations[0].is_p2p
    assert record.status["1"] == GroupStatus(latest=6)


def test_frames_of_interleaved_ranks(read):
    head = "[rank{0}]:[E1 P.cpp:1] [Rank {0}] Watchdog caught collective operation timeout: {1} before timing out.\n"
    text = (
        head.format(0, WORK)
        + head.format(1, WORK)
        + "[rank0]:[E1 P.cpp:7] Stack trace of the failed collective: \n"
        + "#0 all_reduce from /x/torch/distributed/distributed_c10d.py:3068\n"
        + "[rank1]: some line of another rank\n"
        + "#1 my step from /x/my folder/train.py:7\n#1 step from /x/my folder/train.py:8\n\n"
        + "#2 late from /x/train.py:9\n"
    )
    first, second = read(text)
    assert [str(frame) for frame in first.frames] == [
        "all_reduce (/x/torch/distributed/distributed_c10d.py:3068)",
        "step (/x/my folder/train.py:8)",
    ]
    assert second.frames == ()


def test_tracebacks_of_ranks_do_not_mix(read):
    text = (
        "[rank0]: Traceback (most recent call last):\n[rank1]: Traceback (most recent call last):\n"
        '[rank0]:   File "/x/a.py", line 1, in f\n[rank1]:   File "/x/b.py", line 2, in g\n'
        "[rank0]:     f()\n[rank1]:     g()\n[rank1]: KeyError: 'b'\n[rank0]: ValueError: a\n"
    )
    zero, one = read(text)
    assert (zero.rank, zero.text, zero.frames[0].function) == (0, "ValueError: a", "f")
    assert (one.rank, one.text, one.frames[0].function) == (1, "KeyError: 'b'", "g")


@pytest.mark.parametrize(
    "text",
    [
        "Exception in thread Thread-1 (f):\nTraceback (most recent call last):\n  File \"x.py\", line 1, in f\nValueError: a\n",
        "Exception ignored in: <x>\nTraceback (most recent call last):\n  File \"x.py\", line 1, in f\nValueError: a\n",
        "Traceback (most recent call last):\n  File \"x.py\", line 1, in f\nKeyboardInterrupt\n",
    ],
)  # fmt: skip
def test_exceptions_that_did_not_end_the_rank(read, text):
    assert read(text) == ()


def test_a_traceback_without_its_end_is_trouble(read):
    (event,) = read('Traceback (most recent call last):\n  File "x.py", line 1, in f\n    cut off')
    assert (event.kind, event.line) == ("trouble", 1) and "f (x.py:1)" in event.text


def test_a_worker_s_exception_is_part_of_the_rank_s(read):
    text = (
        'Traceback (most recent call last):\n  File "/x/train.py", line 1, in <module>\n    main()\n'
        "ValueError: Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        '  File "/x/data.py", line 3, in __getitem__\n    raise ValueError("empty")\nValueError: empty\n'
    )
    (error,) = read(text, rank=2)
    assert error.text == "ValueError: Caught ValueError in DataLoader worker process 0. ValueError: empty"
    assert [frame.function for frame in error.frames] == ["__getitem__", "<module>"]


def test_times_before_the_lines_of_a_traceback(read):
    time = "2025-03-01T10:00:00Z stderr F "
    lines = ["Traceback (most recent call last):", '  File "/x/t.py", line 1, in f', "    f()", "ValueError: a"]
    (error,) = read("".join(f"{time}{line}\n" for line in lines))
    assert (error.text, error.frames[0].function) == ("ValueError: a", "f")


def test_the_error_file_in_torchrun_s_report(read):
    text = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-20_23:52:17\n  host      : localhost\n"
        "  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 2998)\n  error_file: /x/error.json\n"
        '  traceback : Traceback (most recent call last):\n    File "/x/errors.py", line 346, in wrapper\n'
        "      return f(*args, **kwargs)\n  ValueError: bad batch\n  \n====\n"
    )
    events = {event.kind: event for event in read(text)}
    assert (events["exit"].accused, events["exit"].root_cause) == ((3,), True)
    assert (events["error"].rank, events["error"].text) == (3, "ValueError: bad batch")
    assert events["error"].frames[0].function == "wrapper"


def test_the_kernel_names_a_process_that_torchrun_knows(read):
    text = (
        "[9.1] Out of memory: Killed process 2998 (python)\nRoot Cause (first observed failure):\n[0]:\n"
        "  rank      : 3 (local_rank: 3)\n  exitcode  : -9 (pid: 2998)\n"
    )
    assert [event.accused for event in read(text)] == [(3,), (3,)]


def test_the_echo_of_a_watchdog_tells_nothing_new(read):
    error = "CUDA error: an illegal memory access was encountered"
    text = (
        f"[rank1]:[E1 P.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with "
        f"exception: {error}\nterminate called after throwing an instance of 'c10::DistBackendError'\n"
        f"  what():  [PG ID 0 PG GUID 0(default_pg) Rank 1] Process group watchdog thread terminated with exception: "
        f"{error}\n"
    )
    (event,) = read(text)
    assert (event.kind, event.rank) == ("cuda", 1)


def test_events_are_capped_first_and_last(read):
    events = read("".join(f"[rank0]: {CLOSED} {number}\n" for number in range(5000)))
    assert [event.line for event in events] == [*range(1, 101), *range(4901, 5001)]


def test_compressed_and_unreadable(tmp_path):
    import gzip

    path = tmp_path / "log.gz"
    path.write_bytes(gzip.compress(f"{CLOSED}\n".encode() * 3))
    assert len(read_starts(str(path))[0]) == 3
    path.write_bytes(path.read_bytes()[:-9])
    read_starts(str(path))
    with pytest.raises(InputError):
        read_starts(str(tmp_path / "none.txt"))


def test_a_compressed_log_is_found_whatever_its_name(tmp_path):
    import gzip

    from traceops.hangs.diagnose import diagnose

    told = gzip.compress(b"RuntimeError: CUDA error: no kernel image is available for execution on the device\n")
    (tmp_path / "job-17.log.gz").write_bytes(told)
    for path in (tmp_path, tmp_path / "job-17.log.gz"):
        assert [root.cause for root in diagnose(path).roots] == ["no_kernel"]
    (tmp_path / "images.idx3.gz").write_bytes(gzip.compress(bytes(range(256)) * 9))  # no text
    (tmp_path / "torn.gz").write_bytes(told[:12])
    assert len(diagnose(tmp_path).roots) == 1


def gloo_dump(collectives, messages, pending):
    """As torch 2.13 writes it: a rank with one group, the last collective not retired where it is `pending`."""
    entries = [
        {
            "record_id": number, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": number + 1,
            "p2p_seq_id": 0, "op_id": number + 1 + messages, "profiling_name": "gloo:all_reduce",
            "time_created_ns": 1_700_000_000_000_000_000 + number, "input_sizes": [[8]], "input_dtypes": ["Float"],
            "output_sizes": [[8]], "output_dtypes": ["Float"], "state": "scheduled", "is_p2p": False,
            "retired": not (pending and number == collectives - 1), "frames": [],
        }
        for number in range(collectives)
    ]  # fmt: skip
    last = entries[-1]["op_id"]
    return {
        "version": "2.10",
        "pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}},
        "pg_status": {"0": {"last_enqueued_collective": last, "last_completed_collective": last - pending}},
        "entries": entries,
    }


@pytest.fixture
def folder(tmp_path):
    """Ranks 1 and 3 are in collective 20; rank 0 sends to rank 2, which never receives."""
    for rank in range(4):
        inside = rank in (1, 3)
        dump = gloo_dump(20 if inside else 19, 0 if inside else 9, inside)
        (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
        members = {"rank": rank, "world_size": 4, "groups": {"0": {"ranks": [0, 1, 2, 3]}}}
        (tmp_path / f"groups_{rank}.json").write_text(json.dumps(members))
    return tmp_path


def stack(function, file):
    return (
        "Thread 0x00007f0000000001 (most recent call first):\n"
        f'  File "{file}", line 10 in {function}\n  File "/home/me/train.py", line 5 in <module>\n'
    )


def test_counts_of_all_calls_are_not_taken_for_those_of_collectives(folder):
    (root,) = diagnose(folder).roots

    assert (root.rule, root.ranks, root.confidence) == ("TO-H001", (0, 2), "low")
    assert root.waiting == (1, 3)
    assert "may wait in a send or receive" in root.message


def test_stacks_tell_who_of_them_waits(folder):
    torch = "/usr/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"
    (folder / "stacks_rank_0.txt").write_text(stack("send", torch))
    (folder / "stacks_rank_2.txt").write_text(stack("load", "/home/me/data.py"))

    (root,) = diagnose(folder).roots

    assert (root.rule, root.ranks, root.confidence) == ("TO-H001", (2,), "high")
    assert root.doing == "in load (data.py:10)"


def test_gloo_has_no_gpu_to_blame(tmp_path):
    for rank in range(4):
        (tmp_path / f"fr_rank_{rank}").write_bytes(pickle.dumps(gloo_dump(20, 0, rank == 1), protocol=2))

    (root,) = diagnose(tmp_path).roots

    assert (root.rule, root.ranks, root.confidence) == ("TO-H006", (1,), "low")
    assert "GPU" not in root.message


def test_the_last_sign_of_life_of_each_rank_is_in_its_row(tmp_path):
    steps = "".join(
        f"2026-11-20 10:{second // 60:02}:{second % 60:02},123 [rank{rank}] step {second} done\n"
        for second in range(90)
        for rank in range(3)
        if rank != 1 or second < 70
    )
    late = (
        "[rank{0}]:[E1120 10:31:3{0}.5 ProcessGroupNCCL.cpp:632] [Rank {0}] Watchdog caught collective operation "
        "timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=1800000) ran for 1800012 "
        "milliseconds before timing out.\n"
    )
    (tmp_path / "job.log").write_text(steps + late.format(0) + late.format(2))
    found = diagnose(tmp_path / "job.log")
    assert {status.rank: status.last_line for status in found.ranks} == {0: "10:31:30", 1: "10:01:09", 2: "10:31:32"}
    table = ranks_table(found, merged_ranks(found, 64))
    at = [column.key for column in table.columns].index("last_line")
    assert {row[at].text for row in table.rows} == {"10:31:30 to 10:31:32", "10:01:09"}
    assert next(event for event in found.evidence.log if event.kind == "said").rank == 1


@pytest.mark.parametrize("quiet", [0, 1])
def test_a_rank_s_own_log_has_its_last_sign_of_life(tmp_path, quiet):
    for rank in range(2):
        last = "11:00:00" if rank == quiet else "11:30:02"
        (tmp_path / f"rank_{rank}.log").write_text(
            f"2026-11-20 10:59:00 step 1\n2026-11-20 {last} step 2\n"
            + ("" if rank == quiet else "CUDA error: an illegal memory access was encountered\n")
        )
    found = diagnose(tmp_path)
    clocks = {rank: event.clock for rank, event in found.evidence.last_lines.items()}
    assert clocks[quiet] == "11:00:00" and set(clocks) == {0, 1}
