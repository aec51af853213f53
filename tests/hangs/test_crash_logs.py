"""Crashes by their own logs: which kind, whose and what to do; their table; the numbers of out-of-memory messages."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import pytest
from msgspec.structs import replace
from quiet import is_quiet

import traceops.hangs
from traceops.hangs import words
from traceops.hangs.crash_kinds import ADVICE, DID, RULE_OF
from traceops.hangs.crashes import (
    ALONE,
    NEEDLES,
    WORDINGS,
    crash_kind,
    memory_message,
    says_not_finite,
    told_alone,
    what_is_not_finite,
)
from traceops.hangs.diagnose import diagnose
from traceops.hangs.model import Root, RootFacts, RootKind
from traceops.hangs.words import memory_text
from traceops.report.hang_text import hang_level, hang_sentence, root_advice, seen_lines, what_would_decide
from traceops.rules.explained import judge_diagnosis
from traceops.rules.failures import BY_ID, advice_of
from traceops.rules.failures import CRASH_RULES as RULES

DATA = Path(__file__).parents[1] / "data" / "crash_logs"
# File: rule, cause, ranks, and what the page has to say.
WRITTEN_WITH = {
    "oom_unused_half": ("TO-E001", "too_large", (), "22.78 GiB"),
    "oom_larger_than_gpu": ("TO-E001", "too_large", (), "55.57 GiB"),
    "oom_others_older": ("TO-E001", "outside", (), "hold the other 16.08 GiB"),
    "oom_refused": ("TO-E001", "refused", (), "more is free than it asked for"),
    "mmap_shared": ("TO-E002", "mappings", (), "create_buffers (monobeast.py:140)"),
    "oom_torch1": ("TO-E001", "too_large", (), "10.24 MiB is reserved but unallocated"),
    "port_torchtune": ("TO-E007", "port_in_use", (), "port is in use"),
    "unused_parameters": ("TO-E006", "unused_parameters", (), "no gradient"),
    "shm_bus_error": ("TO-E002", "shared_memory", (), "/dev/shm"),
    "batch_norm": ("TO-E006", "batch_norm", (), "torch.Size([1, 16, 1, 1])"),
    "disk_full": ("TO-E007", "disk_full", (), "disk or the quota is full"),
    "device_assert": ("TO-E003", "device_assert", (0,), "index out of range"),
    "nccl_no_route": ("TO-E004", "nccl_system", (), "No route to host"),
    "sigkill_torchrun": ("TO-H004", "killed", (0,), "SIGKILL"),
    "import_undefined_symbol": ("TO-E005", "import_error", (7,), "train.py:120"),
    "slurm_oom_kill": ("TO-E002", "host_memory", (), "host's memory"),
    "fork": ("TO-E006", "cuda_fork", (), "forked process"),
    "nccl_internal": ("TO-E004", "nccl_internal", (), "internal error"),
    "nccl_shared_memory": ("TO-E002", "shared_memory", (1,), "/dev/shm"),
}
SET_ASIDE = {
    "shm_torch_file": ("TO-E002", "shared_memory", ()),
    "shm_torch_file_old": ("TO-E002", "shared_memory", ()),
    "duplicate_gpu_mpi": ("TO-E004", "duplicate_gpu", (2, 4)),
    "duplicate_gpu_megatron": ("TO-E004", "duplicate_gpu", ()),
    "duplicate_gpu_upside_down": ("TO-E004", "duplicate_gpu", ()),
    "device_ordinal": ("TO-E003", "no_such_gpu", ()),
    "device_ordinal_two_at_once": ("TO-E003", "no_such_gpu", ()),
    "device_ordinal_torch1": ("TO-E003", "no_such_gpu", ()),
    "ready_twice": ("TO-E006", "ready_twice", (1,)),
    "ecc": ("TO-E003", "gpu_hardware", ()),
    "ecc_torch1": ("TO-E003", "gpu_hardware", ()),
    "ecc_and_watchdog": ("TO-E003", "gpu_hardware", ()),
}
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity "
    "of 79.00 GiB of "
    "which {free} is free. Including non-PyTorch memory, this process has {process} memory in use. Of "
    "the allocated memory "
    "{allocated} is allocated by PyTorch, and {unused} is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize("name", WRITTEN_WITH)
def test_a_crash_is_told_with_its_rule_cause_and_rank(name: str) -> None:
    rule, cause, ranks, said = WRITTEN_WITH[name]
    diagnosis = diagnose(DATA / f"{name}.txt")
    (root,) = diagnosis.roots
    assert (root.rule, root.cause, root.ranks) == (rule, cause, ranks)
    assert said in hang_sentence(diagnosis) and "Nobody" not in hang_sentence(diagnosis)
    assert root_advice(root)
    fired = {verdict.rule for verdict in judge_diagnosis(diagnosis) if verdict.findings}
    assert fired == {rule}


@pytest.mark.parametrize("name", SET_ASIDE)
def test_messages_that_the_rules_were_not_written_with(name: str) -> None:
    (root,) = diagnose(DATA / "set_aside" / f"{name}.txt").roots
    assert (root.rule, root.cause, root.ranks) == SET_ASIDE[name]


@pytest.fixture
def told_files(tmp_path: Path):
    """The diagnosis of texts by file name."""

    def tell(**texts: str):
        for name, text in texts.items():
            (tmp_path / f"{name}.log").write_text(text)
        return diagnose(tmp_path)

    return tell


@pytest.mark.parametrize(
    ("asked", "free", "process", "allocated", "unused", "cause"),
    [
        ("6.26 GiB", "139.56 MiB", "78.86 GiB", "78.00 GiB", "24.10 MiB", "too_large"),
        ("2.00 GiB", "500.00 MiB", "78.40 GiB", "60.00 GiB", "17.00 GiB", "fragmented"),
        ("2.00 GiB", "500.00 MiB", "38.00 GiB", "37.00 GiB", "24.10 MiB", "others"),
        ("90.00 GiB", "70.00 GiB", "9.00 GiB", "8.00 GiB", "1.00 GiB", "too_large"),
    ],
)
def test_the_numbers_say_why_memory_did_not_suffice(asked, free, process, allocated, unused, cause) -> None:
    text = OOM.format(asked=asked, free=free, process=process, allocated=allocated, unused=unused)
    assert memory_message(text).cause == cause


def test_more_memory_was_free_than_it_asked_for() -> None:
    """On Windows and WSL, mostly: a smaller batch was advised."""
    text = "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already allocated; 3.03 GiB free; 1.24 GiB reserved in total by PyTorch)"  # noqa: E501
    assert memory_message(text).asked == round(2.26 * 2**30) and memory_message(text).cause == "refused"


@pytest.mark.parametrize(
    ("exit_code", "detail", "said"),
    [
        (1, "SystemExit: 1", "it ended with exit code 1"),
        (135, "killed by SIGBUS", "it was killed by SIGBUS (exit code 135)"),
        (
            1,
            "RuntimeError: size mismatch:\n\tcopying a param.",
            "it ended with exit code 1: RuntimeError: size mismatch: copying a param",
        ),
    ],
)
def test_how_a_process_ended_is_said_once_and_on_one_line(exit_code, detail, said) -> None:
    assert words.ending(exit_code, gone=False, detail=detail) == said


def test_one_rank_waits_for_the_one_that_died() -> None:
    facts = RootFacts(how="it crashed", end="it crashed")
    died = Root("TO-H004", RootKind.DIED, (1,), "high", facts, (0,), group="default_pg", op="all_reduce", sequence=10)
    assert died.headline == "Rank 1 died while rank 0 waits for it in all_reduce #10 of default_pg"
    assert "while ranks 0, 2 wait for it" in replace(died, waiting=(0, 2)).message
    assert replace(died, op=None).message == "Rank 1 died: it crashed. Rank 0 waits for it."


def test_a_rank_that_died_is_said_to_have_done_what_its_log_tells(told_files) -> None:
    """Rather than with which exit code: 'it stopped because the loss is NaN', not 'SystemExit: 1'."""
    diagnosis = told_files(
        train=raised(
            1, "RuntimeError: Error(s) in loading state_dict for GPT:\n[rank1]: \tsize mismatch for head.weight."
        )
        + "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED\n"
        "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 7)\n"
    )
    assert hang_sentence(diagnosis).startswith(
        "Rank 1 died: it loaded a checkpoint whose names or shapes are not the model's, at step (train.py:7): "
        "RuntimeError: Error(s) in"
    )
    assert ".." not in hang_sentence(diagnosis) and "\t" not in hang_sentence(diagnosis)


def test_what_slurm_says_after_it_ended_a_job_is_of_the_same_job(told_files) -> None:
    """No log of another job that was appended: the preemption stays the cause."""
    (root,) = told_files(
        train="slurmstepd: error: *** JOB 3736 ON node5 CANCELLED AT 2021-03-15T18:00:46 DUE TO PREEMPTION ***\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "slurmstepd: error: Failed to send MESSAGE_TASK_EXIT: Connection refused\n"
    ).roots
    assert (root.rule, root.cause) == ("TO-E008", "preempted")


def test_a_log_that_ends_with_python_dying_is_no_dump_of_stacks() -> None:
    (root,) = diagnose(DATA / "planted" / "bus_error.txt").roots
    assert (root.rule, root.cause, root.where) == ("TO-E005", "bus_error", "read_shard (bus.py:9)")


def test_a_checkpoint_that_did_not_get_all_its_bytes_out() -> None:
    text = "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 1472 vs 1366"
    assert crash_kind(text) == crash_kind("RuntimeError: basic_ios::clear: iostream error") == "write_failed"


def raised(rank: int, error: str, line: int = 7) -> str:
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/home/me/train.py", line {line}, in step\n'
        f"[rank{rank}]:     loss.backward()\n"
        f"[rank{rank}]: {error}\n"
    )


def test_the_first_failure_is_the_cause_and_echoes_are_not(told_files) -> None:
    diagnosis = told_files(
        train=raised(3, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
        + raised(1, "RuntimeError: [enforce] something else broke")
        + raised(
            0, "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
        )
    )
    (root,) = diagnosis.roots
    assert (root.rule, root.ranks, root.cause) == ("TO-H004", (3,), "memory")
    assert root.crash is not None and root.crash.kind == "gpu_memory"
    assert "FSDP" in root_advice(root)
    seen = {event.rank for event, _ in seen_lines(diagnosis)}
    assert seen == {0, 1}


def test_of_several_failures_in_one_log_the_first_is_the_cause(told_files) -> None:
    diagnosis = told_files(
        train=raised(1, "RuntimeError: something broke", line=5)
        + raised(3, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.")
    )
    (root,) = diagnosis.roots
    assert (root.rule, root.ranks, root.where, root.confidence) == ("TO-E005", (1,), "step (train.py:5)", "medium")
    assert [event.rank for event, _ in seen_lines(diagnosis)] == [3]


def test_a_failure_that_all_ranks_share_is_one_cause(told_files) -> None:
    diagnosis = told_files(
        **{f"rank{rank}": raised(rank, "ModuleNotFoundError: No module named 'apex'") for rank in range(4)}
    )
    (root,) = diagnosis.roots
    assert (root.rule, root.cause, root.ranks) == ("TO-E005", "import_error", (0, 1, 2, 3))
    assert "No module named 'apex'" in root.message


def test_a_failed_assertion_is_a_crash_with_its_line(told_files) -> None:
    diagnosis = told_files(out=raised(2, "AssertionError: batch is empty", line=41))
    assert hang_sentence(diagnosis).startswith(
        "Rank 2 failed an assertion, at step (train.py:41): AssertionError: batch is empty."
    )


def test_what_follows_a_timeout_is_no_crash_of_its_own(told_files) -> None:
    work = "WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600040 milliseconds"
    diagnosis = told_files(
        out="".join(
            f"[rank{rank}]: [Rank {rank}] Watchdog caught collective operation timeout: {work}\n" for rank in (0, 1)
        )
        + raised(0, "RuntimeError: cannot go on")
    )
    assert [root.rule for root in diagnosis.roots] == ["TO-H006"]


def test_without_a_cause_what_was_seen_is_listed_with_what_would_decide(told_files) -> None:
    diagnosis = told_files(out="x\n[rank1]: RuntimeError: Connection reset by peer\n")
    assert diagnosis.roots == () and hang_level(diagnosis) == "warning"
    assert "Nobody" not in hang_sentence(diagnosis) and "1 error message" in hang_sentence(diagnosis)
    ((event, said_by),) = seen_lines(diagnosis)
    assert (event.line, said_by) == (2, (1,))
    assert "every rank's own output" in what_would_decide(diagnosis)


def test_every_rule_says_what_to_do_about_each_of_its_causes() -> None:
    for rule in RULES:
        assert rule.fires and rule.advice and all(advice for _, advice in rule.by_cause)


WATCHDOG = (
    "[rank{rank}]:[E1111 17:01:37] [Rank {rank}] Watchdog caught collective operation timeout: "
    "{gap}WorkNCCL(SeqNum=14863, "
    "OpType=ALLREDUCE, NumelIn=14845952, NumelOut=14845952, Timeout(ms)=1800000) {gap}ran for 1800048 "
    "milliseconds "
    "before timing out.\n"
)


@pytest.mark.parametrize("gap", ["\n", "\n> ", "\n>> ", ""])
def test_a_watchdog_message_broken_over_lines_is_one(told_files, gap: str) -> None:
    text = "".join(WATCHDOG.format(rank=rank, gap=gap) for rank in range(4))
    diagnosis = told_files(train=text if ">" not in gap else "> " + text.replace("\n[", "\n> ["))
    assert [(event.rank, event.sequence) for event in diagnosis.evidence.log] == [(rank, 14863) for rank in range(4)]
    (root,) = diagnosis.roots
    assert (root.rule, root.ranks, root.sequence) == ("TO-H006", (0, 1, 2, 3), 14863)


def test_a_watchdog_message_broken_within_a_word_is_one(told_files) -> None:
    text = WATCHDOG.format(rank=2, gap="").replace("NumelOut=14845952", "NumelOut=1484\n5952")
    (event,) = told_files(train=text).evidence.log
    assert (event.rank, event.elements_out) == (2, 14845952)


def test_one_ranks_log_accuses_nobody(told_files) -> None:
    diagnosis = told_files(train=WATCHDOG.format(rank=1, gap=""))
    assert diagnosis.roots == () and diagnosis.evidence.world_size is None
    assert [status.rank for status in diagnosis.ranks] == [1]
    assert hang_sentence(diagnosis) == (
        "Rank 1 waits in all_reduce #14863. The evidence does not show which rank it waits for."
    )
    assert "the other ranks' logs" in what_would_decide(diagnosis)


def test_an_nccl_error_keeps_its_last_error(told_files) -> None:
    text = (DATA / "nccl_no_route.txt").read_text()
    (root,) = told_files(out=text).roots
    assert "No route to host" in root.evidence[0][1]


def test_an_out_of_memory_message_broken_over_lines_keeps_its_numbers(told_files) -> None:
    text = OOM.format(
        asked="2.00 GiB", free="500.00 MiB", process="78.40 GiB", allocated="60.00 GiB", unused="17.00 GiB"
    )
    broken = text.replace(" which ", "\nwhich ").replace(" Of the ", "\nOf the ")
    (root,) = told_files(out=f"[rank5]: {broken}\n[rank5]: bye\n").roots
    assert (root.rule, root.ranks, root.cause) == ("TO-E001", (5,), "fragmented")


def test_a_ray_workers_prefix_is_no_part_of_a_traceback(told_files) -> None:
    text = "".join(
        f"(RayTrainWorker pid=77, ip=10.0.0.2) {line}\n" for line in raised(2, "AssertionError: no").splitlines()
    )
    (root,) = told_files(out=text).roots
    assert (root.rule, root.ranks, root.where) == ("TO-E005", (2,), "step (train.py:7)")


def test_ranks_that_ras_tells_apart_are_named_and_nobody_is_accused() -> None:
    diagnosis = diagnose(DATA / "ras" / "ahead.txt")
    assert diagnosis.roots == ()
    assert hang_sentence(diagnosis).startswith(
        "Ranks 12–13 have launched AllGather 641 of communicator fa93daea854b060b, 1 ahead of the 30 others (640)"
    )
    assert "ask again" in what_would_decide(diagnosis)


def test_one_rank_that_ras_tells_behind_is_named(tmp_path: Path) -> None:
    text = (DATA / "ras" / "ahead.txt").read_text()
    head = text[: text.index("  Communicator ranks")]
    said = (
        "  Communicator ranks have different AllReduce operation counts\n"
        "  7 ranks have launched up to operation 64\n"
        "  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 16 on node node1\n"
    )
    (tmp_path / "ras.txt").write_text(head + said)
    (event,) = diagnose(tmp_path).evidence.log
    assert "Rank 7 has launched AllReduce 60" in event.text and "4 fewer than the 7 others (64)" in event.text


def test_a_ras_report_without_errors_is_quiet(tmp_path: Path) -> None:
    text = (DATA / "ras" / "ahead.txt").read_text()
    (tmp_path / "ras.txt").write_text(text[: text.index("Warnings")].replace("MISMATCH", "OK"))
    assert is_quiet(diagnose(tmp_path))


@pytest.mark.parametrize(
    ("said", "kind", "fix"),
    [
        ("ValueError: Attempting to unscale FP16 gradients.", "scaler_fp16", "fp32"),
        ("RuntimeError: DDP expects same model across all ranks, but …", "models_differ", "same model"),
        (
            "RuntimeError: [1]: params[0] in this process with sizes [128, 64] appears not to match sizes of the same "
            "param in process 0.",
            "models_differ",
            "same model",
        ),
        ("RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float", "dtypes_differ", "dtype"),
        ("RuntimeError: Found dtype Half but expected Float", "dtypes_differ", "dtype"),  # huggingface/diffusers 817
        (
            "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::Half",
            "dtypes_differ",
            "dtype",
        ),
        ("RuntimeError: Input type (float) and bias type (c10::Half) should be the same", "dtypes_differ", "dtype"),
        (
            "RuntimeError: Index put requires the source and destination dtypes match, got Half and Float",
            "dtypes_differ",
            "dtype",
        ),
        ("IndexError: index out of range in self", "index_range", "embedding"),
        ("IndexError: Target 64 is out of bounds.", "index_range", "num_classes"),
        (
            "RuntimeError: a leaf Variable that requires grad is being used in an in-place operation.",
            "leaf_inplace",
            "no_",
        ),
        ("RuntimeError: Trying to backward through the graph a second time (or …)", "backward_twice", "retain_graph"),
        (
            "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn",
            "no_gradient",
            "requires",
        ),
        ("ValueError: Default process group has not been initialized, please …", "no_group", "init_process_group"),
        ("RuntimeError: No backend type associated with device type cpu", "no_backend", "device"),
        ("AttributeError: Can't pickle local object 'main.<locals>.<lambda>'", "unpicklable", "module"),
        ("AssertionError: Torch not compiled with CUDA enabled", "no_cuda", "build"),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "no_nccl", "gloo"),
        ("OSError: [Errno 27] File too large", "file_too_large", "ulimit"),
        ("FloatingPointError: loss is nan at step 4", "nan_loss", "anomaly"),
        ("AssertionError: non-finite loss: inf", "nan_loss", "anomaly"),
        ("ValueError: unknown loss 'infonce'", "exception", "traceback"),
    ],
)
def test_what_torch_refuses_has_its_cure(tmp_path: Path, said: str, kind: str, fix: str) -> None:
    frame = '[rank1]:   File "/home/me/train.py", line 3, in step\n[rank1]:     step()\n'
    (tmp_path / "train.log").write_text(f"[rank1]: Traceback (most recent call last):\n{frame}[rank1]: {said}\n")
    (root,) = diagnose(tmp_path).roots
    assert root.crash is not None and (root.crash.kind, root.ranks) == (kind, (1,))
    assert fix in advice_of(root) and root.where == "step (train.py:3)"


def test_a_workers_error_is_the_one_that_the_loader_tells_of(tmp_path: Path) -> None:
    """Its kind and line, though the main process raises it again; and the loop's line where a worker was killed."""
    loop = '  File "/me/train.py", line 9, in main\n    for batch in loader:\n'
    (tmp_path / "rank_1.log").write_text(
        f"Traceback (most recent call last):\n{loop}RuntimeError: Caught RuntimeError in DataLoader worker process 0.\n"
        'Original Traceback (most recent call last):\n  File "/me/data.py", line 4, in read\n    x.cuda()\n'
        "RuntimeError: Cannot re-initialize CUDA in forked subprocess.\n"
    )
    (root,) = diagnose(tmp_path).roots
    assert root.crash is not None and (root.crash.kind, root.where) == ("cuda_fork", "read (data.py:4)")
    (tmp_path / "rank_1.log").write_text(
        'Traceback (most recent call last):\n  File "/x/torch/utils/data/signal_handling.py", line 73, in handler\n'
        "    fail()\nRuntimeError: DataLoader worker (pid 9199) is killed by signal: Killed. \n\nThe above exception "
        f"was the direct cause of the following exception:\n\nTraceback (most recent call last):\n{loop}"
        "RuntimeError: DataLoader worker (pid(s) 9199) exited unexpectedly\n"
    )
    (root,) = diagnose(tmp_path).roots
    assert root.crash is not None and (root.crash.kind, root.where) == ("host_memory", "main (train.py:9)")


def test_who_raised_because_another_did_not_come_is_not_the_cause(tmp_path: Path) -> None:
    raised = '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/me/train.py", line 3, in step\n'
    (tmp_path / "rank_0.log").write_text(
        f"{raised}[rank0]: RuntimeError: [Rank 0]: Rank 1 failed to pass monitoredBarrier in 4000 ms\n"
    )
    ranks = [{"rank": 0, "exit_code": 1, "error": "RuntimeError: …"}, {"rank": 1, "exit_code": 143}]
    manifest = {"world_size": 2, "nnodes": 1, "failed_rank": 0, "status": "failed", "ranks": ranks}
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    (tmp_path / "rank_0.log").rename(logs / "rank_0.stderr.log")
    (tmp_path / "run" / "run.json").write_text(json.dumps(manifest))
    (root,) = diagnose(tmp_path / "run").roots
    assert (root.rule, root.ranks) == ("TO-H001", (1,))


def test_nccls_own_error_is_not_an_echo_of_the_rank_that_torchrun_killed(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/me/train.py", line 71, in main\n'
        "[rank1]: torch.distributed.DistBackendError: NCCL error in: /pytorch/NCCLUtils.cpp:93, invalid usage (run "
        "with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n[rank1]: ncclInvalidUsage: This usually reflects "
        "invalid usage of NCCL library.\n[rank1]: Last error:\n[rank1]: Bootstrap : no socket interface found\n"
        "Failures:\n[1]:\n  rank      : 0 (local_rank: 0)\n  exitcode  : -9 (pid: 3887)\n"
        "Root Cause (first observed failure):\n[0]:\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 3888)\n"
    )
    (root,) = diagnose(tmp_path).roots
    assert (root.ranks, root.where) == ((1,), "main (train.py:71)")
    assert root.crash is not None and root.crash.kind == "nccl_interface"
    assert "NCCL_SOCKET_IFNAME" in advice_of(root)


@pytest.mark.parametrize("label", ["[rank 1] ", "1: ", "[1,1]<stderr>: ", "[default1]: ", ""])
def test_a_launchers_label_before_torchs_own_hides_no_last_error(tmp_path: Path, label: str) -> None:
    lines = (DATA / "planted" / "no_interface.txt").read_text().splitlines()
    own = [line.replace("[rank 1] ", label) for line in lines if line.startswith("[rank 1] ")]
    (tmp_path / "train.log").write_text("\n".join(own))
    (root,) = diagnose(tmp_path).roots
    assert root.ranks == (1,)
    assert root.crash is not None and root.crash.kind == "nccl_interface"


def test_memory_that_the_process_limits_itself(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 1 has a total "
        "capacity of 139.80 GiB of which 134.14 GiB is free. Including non-PyTorch memory, this process has 4.62 GiB "
        "memory in use. 3.50 GiB allowed; Of the allocated memory 3.06 GiB is allocated by PyTorch, and 954.50 KiB is "
        "reserved by PyTorch but unallocated.\n"
    )
    (root,) = diagnose(tmp_path).roots
    assert root.cause == "too_large" and "it is allowed 3.50 GiB" in root.message


def test_the_last_words_of_a_process_are_a_log_and_no_dump_of_stacks(tmp_path: Path) -> None:
    """Other threads come first in them, as in a dump that somebody asked for."""
    (tmp_path / "rank_1.stderr.log").write_text(
        "Fatal Python error: Segmentation fault\n\nThread 0x00007f7 (most recent call first):\n"
        '  File "/usr/lib/python3.11/threading.py", line 982 in run\n\n'
        "Current thread 0x00007f8 (most recent call first):\n"
        '  File "/me/kernels.py", line 18 in launch\n  File "/me/train.py", line 9 in <module>\n\n'
        "Extension modules: a\n"
    )
    (root,) = diagnose(tmp_path).roots
    assert root.crash is not None and (root.crash.kind, root.where) == ("native_crash", "launch (kernels.py:18)")


def test_frames_in_the_middle_of_prose_are_a_traceback_without_its_ends(tmp_path):
    """Four frames between two sentences held 'no evidence'. In a whole log they may be a stack that is printed."""
    frames = "".join(f'  File "/home/u/rollout/{name}.py", line 83, in make\n    self.made()\n' for name in "abcd")
    paste = tmp_path / "paste.txt"
    paste.write_text(f"It stops while the engine is made.\n{frames}Does anybody know?\n")
    found = diagnose(paste)
    assert not found.roots and "make (/home/u/rollout/d.py:83)" in hang_sentence(found)
    paste.write_text("all is well\n" * 80 + frames + "all is well\n" * 80)
    assert is_quiet(diagnose(paste))


ONLY_ERROR = Path(__file__).with_name("only_error")  # in the words of NCCL, torch and others; hosts are made up
CODE = sorted(Path(traceops.hangs.__file__).parent.rglob("*.py"))


def test_each_kind_has_a_rule_and_a_clause() -> None:
    assert set(RULE_OF) == set(DID) and set(RULE_OF.values()) <= set(BY_ID)
    assert all(re.match(r"[a-z]", did) and not did.endswith(".") for did in DID.values())
    assert all(advice.endswith((".", ")")) for advice in ADVICE.values())


def test_each_wording_is_found_where_its_text_stands() -> None:
    for wording in WORDINGS:
        text = " … ".join(wording.words)
        assert crash_kind(text, raised=False) is not None, wording
        if wording.kind in ALONE:
            assert told_alone(text) and any(needle.decode() in text for needle in NEEDLES), wording


def test_kinds_that_code_names_are_in_the_table() -> None:
    named = re.findall(r"CrashKind, \.\.\.\] = \(([^)]*)\)", "".join(path.read_text() for path in CODE))
    kinds = {kind for group in named for kind in re.findall(r'"(\w+)"', group)}
    assert len(kinds) > 5 and kinds <= set(RULE_OF)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "RuntimeError: NCCL error in: /b/c10d/NCCLUtils.hpp:82, invalid argument, NCCL version 2.4.8",
            "invalid argument",
        ),
        ("RuntimeError: NCCL error in: /b/c10d/NCCLUtils.hpp:82, some new words, NCCL version 2.4.8", "some new words"),
        ("RuntimeError: [/b/gloo/transport/tcp/pair.cc:799] connect [10.0.0.9]:13195: Connection refused", "10.0.0.9"),
        (
            "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value "
            "store by key '0', but store->get('0') got error: Connection reset by peer",
            "got no NCCL id",
        ),
        ("n1:7:7 [0] init.cc:981 NCCL WARN Invalid rank requested : 2/2", "rank outside its world"),
        (
            "n1:7:9 [1] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<5> with status=4 "
            "opcode=1 len=0 vendor err 81 (Send)",
            "status 4: local protection error",
        ),
        (
            "accelerate <command> [<args>] launch: error: argument --machine_rank: invalid int value: ''",
            "--machine_rank",
        ),
    ],
)
def test_the_only_error_of_a_log_is_the_finding(told, text: str, says: str) -> None:
    diagnosis = told(f"{text}\n")
    (root,) = diagnosis.roots
    assert says in hang_sentence(diagnosis) and root_advice(root)


def test_an_echo_beside_a_cause_stays_an_echo(told) -> None:
    refused = "RuntimeError: [/b/gloo/transport/tcp/pair.cc:799] connect [10.0.0.9]:13195: Connection refused"
    frames = 'Traceback (most recent call last):\n  File "/w/a.py", line 4, in f\n    g()\n'
    (root,) = told(f"[rank1]: {frames}[rank1]: ValueError: bad batch\n{refused}\n").roots
    assert "bad batch" in root.message


@pytest.mark.parametrize("path", sorted(ONLY_ERROR.glob("*.txt")), ids=lambda path: path.stem)
def test_each_such_log_is_a_case_of_its_kind(path: Path) -> None:
    (root,) = diagnose(path).roots
    expected = {"nccl_usage_srun": "nccl_usage", "gloo_refused": "gloo_connect"}.get(path.stem, path.stem)
    assert root.crash is not None and root.crash.kind == expected


# File: cause, ranks, what is true, and what the evidence has behind the message itself.
PUBLIC = {
    "loss_scale_deepspeed": ("loss_scale", (), "until the loss scale was at its minimum", "scale: 0, reducing to 0"),
    "loss_scale_fairseq": ("loss_scale", (), "until the loss scale was at its minimum", "scale to: 0.0001220703125"),
    "loss_inf": ("nan_loss", (), "because the loss is inf: Loss is inf, stopping training", None),
    "loss_infinite_or_nan": ("nan_loss", (), "because the loss is not finite (inf or NaN), at train_loop", None),
    "nan_grad_norm": ("nan_loss", (2,), "because the norm of gradients is NaN: RuntimeError: Rank 2", None),
}
OVERFLOW = "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: {}, reducing to {}\n"
GAVE_UP = (
    'Traceback (most recent call last):\n  File "/app/train.py", line 41, in step\n    engine.step()\n'
    "Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.\n"
)


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_log_says_which_number_it_was(name: str) -> None:
    cause, ranks, said, last = PUBLIC[name]
    (root,) = (diagnosis := diagnose(DATA / f"{name}.txt")).roots
    assert (root.rule, root.cause, root.ranks) == ("TO-E005", cause, ranks)
    assert said in hang_sentence(diagnosis) and "the loss is NaN" not in hang_sentence(diagnosis)
    assert last is None or root.evidence[-1][1].endswith(last)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Loss is nan, stopping training", ("loss", "NaN")),
        ("ValueError: train_loss=nan at step 3", ("loss", "NaN")),
        ("Loss is -inf, stopping training", ("loss", "inf")),
        ("AssertionError: non-finite loss: inf", ("loss", "inf")),
        ("AssertionError: loss is not finite", ("loss", None)),
        ("ValueError: the loss is not finite: tensor(nan, device='cuda:0')", ("loss", "NaN")),
        ("WARNING: non-finite loss, ending training  tensor([nan, nan, nan, nan])", ("loss", "NaN")),
        ("AssertionError: Rank 3: found NaN in local grad norm in backwards pass", ("norm", "NaN")),
        ("AssertionError: found Inf in local forward loss calculation", ("loss", "inf")),
        ("RuntimeError: NaN or Inf found in gradients", ("gradients", None)),
        (
            "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot",
            ("norm", None),
        ),
    ],
)
def test_no_more_is_said_than_the_message_says(text: str, said: tuple[str, str | None]) -> None:
    assert says_not_finite(text) and what_is_not_finite(text) == said


@pytest.mark.parametrize(
    "text", ["ValueError: loss_scale must not be inf", "ValueError: unknown loss 'infonce'", "loss scale: inf"]
)
def test_a_loss_scale_and_a_name_are_no_loss(text: str) -> None:
    assert not says_not_finite(text)


def test_the_last_overflows_are_the_evidence_and_those_of_an_earlier_start_are_not(tmp_path: Path) -> None:
    skipped = "".join(OVERFLOW.format(2 << k, 1 << k) for k in range(6, -1, -1))
    log = tmp_path / "train.log"
    log.write_text(skipped + GAVE_UP)
    (root,) = diagnose(log).roots
    assert [text[-25:] for _, text in root.evidence[1:]] == [
        "loss scale: 8, reducing to 4"[-25:], "loss scale: 4, reducing to 2"[-25:], "loss scale: 2, reducing to 1"[-25:]
    ]  # fmt: skip
    assert [where.rpartition(":")[2] for where, _ in root.evidence] == ["8", "5", "6", "7"]
    assert "bf16 instead of fp16" in advice_of(root) and "not show whether the loss is finite" in advice_of(root)
    log.write_text(GAVE_UP)  # rank 0 alone tells of overflows
    assert len(diagnose(log).roots[0].evidence) == 1


def test_overflows_after_which_the_training_goes_on_are_no_trouble(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"step 1\n{OVERFLOW.format(2, 1)}step 2\n{OVERFLOW.format(1, 1)}step 3\n")
    assert is_quiet(diagnose(log))


def test_a_scaler_whose_program_went_on_is_not_its_end(tmp_path: Path) -> None:
    """A program may catch what DeepSpeed raises."""
    log = tmp_path / "train.log"
    steps = "".join(f"step {n}/900 loss 2.1\n" for n in range(20, 800))
    log.write_text(f"step 19/900 loss 2.1\n{GAVE_UP}{steps}")
    diagnosis = diagnose(log)
    assert not diagnosis.roots and seen_lines(diagnosis)


GIB = 1 << 30
# torchtune issue 2071: the driver told nothing of this process
NONE_TOLD = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 5 has a total capacity of 23.43 GiB "
    "of which 210.06 MiB is free. Including non-PyTorch memory, this process has 0 bytes memory in use. Of the "
    "allocated memory 22.41 GiB is allocated by PyTorch, and 206.09 MiB is reserved by PyTorch but unallocated."
)
# ROCm TheRock issue 4598: more is free than there is
MORE_FREE = (
    "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 16.00 GiB. GPU 0 has a total capacity of 15.49 GiB "
    "of which 84.98 GiB is free. Of the allocated memory 1.67 GiB is allocated by PyTorch, and 8.08 GiB is reserved "
    "by PyTorch but unallocated."
)
# NVIDIA k8s-device-plugin issue 323: another pod on a T4 that is shared by time slices
SHARED_T4 = (
    "RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 14.76 GiB total capacity; 4.37 GiB already "
    "allocated; 14.75 MiB free; 4.43 GiB reserved in total by PyTorch)"
)
# erikguo/yolov3 issue 4: torch before 1.4 tells what it caches beside the tensors, not the sum
CACHED = (
    "RuntimeError: CUDA out of memory. Tried to allocate 338.00 MiB (GPU 0; 10.91 GiB total capacity; 7.62 GiB "
    "already allocated; 23.00 MiB free; 2.10 GiB cached)"
)
# EveryVoice issue 178: in a container, where a process does not know its own number
FULL = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 112.00 MiB. GPU 2 has a total capacty of "
    "15.78 GiB of which 27.19 MiB is free. Process 307065 has 15.75 GiB memory in use. Of the allocated memory 14.24 "
    "GiB is allocated by PyTorch, and 177.74 MiB is reserved by PyTorch but unallocated."
)
SEVERAL_IN_CONTAINER = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 512.00 MiB is free. Process 11 has 40.10 GiB memory in use. Process 12 has 19.30 GiB memory in use. "
    "Process 13 has 19.20 GiB memory in use. Of the allocated memory 18.20 GiB is allocated by PyTorch, and 520.50 "
    "MiB is reserved by PyTorch but unallocated."
)
OWN_OUTSIDE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 1.10 GiB is free. Including non-PyTorch memory, this process has 78.04 GiB memory in use. Of the "
    "allocated memory 40.20 GiB is allocated by PyTorch, and 0.50 GiB is reserved by PyTorch but unallocated."
)
POOLS = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 0.10 GiB is free. Including non-PyTorch memory, this process has 79.04 GiB memory in use. Of the "
    "allocated memory 76.20 GiB is allocated by PyTorch, with 21.50 GiB allocated in private pools (e.g., CUDA "
    "Graphs), and 520.50 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("text", "cause", "said"),
    [
        (NONE_TOLD, "too_large", "tensors take 22.41 GiB"),
        (MORE_FREE, None, "it asked for 16.00 GiB"),
        (SHARED_T4, "outside", "other processes, or other libraries in this one, hold the other 10.32 GiB"),
        (CACHED, "fragmented", "2.10 GiB is reserved but unallocated"),
        (FULL, "full", "nearly all else of the GPU is in use"),
        (SEVERAL_IN_CONTAINER, "outside", "hold the other 59.94 GiB"),
        (OWN_OUTSIDE, "outside_own", "outside of torch's allocator this process holds another 37.34 GiB"),
        (POOLS, "too_large", "(21.50 GiB of it in pools of their own, as CUDA graphs have)"),
    ],
)
def test_who_holds_the_memory(text: str, cause: str | None, said: str) -> None:
    told = memory_message(text)
    assert told.cause == cause and said in memory_text(told)


def test_fragments_beyond_what_others_hold_are_the_cause() -> None:
    text = (
        "CUDA out of memory. Tried to allocate 5.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 1.00 GiB is "
        "free. Process 7 has 13.00 GiB memory in use. Including non-PyTorch memory, this process has 66.00 GiB memory "
        "in use. Of the allocated memory 35.00 GiB is allocated by PyTorch, and 30.00 GiB is reserved by PyTorch but "
        "unallocated."
    )
    assert memory_message(text).cause == "fragmented"
    assert memory_message(text.replace("35.00", "64.00").replace("30.00", "1.00")).cause == "others"


# pytorch/pytorch issue 182286, which has each sentence on a line of its own
REFUSED = (
    "torch.OutOfMemoryError: CUDA out of memory.\nTried to allocate 3.48 GiB.\nGPU 0 has a total capacity of 95.59 GiB "
    "of which 50.40 GiB is free.\nIncluding non-PyTorch memory, this process has 17179869184.00 GiB memory in use.\nOf "
    "the allocated memory 42.49 GiB is allocated by PyTorch,\nand 47.72 MiB is reserved by PyTorch but unallocated."
)
PLACE = 'Traceback (most recent call last):\n  File "/x/train.py", line 8, in step\n    model(batch)\n'
ONE_LINE = REFUSED.replace("\n", " ")


def labelled(label: str, text: str) -> str:
    return "".join(f"{label}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("label", ["", "[rank0]: ", "0: [rank0]: ", "[default0]:", "2026-01-02 03:04:05,006 ERROR x: "])
@pytest.mark.parametrize(
    "message",
    [
        REFUSED,
        REFUSED.replace(" 0 has", " 3 has").replace(
            "Including", "\n".join(f"Process {pid} has 1.00 GiB memory in use." for pid in range(4)) + "\nIncluding"
        ),
        *("\n".join(textwrap.wrap(ONE_LINE, width)) for width in (45, 60, 80, 120)),
        *("\n".join(ONE_LINE[at : at + width] for at in range(0, len(ONE_LINE), width)) for width in (76, 80, 101)),
    ],
)
def test_the_numbers_of_a_message_on_several_lines_are_its_own(told, label: str, message: str) -> None:
    (root,) = told(labelled(label, PLACE + message) + "bye\n").roots
    assert (root.rule, root.cause) == ("TO-E001", "refused")
    assert "3.48 GiB with 50.40 GiB free of 95.59 GiB" in root.message
    assert "47.72 MiB is reserved" in root.message


def test_a_message_without_numbers_takes_none_of_other_lines(told) -> None:
    """Nor does one take another rank's, nor those of a second message."""
    alone = "RuntimeError: CUDA out of memory.\nstep 7: 3.00 GiB of memory in use\n"
    (root,) = told(PLACE + alone).roots
    assert "3.00 GiB" not in root.evidence[0][1]
    (root,) = told(f"{PLACE}{alone.splitlines()[0]}\nOther: {ONE_LINE}\n").roots
    assert root.evidence[0][1].count("Tried to allocate") <= 1
    two = "CUDA out of memory.\nCUDA out of memory.\nTried to allocate 1.00 GiB.\nTried to allocate 2.00 GiB.\n"
    (root,) = told(PLACE + "RuntimeError: " + two).roots
    assert "2.00 GiB" not in root.message


HOST = {
    "lsf": "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit.\nExited with exit code 130.\n",
    "slurm": (
        "slurmstepd: error: Job 7518 exceeded memory limit (626359956 > 512000000), being killed\nslurmstepd: error: "
        "Exceeded job memory limit\nslurmstepd: error: *** JOB 7518 ON node1 CANCELLED AT 2022-06-10T17:11:35 ***\n"
    ),
    "pbs": "=>> PBS: job killed: mem 33554432kb exceeded limit 32505856kb\n",
    "oomd": "systemd-oomd[700]: Killed /user.slice/x.scope due to memory pressure for /user.slice being 71.90%\n",
    "numpy": (
        'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    x = np.zeros(shape)\n'
        "numpy.core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array with shape (100000, 100000)"
    ),
}
GPU = {
    "driver": "RuntimeError: CUDA driver error: out of memory",
    "hip": "RuntimeError: HIP error: out of memory",
    "cudnn": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "bitsandbytes": "Error out of memory at line 380 in file /src/csrc/pythonInterface.c",
}
MAPPED = {
    "by_name": (
        "RuntimeError: unable to mmap 29764 bytes from file </torch_10182_302018_63991>: Cannot allocate memory (12)"
    ),
    "by_descriptor": (
        "RuntimeError: unable to mmap 2048 bytes from file <filename not specified>: Cannot allocate memory (12)"
    ),
}


@pytest.mark.parametrize(
    ("text", "rule", "cause"),
    [
        *((text, "TO-E002", "host_memory") for text in HOST.values()),
        *((text, "TO-E001", "gpu_memory") for text in GPU.values()),
        *((text, "TO-E002", "mappings") for text in MAPPED.values()),
        (
            "RuntimeError: unable to mmap 9000000000 bytes from file <model.pt>: Cannot allocate memory (12)",
            "TO-E002",
            "host_memory",
        ),
    ],
)
def test_memory_that_ran_out_in_other_words(tmp_path: Path, text: str, rule: str, cause: str) -> None:
    raised = f'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    main()\n{text}\n'
    (tmp_path / "rank_0.log").write_text(raised if text.startswith("RuntimeError") else f"step 1\n{text}\n")
    (root,) = diagnose(tmp_path).roots
    assert (root.rule, root.cause) == (rule, cause)


def test_a_kernel_that_needs_too_much_of_an_sm_is_not_out_of_memory(tmp_path: Path) -> None:
    (tmp_path / "rank_0.log").write_text(
        'Traceback (most recent call last):\n  File "train.py", line 8, in <module>\n    main()\n'
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 245760, Hardware limit: "
        "232448. Reducing block sizes or `num_stages` may help.\n"
    )
    (root,) = diagnose(tmp_path).roots
    assert root.rule == "TO-E005"
