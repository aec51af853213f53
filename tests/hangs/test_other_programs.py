"""What launchers, shells, schedulers and trainers say of a process that ended, each in words of its own."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from quiet import is_quiet

from traceops.hangs.diagnose import diagnose
from traceops.hangs.readers.launchers import NEEDLES, ended
from traceops.hangs.readers.messages import ready_ranks, stalled_ranks
from traceops.render.hang.terminal import print_diagnosis
from traceops.report.hang_seen import seen_lines, what_would_decide
from traceops.report.hang_text import hang_level, hang_sentence, root_advice, unknown_ranks
from traceops.rules.diagnosis import beside_the_roots, judge_diagnosis

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


LAUNCHER_FRAMES = 'Traceback (most recent call last):\n  File "test.py", line 9, in main\n    run()\n'
REPORT = (
    "{} detected that one or more processes exited with non-zero status, thus causing the job to be terminated. "
    "The first "
)


def test_torchruns_store_that_is_lost_while_workers_run_is_no_failed_start(told):
    """'did not find all ranks when the process group was made' was said of a job that had run for minutes."""
    lost = (
        "[2023-11-16 15:09:18,364] torch.distributed.elastic.rendezvous.dynamic_rendezvous: [WARNING] The node 'a_0' "
        "has failed to send a keep-alive heartbeat to the rendezvous '123' due to an error of type "
        "RendezvousConnectionError.\n"
        "[2023-11-16 15:09:18,742] torch.distributed.elastic.multiprocessing.api: [WARNING] Sending process 7 closing "
        "signal SIGTERM\n"
    )
    sentence = hang_sentence(told(f"{lost}{LAUNCHER_FRAMES}RuntimeError: Connection reset by peer\n"))
    assert "did not find all ranks" not in sentence and "lost torchrun's rendezvous" in sentence


def test_a_ctrl_c_that_torchs_import_words_as_a_runtime_error_is_no_crash(told):
    assert is_quiet(told(f"{LAUNCHER_FRAMES}RuntimeError: KeyboardInterrupt: \n"))


def test_frames_behind_determineds_rank_are_a_traceback(told):
    said = "<>        [2021-12-07 10:40:48] 514a56c5 [rank=0] || "
    text = f'{said}    self.model.fit(\n{said}  File "/opt/keras/training.py", line 1095, in fit\n'
    text += f'{said}    logs = self.train_function(iterator)\n{said}  File "/opt/keras/functi'
    assert "training.py:1095" in hang_sentence(told(text)) and "(rank 0)" in hang_sentence(told(text))


@pytest.mark.parametrize(
    ("line", "where"),
    [
        (
            "2m  Warning  BackOff  pod/t-0  Back-off restarting failed container pytorch in pod t-0",
            "logs --previous POD",
        ),
        ("Warning  FailedScheduling  3m  0/12 nodes are available: 12 Insufficient nvidia.com/gpu.", "describe nodes"),
    ],
)
def test_kubernetes_events_say_where_more_is_told(told, line: str, where: str):
    assert where in what_would_decide(told(f"LAST SEEN  TYPE  REASON\n{line}\n"))


def test_mpiruns_report_names_the_rank_that_a_signal_ended(told):
    text = f"{REPORT.format('mpirun')}process to do so was:\n\n  Process name: [[32288,1],3]\n  Exit code:    {{}}\n"
    assert hang_sentence(told(text.format(137))).startswith("Rank 3 died: it was killed by SIGKILL")
    said = hang_sentence(told(f"ERROR: this application must be run on at least 10 nodes\n{text.format(1)}"))
    assert "at least 10 nodes" in said


def test_horovodruns_exception_is_the_end_of_a_slot_and_names_no_rank(told):
    said = f"RuntimeError: {REPORT.format('Horovod')}process to do so was:\nProcess name: worker-1[0]\nExit code: 137\n"
    sentence = hang_sentence(told(f"{LAUNCHER_FRAMES}{said}"))
    assert sentence.startswith("The program was killed (SIGKILL)") and "ank 0" not in sentence


def test_a_report_behind_determineds_container_is_read(told):
    lines = (
        "Root Cause (first observed failure):", "[0]:", "  time      : 2022-06-09_09:22:31",
        "  host      : 5e4bef3a2da3",
        "  rank      : 0 (local_rank: 0)", "  exitcode  : 1 (pid: 36)", "  error_file: <N/A>",
    )  # fmt: skip
    text = "".join(f"[2022-06-09T09:22:31.405187Z] 8de2ca81 || {line}\n" for line in lines)
    assert hang_sentence(told(text)).startswith("Rank 0 died: it ended with exit code 1")


def test_stars_that_markdown_escaped_are_stars(told):
    line = "**\\* SIGSEGV (@0x73f160000) received by PID 2911 (TID 0x7f7a) from PID 1058406400; stack trace: ***\n"
    assert "SIGSEGV" in hang_sentence(told(line))


def test_errors_of_xlas_client_are_shown_with_their_words(told):
    said = "22:36:41.8072{}: E   44422 tensorflow/compiler/xla/xla_client/xla_util.cc:76]{}\n"
    text = said.format(20, "") + said.format(26, " StackTrace:") + said.format(32, " *** Begin stack trace ***")
    assert "Begin stack trace" in hang_sentence(told(text))


DATA = Path(__file__).parent.parent / "data"
TOPOLOGY = DATA / "topology"
ACROSS = (TOPOLOGY / "l4x2_bonded.txt").read_text()  # two GPUs, SYS
NVLINK = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tNV18\t0-31\t0\nGPU1\tNV18\t X \t0-31\t0\n"
P2P = "".join(
    f"NCCL INFO Channel 0{one}/0 : {one}[{one}] -> {other}[{other}] via P2P/CUMEM\n" for one, other in ((0, 1), (1, 0))
)


def timed_out(sequence=3):
    return "".join(
        f"[rank{rank}]:[E1111 17:01:37.123 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={sequence}, OpType=ALLREDUCE, NumelIn=14845952, NumelOut=14845952, "
        f"Timeout(ms)=600000) ran for 60004{rank} milliseconds before timing out.\n"
        for rank in (0, 1)
    )


def told(tmp_path, **texts):
    for name, text in texts.items():
        (tmp_path / f"{name}.log").write_text(text)
    return diagnose(tmp_path)


def shown(diagnosis):
    out = io.StringIO()
    print_diagnosis(diagnosis, out, beside=beside_the_roots(diagnosis, judge_diagnosis(diagnosis)))
    return " ".join(out.getvalue().split())


def test_an_early_hang_over_p2p_across_sockets_is_p2p_that_is_broken(tmp_path):
    diagnosis = told(tmp_path, nccl=P2P, topo=ACROSS, train=timed_out())
    (root,) = diagnosis.roots
    assert (root.rule, root.ranks, root.cause, root.confidence) == ("TO-H006", (0, 1), "p2p", "medium")
    assert "P2P/CUMEM between GPU0 and GPU1" in root.statement and "across sockets only (SYS)" in root.statement
    proof = dict(root.evidence)
    assert "0[0] -> 1[1] via P2P/CUMEM" in proof["NCCL, nccl.log:1"]
    assert any(what.startswith("topology, topo.log:") for what in proof)
    text = shown(diagnosis)
    assert "NCCL_P2P_DISABLE=1" in text and "traceops run --env NCCL_P2P_DISABLE=1" in text
    assert "Read the NCCL log" not in text and "TO-P001" not in text
    by_id = {verdict.rule: verdict for verdict in judge_diagnosis(diagnosis)}
    assert [found.severity for found in by_id["TO-P001"].findings] == ["warning"]


@pytest.mark.parametrize(
    ("nccl", "topo", "sequence", "cause"),
    [
        (P2P, ACROSS, 14863, "way_known"),  # what carried 14862 operations works
        (P2P, NVLINK, 3, "way_known"),
        (P2P.replace("P2P/CUMEM", "SHM/direct/direct"), ACROSS, 3, "way_known"),
        (P2P, "", 3, "way_known"),  # nothing tells how far the GPUs are apart
        ("", ACROSS, 3, None),
    ],
)
def test_other_ways_are_named_and_not_blamed(tmp_path, nccl, topo, sequence, cause):
    (root,) = told(tmp_path, nccl=nccl, topo=topo, train=timed_out(sequence)).roots
    assert (root.cause, root.confidence) == (cause, "low")
    assert "broken" not in root.statement
    assert any(what == "NCCL goes by" for what, _ in root.evidence) is (cause is not None)


def test_where_all_run_it_the_way_is_named_too():
    """Advice to read in NCCL's log which way it took is none where it was read (2 H200, loopback taken down)."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(DATA / "faults" / "network_down.tar.xz") as archive:
        archive.extractall(folder, filter="data")
        (root,) = diagnose(folder).roots
    assert (root.rule, root.ranks, root.cause, root.confidence) == ("TO-H006", (0, 1), "way_known", "high")
    assert dict(root.evidence)["NCCL goes by"] == "NET/Socket"
    assert "Read the NCCL log" not in root_advice(root)


def test_a_gloo_job_is_not_sent_to_nccls_log():
    """Two ranks on gloo whose loopback was taken down."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(DATA / "faults" / "gloo_network_down.tar.xz") as archive:
        archive.extractall(folder, filter="data")
        (root,) = diagnose(folder).roots
    assert (root.rule, root.ranks, root.cause) == ("TO-H006", (0, 1), "gloo")
    assert "GLOO_SOCKET_IFNAME" in root_advice(root) and "NCCL_DEBUG" not in root_advice(root)


def test_p2p_of_other_ranks_explains_nothing(tmp_path):
    named = "".join(
        f"a:{10 + rank}:9 [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {rank ^ 1}[{rank ^ 1}] via P2P/CUMEM\n"
        for rank in (2, 3)
    )
    (root,) = told(tmp_path, nccl=named, topo=ACROSS, train=timed_out()).roots
    assert root.cause is None


def test_p2p_across_sockets_without_a_hang_is_no_fault(tmp_path):
    assert is_quiet(told(tmp_path, nccl=P2P, topo=ACROSS))


def test_shared_memory_is_not_blamed_for_p2p(tmp_path):
    """TO-P001 is a warning beside a hang only where NCCL takes P2P, or nothing tells what it takes."""
    shm = P2P.replace("P2P/CUMEM", "SHM/direct/direct")
    for nccl, severity in ((shm, "info"), (P2P, "warning"), ("", "warning")):
        diagnosis = told(tmp_path, nccl=nccl, topo=ACROSS, train=timed_out())
        by_id = {verdict.rule: verdict for verdict in judge_diagnosis(diagnosis)}
        assert [found.severity for found in by_id["TO-P001"].findings] == [severity]


def test_nccl_warnings_alone_are_no_hang_and_are_told(tmp_path):
    diagnosis = told(tmp_path, nccl="20:13:32 - NCCL WARN NET/OFI Only EFA provider is supported\n")
    text = shown(diagnosis)
    assert "Nobody is seen" not in text and "No rank hangs or fails" in text
    assert "TO-P003" in text and "NCCL_DEBUG=INFO" in text and "nccl.log:1" in text


KILLED = (
    "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",
    "Process finished with exit code 137 （interrupted by signal 9： SIGKILL）",
    "command terminated with exit code 137",
    "trainer_1 exited with code 137",
    "    Exit Code:    137",
    "##[error]Process completed with exit code 137.",
    "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Killed (signal 9)",
    "Command terminated by signal 9",
    "make: *** [Makefile:12: train] Killed",
    "make[1]: *** [train] Error 137",
    "Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
    "subprocess.CalledProcessError: Command '['sh', 'run.sh']' returned non-zero exit status 137.",
    "[1]+  Killed                  python train.py",
    "[2]  - 4242 killed     torchrun --nproc-per-node 8 train.py",
    "zsh: killed     python3 train.py",
    "[2024-01-01 10:00:00,000] [INFO] [launch.py:1] exits with return code = -9",
    "ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown with signal 9 rank=1",
)
CRASHED = (
    "Process finished with exit code 139 (interrupted by signal 11: SIGSEGV)",
    "=   EXIT CODE: 139",
    "APPLICATION TERMINATED WITH THE EXIT STRING: Bus error (signal 7)",
    "make: *** [train] Segmentation fault (core dumped)",
    "Command '['python', 'train.py']' died with <Signals.SIGABRT: 6>.",
    "zsh: segmentation fault (core dumped)  python train.py",
    "zsh: illegal hardware instruction  python train.py",
    "[Tue Sep  8 10:05:32 2026] traps: lmdeploy[3838286] general protection fault ip:7f83 sp:7f7f error:0 in libc.so.6",
    "[12.5] VLLM::EngineCor[77]: segfault at b000 ip 00007f sp 00007f error 4 in libcuda.so",
    "2024-03-06T17:53:31.052444Z ERROR shard-manager: text_generation_launcher: Shard process was signaled to shutdown "
    "with signal 4 rank=0",
)
PLAIN = (
    "Process finished with exit code 1",
    "Process finished with exit code -1073741819 (0xC0000005)",
    "command terminated with exit code 1",
    "trainer_1 exited with code 2",
    "=   EXIT CODE: 1",
    "Command exited with non-zero status 1",
    "make: *** [Makefile:12: train] Error 2",
    "Command '['flower-simulation', '--app', '.']' returned non-zero exit status 1.",
)
NO_END = (
    "Process finished with exit code 0",
    "Process finished with exit code 130 (interrupted by signal 2: SIGINT)",
    "trainer_1 exited with code 0",
    "make: *** [clean] Error 1 (ignored)",
    "WARNING: Command '['which', 'nvcc']' returned non-zero exit status 1.",
    "[1]+  Killed                  tensorboard --logdir runs",
    "[1]+  Done                    python train.py",
    "run.sh: line 5:  4711 Killed                  sleep 1000",
    "run.sh: line 6:  4712 Killed                  nvidia-smi dmon -s u > gpu.txt",
    "run.sh: line 7:  4713 Killed                  /usr/bin/tail -f log.txt",
    "the job exited with code 1 if its input is empty",
    "[12.5] chrome[77]: segfault at b000 ip 00007f sp 00007f error 4 in chrome",
)


@pytest.mark.parametrize("line", KILLED)
def test_a_process_that_was_killed(line):
    assert (ended(line) or "").endswith("a process was killed: SIGKILL")


@pytest.mark.parametrize("line", CRASHED)
def test_a_process_that_crashed(line):
    assert "says that a process crashed: SIG" in (ended(line) or "")


@pytest.mark.parametrize("line", PLAIN)
def test_a_process_that_gave_an_exit_code(line):
    assert ended(line) == ""


@pytest.mark.parametrize("line", NO_END)
def test_what_tells_of_no_end(line):
    assert ended(line) is None


@pytest.mark.parametrize("line", [*KILLED, *CRASHED, *PLAIN])
def test_each_is_found_in_a_large_log_too(line):
    assert any(needle in line.encode() for needle in NEEDLES)


def test_an_exit_code_alone_is_trouble_without_a_cause(told):
    diagnosis = told(f"loading\n{PLAIN[-1]}\nloading\n{PLAIN[-1]}\n")
    assert not diagnosis.roots and hang_level(diagnosis) == "warning"


def test_a_launcher_s_exception_tells_how_its_child_ended(told):
    """Not that the launcher crashed: 'CalledProcessError' is its word on the child."""
    diagnosis = told(
        'Traceback (most recent call last):\n  File "launch.py", line 9, in main\n    run()\n'
        f"subprocess.CalledProcessError: {KILLED[10]}\n"
    )
    assert "was killed (SIGKILL)" in hang_sentence(diagnosis)


def test_of_a_long_line_no_word_is_cut_in_two(told):
    """'was killed: SIGKILL (ROR] [launch.py:325:sigkill_handler] …'."""
    diagnosis = told(
        "[2026-11-23 10:00:00,000] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python', '-u', 'train.py', "
        "'--local_rank=1'] exits with return code = -9\n"
    )
    assert "SIGKILL (… [launch.py:325:sigkill_handler] [" in hang_sentence(diagnosis)


def test_a_traceback_says_more_than_the_exit_code_behind_it(told):
    diagnosis = told(
        'Traceback (most recent call last):\n  File "train.py", line 9, in main\n    run()\n'
        f"ValueError: no samples\n\n{PLAIN[0]}\n"
    )
    assert "ValueError: no samples" in hang_sentence(diagnosis)


@pytest.mark.parametrize("line", [NO_END[0], NO_END[1], NO_END[3]])
def test_a_program_that_ended_well_or_was_stopped_by_hand_is_none(told, line):
    assert is_quiet(told(f"epoch 1 loss 0.3\n\n{line}\n"))
