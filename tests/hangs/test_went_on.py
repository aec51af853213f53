"""Failures after which a program went on, was started again or was stopped: the last start counts."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from quiet import is_quiet

from traceops.cli import main
from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Diagnosis
from traceops.hangs.readers.steps import moment_of
from traceops.hangs.readers.went_on import how_it_ends
from traceops.render.hang.terminal import print_diagnosis
from traceops.report.hang_text import (
    hang_level,
    hang_sentence,
    root_advice,
    root_sentence,
    seen_events,
    what_would_decide,
)

RAISED = (
    'Traceback (most recent call last):\n  File "train.py", line 7, in sample\n    act(answer)\n'
    "ValueError: no answer in it\n"
)
BAR = "\r{0:3}%|#  | {0}/100 [00:{0:02}<01:30,  1.00it/s]"
LOGGED = "2026-03-01 10:{0:02}:05,123 - INFO - step {0}: loss 2.1\n"
PLAIN = "step {} loss 2.1\n"
TALK = "saving samples of this epoch to the folder that the configuration names\n"
OF_TORCHRUN = (
    "E0509 20:23:48.4 17 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 0 "
    "(pid: 17) of binary: /usr/bin/python3\n"
)


def steps(first: int, last: int, line: str = PLAIN) -> str:
    return "".join(line.format(step) for step in range(first, last))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (steps(1, 9, LOGGED) + RAISED + steps(9, 40, LOGGED), "a logger flushes each line"),
        (steps(1, 9, BAR) + "\n" + RAISED + steps(9, 40, BAR) + "\n", "so does a progress bar"),
        (steps(1, 9, BAR) + RAISED + steps(9, 40, BAR) + "\n", "also on the line of the bars before"),
        (steps(1, 9) + RAISED + steps(9, 40), "the steps before it would still be in a buffer"),
        (TALK * 400 + steps(1, 9) + RAISED + (steps(9, 40) + TALK * 9) * 3 + steps(40, 60) + TALK * 300 + steps(60, 90),
         "more than a buffer holds"),
        (
            f"{TALK * 400}2026-03-01 10:00:00 ERROR lost a sample\n{RAISED}"
            + steps(1, 9, "[2026-03-01 10:{0:02}:00] step {0}\n"),
            "later by the lines' own times",
        ),
        (f"{TALK * 400}{steps(1, 9)}{RAISED}{steps(9, 12)}{{'train_runtime': 81.2, 'epoch': 1.0}}\n", "it completed"),
        (f"{TALK * 400}{RAISED}`Trainer.fit` stopped: `max_epochs=1` reached.\n", "Lightning says so"),
    ],
)  # fmt: skip
def test_steps_made_after_a_failure_say_that_the_program_went_on(told, text: str, why: str) -> None:
    """Up to 64 kB of healthy lines counted as what a buffer had held: 'ValueError' was the job's end."""
    diagnosis = told(text)
    assert diagnosis.roots == (), why
    assert [event.kind for event in diagnosis.evidence.log] == ["outlived"]


def test_what_may_have_been_in_a_buffer_is_told_and_lowers_confidence(told) -> None:
    (root,) = told(f"{TALK * 400}{steps(100, 180)}{RAISED.replace('ValueError', 'MemoryError')}{steps(180, 240)}").roots
    assert (root.rule, root.confidence) == ("TO-E002", "medium")
    assert (
        "behind it",
        "the log shows steps up to 239: printed before and shown late, or the program went on",
    ) in root.evidence


@pytest.mark.parametrize(
    "behind",
    [
        steps(9, 12, LOGGED),  # other ranks make a few steps more
        steps(9, 40, BAR) + "\n" + OF_TORCHRUN,  # another rank went on until the launcher ended it
        TALK * 9 + "Training finished\n",  # the script's own echo
        steps(1, 9, "[2026-03-01 09:{0:02}:00] step {0}\n"),
    ],
)
def test_other_ranks_go_on_a_little_after_the_end_of_one(told, behind: str) -> None:
    (root,) = told(f"{TALK * 400}{steps(1, 9, LOGGED)}2026-03-01 10:09:00 ERROR lost\n{RAISED}{behind}").roots
    assert "no answer in it" in str(root.evidence)


def test_bars_on_the_line_of_the_failure_came_before_it(told) -> None:
    """Carriage returns divide them, so all of an epoch's bars are in one line with the traceback."""
    (root,) = told(f"{steps(1, 90, BAR)}{RAISED}").roots
    assert "no answer in it" in str(root.evidence) and "behind it" not in dict(root.evidence)


def test_a_failure_that_was_outlived_leaves_the_end_to_the_next_one(told) -> None:
    end = RAISED.replace("no answer in it", "the disk is gone")
    (root,) = told(steps(1, 9, LOGGED) + RAISED + steps(9, 40, LOGGED) + end + OF_TORCHRUN).roots
    assert "the disk is gone" in str(root.evidence) and "no answer" not in root.message


@pytest.mark.parametrize(
    "end",
    [
        "I1102 10:03:02 140 torch/distributed/elastic/agent/server/api.py:910] worker group successfully finished",
        "[2026-11-02 10:00:22,100] [INFO] [launch.py:351:main] Process 8813 exits successfully.",
        "wandb: Waiting for W&B process to finish... \x1b[32m(success).\x1b[0m",
        "Job 'raysubmit_1f' succeeded",
        "======================== 41 passed, 3 skipped in 8.12s =========================",
        "\x1b[32m== \x1b[32m\x1b[1m41 passed\x1b[0m, \x1b[33m2 warnings\x1b[0m in 8.12s\x1b[0m\x1b[32m ==\x1b[0m",
        "Ran 2 tests in 0.812s\n\nOK",
    ],
)
def test_a_launcher_or_tests_that_end_well_outlived_what_was_raised(told, end: str) -> None:
    """An exception that the program caught and logged was its end, though its launcher said that all went well."""
    text = f"step 1\n{RAISED}step 2\n"
    assert told(text).roots and told(f"{end}\n{text}").roots
    diagnosis = told(f"{text}{end}\n")
    assert diagnosis.roots == ()
    assert [event.kind for event in diagnosis.evidence.log] == ["outlived"]


@pytest.mark.parametrize(
    "end",
    [
        "=================== 1 failed, 40 passed in 8.12s ===================",
        "Ran 2 tests in 0.812s\n\nFAILED (errors=1)",
        f"[2026-11-02 10:00:22,100] [INFO] [launch.py:351:main] Process 8813 exits successfully.\n{OF_TORCHRUN}",
    ],
)
def test_one_that_fails_among_others_that_end_well_is_told(told, end: str) -> None:
    assert told(f"step 1\n{RAISED}step 2\n{end}\n").roots


def test_a_service_of_docker_compose_that_exits_with_0_outlived_its_own_failures(told) -> None:
    """Another one's good end says nothing of it."""
    raised = "".join(f"trainer-1  | {line}\n" for line in RAISED.splitlines())
    assert told(f"{raised}trainer-1 exited with code 0\n").roots == ()
    assert told(f"{raised}loader-1 exited with code 0\n").roots


OF_RANK_6 = "".join(f"[rank6]: {line}" for line in RAISED.splitlines(keepends=True))
EXIT = (
    "E0509 20:23:48.4 1252853 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: -6) "
    "local_rank: 6 (pid: 17) of binary: /usr/bin/python3\n"
)
CHATTER = "the model says something, and says it at length, so that a log grows by what it says\n"


def steps_from(first: int, last: int, line: str = "[rank0]: INFO - step: {} loss: 2.1\n", talk: int = 12) -> str:
    return "".join(line.format(step) + CHATTER * talk for step in range(first, last))


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]: INFO - step: {} loss: 2.1\n",
        "\x1b[31mstep: {} \x1b[32mloss: 2.1\x1b[39m\n",
        "(TaskRunner pid=38606) step:{} - rollout/ratio:0.6\n",
        " iteration   {}/ 1000000 | consumed samples: 40 |\n",
        " 10%|#  | {}/5000 [04:56<1:33:50,  1.15s/it]\n",
    ],
)
def test_what_the_program_went_on_after_is_no_cause(told, line):
    diagnosis = told(steps_from(1, 20, line) + RAISED + steps_from(20, 120, line))
    assert diagnosis.roots == () and hang_level(diagnosis) == "warning"
    assert "1 message of trouble, after which the log goes on with steps" in hang_sentence(diagnosis)
    assert [event.kind for event in seen_events(diagnosis)] == ["outlived"]


def test_a_start_before_the_one_that_makes_steps_is_no_cause(told):
    began = "starting attempt\n"
    diagnosis = told(began + steps_from(1, 9) + RAISED + EXIT + began + steps_from(1, 200))
    assert diagnosis.roots == () and "ended an earlier start at most" in hang_sentence(diagnosis)


def test_the_failure_after_the_last_steps_is_the_cause_alone(told):
    end = 'Traceback (most recent call last):\n  File "train.py", line 9, in save\n    f()\nOSError: gone\n'
    (root,) = told(steps_from(1, 9) + RAISED + steps_from(9, 200) + end).roots
    assert "OSError: gone" in root.message and "no answer" not in root.message


def test_the_same_exception_again_is_outlived_too_unless_it_ends_the_log(told):
    went_on = steps_from(1, 9) + RAISED + steps_from(9, 200) + RAISED
    assert told(went_on + CHATTER * 60).roots == ()
    (root,) = told(went_on).roots
    assert "no answer in it" in root.message


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (RAISED + steps_from(9, 12, talk=1), "a buffer of lines that were printed before"),
        (RAISED + CHATTER * 2000, "no step"),
        (RAISED + steps_from(5, 9) * 60, "buffers of several processes: the same steps again"),
        (RAISED + "ValueError: step 4 failed\n" + CHATTER * 2000 + "ValueError: step 5 failed: step 6\n", "messages"),
        (RAISED + CHATTER * 1000 + "step 1\n" + CHATTER, "a single step"),
    ],
)
def test_what_proves_no_step_after_it_leaves_the_cause(told, text, why):
    diagnosis = told(steps_from(1, 9) + text)
    assert diagnosis.roots and "no answer in it" in diagnosis.roots[0].message, why


@pytest.mark.parametrize("failure", [RAISED, OF_RANK_6])
def test_what_was_outlived_is_told_beside_the_end_of_a_process_and_not_as_its_cause(told, failure):
    """'Rank 6 died: … Its log tells of one failure', with high confidence, of an exception 4,000 steps before."""
    (root,) = told(steps_from(1, 9) + failure + steps_from(9, 200) + EXIT).roots
    assert (root.rule, root.ranks, root.crash) == ("TO-H004", (6,), None) and "no answer" not in root.message
    assert [what.rpartition(":")[2] for what, said in root.evidence if "no answer in it (the log goes on" in said]


def test_a_loggers_line_ends_no_traceback(told):
    torn = RAISED.replace("ValueError: no answer in it", "ERROR:root:could not act")
    diagnosis = told(f"step 1\n{torn}step 2\n")
    assert diagnosis.roots == () and [event.kind for event in seen_events(diagnosis)] == ["trouble"]


def test_rays_task_says_itself_what_it_raised(told):
    text = (
        'Traceback (most recent call last):\n  File "main.py", line 62, in run\n    ray.get(task)\n'
        "ray.exceptions.RayTaskError(NotImplementedError): ray::main_task() (pid=1, ip=172.17.0.4)\n"
        '  File "score.py", line 37, in score\n    raise NotImplementedError\nNotImplementedError\n'
    )
    (root,) = told(text).roots
    assert root.where == "score (score.py:37)" and "NotImplementedError" in root.message


@pytest.mark.parametrize("words", ["in: <function f at 0x1>", "while calling deallocator <function f at 0x1>:"])
def test_what_python_ignores_is_no_end(told, words):
    """Python 3.14 has other words than those before."""
    assert is_quiet(told(f"Training completed\nException ignored {words}\n{RAISED}"))


def test_a_warning_of_nccl_before_a_training_that_went_on_ended_nothing(told):
    """A device that NCCL cannot open, then 100 steps: '16 messages of trouble … they ended an earlier start'."""
    warned = "pgut1-0:8717:8718 [5] p2p_plugin.c:565 NCCL WARN NET/IB : Unable to open device mlx5_an0\n"
    diagnosis = told(warned + steps_from(1, 100))
    assert diagnosis.roots == () and [event.kind for event in seen_events(diagnosis)] == ["outlived"]
    assert hang_level(diagnosis) == "info" and what_would_decide(diagnosis) == ""
    assert hang_sentence(diagnosis).startswith("No rank hangs or fails in these files")
    failed = told(warned + RAISED + steps_from(1, 100))
    assert hang_level(failed) == "warning" and "they ended an earlier start at most" in hang_sentence(failed)


@pytest.mark.parametrize("head", [b"2026-99-10 10:00:00", b"0000-01-10 10:00:00", b"W9912 10:00:00.123"])
def test_numbers_that_are_no_date_tell_no_time(head):
    """`diagnose` ended with a traceback."""
    assert moment_of(head) is None


NOT_READY = "95m   Warning   NodeNotReady   pod/train-0   Node is not ready\n"
NODE_GONE = "95m   Normal    NodeNotReady   node/gpu-1   Node gpu-1 status is now: NodeNotReady\n"
NODE_BACK = "93m   Normal    NodeReady      node/gpu-1   Node gpu-1 status is now: NodeReady\n"
OTHER_BACK = NODE_BACK.replace("gpu-1", "gpu-2")
DELETED = "94m   Normal   TaintManagerEviction   pod/train-0   Marking for deletion Pod default/train-0\n"
KEPT = "94m   Normal   TaintManagerEviction   pod/train-0   Cancelling deletion of Pod default/train-0\n"
CONDITION = "Conditions:\n  Type              Status\n  Initialized       True\n  Ready             {}\nEvents:\n"


@pytest.mark.parametrize(
    ("text", "passed"),
    [
        (NODE_GONE + NOT_READY + NODE_BACK, 2),
        (NODE_BACK + NODE_GONE, 1),  # the list's order is no order of time, the ages are
        (NOT_READY + KEPT, 1),
        (CONDITION.format("True") + NOT_READY, 1),
        ("Jan 01 00:00:01 Node gpu-1 event NodeNotReady\nJan 01 00:03:01 Node gpu-1 event NodeReady\n", 1),
    ],
)
def test_a_node_that_came_back_ended_nothing(told, text, passed):
    """'The program lost a node', with high confidence, beside the line that says it was ready again."""
    diagnosis = told(text)
    assert diagnosis.roots == () and hang_level(diagnosis) == "warning"
    assert "of trouble that passed" in hang_sentence(diagnosis)
    assert [event.kind for event in seen_events(diagnosis)] == ["passed"] * passed


@pytest.mark.parametrize(
    "text",
    [
        NOT_READY,
        NODE_GONE + OTHER_BACK,
        NODE_BACK.replace("93m", "99m") + NODE_GONE,
        NOT_READY + DELETED + NODE_BACK,
        CONDITION.format("False") + NOT_READY,
        CONDITION.format("True") + NOT_READY + CONDITION.format("Unknown") + NOT_READY,
    ],
)
def test_a_node_that_did_not_come_back_in_time_is_the_cause(told, text):
    [root] = told(text).roots
    assert (root.rule, root.cause) == ("TO-E008", "node_failure")


def test_what_ended_the_pod_later_is_the_cause_not_the_node(told):
    evicted = "5m   Warning   Evicted   pod/train-0   The node was low on resource: memory.\n"
    [root] = told(NODE_GONE + NODE_BACK + evicted).roots
    assert root.cause == "evicted_memory"


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CUDA out of memory. Tried to allocate 2.00 GiB. Retrying with batch size 16\n",
        "[rank3]: Connection reset by peer, retrying in 5 s\n",
        "gpu-1:1:2 [0] NCCL WARN connect to 10.0.0.1<3000> returned Connection refused, retrying (1/34)\n",
        "train.py:12: no space left on device, will retry in 10 s\n",
    ],
)
def test_what_says_that_it_tries_again_ended_nothing(told, line):
    diagnosis = told(line + "all is well\n")
    assert diagnosis.roots == ()
    assert [event.kind for event in seen_events(diagnosis)] == ["trouble"]
    [root] = told(line + "RuntimeError: CUDA out of memory. Tried to allocate 4.00 GiB.\n").roots
    assert root.cause == "gpu_memory" and "4.00 GiB" in root.evidence[0][1]


def test_what_gave_up_after_it_tried_again_is_the_cause(told):
    [root] = told("RuntimeError: CUDA out of memory, after retrying 5 times\n").roots
    assert root.cause == "gpu_memory"


@pytest.mark.parametrize("word", ["Nonfatal", "Non-fatal"])
def test_errors_that_the_driver_calls_not_fatal_end_nothing(told, word):
    """NVLink's of Blackwell say so themselves; 'The program saw its GPU fail (hardware)' was said of them."""
    xid = "[9.2] NVRM: Xid (PCI:0000:0e:00): 149, NETIR_LINK_EVT {} XC0 i0 Link 09 (0x004cc4c2 0x00000000)\n"
    assert told(xid.format(word)).roots == ()
    assert told(xid.format("Fatal")).roots[0].cause == "gpu_hardware"
    [root] = told(xid.format(word) + "[rank0]: ValueError: no such column\n").roots
    assert "no such column" in root.message


PASSING_TALK = "the model says something, and says it at length, so that a log grows by what it says\n" * 12


@pytest.mark.parametrize(
    "line",
    [
        "Epoch: [0]  [{0:5}/5005]  eta: 1:00:00 loss: 6.9\n",
        "Epoch [1][{0}/7330]\tlr: 0.02\n",
        "Epoch(train)  [1][{0:5}/7330]  lr: 2.0e-02\n",
        "Train Epoch: 1 [{0}/60000 (1%)]\tLoss: 2.2\n",
        "Train: 0 [{0:5}/1251 (  4%)]  Loss: 6.9\n",
        "{{'loss': 2.31, 'learning_rate': 1e-05, 'epoch': 0.{0:03}}}\n",
        "epoch {0}: loss 1.2\n",
    ],
)
def test_steps_and_epochs_are_counted_as_trainings_write_them(told, line):
    failure = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB.\n"
    went_on = told(failure + "".join(line.format(number) + PASSING_TALK for number in range(1, 120)))
    assert went_on.roots == () and [event.kind for event in seen_events(went_on)] == ["outlived"]
    assert told("".join(line.format(number) + PASSING_TALK for number in range(1, 120)) + failure).roots


def test_what_traceops_wrote_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A second look at a folder that holds the first one's hang.json named the cause that this quotes."""
    monkeypatch.chdir(tmp_path)
    steps = "".join(f"step {number} loss 2.1\n{PASSING_TALK}" for number in range(1, 120))
    (tmp_path / "job.out").write_text(f"step 0\nRuntimeError: CUDA out of memory. Tried to allocate 2 GiB.\n{steps}")
    for _ in range(2):
        assert main(["diagnose", ".", "-o", "reports"]) == 0
        assert json.loads((tmp_path / "reports" / "hang.json").read_text())["findings"] == []
    assert diagnose(tmp_path).evidence.files == (str(tmp_path / "job.out"),)


def test_what_was_tried_again_before_a_step_went_well(told):
    """'1 message of trouble' was said of any healthy log in which one connection was refused and tried again."""
    again = "store: Connection refused, retrying in 2 s (1/5)\n"
    assert is_quiet(told(f"{again}step 1 loss 2.1\nstep 2 loss 2.0\n"))
    assert is_quiet(told(again + "serving the next request\n" * 60))
    [event] = seen_events(told(f"{again}step 1 loss 2.1\n{again}{again.replace('1/5', '2/5')}"))[-1:]
    assert (event.kind, event.line) == ("trouble", 4)


# sostrowsk/dgx-spark-local-llm, vllm.log and sglang-int4.log: both were told as crashes.
SERVES = '(APIServer pid=23283) INFO:     127.0.0.1:43920 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
VLLM = (
    "(EngineCore pid=23397) INFO 08-01 21:34:51 [core.py:1214] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
    "(APIServer pid=23283) INFO 08-01 21:34:51 [launcher.py:100] [shutdown] API server: shutdown triggered\n"
)
DEAD = "".join(
    f"(APIServer pid=23283) ERROR 08-01 21:34:51 [async_llm.py:704] {line}\n"
    for line in (
        "AsyncLLM output_handler failed.",
        "Traceback (most recent call last):",
        '  File "/x/vllm/v1/engine/async_llm.py", line 660, in output_handler',
        "    outputs = await engine_core.get_output_async()",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the "
        "root cause.",
    )
)
SGLANG = "[2026-08-02 00:17:43] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
CRASHED = (
    "[2026-08-02 00:17:43] Subprocess detokenizer (pid=31379) crashed with exit code -15. Triggering SIGQUIT for "
    "cleanup...\n"
)


@pytest.mark.parametrize(("asked", "behind"), [(VLLM, DEAD), (SGLANG, CRASHED)], ids=["vllm", "sglang"])
def test_what_a_server_logs_while_it_stops(told, asked, behind):
    diagnosis = told(SERVES * 3 + asked + behind)
    assert is_quiet(diagnosis) and hang_sentence(diagnosis).startswith("The server was asked to stop")


def test_an_engine_that_died_by_itself(told):
    (root,) = told(SERVES * 3 + DEAD).roots
    assert "EngineDeadError" in root.message


def test_what_failed_before_is_still_told(told):
    """Somebody stops a server because it failed."""
    (root,) = told(SERVES * 3 + DEAD.replace("EngineDeadError", "RuntimeError") + VLLM + DEAD).roots
    assert "RuntimeError" in root.message


def test_a_server_that_started_once_more(told):
    again = "(APIServer pid=9) INFO:     Application startup complete.\n"
    (root,) = told(SERVES * 3 + VLLM + again + SERVES + DEAD).roots
    assert "EngineDeadError" in root.message


FRAMES = (
    'Traceback (most recent call last):\n  File "train.py", line 415, in main\n    batch = next(loader)\n'
    '  File "/py/site-packages/torch/utils/data/dataloader.py", line 280, in __next__\n    data = self._next_data()\n'
    '  File "/py/threading.py", line 295, in wait\n    waiter.acquire()\n'
)
PY_SPY = (
    "Process 4242: python -u train.py{options}\nPython v3.10.12 (/usr/bin/python3.10)\n\n"
    'Thread 4242 (idle): "MainThread"\n    wait (threading.py:320)\n    get (queue.py:171)\n'
    "    _get_data (torch/utils/data/dataloader.py:1133)\n    train (train.py:88)\n    <module> (train.py:120)\n"
)
COLL = (
    "n1:{pid}:{pid} [{rank}] NCCL INFO {op}: opCount 0 sendbuff 0x7f1 recvbuff 0x7f1 count {count} datatype {type} "
    "op 0 root 0 comm 0x55{rank} [nranks=4] stream 0x5\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("step 33/15625 loss 2.1\n", "training was at step 33 of 15,625 when job.out ends."),
        ("step 33 loss 2.1\nstep 34 loss 2.0\n", "training was at step 34 when job.out ends."),
        (" 33%|███ | 330/1000 [00:10<00:20, 33.00it/s]\n", "training was at step 330 of 1,000 when job.out ends."),
        ("epoch 3: loss 1.2\n", "training was at epoch 3 when job.out ends."),
        ("step 500/500\n{'train_runtime': 5.0}\n", "job.out shows the program's own end, at step 500 of 500."),
    ],
)
def test_a_healthy_log_says_how_far_it_came(told, text: str, said: str) -> None:
    diagnosis = told(text)
    assert hang_level(diagnosis) == "info" and hang_sentence(diagnosis) == f"No failure found: {said}"


def test_nothing_that_can_be_read_is_an_error_and_a_healthy_log_is_none(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.log").write_text("all is well\n")
    (tmp_path / "b.log").write_text("")
    assert main(["diagnose", str(tmp_path / "a.log"), "-o", str(tmp_path / "out")]) == 0
    assert main(["diagnose", str(tmp_path / "b.log"), "-o", str(tmp_path / "out")]) == 3


def test_where_a_program_stood_when_it_was_interrupted(told) -> None:
    said = hang_sentence(told(f"step 7/100\n{FRAMES}KeyboardInterrupt\n"))
    assert said.startswith("Interrupted by Ctrl-C or a signal at step 7 of 100 while waiting for a batch of data")
    assert "main (train.py:415)" in said


@pytest.mark.parametrize("prefix", ["", "trainer-1  | ", "2026-03-02T10:00:00.123456789Z "])
def test_stacks_of_one_process_without_a_rank(told, prefix: str) -> None:
    text = "".join(f"{prefix}{line}\n" for line in PY_SPY.format(options="").splitlines())
    diagnosis = told(text)
    assert hang_level(diagnosis) == "warning" and "stacks_rank_N" in what_would_decide(diagnosis)
    assert hang_sentence(diagnosis).startswith("One process, rank unknown: it is waiting for a batch of data")


def test_the_rank_of_stacks_is_in_the_command_line(told) -> None:
    assert [rank.rank for rank in told(PY_SPY.format(options=" --local_rank=1")).ranks if rank.sources] == [1]


def test_stacks_within_a_servers_log(told) -> None:
    diagnosis = told(f"[2026-03-02 10:00:00] Decode batch. #running-req: 3\n{PY_SPY.format(options='')}[2026] bye\n")
    assert hang_sentence(diagnosis).startswith("One process, rank unknown: it is waiting for a batch of data")


def test_a_training_that_skips_its_steps_is_not_trained(told) -> None:
    text = "{{'loss': 0.0}}\n[INFO] [logging.py:69:log_dist] [Rank 0] step=2000, skipped={}, lr=[0.001]\n"
    said = hang_sentence(told(text.format(1995)))
    assert said.startswith("1,995 of 2,000 steps were skipped by the loss scaler") and "the loss is 0.0" in said
    assert hang_level(told(text.format(9))) == "info"


@pytest.mark.parametrize(("loss", "flat"), [("0.0", True), ("nan", True), ("2.31", False)])
def test_a_loss_that_is_constantly_zero_or_nan(told, loss: str, flat: bool) -> None:
    diagnosis = told("".join(f"{{'loss': {loss}, 'epoch': 0.0{step}}}\n" for step in range(12)))
    assert hang_level(diagnosis) == ("warning" if flat else "info")


def test_the_second_in_which_a_wait_began(told) -> None:
    diagnosis = told(
        "2026-02-18T10:28:25.497Z 2026-02-18 10:28:25,496 - root - INFO - Saving latest checkpoint\n"
        "2026-02-18T10:48:25.681Z [rank7]:[E218 10:48:25.033625188 ProcessGroupNCCL.cpp:632] [Rank 7] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=15, OpType=ALLREDUCE, NumelIn=3, NumelOut=3, "
        "Timeout(ms)=1200000) ran for 1200027 milliseconds before timing out.\n"
    )
    assert "since 10:28:25" in hang_sentence(diagnosis) and "Saving latest checkpoint" in hang_sentence(diagnosis)


def test_nccls_lines_of_collectives_that_differ(told) -> None:
    calls = [(0, "Broadcast", 25_503_912, 6), *((rank, "Broadcast", 53, 4) for rank in (1, 2, 3))]
    text = "".join(COLL.format(pid=100 + r, rank=r, op=op, count=count, type=type_) for r, op, count, type_ in calls)
    (root,) = told(text).roots
    assert (root.rule, root.ranks) == ("TO-H002", (0,)) and "rank 0 broadcasts 25,503,912 of type 6" in root.message
    alike = "".join(COLL.format(pid=100 + r, rank=r, op="AllReduce", count=5, type=7) for r in range(4))
    assert told(alike).roots == () and told(text.splitlines()[0] + "\n").roots == ()


def test_the_number_of_ranks_is_what_any_line_says_and_who_is_silent_is_not_blamed(told) -> None:
    late = "[rank{r}]:[E1 10:00:00.1 P.cpp:6] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, OpType={op}, NumelIn={i}, NumelOut={o}, Timeout(ms)=600000) ran for 600010 milliseconds before timing out.\n"  # noqa: E501
    reduce = "".join(late.format(r=r, op="ALLREDUCE", i=1, o=1) for r in (5, 6))
    for line in ("world_size=8", "GLOBAL_RANK: 5, MEMBER: 6/8", "comm 0x5 rank 5 nranks 8 cudaDev 5", "WORLD_SIZE: 8",
                 "torchrun --nproc_per_node=4 --nnodes=2 train.py"):  # fmt: skip
        diagnosis = told(f"{line}\n{reduce}")
        assert diagnosis.roots == () and hang_sentence(diagnosis).startswith("Ranks 5–6 of 8 wait in all_reduce #77")
    gather = "".join(late.format(r=r, op="_ALLGATHER_BASE", i=1000, o=16000) for r in (4, 5))
    assert hang_sentence(told(gather)).startswith("Ranks 4–5 of 16 wait in _all_gather_base #77")


def test_what_the_doctor_knows_of_the_same_text(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.log").write_text("Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error\n")
    assert main(["diagnose", str(tmp_path / "a.log"), "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert said.startswith("✖ lost GPU") and "traceops doctor --from" in said


def test_the_doctor_names_what_diagnose_finds_in_the_same_text(tmp_path: Path, capsys) -> None:
    log = tmp_path / "a.log"
    log.write_text("n1:7:7 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\nValueError: bad batch\n")
    assert main(["doctor", "--from", str(log), "-o", str(tmp_path / "out")]) == 0
    assert f"traceops diagnose {log}: The program crashed: ValueError: bad batch" in capsys.readouterr().out
    log.write_text("ValueError: bad batch\n")
    assert main(["doctor", "--from", str(log), "-o", str(tmp_path / "out")]) == 0
    assert "The program crashed: ValueError: bad batch" in capsys.readouterr().out


LOST = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:589] Connection reset by peer\n"


def notes(folder: Path, text: str, name: str = "train.log") -> tuple[str, ...]:
    (folder / name).write_text(text + LOST)
    return diagnose(folder).notes


def lines(*points: tuple[int, str]) -> str:
    return "".join(f"2024-04-10 {time} | INFO | loss at epoch 5, step at {step}, loss=31\n" for step, time in points)


def test_steps_that_took_longer_before_the_end(tmp_path: Path) -> None:
    text = lines((58400, "04:59:03"), (58600, "05:01:07"), (58800, "05:03:10"), (59000, "07:05:01"))
    (note,) = notes(tmp_path, text)
    assert note == (
        "Steps took 0.62 s each up to step 58800, and 36.6 s each from there to step 59000: the job was slow before "
        "it failed (train.log)."
    )


def test_the_average_of_a_progress_bar_after_a_stall(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, " 12%|█▏  | 3708/30000 [53:10<5839:00:12, 800.31s/it]\n", "rank3.log")
    assert note == (
        "3708 steps in 53 min are 0.86 s each: the 800 s per step that the progress bar shows are an average after a "
        "stall (rank 3, rank3.log)."
    )


@pytest.mark.parametrize(
    "text",
    [
        lines((100, "04:59:03"), (200, "05:00:03"), (300, "05:01:04"), (400, "05:02:04")),
        lines((100, "04:59:03"), (200, "05:00:03"), (10, "05:21:04"), (20, "05:22:04")),
        "  1%| | 10/1752 [00:29<1:22:01,  2.83s/it]\n  1%| | 11/1752 [00:31<1:21:50,  2.82s/it]\n",
        "100%|██| 3708/3708 [53:10<00:00,  1.16it/s]\n",
        "step 5 of the plan, loss 3\n",
    ],
)
def test_even_steps_are_not_mentioned(tmp_path: Path, text: str) -> None:
    assert notes(tmp_path, text) == ()


# kolyangg/mlops-assignment, logs/vllm.log: 27,000 lines of a server that serves were told as a crash.
LOGGER = "(APIServer pid=1288829) ERROR 06-16 14:16:20 [serving_chat.py:251] "
ERROR = (
    "Error in preprocessing prompt inputs",
    "Traceback (most recent call last):",
    '  File "/x/vllm/entrypoints/openai/serving_chat.py", line 230, in create_chat_completion',
    "    ) = await self._preprocess_chat(",
    "ValueError: This model's maximum context length is 6144 tokens.",
)
FAILED = "".join(f"{LOGGER}{line}\n" for line in ERROR)
ANSWER = '(APIServer pid=1288829) INFO:     127.0.0.1:41806 - "{} HTTP/1.1" {}\n'
SERVED, REFUSED = (ANSWER.format("POST /v1/chat/completions", "200 OK"), ANSWER.format("POST /v1/x", "400 Bad Request"))
STARTED = "(APIServer pid=1288829) INFO:     Application startup complete.\n"


@pytest.mark.parametrize("behind", [REFUSED + SERVED, SERVED * 10], ids=["it was refused", "others are served"])
def test_a_request_that_failed(told, behind):
    diagnosis = told(STARTED + SERVED * 3 + FAILED + behind)
    assert diagnosis.roots == () and "after which its logger goes on" in hang_sentence(diagnosis)


@pytest.mark.parametrize(
    "behind",
    [
        SERVED * 3,
        ANSWER.format("GET /metrics", "200 OK") * 40,
        ANSWER.format("POST /v1/x", "500 Internal Server Error") * 40,
        REFUSED,
        SERVED + STARTED + SERVED * 9,
    ],
    ids=["only a few", "only metrics", "all fail", "nothing is served", "by another start"],
)
def test_a_server_that_failed(told, behind):
    diagnosis = told(STARTED + SERVED * 3 + FAILED + behind)
    assert "its logger goes on" not in hang_sentence(diagnosis)


def test_an_engine_that_fails_behind_such_a_request(told):
    error = "RuntimeError: CUDA error: an illegal memory access was encountered"
    died = FAILED.replace("serving_chat.py:251", "core.py:500").replace(ERROR[-1], error)
    (root,) = told(STARTED + FAILED + REFUSED + SERVED * 20 + died + SERVED * 2).roots
    assert root.crash is not None and root.crash.kind == "illegal_access"


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
    assert "libnvrtc" in root.message


# ray-project/ray#22349
LOST_NODE = (
    "(BaseWorkerMixin pid=5172, ip=10.128.0.32) loss: 1.995140  [ 3200/30000]\n"
    "2022-02-15 16:53:52,096\tWARNING worker.py:1462 -- The node with node id: 8f205b12 and ip: 10.128.0.103 has been "
    "marked dead because the detector has missed too many heartbeats from it.\n"
    "(BackendExecutor pid=5126, ip=10.128.0.32) 2022-02-15 16:53:52,097\tERROR utils.py:42 -- The actor died "
    "unexpectedly before finishing this task.\n"
    "(BackendExecutor pid=5126, ip=10.128.0.32) \tpid: 5137\n"
)


def test_a_node_that_ray_lost_is_why_its_actor_died(told):
    (root,) = told(LOST_NODE).roots
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
    assert "lines after these" in what_would_decide(diagnosis)


def test_a_cells_traceback_that_is_whole(told):
    (root,) = told(f"{CELL}\n\nRuntimeError: The size of tensor a (32) must match the size of tensor b (31)\n").roots
    assert "must match the size" in root.message


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
    assert "lines after these" in what_would_decide(diagnosis)


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
    assert "crashed after its training had ended, at main" in root.message


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
    assert "had ended" not in root.message


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
    assert root.ranks == (2,) and root.cause == "gpu_hardware" and "fallen off the bus" in root.message


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
RAISED_IN_F = 'Traceback (most recent call last):\n  File "train.py", line 7, in f\n    g()\n{}\n'
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB."
AGAIN = (
    "INFO:torch.distributed.elastic.agent.server.api:[default] Worker group FAILED. "
    "{}/3 attempts left; will restart worker group\n"
)


def of_rank(error: str) -> str:
    return "".join(f"[rank1]: {line}\n" for line in RAISED_IN_F.format(error).splitlines())


def terminal(diagnosis: Diagnosis) -> str:
    shown = io.StringIO()
    print_diagnosis(diagnosis, shown)
    return " ".join(shown.getvalue().split())


def test_what_ended_the_starts_before_is_said(told) -> None:
    """Nothing of them was said: that memory ran out at first, and another error came after the restart."""
    text = STEPS + of_rank(OUT_OF_MEMORY) + AGAIN.format(3) + STEPS + of_rank("KeyError: 'labels'")
    diagnosis = told(text)
    (root,) = diagnosis.roots
    assert "KeyError" in root.message
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
    optional = RAISED_IN_F.replace("in f\n    g()", "in <module>\n    import flash_attn")
    optional = optional.format("ModuleNotFoundError: No module named 'flash_attn'")
    ended = RAISED_IN_F.replace("line 7, in f\n    g()", "line 168, in <module>\n    main()").format("KeyError: 'x'")
    diagnosis = told(f"starting\n{optional}flash attention is not there\nstep 1\n{ended}")
    assert ["KeyError" in root.message for root in diagnosis.roots] == [True]
    assert "earlier start" not in terminal(diagnosis)


IN_MAIN = 'Traceback (most recent call last):\n  File "test.py", line 9, in main\n    run()\n'


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
    assert root.ranks == (1,) and "tokenizer has no pad token" in root.message
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


@pytest.mark.parametrize(
    ("line", "complains"),
    [
        ("[HANG] training never progresses past batch 0 with 4 GPUs", True),
        ("It hangs at batch 0, GPU utilisation is 100% on all four.", True),
        ("With 8 GPUs the job gets stuck after init_process_group", True),
        ("my script is hanging in dist.barrier", True),
        ("[rank0]:[W1123 10:00:00.123 ProcessGroupNCCL.cpp:1538] TORCH_NCCL_ENABLE_MONITORING: hangs are found", False),
        ("INFO train: watching for hangs every 60 s", False),
        ("node1:23:23 [0] NCCL INFO the job hangs if the interface is wrong", False),
        ("val loss 1.2, changes: hangar.py", False),
    ],
)
def test_a_users_word_that_the_job_hangs_counts_and_a_librarys_does_not(
    tmp_path: Path, line: str, complains: bool
) -> None:
    (tmp_path / "paste.txt").write_text(f"node1:23:23 [0] NCCL INFO Connected all rings\n{line}\n")
    assert how_it_ends(tmp_path / "paste.txt").hangs == ((2, line) if complains else None)
