"""Trouble in words that no rule knows is shown, and words that only mention it are passed over."""

from __future__ import annotations

import pytest
from quiet import is_quiet

from traceops.hangs.crashes import crash_kind
from traceops.hangs.diagnose import diagnose
from traceops.hangs.readers.messages import told_by
from traceops.hangs.readers.trouble import Suspects
from traceops.report.hang_seen import seen_lines, what_would_decide
from traceops.report.hang_text import hang_level, hang_sentence

STUCK = (
    "[rank{r}]:[E704 13:48:58.26 ProcessGroupNCCL.cpp:1746] [PG ID 5 PG GUID 9(TENSOR) Rank 0] ProcessGroupNCCL's "
    "watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives.\n"
)
BARRIER = (
    'Traceback (most recent call last):\n  File "/x/torch/distributed/distributed_c10d.py", line 222, in '
    "_store_based_barrier\n    raise RuntimeError(\nRuntimeError: Timed out initializing process group in store "
    "based barrier on rank: {rank}, for key: store_based_barrier_key:1 (world_size=8, worker_count={count}, "
    "timeout=0:30:00)\n"
)
LAUNCHER = (
    "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 11210) of "
    "binary: python\n"
)


@pytest.mark.parametrize(
    "line",
    [
        "EE1002: 2024-09-03-16:50:00.041.231 Stream synchronize timeout. rtDeviceSynchronize execute failed",
        "worker-1: EH9999: 2024-07-03-11:28:40.450.757  wait for compute device to finish failed",
        "[19:08:34.164951][GC           ][error][tid:44F8A] Failed to load tpc kernel for node: TPC634",
        "2021-10-12 20:59:07.286142: E tensorflow/cuda_dnn.cc:374] Could not create cudnn handle: INTERNAL_ERROR",
        "E0912 23:44:51.552719 2536982 client.cc:3008] Execution of replica 0 failed: INTERNAL: ncclAllReduce(...)",
        "2024-01-01 10:00:00,1 - trainer - ERROR - the mesh has no such axis",
        "prog: error: the mesh has no such axis",
        "(EngineCore_DP0 pid=123) ERROR 05-01 10:00:00 [core.py:708] EngineCore failed to start.",
        "[2024-01-01 10:00:00,123][__main__][ERROR] - Error: the mesh has no such axis",
        "[ERROR|trainer.py:12] 2024-01-01 10:00:00 >> the mesh has no such axis",
        "[05/01/2024-10:00:00] [TRT-LLM] [E] the mesh has no such axis",
        "[NeMo E 2024-01-01 10:00:00 exp_manager:393] the mesh has no such axis",
        "May  1 10:00:00 host prog[123]: ERROR no axis of this name",
        "2024-01-01 10:00:00.000 | ERROR    | a:b:12 - nan in the mesh",
        "FATAL ERROR: the mesh has no such axis",
        "ERROR: 404 Client Error: Not Found for url",
        "ERROR: 3 nodes are down",
        "ERROR: rate limit reached",
        "Error: Missing option '--mesh'.",
        '{"level":"error","ts":1.2,"msg":"the mesh has no such axis"}',
        "panic: runtime error: invalid memory address",
        "free(): invalid pointer",
        "python: malloc.c:2617: sysmalloc: Assertion `(old_top == initial_top (av)' failed.",
        "[2025-10-31 17:10:05,847 E 24507 24507] (raylet) worker_pool.cc:586: The process is dead, probably it crashed",
        "(raylet) [2025-10-31 17:10:05,847 C 24507 24507] (raylet) worker_pool.cc:586: Check failed: it != end()",
        "\ufeff[ERROR] the mesh has no such axis",
        "  5%|\u258c         | 20/400 [00:10<03:10,  2.00it/s][ERROR] the mesh has no such axis",
        "Epoch 0:  5%|# | 20/400 [00:10<03:10,  2.00it/s, loss=2.6]ERROR: the mesh has no such axis",
        "/bin/bash: fork: retry: Resource temporarily unavailable",
        "./train.sh: line 12: fork: retry: Resource temporarily unavailable",
        "May 27 16:50:10 host kernel: NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)",
    ],
)
def test_a_line_that_calls_itself_an_error_is_shown_and_not_judged(told, line):
    diagnosis = told(f"step 1 loss 2.0\n{line}\nstep 2 loss 1.9\n")
    assert diagnosis.roots == () and "not in this log" in hang_sentence(diagnosis)
    assert [event.kind for event, _ in seen_lines(diagnosis)] == ["trouble"]
    assert what_would_decide(diagnosis)


@pytest.mark.parametrize(
    "text",
    [
        "step 1 loss 2.0\nERROR: pip's dependency resolver does not currently take into account all the packages\n",
        "E0000 00:00:1737.1 1 cuda_dnn.cc:8310] Unable to register cuDNN factory: one was already registered\n",
        "checkpoint_tag_validation_fail  False\nerror_file: <N/A>\n0 errors\n",
        "[NeMo I 2025-04-21 20:55:48 nemo_logging:393] finalized, val_error 0.1\n",
        "Epoch 3 TEST ERROR: 0.023 TRAIN ERROR: 0.011\n",
        "Epoch 3 | MEAN SQUARED ERROR | 0.011 |\n",
        "| metric | ERROR | WER |\n| dev    | 0.12  | 0.3 |\n",
        "MeanSquaredError: 0.0123\nRootMeanSquaredError: 0.11  MeanAbsoluteError: 0.03\n",
        "step-100: error: 0.12 loss: 0.1\n",
        "ERROR RATE: 0.3%\nCharacter ERROR Rate (CER): 3.4 %\n",
        "FATAL: 0, CRITICAL: 0, ERROR: 0\nCRITICAL : no\n",
        "Summary: PASS 12 FAIL 0 ERROR 0\n",
        "Setting verbosity to ERROR\nlog level: ERROR (default)\nlevels: DEBUG INFO WARNING ERROR CRITICAL\n",
        "  --log-level ERROR\n  log_level ................ ERROR\n",
        "[INFO] handler of [error] registered\nI0501 10:00:00.123000 140 foo.py:3] [error] handler\n",
        "2024-05-01 10:00:00.1: E tensorflow/core/grappler/optimizers/meta_optimizer.cc:954] layout failed: INVALID\n",
        "E0000 00:00:1780139676.647772 2969160 meta_optimizer.cc:967] layout failed: INVALID_ARGUMENT: Size\n",
        "E0000 00:00:1743991084.318045 3752797 buffer_comparator.cc:156] Difference at 16: 0, expected 0.966326\n",
        "slurmstepd: error: task/cgroup: unable to add task[pid=1] to memory cg '(null)'\n",
        "E0101 10:00:00.123456 12345 slow_operation_alarm.cc:133] The operation took 2.5s\n",
        "E0501 10:00:00.123 140 torch/_inductor/select_algorithm.py:1905] [0/0] Runtime error during autotuning: \n",
        "wandb: ERROR Error while calling W&B API: internal server error; retrying\n",
        "wandb: ERROR Dropped streaming file chunk (see wandb/debug-internal.log)\n",
        "/usr/bin/ld: cannot find -laio: No such file or directory\ncollect2: error: ld returned 1 exit status\n",
        "slurmstepd: error: _is_a_lwp: 1 read() attempts on /proc/1/status failed: No such process\n",
        "urllib3 WARNING Retrying (Retry(total=4)) after connection broken by '…: Connection refused': /api\n",
        "slurmstepd: error: couldn't chdir to `/home/u': No such file or directory: going to /tmp instead\n",
        "[node1:01234] PMIX ERROR: ERROR in file gds_ds12_lock_pthread.c at line 169\n",
        "[2025-09-01 10:00:00,1 I 876 985] core_worker.cc:859: Exit signal received, exit_type=INTENDED_USER_EXIT\n",
        "[2025-09-01 10:00:00,123 E 1 2] core_worker_process.cc:825: Failed to establish connection to the metrics "
        "exporter agent. Metrics will not be exported. Exporter agent status: RpcError\n",
        "[2025-09-01 10:00:00,123 E 1 2] (raylet) file_system_monitor.cc:116: /tmp is over 95% full, available: 3 GB\n",
        "ERROR:2026-11-24 00:21:36 53:53 DeviceProperties.cpp:56] gpuGetDeviceCount failed with code 35\n",
        "[rank 1] ERROR:2026-11-24 00:21:36 53:5 CuptiActivityProfiler.cpp:243] function cbapi_->initCallbackApi() "
        "failed with error CUPTI_ERROR_NOT_INITIALIZED (15)\n",
        "\ufeffstep 1 loss 2.0\n  5%|#  | 20/400 [00:10<03:10,  2.00it/s]\n",
    ],
)
def test_words_of_healthy_logs_are_no_trouble(told, text):
    assert is_quiet(told(text))


def test_the_end_of_a_large_log_is_read_whatever_it_holds(told):
    filler = "step 1 loss 2.0 time 0.1\n" * 200_000
    diagnosis = told(f"{filler}[ERROR] the mesh has no such axis\n")
    assert [event.kind for event, _ in seen_lines(diagnosis)] == ["trouble"]


@pytest.mark.parametrize(
    ("text", "rule", "says"),
    [
        (
            "terminate called after throwing an instance of 'a::TllmException'\n  what():  Assertion failed: MPI 6\n",
            "TO-E005", "crashed: a::TllmException: Assertion failed: MPI 6",
        ),
        ("SIGABRT(6), PID: 4119976, Thread 4119976:\nframe #0: f()\n", "TO-E005", "crashed: SIGABRT"),
        (
            "[173574.7] traps: python[128] general protection fault ip:7f sp:7f error:0 in libccl.so.1.0[7f+89]\n",
            "TO-E005", "libccl.so",
        ),
        ("srun: error: Task launch for 36.0 failed on node cn131: Job credential expired\n", "TO-E007", "cn131"),
        ("slurmstepd: error: execve(): /tmp/slurm_script: No such file or directory\n", "TO-E007", "execve"),
        (
            "RuntimeError: can't start new thread\nOpenBLAS blas_thread_init: pthread_create failed for thread 5\n",
            "TO-E007", "could not start a thread",
        ),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected\n", "TO-E003", "hardware"),
        ("ERROR:tensorflow:Model diverged with loss = NaN.\n", "TO-E005", "NaN"),
        (
            "Child process 71952 (local_rank 0) FAILED (exitcode 1)\nError msg: Process failed with exitcode 1\n",
            "TO-H004", "Rank 0 died: it ended with exit code 1.",
        ),
    ],
)  # fmt: skip
def test_ends_that_other_programs_tell_of(told, text, rule, says):
    root = told(text).roots[0]
    assert root.rule == rule and says in f"{root.statement}."


def test_a_traceback_in_a_string_of_json_is_none_and_its_message_counts(told):
    diagnosis = told(
        'ERROR:error_handler:{\n  "message": {\n    "message": "RendezvousTimeoutError: ",\n    "extraInfo": {\n'
        '      "py_callstack": "Traceback (most recent call last):\\n  File \\"run.py\\", line 3\\n"\n    }\n  }\n}\n'
    )
    assert diagnosis.roots[0].rule == "TO-E007" and "RendezvousTimeoutError" in diagnosis.roots[0].statement


def test_an_exception_without_a_traceback_that_the_program_went_on_after_is_no_cause(told):
    conda = "CondaError: Run 'conda init' before 'conda activate'\n"
    steps = "step 1 loss 2.0\n" * 60
    went_on = told(f"{conda}{steps}")
    assert went_on.roots == () and "CondaError" in next(seen_lines(went_on))[0].text
    ended = told(f"{conda}{steps}ValueError: no axis\nbye\n")
    assert "no axis" in ended.roots[0].statement
    shown = told(f"{conda}{steps}[ERROR] the mesh has no such axis\n")
    assert len(list(seen_lines(shown))) == 2 and shown.roots == ()


def test_an_exception_may_be_of_a_local_class(told):
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    main()\n'
    assert "Oops: boom" in told(f"{text}__main__.main.<locals>.Oops: boom\n").roots[0].statement
    assert "KeyError: 0.5" in told(f"{text}KeyError: 0.5\n").roots[0].statement


def test_a_torn_line_after_a_traceback_is_no_exception(told):
    diagnosis = told(
        "E0821 08:02:52.1 1 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: 1) local_rank: 1 "
        '(pid: 4638) of binary: p\nTraceback (most recent call last):\n  File "/x/accelerate/commands/accel\n'
        'erate_cli.py", line 48, in main\n'
    )
    assert hang_sentence(diagnosis).startswith("Rank 1 died: it ended with exit code 1.")


def test_ranks_whose_watchdog_is_stuck_are_not_absent(told):
    diagnosis = told(STUCK.format(r=4) + STUCK.format(r=0))
    states = {rank.rank: rank.state for rank in diagnosis.ranks}
    assert states == {0: "unclear", 1: "absent", 2: "absent", 3: "absent", 4: "unclear"}


def test_a_store_with_the_workers_of_an_attempt_before(told):
    diagnosis = told(BARRIER.format(rank=6, count=16) + LAUNCHER)
    first = diagnosis.roots[0]
    assert (first.rule, first.ranks, first.waiting) == ("TO-E007", (6,), ())
    assert "more workers than there are ranks" in first.statement
    assert [root.waiting for root in diagnosis.roots] == [(), ()]  # rank 6 raised: it waits for nobody
    fewer = told(BARRIER.format(rank=6, count=7))
    assert "did not find all ranks" in fewer.roots[0].statement


def test_a_limit_that_bash_met_at_last_is_a_cause(told):
    (root,) = told(
        "bash: fork: retry: Resource temporarily unavailable\nbash: fork: Resource temporarily unavailable\n"
    ).roots
    assert root.cause == "no_threads"


def test_a_raylet_that_ended_is_no_clean_log(told):
    diagnosis = told(
        "2023-02-24 04:30:19,237 WARNING worker.py:1851 -- Raylet is terminated: ip=192.0.2.5, id=abc. Termination is "
        "unexpected. Possible reasons include: (1) SIGKILL by the user or system OOM killer, (2) SIGSEGV\n"
    )
    assert diagnosis.roots == () and "not in this log" in hang_sentence(diagnosis)


def test_what_ray_and_jax_say_of_another_process_is_no_cause(told):
    for line in (
        "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR",
        "F0929 17:42:48.5 1 client.h:77] Terminating process because the JAX distributed service detected fatal "
        "errors. This most likely indicates that another task died; see the other task logs for more details.",
        "EI0006: 2024-08-05 Getting socket times out. Reason: Remote Rank did not send the data in time.",
    ):
        diagnosis = told(f"{line}\n")
        decides = "ray/session_latest" if "Worker exit type" in line else "often follow"
        assert diagnosis.roots == () and decides in what_would_decide(diagnosis)


def test_a_host_that_is_called_worker_stays_in_front_of_nccls_line(told):
    diagnosis = told(
        "kp-worker-0:3468:3905 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 10.2.2.2\n"
    )
    assert [event.text[:12] for event, _ in seen_lines(diagnosis)] == ["kp-worker-0:"]


def test_gdbs_stack_of_one_thread_is_a_stack(told, tmp_path):
    text = "#0  0x00007f070e4a57b2 in ?? () from libcuda.so.1\n#7  0x07200082c8 in cudaStreamQuery () from a.so\n"
    assert hang_sentence(told(text)).startswith("One process, rank unknown: it is ")
    path = tmp_path / "stack_rank_3.txt"
    path.write_text(text, encoding="utf-8")
    assert diagnose(path).ranks[3].sources == ("stacks",)


TORCHRUN = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "
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
    f"stderr: {HEAD}stderr: {TORCHRUN}",
    f"{HEAD}{TORCHRUN}\n====\n/x/test_script.py FAILED\n-----\n",
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
    (event, _), *_ = seen_lines(told(f"{HEAD}{TORCHRUN}\n=====\na.py FAILED\n"))
    assert event.text == TORCHRUN.strip()


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


PANIC = "Kernel panic - not syncing: Fatal exception in interrupt"


@pytest.mark.parametrize(
    "before",
    [
        "",
        "  ",
        "[ 12.1] ",
        "Nov 23 13:00:00 node3 kernel: ",
        "<0>[ 12.1] ",
        "kern  :emerg : 2024-12-02T16:55:44,213+00:00 ",
        '{"log": "',
        '{"MESSAGE":"',
    ],
)
def test_the_kernel_says_that_it_panics(before: str) -> None:
    assert crash_kind(before + PANIC, raised=False) == "node_failure"


@pytest.mark.parametrize(
    "before", ["sample: 'the server showed ", "what does `", "response: ", "2025-01-01 INFO eval: ", "a "]
)
def test_a_text_about_a_panic_is_none(before: str) -> None:
    assert crash_kind(before + PANIC, raised=False) is None


@pytest.mark.parametrize(
    ("line", "severe"),
    [
        ("HCCL demo error: In function initDevice(): the call of it failed", True),
        ("[ 99.1] INFO: task pt_main_thread:4711 blocked for more than 122 seconds.", True),
        ("Nov 23 13:00:00 n1 kernel: watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [python:123]", True),
        ("[ 9.1] [drm:amdgpu_job_timedout [amdgpu]] *ERROR* ring gfx timeout, signaled seq=1, emitted seq=3", True),
        ("INFO: task scheduler: nothing is blocked for now", False),
        ("Mean squared error: Model A has a lower value than B", False),
        ("Test set error: The mean over all 5 folds is 0.1", False),
        ("Rounding error: this run uses bf16 which rounds to nearest", False),
        ("Reconstruction error: lower than before by a third in all", False),
    ],
)
def test_a_metric_called_error_is_no_trouble(line: str, severe: bool) -> None:
    suspects = Suspects()
    suspects.take(1, None, line)
    assert bool(list(suspects.found())) is severe


@pytest.mark.parametrize(
    "line",
    [
        "  --oom-retry           on CUDA out of memory, try a smaller batch",
        "Note: to avoid CUDA out of memory errors, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        "Tips: if you see 'CUDA out of memory', lower --batch-size.",
        "If training stops with No space left on device, clean /ckpt.",
        "in case of NCCL error set NCCL_DEBUG=INFO",
    ],
)
def test_advice_and_the_help_of_an_option_tell_of_no_failure(line: str) -> None:
    """'The program ran out of GPU memory' was said of a program that printed its help."""
    assert told_by(line) is None


@pytest.mark.parametrize(
    "line",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. If reserved memory is >> allocated memory try setting it",
        "could not check if it fits: CUDA out of memory",
        "-bash: /ckpt/a.pt: No space left on device",
        "warm-up failed (if enabled) with CUDA error: an illegal memory access was encountered",
    ],
)
def test_what_happened_beside_an_if_is_told(line: str) -> None:
    assert told_by(line) is not None
