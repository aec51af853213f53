"""Logs in which nothing failed, programs that stand still, and what other commands know of the same text."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.cli import main
from traceops.report.hang_seen import what_would_decide
from traceops.report.hang_text import hang_level, hang_sentence

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
    assert (root.rule, root.ranks) == ("TO-H002", (0,)) and "rank 0 broadcasts 25,503,912 of type 6" in root.statement
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
    assert main(["doctor", "--from", str(log), "-o", str(tmp_path / "out")]) == 3
    assert f"traceops diagnose {log}: The program crashed" in capsys.readouterr().err
