"""Logs and files as people have them: published, shortened, mixed and misnamed."""

from __future__ import annotations

from pathlib import Path

import pytest
from public_logs import TRUTHS, is_held_out, outcome_of, texts
from quiet import is_quiet

from traceops.hangs.model import RootKind
from traceops.hangs.readers.trouble import Loggers
from traceops.report.hang_text import hang_level, hang_sentence, root_advice, seen_lines, unknown_ranks

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
    assert says in root.message


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
    assert all("The log does not say who" not in root_advice(root) for root in diagnosis.roots)


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
    assert root.ranks == tuple(range(8)) and root.message == "Ranks 0\u20137 died: each ended with exit code 1."


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
    assert "Or #122 is another operation on rank 1" in root.message


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


USERS_WATCHDOG = (
    "[rank{r}]:[E ProcessGroupNCCL.cpp:523] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600272 milliseconds "
    "before timing out.\n"
)
IMPORTS = """Traceback (most recent call last):
  File "train.py", line {line}, in <module>
    from .brain import Brain
  File "brain.py", line 63, in <module>
    import missing
ModuleNotFoundError: No module named 'missing'
"""
LATER = """Traceback (most recent call last):
  File "train.py", line {line}, in <module>
    main()
  File "train.py", line 151, in main
    step(batch)
ValueError: no such batch
"""


def test_who_failed_while_importing_is_another_start_than_who_came_further(told):
    said = hang_sentence(told(IMPORTS.format(line=20) + LATER.format(line=168)))
    assert "ValueError: no such batch" in said
    assert "ModuleNotFoundError" not in said


@pytest.mark.parametrize("line", [20, 4])
def test_who_did_not_come_further_may_be_another_rank_of_the_same_start(told, line):
    assert "No module named" in hang_sentence(told(IMPORTS.format(line=20) + LATER.format(line=line)))


def test_a_call_in_the_first_column_ends_no_traceback(told):
    said = hang_sentence(
        told(
            "Traceback (most recent call last):\n"
            '      File "/usr/lib/python3.10/runpy.py", line 196, in _run_module_as_main\n'
            "fire.Fire(train)\n"
            '  File "/x/fire/core.py", line 143, in Fire\n'
        )
    )
    assert "crashed" not in said
    assert "Traceback" in said


@pytest.mark.parametrize("end", ["ray.exceptions.RayTaskError(ValueError): bad", "x.FooError('a', 3)", "StopIteration"])
def test_what_ends_a_traceback_all_the_same(told, end):
    said = hang_sentence(told(f'Traceback (most recent call last):\n  File "a.py", line 3, in f\n    g()\n{end}\n'))
    assert end.split("(")[0].split(".")[-1] in said


def test_a_label_that_is_cut_ends_no_frames(told):
    prefix = "(EngineCore_DP0 pid=2003562) "
    frames = '  File "/x/vllm/v1/engine/core.py", line 788, in run_engine_core\n', "    raise e\n"
    assert "core.py:788" in hang_sentence(told("".join(prefix + line for line in frames) + prefix[:18]))


@pytest.mark.parametrize(
    ("last", "quoted"),
    [
        (
            '    raise KeyboardInterrupt("terminated")\nKeyboardInterrupt: terminated\n',
            "“KeyboardInterrupt: terminated”",
        ),
        ("2024-07-14 07:04:38 - LOGS - Keyboard interruption. Exiting\n", "Keyboard interruption. Exiting”"),
        ("^CKeyboardInterrupt\n", "“^CKeyboardInterrupt”"),
        ("Detected KeyboardInterrupt, attempting to shut down\n", "“Detected KeyboardInterrupt, attempting"),
        # CqGao112/CN-Mini-Phi3, dpo.log: it was said to hold no evidence, and not a word of the interruption.
        (
            "[2025-02-20 20:27:14,864] [INFO] [launch.py:319:sigkill_handler] Killing subprocess 2606460\n"
            "[2025-02-20 20:27:14,902] [INFO] [launch.py:328:sigkill_handler] Main process received SIGINT, exiting\n",
            "Main process received SIGINT, exiting”",
        ),
        ("W0829 10:11:12.1 14 api.py:704] Received Signals.SIGINT death signal, shutting down\n", "Signals.SIGINT"),
        ("WARNING: Received 2 death signal, shutting down workers\n", "Received 2 death signal"),
        ("torch.distributed.elastic.SignalException: Process 33 got signal: 2\n", "got signal: 2”"),
        ("^Csrun: sending Ctrl-C to StepId=12.0\nsrun: forcing job termination\n", "sending Ctrl-C to StepId=12.0”"),
        ("^Cmpirun: killing job...\n", "mpirun: killing job"),
        ("INFO: SIGINT received, saving a checkpoint\n", "SIGINT received, saving a checkpoint”"),
    ],
)
def test_an_interruption_is_no_failure_and_is_told(told, last, quoted):
    diagnosis = told(f"epoch 1\nepoch 2\n{last}")
    assert is_quiet(diagnosis) and hang_sentence(diagnosis).startswith("Interrupted by Ctrl-C or a signal")
    assert quoted in hang_sentence(diagnosis)


@pytest.mark.parametrize(
    "named",
    [
        "Registered handler for keyboard interrupt",
        "Press Ctrl-C to stop. Keyboard interrupt saves a checkpoint",
        "+except KeyboardInterrupt:",
        "INFO keyboard interrupt handler installed",
        "If SIGINT is received it saves a checkpoint",
        "the trainer stops once it has received SIGINT",
        "INFO got SIGINT handler of the parent",
        "Process 33 got signal: 23",
    ],
)
def test_who_only_names_an_interruption_was_not_interrupted(told, named):
    diagnosis = told(f"{named}\nloading data\nsaved to out/\n")
    assert is_quiet(diagnosis) and "nterrupted" not in hang_sentence(diagnosis)


def test_an_interruption_that_steps_follow_is_of_an_earlier_start(told):
    steps = "".join(f"step {n} loss 1.0\n" for n in range(5))
    diagnosis = told(f"{steps}KeyboardInterrupt\n{steps}")
    assert is_quiet(diagnosis) and "nterrupted" not in hang_sentence(diagnosis)


def logged(*levels: str, minute: int = 0) -> str:
    return "".join(
        f"2025-08-27 00:{minute if level == 'INFO' else 0:02}:38,{n:03} - evalscope - {level} - word number {n} came\n"
        for n, level in enumerate(levels)
    )


def test_an_error_after_which_its_logger_goes_on_for_long_is_shown_and_no_alarm(told):
    diagnosis = told(logged("INFO", "ERROR", *["INFO"] * 5, minute=9))
    assert hang_level(diagnosis) == "info"
    assert hang_sentence(diagnosis).startswith("1 line with an error, after which its logger goes on: job.out:2 says “")


@pytest.mark.parametrize("levels", [["INFO"] * 4, [*["INFO"] * 5, "ERROR"]])
def test_an_error_near_the_end_is_trouble(told, levels):
    diagnosis = told(logged("ERROR", *levels, minute=9))
    assert hang_level(diagnosis) == "warning"


@pytest.mark.parametrize(("said", "went_on"), [("shutting down", False), ("Finished evaluation", True)])
def test_a_logger_that_stops_at_once_went_on_only_to_an_end(said, went_on):
    loggers = Loggers()
    lines = ["ERROR 05-12 02:47:14 [a.py:1] lost", *[f"INFO 05-12 02:47:15 [a.py:{n}] {said}" for n in range(6)]]
    for number, line in enumerate(lines, start=1):
        loggers.take(number, line)
    assert loggers.went_on(1, len(lines)) is went_on
    assert not loggers.went_on(2, len(lines))


ROUTER = "2025-04-14T15:52:02.6{:05}Z {} text_generation_router::server: router/src/server.rs:{}: {}\n".format
WITHOUT = ROUTER(79061, "ERROR", 1672, "Failed to import python tokenizer ModuleNotFoundError: No module named 'x'")


def test_an_error_behind_which_its_server_is_up_is_no_alarm(told):
    """TGI's router goes on with another tokenizer (JulienDelavande/text-generation-inference, tgi.log)."""
    up = ROUTER(79164, " INFO", 2266, "Connected")
    assert hang_level(told(ROUTER(72671, " INFO", 1560, "Using the API") + WITHOUT + up)) == "info"


@pytest.mark.parametrize("up", ["", ROUTER(70000, " INFO", 2266, "Connected")], ids=["never", "before"])
def test_an_error_of_a_server_that_is_not_up_behind_it(told, up):
    assert hang_level(told(up + WITHOUT)) == "warning"


def test_another_loggers_lines_do_not_count():
    loggers = Loggers()
    loggers.take(1, "2025-08-27 00:00:38,1 - engine - ERROR - lost")
    for number in range(2, 20):
        loggers.take(number, f"2025-08-27 00:09:{number:02},1 - api - INFO - served")
    assert not loggers.went_on(1, 19)


@pytest.mark.parametrize(
    ("fails", "goes_on"),
    [
        ("[rank3]: {} ERROR trainer: shard 17 is corrupt", "[rank0]: {} INFO trainer: waiting for peers"),
        ("{} ERROR trainer: shard 17 is corrupt", "[rank0]: {} INFO trainer: waiting for peers"),
        ("(Worker TP3 pid=13) {} ERROR graph capture gave up", "(Worker TP0 pid=10) {} INFO serving"),
        ("node-3 {} ERROR graph capture gave up", "node-0 {} INFO serving"),
    ],
)
def test_the_lines_of_another_rank_do_not_show_that_this_one_went_on(told, fails, goes_on):
    """'1 line with an error, after which its logger goes on', and no alarm: rank 3 had ended."""
    lines = [fails.format("2025-08-27 00:00:06,017")]
    lines += [goes_on.format(f"2025-08-27 00:0{minute}:10,017") for minute in range(9)]
    diagnosis = told("".join(f"{line}\n" for line in lines))
    assert hang_level(diagnosis) == "warning"
    assert "goes on" not in hang_sentence(diagnosis)


def test_a_rank_that_goes_on_itself_did(told):
    said = ["ERROR trainer: shard 17 is corrupt", *["INFO served"] * 8]
    lines = [f"[rank3]: 2025-08-27 00:0{minute}:10,017 {text}\n" for minute, text in enumerate(said)]
    assert "after which its logger goes on" in hang_sentence(told("".join(lines)))


def test_a_rank_that_printed_anything_did_not_leave_no_evidence(told):
    steps = "".join(f"[rank{r}]: step 1 loss 2.0\n" for r in range(4))
    text = steps + "".join(USERS_WATCHDOG.format(r=r) for r in (0, 1, 2, 4))
    (root,) = told(text).roots
    assert root.ranks == (3,)
    assert (root.kind, root.facts.here) == (RootKind.MENTIONED, (0, 1, 2, 4))
    assert any("step 1 loss 2.0" in value for _, value in root.evidence)


def test_ranks_of_which_a_log_has_no_line_are_not_blamed(told):
    diagnosis = told("[rank3]: step 1\n" + "".join(USERS_WATCHDOG.format(r=r) for r in (1, 4)))
    assert diagnosis.roots == () and diagnosis.waits == ()
    assert hang_sentence(diagnosis).endswith("Nothing in these files comes from ranks 0, 2.")


def test_what_a_child_says_of_its_parents_end_is_no_cause(told):
    child = (
        "Traceback (most recent call last):\n"
        '  File "<string>", line 1, in <module>\n'
        '  File "/x/multiprocessing/spawn.py", line 116, in spawn_main\n    exitcode = _main(fd, parent_sentinel)\n'
        '  File "/x/multiprocessing/spawn.py", line 126, in _main\n    self = reduction.pickle.load(from_parent)\n'
        "_pickle.UnpicklingError: pickle data was truncated\n"
    )
    own = 'Traceback (most recent call last):\n  File "a.py", line 3, in main\nValueError: no such file of mine\n'
    assert "no such file of mine" in hang_sentence(told(child + own))
    alone = told(child)
    assert not alone.roots
    assert "pickle data was truncated" in hang_sentence(alone)


def test_a_message_that_ends_in_a_colon_means_the_traceback_behind_it(told):
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in main\n    f()\n'
        "RuntimeError: The actor failed to import on the worker:\n\n"
        'Traceback (most recent call last):\n  File "b.py", line 9, in <module>\n    import flash\n'
        "ImportError: flash.so: undefined symbol: _Z1\n"
    )
    assert "undefined symbol" in hang_sentence(told(text))


def test_a_message_that_ends_in_a_colon_goes_on_in_the_next_line(told):
    text = (
        'Traceback (most recent call last):\n  File "a.py", line 3, in main\n    f()\n'
        "RuntimeError: Failed to import x because of the following error (look up):\n"
        "/lib/flash.so: undefined symbol: _Z1\n"
    )
    assert "undefined symbol" in hang_sentence(told(text))


def test_a_head_alone_is_not_quoted_where_frames_are(told):
    text = (
        "Traceback (most recent call last):\n"
        '[rank2]:   File "/x/pretrain_gpt.py", line 218, in forward_step\n[rank2]:     model(\n'
        '[rank2]:   File "/x/module.py", line'
    )
    assert "pretrain_gpt.py:218" in hang_sentence(told(text))


def test_a_warning_of_nccl_that_no_rule_knows_is_quoted(told):
    info = "vm:3355:3402 [0] NCCL INFO "
    diagnosis = told(
        f"{info}Bootstrap : Using eth0:10.0.0.1<0>\n"
        "vm:3355:3402 [0] bootstrap.cc:114 NCCL WARN Some new words of this release\n"
        f"{info}ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 busId 3b000 - Init START\n"
    )
    assert hang_level(diagnosis) == "warning"  # a process whose rank was set wrong got a clean bill
    assert "Some new words of this release”" in hang_sentence(diagnosis)


TEXTS = texts()
# What these do not decide, and that is said: an error of NCCL that may be the fault of another rank.
ABSTAINED = ("nccl_mpi_time_prefix",)


ABORTED = (
    "RuntimeError: NCCL communicator was aborted on rank 0. Original reason for failure was: [Rank 0] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=812, OpType=ALLREDUCE, Timeout(ms)=900000) ran for 900123 "
    "milliseconds before timing out.\n"
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 1 (pid: 402) of "
    "binary: python\n"
)
REFUSED = (
    "ERROR 03-18 09:02:03 [serving.py:133] Error with model object='error' message='no m1' type='NotFoundError' "
    "param=None code=404\n"
)
WORKER = "(VllmWorkerProcess pid=17) ERROR 09-23 10:49:22 worker_utils.py:226] "


@pytest.mark.parametrize(
    ("text", "level", "says"),
    [
        (ABORTED, "warning", "Rank 0 waits in all_reduce #812"),
        ("h1:2119:2292 [0] NCCL INFO transport/net.cc:357 -> 3\n", "warning", "transport/net.cc:357 -> 3"),
        (f"INFO:     Application startup complete.\n{REFUSED}", "info", "the server was running"),
        (
            f"{WORKER}Exception in worker VllmWorkerProcess while processing method init_device: NCCL error: internal "
            f"error - please report this issue to the NCCL developers, Traceback (most recent call last):\n{WORKER}\n",
            "error", "NCCL error: internal error",
        ),
        ("2024-07-24 08:45:13.616\nTraceback (most recent call last):\n2024-07-24 08:45:13.616\n"
         '  File "/a/train.py", line 17, in step\n2024-07-24 08:45:13.617\n    model(\n', "warning", "train.py:17"),
        ("[2026-01-31T04:40:19Z] E           eng.DeadError: the engine met an issue\n", "error", "engine met an issue"),
        ("INFO 05:26:13,995 Rendezvous attempt failed, will retry. Reason: x\n", "warning", "attempt failed"),
        ("INFO Rendezvous attempt failed, will retry\nINFO Rendezvous complete for workers\n", "info", "No failure"),
        ("'RuntimeError: start (0) + length (7) exceeds dimension size (1).\nline\n", "error", "exceeds dimension"),
        ("AbortedError (see above for traceback): Horovod has been shut down. A.\n", "warning", "not in this log"),
        ("I0718 s.cpp:218] Iteration 19000 (1.0 iter/s, 99.4s/100 iters), loss = 13\n", "info", "step 19,000"),
        ("gpu-node17: ImportError: /a/x.so: undefined symbol: _ZN3c10\n", "error", "importing"),
        ("gpu-node17: n2:1:8 [0] NCCL INFO [Service] Connection closed by localRank 0\n", "info", "No failure"),
    ],
)  # fmt: skip
def test_kinds_that_two_samples_of_public_texts_showed(told, text, level, says):
    diagnosis = told(text)
    assert (hang_level(diagnosis), says in hang_sentence(diagnosis)) == (level, True), hang_sentence(diagnosis)


def test_another_service_neither_begins_again_nor_ends_for_this_one(told):
    line = "second-1  | vm:{0}:1 [0] NCCL INFO {1}\n"
    head = "".join(line.format(pid, what) for pid in (5, 6, 7) for what in ("cudaDriverVersion 13000", "version 2.28"))
    fails = "first-1   | [rank3]: RuntimeError: CUDA out of memory. Tried to allocate 96.00 MiB\n"
    diagnosis = told(f"{fails}{head}second-1  | Application startup complete.\n")
    assert diagnosis.roots and diagnosis.roots[0].ranks == (3,)


def test_each_log_has_its_truth_and_many_are_healthy() -> None:
    assert set(TEXTS) == set(TRUTHS)
    assert len(TEXTS) >= 72 and sum(truth.healthy for truth in TRUTHS.values()) >= 10
    assert sum(map(is_held_out, TEXTS)) >= 30


@pytest.mark.parametrize("name", TEXTS)
def test_a_public_log_is_told_as_it_is_true(name: str, tmp_path: Path) -> None:
    (tmp_path / "paste.log").write_text(TEXTS[name], encoding="utf-8")
    outcome, told = outcome_of(TRUTHS[name], tmp_path)
    assert outcome == ("abstained" if name in ABSTAINED else "right"), told
