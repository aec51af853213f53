"""Of several failures the first one is the cause, and the first sentence says so."""

from __future__ import annotations

import io
import json
import re
from itertools import product
from pathlib import Path

import pytest
from generated_hang import Fault, Job, Step, dumps, run, write
from msgspec.structs import replace
from plain_words import TICS

from traceops.core.rank_text import who_first
from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Diagnosis, Root, RootFacts, RootKind
from traceops.render.hang.terminal import print_diagnosis
from traceops.report.hang_text import hang_sentence, read_text, root_sentence, seen_lines
from traceops.rules.explained import fabric_findings, judge_diagnosis


def timed_out(rank, sequence=64):
    return (
        f"[rank{rank}]:[E1120 10:00:00.561 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={sequence}, OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, "
        f"Timeout(ms)=600000) ran for 600029 milliseconds before timing out.\n"
        f"[rank{rank}]:[E1120 10:00:00.562 ProcessGroupNCCL.cpp:2340] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  "
        f"failure detected by watchdog at work sequence id: {sequence} PG status: last enqueued work: {sequence}, "
        f"last completed work: {sequence - 1}\n"
    )


def raised(rank, text):
    return "".join(
        f"[rank{rank}]: {line}\n"
        for line in (
            "Traceback (most recent call last):",
            '  File "/home/me/train.py", line 30, in <module>',
            "    step()",
            text,
        )
    )


def report(root, code, others=()):
    """Torchrun's, of the rank whose end it saw first and the others."""

    def one(rank, its):
        return f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {its} (pid: {100 + rank})\n"

    failures = "".join(f"[{number}]:\n{one(rank, its)}" for number, (rank, its) in enumerate(others))
    return (
        f"train.py FAILED\n-----\nFailures:\n{failures}-----\nRoot Cause (first observed failure):\n[0]:\n"
        f"{one(root, code)}=====\n"
    )


CLOSED = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:48211"
REMOTE = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered"
LOST_PEERS = "".join(raised(rank, CLOSED) for rank in (0, 1, 3))
LOST_REMOTE = "".join(raised(rank, REMOTE) for rank in (0, 1, 2))
WAITED = "".join(timed_out(rank) for rank in (0, 2, 3))


@pytest.mark.parametrize(
    ("text", "rank", "confidence", "cause"),
    [
        (LOST_PEERS + raised(2, "ValueError: bad") + report(0, 1, [(1, 1), (2, 1), (3, 1)]), 2, "high", None),
        (LOST_PEERS + raised(2, "ValueError: bad"), 2, "medium", None),
        (LOST_REMOTE + report(0, -6, [(1, -6), (2, -6), (3, -11)]), 3, "high", "native_crash"),
        (WAITED + raised(1, OOM) + report(0, -6, [(2, -6), (1, 1)]), 1, "high", "memory"),
        (WAITED + raised(1, OOM) + report(0, -6, [(2, -6)]), 1, "medium", "memory"),
        (WAITED + raised(1, ILLEGAL) + report(0, -6, [(1, 1), (2, -6)]), 1, "high", "gpu"),
        (report(0, -6, [(1, -6)]), 0, "medium", None),
    ],
)
def test_the_first_cause_and_not_its_echo(tmp_path, text, rank, confidence, cause):
    (tmp_path / "train.log").write_text(text)

    (root,) = diagnose(tmp_path).roots

    assert (root.rule, root.ranks) == ("TO-H004", (rank,))
    assert (root.confidence, root.cause) == (confidence, cause)


def test_a_rank_that_torch_ended_because_the_others_gave_up_did_not_die_first(tmp_path):
    """Rank 2 was elsewhere; its own status says how far it had come, and it is ended last."""
    status = (
        "[rank2]:[E1120 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 2] Received a dump signal due "
        "to a collective timeout from rank 0. Last enqueued NCCL work: 63, last completed NCCL work: 63.\n"
    )
    waited = "".join(timed_out(rank) for rank in (0, 1, 3))
    (tmp_path / "train.log").write_text(waited + status + report(0, -6, [(1, -6), (3, -6), (2, -6)]))

    (root,) = diagnose(tmp_path).roots

    assert (root.rule, root.ranks, root.waiting) == ("TO-H001", (2,), (0, 1, 3))


def test_what_a_rank_without_a_record_says_is_evidence(tmp_path):
    stuck = (
        "[rank3]:[F1120 ProcessGroupNCCL.cpp:1554] [PG ID 0 PG GUID 0(default_pg) Rank 3] ProcessGroupNCCL's watchdog "
        "got stuck for 480 seconds without making progress in monitoring enqueued collectives.\n"
    )
    waited = "".join(timed_out(rank) for rank in (0, 1, 2))
    (tmp_path / "train.log").write_text(waited + stuck)

    (root,) = diagnose(tmp_path).roots

    assert (root.rule, root.ranks, root.confidence) == ("TO-H001", (3,), "low")
    assert "no evidence" not in root.message
    assert any("got stuck" in text for _, text in root.evidence)


def test_an_attempt_before_the_last_explains_only_itself(tmp_path):
    restart = "[default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
    waited = "".join(timed_out(rank, 20) for rank in (0, 2, 3))
    (tmp_path / "train.log").write_text(raised(2, OOM) + restart + waited)

    found = diagnose(tmp_path)

    assert found.roots == () and [rank.rank for rank in found.ranks if rank.state == "waiting"] == [0, 2, 3]
    assert all(event.kind != "memory" for event in found.evidence.log)


def test_members_that_no_log_tells_are_not_all_members(tmp_path):
    """The rank that never came may be the last of all: of it there is no trace."""
    (tmp_path / "train.log").write_text("".join(timed_out(rank) for rank in (0, 1, 2)))

    (root,) = diagnose(tmp_path).roots

    assert root.confidence == "low"
    assert "All 3 members" not in root.message


def test_one_name_of_two_groups_proves_nothing(tmp_path):
    """Split groups share their name: rank 2 waits in one of them, rank 0 is further in another."""
    shard = [timed_out(2, 30), timed_out(0, 33)]
    replica = [timed_out(rank, 10) for rank in (0, 1)]
    text = "".join(line.replace("0(default_pg)", "1(mesh_shard)") for line in shard) + "".join(
        line.replace("0(default_pg)", "2(mesh_replicate)") for line in replica
    )
    (tmp_path / "train.log").write_text(text)

    assert {root.confidence for root in diagnose(tmp_path).roots} == {"low"}


def test_a_rank_that_died_is_told_with_its_own_error_and_line(tmp_path):
    """Not with what another rank raised of the same kind, and memory with its arithmetic."""
    text = raised(0, "KeyError: 'labels'") + raised(1, "ValueError: bad batch").replace("line 30", "line 77")
    (tmp_path / "train.log").write_text(text + report(1, 1, [(0, 1)]))
    root = diagnose(tmp_path).roots[-1]
    assert (root.rule, root.ranks, root.where) == ("TO-H004", (1,), "<module> (train.py:77)")
    assert root.message == "Rank 1 died: it crashed, at <module> (train.py:77): ValueError: bad batch."

    full = f"{OOM} GPU 1 has a total capacity of 79.10 GiB of which 1.20 GiB is free."
    (tmp_path / "train.log").write_text(raised(1, full) + WAITED + report(0, -6, [(1, 1), (2, -6)]))
    (root,) = diagnose(tmp_path).roots
    assert root.message.startswith("Rank 1 died while ranks 0, 2–3 wait for it in all_reduce #64 of default_pg: ")
    told = "it ran out of GPU memory, at <module> (train.py:30): it asked for 2.00 GiB with 1.20 GiB free of 79.10 GiB"
    assert told in root.message


def test_what_the_launcher_noted_of_a_killed_rank_is_no_word_of_its_own(tmp_path):
    manifest = {"world_size": 2, "nnodes": 1, "failed_rank": 1, "status": "failed"}
    ranks = [{"rank": 0, "exit_code": 143}, {"rank": 1, "exit_code": 137, "error": "killed by SIGKILL (often …)"}]
    (tmp_path / "run.json").write_text(json.dumps({**manifest, "ranks": ranks}))
    (root,) = diagnose(tmp_path).roots
    assert (root.ranks, root.cause) == ((1,), "killed") and root.message.count("SIGKILL") == 1


def test_a_rank_that_crashed_is_why_others_do_not_come_whoever_else_is_silent(tmp_path):
    """Ranks 2–4 say nothing in a log of 8: 'Ranks 2–5 left no record' was the cause, not what rank 5 raised."""
    waiting = "".join(timed_out(rank, 30) for rank in (0, 1))
    (tmp_path / "train.log").write_text(raised(5, "AssertionError: found NaN in loss") + waiting)
    (root,) = diagnose(tmp_path).roots
    assert root.ranks == (5,) and root.waiting == (0, 1) and "NaN" in root.message

    (tmp_path / "train.log").write_text(raised(5, "RuntimeError: Connection reset by peer") + waiting)
    assert diagnose(tmp_path).roots == ()  # an echo; and of ranks 2 to 4 there is no line


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
    assert "2.00 GiB" in root.message


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


def one_raised(rank: int, error: str) -> str:
    lines = (
        "Traceback (most recent call last):",
        '  File "/app/train.py", line 41, in step',
        "    loss = model(batch)",
        error,
    )
    return "".join(f"[rank{rank}]: {line}\n" for line in lines)


def one_timed_out(*ranks: int) -> str:
    work = "WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1048576, NumelOut=1048576, Timeout(ms)=600000)"
    return "".join(
        f"[rank{rank}]:[E1120 10:00:00.561 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: {work} ran for 600029 milliseconds before timing out.\n"
        for rank in ranks
    )


CRASHES = {
    "memory": (one_raised(2, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."), "GPU memory"),
    "import": (one_raised(2, "ModuleNotFoundError: No module named 'apex'"), "apex"),
    "illegal": (one_raised(2, "RuntimeError: CUDA error: an illegal memory access was encountered"), "illegal memory"),
    "disk": (one_raised(2, "OSError: [Errno 28] No space left on device"), "disk or the quota"),
    "assertion": (one_raised(2, "AssertionError: batch is empty"), "batch is empty"),
}
CANCELLED = "slurmstepd: error: *** JOB 7 ON node1 CANCELLED AT 2026-04-20T09:09:37{} ***\n"
SLURM = {
    "time limit": (CANCELLED.format(" DUE TO TIME LIMIT"), "time limit"),
    "node failure": ("srun: error: Node failure on node2\n", "node2"),
    "preempted": (CANCELLED.format(" DUE TO PREEMPTION"), "preempted"),
}
# Two GPUs of different processors, P2P between them: the cause of the hang where there is one.
FABRIC = {
    "topo.txt": (
        "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-15\t0\nGPU1\tSYS\t X \t16-31\t1\n"
        "\nLegend:\n  X    = Self\n  SYS  = Connection traversing PCIe as well as the SMP interconnect\n"
    ),
    "nccl.log": (
        "node1:100:100 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "node1:101:101 [1] NCCL INFO Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM\n"
    ),
}


@pytest.fixture
def told_with(tmp_path: Path):
    def tell(log: str, more: dict[str, str] | None = None) -> Diagnosis:
        for name, text in {"train.log": log, **(more or {})}.items():
            (tmp_path / name).write_text(text)
        return diagnose(tmp_path)

    return tell


def fabric(diagnosis: Diagnosis):
    return fabric_findings(judge_diagnosis(diagnosis))


def answer(diagnosis: Diagnosis) -> str:
    seen = [f"{event.text} {who_first(said_by)}" for event, said_by in seen_lines(diagnosis)]
    roots = [root_sentence(root) for root in diagnosis.roots]
    return "\n".join([hang_sentence(diagnosis), *roots, *diagnosis.notes, *seen])


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_and_the_others_that_wait_for_it(told_with, crash: str) -> None:
    text, words = CRASHES[crash]
    diagnosis = told_with(text + one_timed_out(0, 1, 3))
    assert diagnosis.roots[0].ranks == (2,) and len(diagnosis.roots) == 1
    assert words in answer(diagnosis) and "0–1, 3" in answer(diagnosis)


@pytest.mark.parametrize(("crash", "slurm"), list(product(CRASHES, SLURM)))
def test_a_crash_and_what_slurm_did_then(told_with, crash: str, slurm: str) -> None:
    diagnosis = told_with(CRASHES[crash][0] + SLURM[slurm][0])
    assert diagnosis.roots[0].ranks == (2,)
    assert CRASHES[crash][1] in hang_sentence(diagnosis)
    (note,) = diagnosis.notes
    assert note.startswith("After that the program ") and SLURM[slurm][1] in note and "(train.log:5)" in note


@pytest.mark.parametrize("slurm", SLURM)
def test_a_hang_and_what_slurm_did_then(told_with, slurm: str) -> None:
    diagnosis = told_with(one_timed_out(0, 1, 3) + SLURM[slurm][0])
    assert diagnosis.roots == () and hang_sentence(diagnosis).startswith("Ranks 0–1, 3 wait in all_reduce #3")
    assert "all_reduce" in answer(diagnosis)
    assert any(SLURM[slurm][1] in note and note.startswith("After that") for note in diagnosis.notes)


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_beside_what_nccl_and_the_machine_tell(told_with, crash: str) -> None:
    text = CRASHES[crash][0].replace("[rank2]", "[rank1]")
    diagnosis = told_with(text, FABRIC)
    assert diagnosis.roots[0].ranks == (1,) and CRASHES[crash][1] in hang_sentence(diagnosis)
    assert "topology of 1 machine" in read_text(diagnosis) and "NCCL's lines in 1 log" in read_text(diagnosis)
    assert any("SYS" in finding.message or "P2P" in finding.message for finding in fabric(diagnosis))


def test_a_hang_over_a_path_that_is_broken(told_with) -> None:
    diagnosis = told_with(one_timed_out(0, 1), FABRIC)
    assert (diagnosis.roots[0].rule, diagnosis.roots[0].cause) == ("TO-H006", "p2p")


def test_two_ranks_that_crash_in_different_ways(told_with) -> None:
    diagnosis = told_with(CRASHES["memory"][0] + CRASHES["assertion"][0].replace("rank2", "rank3"))
    assert diagnosis.roots[0].ranks == (2,)
    assert "GPU memory" in answer(diagnosis) and "batch is empty" in answer(diagnosis)


def test_there_are_thirty() -> None:
    assert len(CRASHES) * (2 + len(SLURM)) + len(SLURM) + 2 == 30


MACHINE = {
    "slurm": ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.\n", "the host's memory"),
    "kernel": ("[ 99.1] Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:2kB\n", "the host's memory"),
    "xid": ("[ 12.5] NVRM: Xid (PCI:0000:3B:00): 79, pid=1, GPU has fallen off the bus.\n", "its GPU fail (hardware)"),
}


@pytest.mark.parametrize("machine", MACHINE)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ranks", [(0, 2), (0, 1)])
def test_what_the_machine_did_may_be_why_ranks_wait(
    told_with, machine: str, late: bool, ranks: tuple[int, ...]
) -> None:
    """Slurm says it at the job's end, and dmesg is put behind the log: it was left out there."""
    text, words = MACHINE[machine]
    waiting = one_timed_out(*ranks)
    (root,) = told_with(waiting + text if late else text + waiting).roots
    assert root.facts.suspect.startswith("This may be why:") and root.facts.suspect.endswith(_did(words))
    assert root.confidence == "low"


def _did(words: str) -> str:
    return f"ran out of {words}" if "memory" in words else f"saw {words}"


def test_a_rank_s_own_memory_error_after_the_timeouts_is_their_echo(told_with) -> None:
    echo = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    diagnosis = told_with(one_timed_out(0, 2) + echo)
    assert diagnosis.roots == () and hang_sentence(diagnosis).startswith("Ranks 0, 2 wait in all_reduce #3")


LIMIT = "slurmstepd: error: *** JOB 44 ON node03 CANCELLED AT 2026-11-02T13:10:00 DUE TO TIME LIMIT ***\n"
ENDED = (
    "E1102 10:00:05 140 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 17) local_rank: 3 "
    "(pid: 812) of binary: python\n"
)


def test_a_rank_that_exits_by_itself_did_not_die_of_a_time_limit_told_elsewhere(tmp_path) -> None:
    """'Rank 3 died: it ended with exit code 17: … DUE TO TIME LIMIT' joined two files that nothing joins."""
    (tmp_path / "launcher.log").write_text(ENDED)
    (tmp_path / "slurm.log").write_text(LIMIT)
    diagnosis = diagnose(tmp_path)
    [root] = diagnosis.roots
    assert root.ranks == (3,) and "LIMIT" not in root.message and root.crash is None
    assert any("time limit" in note for note in diagnosis.notes)

    (tmp_path / "slurm.log").unlink()
    (tmp_path / "launcher.log").write_text(ENDED + LIMIT)
    [root] = diagnose(tmp_path).roots
    assert root.ranks == (3,) and "LIMIT" not in root.message


def job_of(world, groups, program):
    """A job whose ranks all keep this order of (group, operation)."""
    return Job(world, [Step(group, groups[group], op) for group, op in program], groups, ahead=0)


def test_ranks_that_record_no_starts_are_not_taken_for_gpus_that_hang(tmp_path):
    groups = {"world": tuple(range(4))}
    fault = Fault("network", 0, 5)
    job = run(job_of(4, groups, [("world", "all_reduce")] * 8), [fault])
    contents = dumps(job, [fault]) | {rank: dumps(job, [fault], timed=False)[rank] for rank in (1, 3)}

    (root,) = diagnose(write(tmp_path, contents)).roots

    assert (root.rule, root.ranks, root.confidence) == ("TO-H006", (0, 1, 2, 3), "low")
    assert (root.kind, root.facts.starts) == (RootKind.NONE_FINISHED, "not_recorded")


def test_starts_recorded_and_none_seen_is_no_proof_of_a_network_that_hangs(tmp_path):
    groups = {"world": (0, 1)}
    faults = [Fault("gpu", 0, 5), Fault("gpu", 1, 5)]
    job = run(job_of(2, groups, [("world", "all_reduce")] * 8), faults)

    (root,) = diagnose(write(tmp_path, dumps(job, faults))).roots

    assert (root.rule, root.confidence, root.cause) == ("TO-H006", "low", None)
    assert "not recorded" not in root.message


def test_a_rank_that_has_not_used_the_group_of_all_is_of_the_same_job(tmp_path):
    groups = {"world": tuple(range(4)), "tp0": (0, 1), "tp1": (2, 3)}
    program = [("tp0", "all_reduce"), ("tp1", "all_reduce")] * 4 + [("world", "all_reduce")] * 3
    fault = Fault("host", 3, 5)
    job = run(job_of(4, groups, program), [fault])

    found = diagnose(write(tmp_path, dumps(job, [fault])))

    assert found.evidence.problems == ()
    assert [(root.rule, root.ranks, root.confidence) for root in found.roots] == [("TO-H001", (3,), "high")]
    assert found.roots[0].waiting == (0, 1, 2)


def test_groups_alone_without_the_group_of_all_are_one_job(tmp_path):
    groups = {"tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3)}
    program = [("tp0", "all_reduce"), ("tp1", "all_reduce"), ("dp0", "all_reduce"), ("dp1", "all_reduce")] * 3
    fault = Fault("host", 2, 5)
    job = run(job_of(4, groups, program), [fault])

    found = diagnose(write(tmp_path, dumps(job, [fault])))

    assert found.evidence.problems == ()
    assert [(root.rule, root.ranks) for root in found.roots] == [("TO-H001", (2,))]


def test_a_rank_that_never_used_the_group_in_which_others_wait_is_the_one(tmp_path):
    groups = {"world": (0, 1, 2), "late": (0, 1)}
    fault = Fault("host", 1, 3)
    job = run(job_of(3, groups, [("world", "all_reduce")] * 3 + [("late", "broadcast")]), [fault])

    (root,) = diagnose(write(tmp_path, dumps(job, [fault]))).roots

    assert (root.rule, root.ranks, root.op, root.sequence) == ("TO-H001", (1,), "broadcast", 1)


def test_what_no_count_tells_is_said_with_doubt(tmp_path):
    """Only unfinished operations, and none of this group: finished, or never called."""
    groups = {"world": (0, 1, 2)}
    fault = Fault("host", 1, 4)
    job = run(job_of(3, groups, [("world", "all_reduce")] * 6), [fault])
    contents = dumps(job, [fault], active_only=True)
    contents[1]["pg_status"] = {"7": {"last_enqueued_collective": 3}}
    contents[1]["pg_config"]["1"] = {"name": "1", "desc": "TP", "ranks": "[1]"}

    (root,) = diagnose(write(tmp_path, contents)).roots

    assert (root.ranks, root.confidence) == ((1,), "low")
    assert "perhaps never called" in root.message


def launcher_log(rank: int, second: int, code: int = 1) -> str:
    """What torchrun of one node ends with, at a time by its own clock."""
    return (
        "train.py FAILED\n-----\nFailures:\n  <NO_OTHER_FAILURES>\n-----\nRoot Cause (first observed failure):\n[0]:\n"
        f"  time      : 2026-11-20_10:00:{second:02}\n  host      : node{rank // 8}\n"
        f"  rank      : {rank} (local_rank: {rank % 8})\n  exitcode  : {code} (pid: {100 + rank})\n=====\n"
    )


@pytest.mark.parametrize(
    ("ended", "causes"),
    [
        ({2: (9, 1), 9: (4, 1), 17: (8, 1)}, {9}),  # each launcher saw only its own node
        ({2: (4, 1), 9: (4, 1), 17: (5, 1)}, {2, 9, 17}),  # clocks of hosts do not agree better
        ({2: (9, 1), 9: (4, -6)}, {2, 9}),  # the watchdog may have aborted the earliest because of another
    ],
)
def test_of_several_launchers_the_earliest_failure_is_the_first(tmp_path, ended, causes):
    for rank, (second, code) in ended.items():
        (tmp_path / f"node{rank // 8}.log").write_text(launcher_log(rank, second, code))
    found = diagnose(tmp_path)
    assert {rank for root in found.roots for rank in root.ranks} == causes


FORMS = [
    RootFacts(),
    RootFacts(perhaps=True, horovod=True, several="two", before_first=True, starts="gloo", decided=True, agree=True),
    RootFacts(calls="rank 1 runs broadcast", several="many", finished=(9,), starts="not_started", culprits=(3,)),
]


@pytest.mark.parametrize("facts", FORMS, ids=["plain", "second", "third"])
@pytest.mark.parametrize("kind", RootKind, ids=lambda kind: kind.value)
def test_every_kind_of_cause_has_a_short_headline_and_whole_sentences(kind: RootKind, facts: RootFacts) -> None:
    ranks, others, end = (3, 7), (0, 1, 2, 4), "it was killed by SIGKILL"
    facts = replace(facts, others=others, here=ranks, end=end, how=f"{end} (exit code 137)", sides=("rank 3 called a",))
    root = Root("TO-H001", kind, ranks, "high", facts, others, None, "default_pg", None, "all_reduce", 14863)
    alone = replace(root, ranks=(3,), waiting=(), op=None if kind is RootKind.DIED else root.op)
    for one in (root,) if kind is RootKind.WAITING_IN else (root, alone):
        assert len(one.headline) <= 90 and not one.headline.endswith(".")
        assert not re.search(r"[({]", one.headline) and not TICS.search(one.headline)
        assert one.message.endswith(".") and not re.search(r"\{|  |\.\.", one.message)
