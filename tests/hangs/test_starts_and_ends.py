"""Several starts in one log: the last one counts, and what earlier ones failed of is known apart."""

from __future__ import annotations

import io

import pytest
from quiet import is_quiet

from traceops.hangs.model import Diagnosis
from traceops.render.hang.terminal import print_diagnosis
from traceops.report.hang_seen import what_would_decide
from traceops.report.hang_text import hang_sentence, root_advice, root_sentence

TRACKER = (
    "/usr/lib/python3.12/multiprocessing/resource_tracker.py:279: UserWarning: resource_tracker: There appear to be "
    "1 leaked semaphore objects to clean up at shutdown\n  warnings.warn('resource_tracker: There appear to be %d '\n"
)
SHARDS = "Multi-thread loading shards:  94% Completed | {}/49 [09:25<00:22,  7.45s/it]"


def bars(last: int) -> str:
    return "\r".join(SHARDS.format(done) for done in range(40, last + 1))


def test_a_log_that_ends_in_a_bar_with_the_resource_trackers_word(told):
    """sostrowsk/dgx-spark-local-llm, sglang.log: the server was gone, and the log was said to hold no evidence."""
    diagnosis = told(f"[2026-08-01 22:25:25] Load weight begin.\n{bars(47)}{TRACKER}")
    assert "loading shards: 47/49" in hang_sentence(diagnosis)
    assert "dmesg" in what_would_decide(diagnosis)


@pytest.mark.parametrize(
    "text",
    [
        f"{bars(49)}{TRACKER}",
        f"{bars(47)}\nServer is ready.\n{TRACKER}",
        f"{bars(47)}{TRACKER}" + "Server is ready.\n" * 5,
    ],
    ids=["the bar is full", "it said more", "it went on"],
)
def test_the_resource_trackers_word_after_all_else_is_no_trouble(told, text):
    assert is_quiet(told(text))


# Ning-Guo/hotpotqa-agent, logs/exp1.log: vLLM's warning of an optional module, and the job ran to its end.
_BEFORE = "(EngineCore pid=24969) {} 06-25 16:32:09 [import_utils.py:408] "
_IMPORT = (
    "Traceback (most recent call last):\n"
    '  File "/x/vllm/utils/import_utils.py", line 406, in _has_module\n'
    "    importlib.import_module(module_name)\n"
    "ImportError: libnvrtc.so.13: cannot open shared object file: No such file or directory\n"
)


def shown(level: str) -> str:
    return "".join(_BEFORE.format(level) + line + "\n" for line in _IMPORT.splitlines())


def test_a_warnings_traceback_ends_nothing(told):
    """A healthy log was an alarm."""
    assert is_quiet(told(shown("WARNING") + "Processed prompts: done\n" * 12))


def test_a_warnings_traceback_at_the_end_of_a_log_is_shown(told):
    assert "libnvrtc" in hang_sentence(told(f"loading\n{shown('WARNING')}"))


GLOG = "[rank0]:W1120 10:00:00.000 12 torch/_dynamo/convert_frame.py:1123] "


def test_a_traceback_behind_the_letter_of_a_warning(told):
    """torch.compile says what it could not convert, and goes on without: rank 0 had crashed."""
    shown_so = "".join(f"{GLOG}{line}\n" for line in ("WON'T CONVERT forward", *_IMPORT.splitlines()))
    assert is_quiet(told(shown_so + "".join(f"step {step} loss 2.0\n" for step in range(1, 8)) + "saved\n" * 5))


def test_an_errors_traceback_is_still_the_end(told):
    (root,) = told(shown("ERROR") + "Processed prompts: done\n" * 12).roots
    assert "libnvrtc" in root.statement


# ray-project/ray#22349
LOST = (
    "(BaseWorkerMixin pid=5172, ip=10.128.0.32) loss: 1.995140  [ 3200/30000]\n"
    "2022-02-15 16:53:52,096\tWARNING worker.py:1462 -- The node with node id: 8f205b12 and ip: 10.128.0.103 has been "
    "marked dead because the detector has missed too many heartbeats from it.\n"
    "(BackendExecutor pid=5126, ip=10.128.0.32) 2022-02-15 16:53:52,097\tERROR utils.py:42 -- The actor died "
    "unexpectedly before finishing this task.\n"
    "(BackendExecutor pid=5126, ip=10.128.0.32) \tpid: 5137\n"
)


def test_a_node_that_ray_lost_is_why_its_actor_died(told):
    (root,) = told(LOST).roots
    assert root.cause == "node_failure" and "10.128.0.103" in root_sentence(root)


def test_an_actor_whose_node_died(told):
    """ray-project/ray#43751."""
    (root,) = told(
        "ray.exceptions.RayActorError: The actor died unexpectedly before finishing this task.\n"
        "The actor is dead because its node has died. Node Id: 677df2a9020c5db45e755b0078c469e2ce51e05ea093ed3b\n"
    ).roots
    assert root.cause == "node_failure"


def test_a_message_that_opens_an_object_is_quoted_to_its_first_text(told):
    """kubeflow/trainer#1638: 'error_handler:{' was all that was quoted."""
    diagnosis = told(
        "INFO:torch.distributed.elastic.agent.server.api:[default] Rendezvous'ing worker group\n"
        "ERROR:torch.distributed.elastic.multiprocessing.errors.error_handler:{\n"
        '  "message": {\n    "message": "RendezvousClosedError: ",\n    "extraInfo": {\n'
        '      "py_callstack": "Traceback (most recent call last):\\n  File'
    )
    assert "RendezvousClosedError" in hang_sentence(diagnosis)
    assert "--rdzv-id" in root_advice(diagnosis.roots[0])


# huggingface/trl#1785
CELL = (
    "RuntimeError                              Traceback (most recent call last)\n"
    "Cell In[17], line 1\n----> 1 trainer.train()\n\n"
    "File ~/env/lib/python3.10/site-packages/transformers/trainer.py:1938, in Trainer.train(self, trial, **kwargs)\n"
    "-> 1938     return inner_training_loop(\n\n"
    "File ~/env/lib/python3.10/site-packages/transformers/trainer.py:2279, in Trainer._inner_training_loop(self)\n"
    "   2276     self.control = self.callback_"
)


def test_a_cells_traceback_that_is_cut_off(told):
    """The lines before it were asked for; those behind it are missing."""
    diagnosis = told(CELL)
    assert "RuntimeError" in hang_sentence(diagnosis) and "trainer.py:2279" in hang_sentence(diagnosis)
    assert "lines behind these" in what_would_decide(diagnosis)


def test_a_cells_traceback_that_is_whole(told):
    (root,) = told(f"{CELL}\n\nRuntimeError: The size of tensor a (32) must match the size of tensor b (31)\n").roots
    assert "must match the size" in root.statement


def test_a_watchdogs_line_that_is_cut_within_its_operation(told):
    """modelscope/FunASR#2006: rank 3, whose line was cut, was not said to wait."""
    log = (
        "[rank2]: torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 336.00 MiB.\n"
        "[rank5]:[E ProcessGroupNCCL.cpp:563] [Rank 5] Watchdog caught collective operation timeout: WorkNCCL("
        "SeqNum=15734, OpType=ALLREDUCE, NumelIn=22, NumelOut=22, Timeout(ms)=600000) ran for 600037 milliseconds "
        "before timing out.\n"
        "[rank3]:[E ProcessGroupNCCL.cpp:563] [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=1573"
    )
    diagnosis = told(log)
    assert {event.rank for event in diagnosis.evidence.log if event.kind == "timeout"} == {3, 5}
    assert diagnosis.roots[0].ranks == (2,)


def test_fp16_where_torch_sees_no_gpu(told):
    """Adodo17SOSSOU/wav2vec2-finetune-accented, logs/finetune.err: told as an error of the program."""
    (root,) = told(
        "Traceback (most recent call last):\n"
        '  File "/home/me/fine_tune.py", line 104, in <module>\n    args = TrainingArguments(\n'
        "ValueError: FP16 Mixed precision training with AMP or APEX (`--fp16`) and FP16 half precision evaluation "
        "(`--fp16_full_eval`) can only be used on CUDA devices.\n"
    ).roots
    assert root.cause == "no_cuda"


# vllm-project/vllm#11737
WORKER = "(VllmWorker rank=0 pid=1068781) ERROR 01-04 17:21:04 multiproc_executor.py:401] "


def test_a_line_that_is_cut_within_its_level_is_no_exception(told):
    """'(VllmWorker rank=0 pid=1068781) E': the program was said to have crashed with 'E'."""
    diagnosis = told(
        'INFO:     127.0.0.1:45354 - "POST /v1/completions HTTP/1.1" 200 OK\n'
        * 5
        + f"{WORKER}WorkerProc hit an exception: %s\n{WORKER}Traceback (most recent call last):\n"
        f'{WORKER}  File "/home/me/vllm/v1/executor/multiproc_executor.py", line 397, in worker_busy_loop\n'
        f"{WORKER}    output = getattr(self.worker, method)(*args, **kwargs)\n{WORKER.partition('RROR')[0]}"
    )
    assert diagnosis.roots == () and "WorkerProc hit an exception" in hang_sentence(diagnosis)
    assert "lines behind these" in what_would_decide(diagnosis)


def test_a_wait_in_the_store(told):
    """axolotl-ai-cloud/axolotl#2684: the main process tokenized for half an hour; lines before were asked for."""
    diagnosis = told(
        "Tokenizing Prompts (num_proc=64):  92%|█████████▏| 328986/359152 [29:58<12:05, 41.59 examples/s]"
        "[rank1]:[W516 14:34:56.854597329 socket.cpp:489] [c10d] waitForInput: socket SocketImpl(fd=79, "
        "addr=[localhost]:41170, remote=[localhost]:29500) timed out after 1800000ms\n"
    )
    assert "timed out after 1800000ms" in hang_sentence(diagnosis)
    assert "rank 0" in what_would_decide(diagnosis) and "timeout" in what_would_decide(diagnosis)


def test_after_what_went_on_no_lines_before_are_asked_for(told):
    """wuzw21/spdistiller, doc/nohup.out: a file that was whole."""
    steps = "".join(f"step {step} loss 2.0\n" for step in range(1, 4000))
    diagnosis = told(f"step 0 loss 2.0\nRuntimeError: CUDA out of memory. Tried to allocate 64.00 MiB.\n{steps}")
    assert "goes on" in hang_sentence(diagnosis) and "lines before" not in what_would_decide(diagnosis)


# sgl-project/sglang#15235
PARENT = (
    "Traceback (most recent call last):\n"
    '  File "/x/lib/python3.12/site-packages/sglang/cli/main.py", line 26, in main\n    args.func(args, extra_argv)\n'
)


def test_the_end_of_a_part_comes_before_its_parents_traceback(told):
    (root,) = told(f"[12-16 14:27:10] Exit code: -9\n{PARENT}").roots
    assert root.cause == "killed"


def test_what_failed_before_a_traceback_that_is_cut_off(told):
    """The parent's frames were quoted; 'rank 0' was read as a count of none."""
    diagnosis = told(f"[12-16 14:27:08] Rank 0 scheduler is dead. Please check the logs.\n{PARENT}")
    assert "scheduler is dead" in hang_sentence(diagnosis)


def test_a_wait_for_a_key_of_the_store(told):
    """NVIDIA/nccl#865: the main process was at 47 % of its tokenization after half an hour."""
    diagnosis = told(
        "Running tokenizer on dataset:  47%|███▊    | 3169000/6811963 [30:11<38:27, 1578.58 examples/s]"
        "Traceback (most recent call last):\n"
        '  File "/x/lib/python3.9/site-packages/torch/distributed/distributed_c10d.py", line 3328, in barrier\n'
        "    work = default_pg.barrier(opts=opts)\n"
        "RuntimeError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
        "store by key '0', but store->get('0') got error: Socket Timeout\n"
    )
    (root,) = diagnosis.roots
    assert "got no NCCL id" in hang_sentence(diagnosis) and "tokenization" in root_advice(root)


def test_a_pod_that_ended_in_an_error(told):
    diagnosis = told(
        "NAME            READY   STATUS      RESTARTS   AGE\njob-worker-0    0/1     Error       0          3h\n"
    )
    assert "kubectl logs POD" in what_would_decide(diagnosis)


def failed(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "/app/train.py", line 186, in main\n    run()\n{error}\n'


@pytest.mark.parametrize(
    "end", ["2026-02-16 13:56:32,078 - trainer - INFO - Training completed!", "{'train_runtime': 8}"]
)
def test_a_failure_behind_the_end_of_the_training(told, end):
    """A-SHOJAEI/hierarchical-attention-fusion-urban-scene-parsing, training_output.log: what was trained is there."""
    log = f"step 1 loss 2.0\nstep 2 loss 1.9\n{end}\n" + failed(
        "PermissionError: [Errno 13] Permission denied: '/media'"
    )
    (root,) = told(log).roots
    assert "crashed after its training had ended, at main" in root.statement


@pytest.mark.parametrize(
    "log",
    [
        "2026-02-16 13:56:32,078 - trainer - INFO - Training completed!\nstep 1 loss 2.0\nstep 2 loss 1.9\n",
        "step 1 loss 2.0\n2026-02-16 13:56:32,078 - trainer - INFO - Training is not completed\n",
    ],
    ids=["another one follows", "not its end"],
)
def test_a_failure_before_the_end_of_the_training(told, log):
    (root,) = told(log + failed("PermissionError: [Errno 13] Permission denied: '/media'")).roots
    assert "had ended" not in root.statement


WATCHDOG = (
    "[rank{rank}]:[E1120 10:40:00.561 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=400, OpType=ALLREDUCE, NumelIn=22, NumelOut=22, Timeout(ms)=600000) ran for 600029 "
    "milliseconds before timing out.\n"
)
XID = "[12345.6] NVRM: Xid (PCI:0000:3b:00): 79, pid=4411, name=python, GPU has fallen off the bus.\n"


def on_gpu(rank: int, error: str = "RuntimeError: CUDA error: unspecified launch failure") -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in failed(error).splitlines())


def test_a_gpu_that_failed_is_why_its_rank_had_a_cuda_error(told):
    """CUDA_LAUNCH_BLOCKING was advised for a GPU that had fallen off the bus."""
    (root,) = told(XID + on_gpu(2) + WATCHDOG.format(rank=0) + WATCHDOG.format(rank=1)).roots
    assert root.ranks == (2,) and root.cause == "gpu_hardware" and "fallen off the bus" in root.statement


@pytest.mark.parametrize(
    "log",
    [XID + on_gpu(2) + on_gpu(3), XID + on_gpu(2, "KeyError: 'labels'") + WATCHDOG.format(rank=0)],
    ids=["on two ranks", "no error of a GPU"],
)
def test_whose_gpu_failed_is_not_known(told, log):
    assert not any(root.cause == "gpu_hardware" and root.ranks for root in told(log).roots)


def test_ranks_of_a_start_that_was_over_are_not_called_absent(told):
    steps = "".join(f"2026-11-20 10:02:{step:02d} INFO step {step} loss 2.0\n" for step in range(60))
    log = (
        f"{steps}slurmstepd: error: *** JOB 4411 ON node7 CANCELLED AT 2026-11-20T10:03:00 DUE TO NODE FAILURE, SEE "
        "SLURMCTLD LOG FOR DETAILS ***\nsrun: error: node7: tasks 8-15: Killed\nResuming from checkpoint step 50\n"
    )
    diagnosis = told(log + steps.replace(" 10:", " 11:").replace("step ", "step 1") * 3)
    assert "goes on with steps" in hang_sentence(diagnosis) and diagnosis.ranks == ()


STEPS = "".join(f"[rank1]: step {step} loss 2.{step}\n" for step in range(1, 40))
RAISED = 'Traceback (most recent call last):\n  File "train.py", line 7, in f\n    g()\n{}\n'
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."
AGAIN = (
    "INFO:torch.distributed.elastic.agent.server.api:[default] Worker group FAILED. "
    "{}/3 attempts left; will restart worker group\n"
)


def of_rank(error: str) -> str:
    return "".join(f"[rank1]: {line}\n" for line in RAISED.format(error).splitlines())


def terminal(diagnosis: Diagnosis) -> str:
    shown = io.StringIO()
    print_diagnosis(diagnosis, shown)
    return " ".join(shown.getvalue().split())


def test_what_ended_the_starts_before_is_said(told) -> None:
    """Nothing of them was said: that memory ran out at first, and another error came after the restart."""
    text = STEPS + of_rank(OUT_OF_MEMORY) + AGAIN.format(3) + STEPS + of_rank("KeyError: 'labels'")
    diagnosis = told(text)
    (root,) = diagnosis.roots
    assert "KeyError" in root.statement
    assert (
        "Note: Before it, in the same log, an earlier start ended: rank 1 ran out of GPU memory (job.out:40)."
    ) in terminal(diagnosis)
    many = "".join(STEPS + of_rank(f"ValueError: {n}") + AGAIN.format(n) for n in range(5))
    said = terminal(told(many + STEPS + of_rank(OUT_OF_MEMORY)))
    assert "5 earlier starts ended, the last 3 so: rank 1 crashed (job.out:128); rank 1 crashed" in said


def test_ranks_that_torchrun_started_again_and_that_made_steps_outlived_the_failure(told) -> None:
    """'Rank 1 ran out of GPU memory' was the cause, 39 steps behind it: their lines have no time and no rank."""
    steps = STEPS.replace("[rank1]: ", "")
    text = of_rank(OUT_OF_MEMORY) + AGAIN.format(3)
    assert told(text + steps).roots == ()
    assert [root.cause for root in told(text + steps[:60]).roots] == ["gpu_memory"]  # two steps
    assert [root.cause for root in told(text.replace(AGAIN.format(3), "") + steps).roots] == [
        "gpu_memory"
    ]  # of a buffer


@pytest.mark.parametrize(
    "text",
    [
        STEPS + of_rank(OUT_OF_MEMORY),
        STEPS + AGAIN.format(3) + STEPS + of_rank(OUT_OF_MEMORY),  # how the first ended is not told
        STEPS + of_rank(OUT_OF_MEMORY) + AGAIN.format(3) + 3 * STEPS,  # it went on: the first sentence says so
    ],
)
def test_nothing_is_said_where_no_start_before_the_judged_one_is_known_to_have_failed(told, text: str) -> None:
    assert "earlier start ended" not in terminal(told(text))


def test_an_import_that_failed_before_is_not_said_to_have_ended_a_start(told) -> None:
    """'Before it, an earlier start ended: the program crashed while importing': it printed that, and went on."""
    optional = RAISED.replace("in f\n    g()", "in <module>\n    import flash_attn")
    optional = optional.format("ModuleNotFoundError: No module named 'flash_attn'")
    ended = RAISED.replace("line 7, in f\n    g()", "line 168, in <module>\n    main()").format("KeyError: 'x'")
    diagnosis = told(f"starting\n{optional}flash attention is not there\nstep 1\n{ended}")
    assert ["KeyError" in root.statement for root in diagnosis.roots] == [True]
    assert "earlier start" not in terminal(diagnosis)


FRAMES = 'Traceback (most recent call last):\n  File "test.py", line 9, in main\n    run()\n'


def start(time: str, number: int) -> str:
    return (
        f"[2020-07-22 {time},917 INFO inference.py line 78 {number}] Namespace(batch_size={number}, data='a.txt')\n"
        f"[2020-07-22 {time},918 INFO inference.py line 79 {number}] => creating the model\n"
    )


def failing(time: str, number: int, error: str) -> str:
    return f"{start(time, number)}{FRAMES}{error}\n"


def test_a_later_start_that_goes_further_outlived_what_ended_the_earlier_one(told):
    """'The program crashed: FileNotFoundError' was said of a file whose last attempt goes on."""
    tested = "[2020-07-22 09:00:05,001 INFO inference.py line 99] Test: batch of images\n" * 3
    diagnosis = told(failing("00:28:33", 1309, "FileNotFoundError: no image") + start("09:00:00", 25603) + tested)
    assert diagnosis.roots == ()
    sentence = hang_sentence(diagnosis)
    assert "it ended an earlier start at most" in sentence and "FileNotFoundError: no image" in sentence


def test_of_several_that_failed_the_last_counts(told):
    text = failing("00:28:33", 1, "ValueError: the first") + failing("00:29:33", 27, "TypeError: the last")
    assert "TypeError: the last" in hang_sentence(told(text))


def test_a_later_start_that_only_begins_leaves_the_failure_what_it_was(told):
    text = failing("00:28:33", 1, "ValueError: the first") + start("09:00:00", 2)
    assert "ValueError: the first" in hang_sentence(told(text))


def test_processes_that_begin_alike_before_the_failure_are_no_attempts(told):
    text = start("00:28:30", 1) + failing("00:28:31", 2, "ValueError: the first") + start("00:28:32", 3)
    assert "ValueError: the first" in hang_sentence(told(text + failing("00:28:33", 4, "TypeError: b")))


def test_a_server_that_started_once_more_outlived_what_failed_before(told):
    text = f"INFO: loading\n{FRAMES}ModuleNotFoundError: No module named 'pysolr'\n"
    diagnosis = told(f"{text}loading model config\nINFO:     Application startup complete.\n")
    assert diagnosis.roots == () and "No module named 'pysolr'" in hang_sentence(diagnosis)


def test_jobs_of_slurm_in_one_file_are_told_apart_by_their_numbers(told):
    """'Rank 0 died' was said of a job that others followed, the last of which somebody cancelled."""
    steps = "".join(f"loading shard {number}\n" for number in range(20))
    cancelled = "slurmstepd: error: *** JOB {} ON dgx-06 CANCELLED AT 2025-08-21T02:53:05 ***\n"
    text = f"{FRAMES}ValueError: Unknown split\n{cancelled.format(266997)}{steps}"
    assert "cancelled in Slurm" in hang_sentence(told(f"{text}{cancelled.format(267039)}"))
    assert "ValueError: Unknown split" in hang_sentence(told(f"{text}{cancelled.format(266997)}"))
    close = f"{FRAMES}ValueError: Unknown split\n{cancelled.format(1)}{cancelled.format(2)}"  # tasks of one array
    assert "ValueError: Unknown split" in hang_sentence(told(close))


ELASTIC = "1102 10:00:06 140 torch/distributed/elastic/"
STARTED_AGAIN = (
    f"I{ELASTIC}agent/server/api.py:900] [default] Worker group FAILED. 1/3 left; will restart worker group\n"
)
ENDED = f"E{ELASTIC}multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 1 (pid: {{}}) of binary: python\n"
IMPORT_FAILED = (
    '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/app/train.py", line 33, in collate\n'
    "[rank1]:     pad(x)\n[rank1]: ValueError: tokenizer has no pad token\n"
)
LATE = (
    "[rank{}]:[E1102 10:10:10 ProcessGroupNCCL.cpp:632] [PG ID 0 PG GUID 0(default_pg) Rank {}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=120, OpType=ALLREDUCE, NumelIn=64, NumelOut=64, Timeout(ms)=600000) "
    "ran for 600011 milliseconds before timing out.\n"
)


def test_the_last_of_three_attempts_that_fail_alike_keeps_its_exception(told) -> None:
    """'Rank 1 died: it ended with exit code 1' was all that was said: the traceback counted as printed again."""
    text = STARTED_AGAIN.join(IMPORT_FAILED + ENDED.format(800 + attempt) for attempt in range(3))
    (root,) = told(text).roots
    assert root.ranks == (1,) and "tokenizer has no pad token" in root.statement
    assert root.where == "collate (train.py:33)"


@pytest.mark.parametrize("ranks", [(1, 2), (0, 2)])
def test_the_last_attempt_that_times_out_as_the_one_before_keeps_its_timeouts(told, ranks) -> None:
    waited = "".join(LATE.format(rank, rank) for rank in ranks)
    first, last = told(waited), told(waited + STARTED_AGAIN + waited)
    assert [(rank.rank, rank.state, rank.sequence) for rank in last.ranks] == [
        (rank.rank, rank.state, rank.sequence) for rank in first.ranks
    ]
    assert {rank.rank for rank in last.ranks if rank.state == "waiting"} == set(ranks)
    assert min(event.line for event in last.evidence.log) > len(ranks)
