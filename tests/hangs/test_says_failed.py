"""Programs that say in plain words, which no rule knows, that something failed: never said to hold nothing."""

from __future__ import annotations

import pytest
from quiet import is_quiet

from traceops.report.hang_seen import seen_lines
from traceops.report.hang_text import hang_level, hang_sentence

LAUNCHER = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
HEAD = 'Traceback (most recent call last):\n  File "/x/bin/torchrun", line 8, in <module>\n    sys.exit(main())\n'
STORE = (
    "[rank1]:[W1119 17:59:26.271588084 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=61, "
    "addr=[localhost]:33850, remote=[localhost]:30005): Failed to recv, got 0 bytes. Connection was likely closed. "
    "Did the remote server shutdown or crash?\n"
)
LEFT = "[rank0]:[W510 13:52:57.02 ProcessGroupNCCL.cpp:1524] Warning: WARNING: destroy_process_group() was not called\n"
SAID = (
    # Launchers and schedulers.
    "the job has been aborted",
    "Primary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, the job has "
    "been aborted.",
    "  Exit code:    1",
    "[rank: 1] Child process with PID 123 terminated with code 1. Forcefully terminating all other processes",
    "The replica workerpool0-0 exited with a non-zero status of 1.",
    "Execution failed. User process 'python' exited with status code 1.",
    "ExitCode 1",
    "exited: trainer (exit status 1; not expected)",
    "trainer.service: Main process exited, code=exited, status=1/FAILURE",
    "TERM_RUNLIMIT: job killed after reaching LSF run time limit.",
    "=>> PBS: job killed: walltime 3600 exceeded limit 3500",
    "   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)",
    "1234.0           python                  acct         64     FAILED      1:0 ",
    "(head, rank=0, pid=5) Job 1 failed with return code list: [1, 0]",
    "W0101 10:00:00.1 5 torch/distributed/elastic/multiprocessing/api.py:897] Sending process 7 closing signal SIGTERM",
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES",
    "llamafactory.cli - Initializing distributed tasks at: 127.0.0.1:29437 failed to create process.",
    # Kubernetes and its operators.
    'time="2024-02-21T09:32:29Z" level=info msg="Pod: kubeflow.simple-worker-0 exited with code 1" job=a',
    'msg="PyTorchJob=simple, ReplicaType=Worker expected=1, running=0, succeeded=0, failed=1, Replicas=1"',
    "PyTorchJob simple is restarting because 1 Worker replica(s) failed.",
    "1.7e+09\tDEBUG\tevents\tError pod w-0 container c waiting message: back-off 40s restarting failed container=c",
    "trainer-0   0/1     CrashLoopBackOff   5 (20s ago)   5m",
    "trainer-0   0/1     Error              0             5m",
    "Container trainer failed liveness probe, will be restarted",
    "Warning  FailedScheduling  5m  default-scheduler  0/5 nodes are available: 5 Insufficient nvidia.com/gpu.",
    # Benchmarks and tests.
    "| Failed requests                   | 400      |",
    "Failed requests:                         12",
    "Successful requests:                     0",
    "FAILED tests/test_training.py::MegDSTestTraining::test_training_all_0_base - ...",
    "====== 1 failed, 3 passed in 2.1s ======",
    # Ray Tune's status, of some of many trials (ray-project/ray 19696).
    "Number of trials: 7/7 (1 ERROR, 6 RUNNING)",
    "Number of trials: 29 (8 ERROR, 1 RUNNING, 20 TERMINATED)",
    "Trial status: 3 TERMINATED | 1 ERROR",
    "Number of errored trials: 1",
    # Programs that did not start, or ended in words of their own.
    "bash: torchrun: command not found",
    "/bin/sh: 1: python: not found",
    "python: can't open file 'train.py': [Errno 2] No such file or directory",
    "/usr/bin/python3: No module named torch.distributed.run",
    "sh: line 1: ./train.sh: Permission denied",
    "./train: error while loading shared libraries: libcudart.so.11.0: cannot open shared object file",
    "nohup: failed to run command 'lmqg-train-search': No such file or directory",
    "exec /usr/bin/python: exec format error",
    'OCI runtime exec failed: exec failed: exec: "python": executable file not found in $PATH: unknown',
    "qsub: Job exceeds queue and/or server resource limits",
    "Connection to node7 closed by remote host.",
    "Host key verification failed.",
    "There are not enough slots available in the system to satisfy the 8 slots that were requested",
    "MPI_ABORT was invoked on rank 3 in communicator MPI_COMM_WORLD\nwith errorcode 1.",
    "[node1:1234] *** Process received signal ***",
    "Failed to initialize NVML: Driver/library version mismatch",
    " .. host pid 18224: Test failure common.cu:589",
    "Check failed: status == CUBLAS_STATUS_SUCCESS (13 vs. 0)",
    "Terminated",
    "Traceback (most recent call last):",
    "ValueError",
    "ran out of memory",
    "Job 123 cancelled",
    # Sentences.
    "Worker 3 died unexpectedly",
    "The trial has failed",
    f"stderr: {HEAD}stderr: {LAUNCHER}",
    f"{HEAD}{LAUNCHER}\n====\n/x/test_script.py FAILED\n-----\n",
    "ExceptionTraceback (most recent call last)\n<ipython-input-3> in <module>\n----> 5 trainer.fit(model, train_lo",
    STORE,
    # MPI, Horovod, TensorFlow, pytest's workers, a GPU's driver, a library's own words.
    "An MPI communication peer process has unexpectedly disconnected.  This\nusually indicates a failure in the peer",
    "op_kernel.cc:1651] OP_REQUIRES failed at mpi_ops.cc:402 : Unknown: Horovod has b\neen shut down. This was caused",
    "[gw4] node down: Not properly terminated",
    "[gw4] [ 93%] FAILED test_decomp.py::TestDecompXPU::test_clamp_min",
    "worker 'gw0' crashed while running 'test/xpu/test_decomp.py::TestDecompXPU::test_sampler'",
    "Segmentation fault from GPU at 0xff00ffffff400000, ctx_id: 1 (CCS) type: 0 (NotPresent), aborting.",
    "!!!! kernel execution error. (m: 256, n: 256, k: 64, error: 13) ",
    "2021-06-11 00:34:32 10.164.0.13 [3] E0611 00:34:32.758413   10401 coredump_hook.cc:250] RAW: Remote crash",
)
HEALTHY = (
    "succeeded=1, failed=0, Replicas=1\nFailed requests:   0\nSuccessful requests:   100\n0 tasks failed\n",
    "Number of trials: 7 (1 RUNNING)\nTrial status: 3 TERMINATED | 0 ERROR\nNumber of errored trials: 0\n",
    "If a worker failed, training restarts from the last checkpoint\nrestart_on_failed_worker ... True\n",
    "will retry when the server died\nmax failed steps: 3\nno process was killed\n",
    "node0:1:2 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol.\n",
    "WARNING 01-20 custom_all_reduce.py: disabled because your platform lacks GPU P2P capability or P2P test failed.\n",
    "Process 7 exits successfully.\nexited with code 0\nexit code: 0\nscript finished with exit status 0\n",
    "exit code 130\ngot exitcode: 0\n",
    f"step 1199 loss 0.1\n{LEFT}{STORE}",
    f"{STORE}Training complete!\n",
    f"step 1000/1000 loss 0.1\n{STORE}",
    "bash: module: command not found\n" + "step 1 loss 2.0\n" * 12,  # the program went on
    "sh: line 1: nvidia-smi: command not found, falling back to the CPU\n",
    "/usr/bin/ld: cannot find -laio: No such file or directory\nmkdir: cannot create directory 'out': File exists\n",
    "gold: the view\ncand: I cannot say, the server died and 3 people were killed\n",  # what a model wrote
    "Killing subprocess 22920\n",  # old torch's launcher, also behind a job that went well
    "Warning  FailedScheduling  5m  0/5 nodes are available: 5 Insufficient nvidia.com/gpu.\n"
    "Normal  Scheduled  4m  Successfully assigned default/trainer-0 to node-3\n",
    f"{HEAD}torch.distributed.elastic.multiprocessing.api.SignalException: Process 5 got signal: 2\n",
    "1234.0           python                  acct         64  COMPLETED      0:0 \n",
    "trainer-0   1/1     Running     0             5m\ntrainer-1   0/1     Completed   0             5m\n",
    "**step 1 loss 2.0**\n***********************\n",
    "Root mean squared error.\nNo error.\nword error.\n",
    "User: Explain exit code 137 in Kubernetes.\nAssistant: The container exited with code 137, the job was killed.\n",
    "op_kernel.cc:1651] OP_REQUIRES failed at iterator_ops.cc:1034 : Out of range: End of sequence\n",
)


@pytest.mark.parametrize("text", SAID)
def test_what_says_that_it_failed_is_shown_and_not_judged(told, text):
    diagnosis = told(f"loading\n{text}\n")
    assert not diagnosis.roots and hang_level(diagnosis) == "warning"
    assert list(seen_lines(diagnosis))


@pytest.mark.parametrize("text", HEALTHY)
def test_what_only_speaks_of_failing_or_passed_is_no_trouble(told, text):
    assert is_quiet(told(text))


def test_plain_words_are_looked_at_only_where_nothing_else_is_told(told):
    diagnosis = told("Worker 3 died unexpectedly\n[ERROR] the mesh has no such axis\n")
    assert [event.text for event, _ in seen_lines(diagnosis)] == ["[ERROR] the mesh has no such axis"]


def test_a_launchers_exception_is_told_without_the_rule_below_it(told):
    (event, _), *_ = seen_lines(told(f"{HEAD}{LAUNCHER}\n=====\na.py FAILED\n"))
    assert event.text == LAUNCHER.strip()


def test_the_report_of_torchrun_behind_a_tests_prefix_is_read(told):
    text = "".join(
        f"stderr: {line}\n"
        for line in (
            "Root Cause (first observed failure):", "[0]:", "  time      : 2023-05-23_01:30:32",
            "  rank      : 1 (local_rank: 1)", "  exitcode  : -11 (pid: 2067)",
        )
    )  # fmt: skip
    assert "Rank 1 died: it was killed by SIGSEGV" in hang_sentence(told(text))


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("**Killed**", "SIGKILL"),
        ("`Segmentation fault (core dumped)`", "SIGSEGV"),
        ("已杀死", "SIGKILL"),
        ("./run.sh: 行 12:  8156 已杀死               python main.py", "SIGKILL"),
        ("run.sh：第 12 行： 8156 段错误               （核心已转储） python main.py", "SIGSEGV"),
        ("已放弃 (核心已转储)", "SIGABRT"),
    ],
)
def test_the_shells_word_is_read_stressed_and_in_chinese(told, line, name):
    assert name in hang_sentence(told(f"step 1 loss 2.0\n{line}\n"))


@pytest.mark.parametrize(
    "line",
    [
        "(TorchTrainer pid=439, ip=10.2.1.2) *** SIGSEGV received at time=1741149596 on cpu 63 ***",
        "*** SIGSEGV (@0x0) received by PID 7 (TID 0x7f) from PID 0; stack trace: ***",
        "*** SIGSEGV (@(nil)), see gl__________41#s15 received by PID 11743 (TID 12350) on cpu 17; stack trace: ***",
        "[m2301007135:374576] *** Process received signal ***\n[m2301007135:374576] Signal: Segmentation fault (11)",
    ],
)
def test_what_a_signal_handler_prints_is_a_crash(told, line):
    assert "SIGSEGV" in hang_sentence(told(f"step 1 loss 2.0\n{line}\n"))


def test_a_handler_that_sigterm_woke_tells_of_no_crash(told):
    assert is_quiet(told("Training completed\n(pid=439) *** SIGTERM received at time=1741149596 on cpu 63 ***\n"))


def test_frames_of_ranks_that_are_mixed_at_a_logs_head_are_trouble(told):
    frame = 'gpu-h100-2:   File "/x/engine.py", line {}, in step\n'
    text = f"{frame.format(1)}gpu-h100-2: self.backward(loss)\n{frame.format(2)}gpu-h100-2:     self.step()\n"
    diagnosis = told(text + text)
    assert hang_level(diagnosis) == "warning" and "/x/engine.py" in next(seen_lines(diagnosis))[0].text


def test_frames_that_all_stand_indented_may_end_in_a_torn_one(told):
    diagnosis = told(
        '  File "/x/pool.py", line 389, in _run\n    return await coro\n  File "/x/context.py", line 111, i'
    )
    assert hang_level(diagnosis) == "warning" and "/x/pool.py:389" in next(seen_lines(diagnosis))[0].text


REPORT = (
    "a.py FAILED", "-" * 60, "Failures:", "[1]:", "  time      : 2026-09-17_13:40:05", "  host      : w-0",
    "  rank      : 3 (local_rank: 3)", "  exitcode  : -9 (pid: 226)", "  error_file: <N/A>",
)  # fmt: skip


@pytest.mark.parametrize(
    "time",
    [
        "2026-09-17 13:40:05 ",
        "[2026-09-17 13:40:05] ",
        "2026/09/17 13:40:05 | ",
        "13:40:05.123 ",
        "Sep 17 13:40:05 node3 train[77]: ",
    ],
)
def test_a_report_behind_any_collectors_time_is_read(told, time):
    text = "".join(f"{time}{line}\n" for line in REPORT)
    assert hang_sentence(told(text)).startswith("Rank 3 died: it was killed by SIGKILL")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ERROR:composer.cli.launcher:Rank 1 crashed with exit code 1.", "Rank 1 died: it ended with exit code 1"),
        ("Global rank 2 (PID 41) exited with code -11", "Rank 2 died: it was killed by SIGSEGV"),
        ("Process 3 exit with status code 137.", "Rank 3 died: it was killed by SIGKILL"),
        ("x1000c0s0b0n0: rank 3 exited with code 1", "Rank 3 died: it ended with exit code 1"),
    ],
)
def test_launchers_that_name_the_rank(told, line, says):
    assert hang_sentence(told(f"step 1 loss 2.0\n{line}\n")).startswith(says)


def test_what_cudas_driver_calls_an_error_is_shown(told):
    (event, _), *_ = seen_lines(
        told(
            "[10:46:15.805][1401][CUDA][E] No device code available for GPU ISA 90\n"
            "[10:46:15.805][1401][CUDA][I] cuInit\n"
        )
    )
    assert event.text.endswith("No device code available for GPU ISA 90")


def test_of_a_traceback_with_a_level_in_each_line_one_line_is_shown(told):
    at = "(VllmWorker TP0 pid=17) ERROR 11-27 10:18:36 [multiproc_executor.py:596]"
    lines = (
        '  File "/x/multiproc_executor.py", line 591, in worker_busy_loop',
        "    output = func(*args, **kwargs)",
        "             ^^^^^^^^^^^^^^^^^^^^^",
        '  File "/x/gpu_worker.py", line 244, in determine_available_memory',
    )
    assert len(list(seen_lines(told("".join(f"{at} {line}\n" for line in lines))))) == 1


def test_a_name_that_is_cut_is_no_exception(told):
    failed = "torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 1 (pid: 25) of binary: p\n"
    sentence = hang_sentence(told(f"{failed}{HEAD}torch.distributed.ela"))
    assert sentence.startswith("Rank 1 died: it ended with exit code 1.")
    assert hang_level(told(f"{HEAD}torch.distributed.ela")) == "warning"


def attempt(error: str) -> str:
    return (
        'Loaded module: cuda/10.0\nTraceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
        f"    main()\n{error}\n"
    )


def test_of_attempts_in_one_file_the_latest_that_tells_anything_counts(told):
    text = f"{attempt('ValueError: the first')}{attempt('TypeError: the last')}Loaded module: cuda/10.0\n"
    assert "TypeError: the last" in hang_sentence(told(text))


@pytest.mark.parametrize(
    "text",
    [
        # Two processes begin alike, and one that begins later follows the failure of another.
        f"Loaded module: cuda/10.0\n{attempt('ValueError: the first')}{attempt('TypeError: the last')}",
        # Ranks are named.
        f"[rank0]: {attempt('ValueError: the first')}".replace("\n", "\n[rank0]: ")
        + f"\n[rank1]: {attempt('TypeError: the last')}".replace("\n", "\n[rank1]: "),
    ],
)
def test_processes_that_begin_alike_are_no_attempts(told, text):
    assert "ValueError: the first" in hang_sentence(told(text))
