"""Without a cause the first sentence names the line that its reader needs."""

from __future__ import annotations

import io
import re

import pytest

from traceops.hangs.diagnose import diagnose
from traceops.render.hang.terminal import print_diagnosis
from traceops.report.hang_seen import seen_lines
from traceops.report.hang_text import hang_sentence

CLOSING = (
    "W0217 07:42:20.85 470998 torch/distributed/elastic/multiprocessing/api.py:897] Sending process {pid} closing "
    "signal SIGTERM\n"
)
SKIPPED = (
    "{level}: ran out of memory with exception: CUDA out of memory. Tried to allocate 332.00 MiB (GPU 0; 10.91 GiB "
    "total capacity; 9.33 GiB already allocated; 299.38 MiB free; 756.70 MiB cached);\n Skipping batch\n"
)
TORN = 'Traceback (most recent call last):\n  File "/x/bin/fairseq-train", line 11, in <module>\n    load_entry_poi'
LEVEL = "ERROR 05-08 14:04:02 [multiproc_executor.py:435] "
LIBRARY = "/x/lib/python3.10/site-packages"
TIMEOUT = (
    "[rank{rank}]:[E424 01:11:21.1 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=4, OpType=ALLREDUCE, NumelIn=112, NumelOut=112, Timeout(ms)=1800000) ran for 1800010 "
    "milliseconds before timing out.\n"
)


def printed(diagnosis) -> str:
    out = io.StringIO()
    print_diagnosis(diagnosis, out)
    return " ".join(out.getvalue().split())


def test_the_only_line_is_quoted_and_not_said_again(told):
    diagnosis = told("ERROR 03-05 00:25:45 [core.py:1094] Invocation of collective_rpc method failed\n")
    sentence = hang_sentence(diagnosis)
    assert sentence.startswith("1 error message; its cause is not in this log: ")
    assert "job.out:1 says “ERROR 03-05 00:25:45 [core.py:1094] Invocation of collective_rpc" in sentence
    assert printed(diagnosis).count("Invocation of collective_rpc") == 1


def test_what_a_launcher_does_afterwards_is_not_the_first_said(told):
    diagnosis = told(CLOSING.format(pid=471406) + CLOSING.format(pid=471407) + "/x/launcher.py FAILED\n")
    assert "says “/x/launcher.py FAILED”" in hang_sentence(diagnosis)


def test_the_others_are_below(told):
    diagnosis = told("ERROR: the mesh has no such axis\nERROR: no axis of this name\nstep 2 loss 1.9\n")
    assert "says “ERROR: the mesh has no such axis”; the other is below." in hang_sentence(diagnosis)
    assert "Seen: " in printed(diagnosis) and printed(diagnosis).count("no axis of this name") == 1


def test_rules_without_evidence_for_one_reason_share_a_line(told):
    said = printed(told("ERROR: the mesh has no such axis\n"))
    assert said.count("no flight-recorder dump, and no log shows which collectives") == 1
    assert "Not evaluated: TO-H001, TO-H002, TO-H003, TO-H006, no flight" in said


@pytest.mark.parametrize(
    "lines",
    [
        [
            f"{LEVEL}Traceback (most recent call last):",
            f'{LEVEL}  File "{LIBRARY}/vllm/executor.py", line 305, in __init__',
            f"{LEVEL}    self.worker.init_device()",
            f'{LEVEL}  File "{LIBRARY}/vllm/gpu_worker.py", line 135, in init_device',
            f"{LEVEL}    self.model_runner: GPUModel",
        ],
        [
            "╭─────────────────── Traceback (most recent call last) ───────────────────╮",
            f"│ {LIBRARY}/vllm/executor.py:305 in __init__                               │",
            "│   304 │   │   self.worker.init_device()                                   │",
            f"│ {LIBRARY}/vllm/gpu_worker.py:135 in init_device                          │",
        ],
    ],
    ids=["levels", "box"],
)
def test_of_a_traceback_in_pieces_the_innermost_frame_is_named(told, lines):
    diagnosis = told("\n".join(lines) + "\n")
    assert "… init_device (vllm/gpu_worker.py:135) …" in hang_sentence(diagnosis)


def test_a_torn_traceback_names_the_programs_own_line_too(told):
    head = 'Traceback (most recent call last):\n  File "/home/me/train.py", line 8, in main\n    fit()\n'
    diagnosis = told(head + f'  File "{LIBRARY}/ray/worker.py", line 2174, in get\n    raise value.as_inst')
    said = hang_sentence(diagnosis)
    assert "… main (/home/me/train.py:8) … " in said and "get (ray/worker.py:2174)" in said


def test_of_a_long_command_the_end_is_shown(told):
    words = ", ".join(f"'--option-{number}'" for number in range(100))
    line = f"[2024-03-20 20:31:29,269] [ERROR] [launch.py:321:sigkill_handler] [{words}] exits with return code = 1"
    assert "'--option-99'] exits with return code = 1”" in hang_sentence(told(line + "\n"))


def test_torchruns_line_that_is_cut_behind_the_rank(told):
    end = "E0217 07:42:21.08 470998 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) "
    diagnosis = told(CLOSING.format(pid=471406) + end + "local_rank: 3")
    assert [root.ranks for root in diagnosis.roots] == [(3,)] and "SIGKILL" in hang_sentence(diagnosis)


@pytest.mark.parametrize("level", ["WARNING", "| WARNING", "2020-08-01 01:36:18 | WARNING | fairseq.trainer | OOM"])
def test_memory_that_a_program_only_warns_of_ended_nothing(told, level):
    """fairseq leaves the batch out and goes on: what ended it then is not known."""
    diagnosis = told(SKIPPED.format(level=level) + TORN)
    assert diagnosis.roots == () and "CUDA out of memory" in hang_sentence(diagnosis)
    assert [event.line for event, _ in seen_lines(diagnosis)] == [1, 3]


def test_memory_that_ran_out_at_last_is_the_cause(told):
    raised = TORN.rpartition("\n")[0] + "\n    main()\nRuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    (root,) = told(SKIPPED.format(level="WARNING") + raised).roots
    assert "2.00 GiB" in root.statement


def test_others_wait_for_a_rank_that_left_a_batch_out(told):
    waits = "".join(TIMEOUT.format(rank=rank) for rank in (1, 2))
    diagnosis = told(SKIPPED.format(level="[rank0]: WARNING") + waits)
    assert any(root.crash is not None and root.crash.kind == "gpu_memory" for root in diagnosis.roots)


def test_ranks_that_say_the_same_are_all_named_and_none_is_said_to_be_below(tmp_path):
    """'4 messages …: rank_0.stderr.log:1 says “…” (rank 0); the others are below', and nothing stood below."""
    for rank in range(4):
        (tmp_path / f"rank_{rank}.stderr.log").write_text("ERROR: the mesh has no such axis\n")
    said = printed(diagnose(tmp_path))
    assert said.startswith("▲ 1 error message") and "no such axis” (ranks 0-3). Read:" in said
    assert "below" not in said and said.count("no such axis") == 1


@pytest.mark.parametrize("words", ["word " * 1500, "x" * 5000], ids=["words", "one word"])
def test_of_a_long_line_the_beginning_is_quoted_once(told, words):
    """It was listed again below, longer; of one long word nothing but 'ERROR: …' was left."""
    diagnosis = told(f"ERROR: {words}\n")
    assert f"says “ERROR: {words[:200]}" in hang_sentence(diagnosis) and "Seen: " not in printed(diagnosis)


def test_a_quote_ends_between_words(told):
    """'CUDA tried to allocate 33 …' of 332 MiB."""
    said = hang_sentence(told("ERROR: rows are lost: " + "".join(f"1{number} " for number in range(100, 300))))
    assert re.search(r" 1\d{3} …”", said)
