"""Logs whose words no rule knows, and words that other devices, launchers and kernels use: not taken for clean."""

from __future__ import annotations

import pytest
from quiet import is_quiet

from traceops.hangs.diagnose import diagnose
from traceops.report.hang_seen import seen_lines, what_would_decide
from traceops.report.hang_text import hang_sentence

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
