"""What no rule knows by its words, and what launchers, shells and schedulers say of a process that ended."""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from quiet import is_quiet

from traceops.hangs.crashes import crash_kind
from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import RootKind
from traceops.hangs.readers.launchers import NEEDLES, ended
from traceops.hangs.readers.messages import ready_ranks, stalled_ranks, told_by
from traceops.hangs.readers.trouble import Suspects
from traceops.render.hang.terminal import print_diagnosis
from traceops.report.hang_text import (
    hang_level,
    hang_sentence,
    root_advice,
    seen_lines,
    unknown_ranks,
    what_would_decide,
)
from traceops.rules.explained import beside_the_roots, judge_diagnosis

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
    assert root.rule == rule and says in f"{root.message}."


def test_a_traceback_in_a_string_of_json_is_none_and_its_message_counts(told):
    diagnosis = told(
        'ERROR:error_handler:{\n  "message": {\n    "message": "RendezvousTimeoutError: ",\n    "extraInfo": {\n'
        '      "py_callstack": "Traceback (most recent call last):\\n  File \\"run.py\\", line 3\\n"\n    }\n  }\n}\n'
    )
    assert diagnosis.roots[0].rule == "TO-E007" and "RendezvousTimeoutError" in diagnosis.roots[0].message


def test_an_exception_without_a_traceback_that_the_program_went_on_after_is_no_cause(told):
    conda = "CondaError: Run 'conda init' before 'conda activate'\n"
    steps = "step 1 loss 2.0\n" * 60
    went_on = told(f"{conda}{steps}")
    assert went_on.roots == () and "CondaError" in next(seen_lines(went_on))[0].text
    ended = told(f"{conda}{steps}ValueError: no axis\nbye\n")
    assert "no axis" in ended.roots[0].message
    shown = told(f"{conda}{steps}[ERROR] the mesh has no such axis\n")
    assert len(list(seen_lines(shown))) == 2 and shown.roots == ()


def test_an_exception_may_be_of_a_local_class(told):
    text = 'Traceback (most recent call last):\n  File "a.py", line 3, in <module>\n    main()\n'
    assert "Oops: boom" in told(f"{text}__main__.main.<locals>.Oops: boom\n").roots[0].message
    assert "KeyError: 0.5" in told(f"{text}KeyError: 0.5\n").roots[0].message


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
    assert "more workers than there are ranks" in first.message
    assert [root.waiting for root in diagnosis.roots] == [(), ()]  # rank 6 raised: it waits for nobody
    fewer = told(BARRIER.format(rank=6, count=7))
    assert "did not find all ranks" in fewer.roots[0].message


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
    assert hang_sentence(diagnosis).startswith("Rank 1 did not come, as Horovod reports.")


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
    assert (root.kind, root.facts.others) == (RootKind.GPU_UNFINISHED, (3,))


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
ENDED = (
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
    text = f"{ENDED.format('mpirun')}process to do so was:\n\n  Process name: [[32288,1],3]\n  Exit code:    {{}}\n"
    assert hang_sentence(told(text.format(137))).startswith("Rank 3 died: it was killed by SIGKILL")
    said = hang_sentence(told(f"ERROR: this application must be run on at least 10 nodes\n{text.format(1)}"))
    assert "at least 10 nodes" in said


def test_horovodruns_exception_is_the_end_of_a_slot_and_names_no_rank(told):
    said = f"RuntimeError: {ENDED.format('Horovod')}process to do so was:\nProcess name: worker-1[0]\nExit code: 137\n"
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
    assert "P2P/CUMEM between GPU0 and GPU1" in root.message and "across sockets only (SYS)" in root.message
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
    assert "broken" not in root.message
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
