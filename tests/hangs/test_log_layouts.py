"""Layouts of logs: what collectors and launchers put in front of lines, and what Slurm and Kubernetes say."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceops.hangs.diagnose import diagnose
from traceops.hangs.readers.prefixes import without_prefixes
from traceops.report.hang_text import hang_sentence, root_advice

CRASH = (
    "Traceback (most recent call last):",
    '  File "/app/train.py", line 41, in step',
    "    loss = model(batch)",
    "AssertionError: batch is empty",
)
RANKED = {
    "torch": "[rank3]: {}",
    "named": "Rank 3: {}",
    "capitals": "[RANK 3] {}",
    "srun --label": "3: {}",
    "mpirun": "[1,3]<stderr>:{}",
    "mpirun with times": "Fri Aug 11 12:31:45 2023[1,3]<stderr>:{}",
    "SageMaker": "[1,mpirank:3,algo-1]<stderr>:{}",
    "torchrun --tee": "[default3]:{}",
    "docker -t": "2025-10-04T15:16:15.735000000Z [rank3]: {}",
    "containerd": "2025-10-04T15:16:15.735000000+02:00 stderr F [rank3]: {}",
    "kubectl --timestamps": "2025-10-04T15:16:15.735Z [rank3]: {}",
    "kubectl --prefix": "[pod/llama-worker-0/pytorch] [rank3]: {}",
    "stern": "llama-worker-0: [rank3]: {}",
    "compose": "trainer-1  | [rank3]: {}",
    "Ray": "(RayTrainWorker pid=77, ip=10.0.0.2) [rank3]: {}",
    "Ray's actor": "(WorkerDict pid=412033) [rank3]: {}",
    "mail": "> > [rank3]: {}",
}


@pytest.fixture
def told(tmp_path: Path):
    def tell(text: str):
        (tmp_path / "paste.log").write_text(text)
        return diagnose(tmp_path)

    return tell


@pytest.mark.parametrize("layout", RANKED)
def test_a_crash_is_of_its_rank_in_each_layout(told, layout: str) -> None:
    (root,) = told("".join(RANKED[layout].format(line) + "\n" for line in CRASH)).roots
    assert (root.rule, root.ranks, root.where) == ("TO-E005", (3,), "step (train.py:41)")


def test_a_paste_is_read_though_it_is_indented_and_its_beginning_is_missing(told) -> None:
    (root,) = told("".join(f"      {line}\n" for line in CRASH[1:])).roots
    assert (root.rule, root.where) == ("TO-E005", "step (train.py:41)")


def test_frames_that_no_exception_follows_are_no_crash(told) -> None:
    stack = f"{CRASH[1]}\n{CRASH[2]}\nstep 12 took 0.5 s\n"
    said = told(stack + "[rank1]: RuntimeError: Connection reset by peer\n")
    assert said.roots == () and [event.kind for event in said.evidence.log] == ["connection"]


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("step-3: loss 2.1", "step-3: loss 2.1"),
        ("2025-10-04 15:16:15 INFO: x", "2025-10-04 15:16:15 INFO: x"),
        ("[rank3]: x", "[rank3]: x"),
        ("(see below) x", "(see below) x"),
        ("2025-10-04T15:16:15.7Z (pid=12) x", "x"),
    ],
)
def test_only_what_collectors_write_is_taken_off(line: str, rest: str) -> None:
    assert without_prefixes(line) == rest


SLURM = "slurmstepd: error: *** {} ON gpu-12 CANCELLED AT 2024-04-20T09:09:37{} ***\n"


@pytest.mark.parametrize(
    ("text", "rule", "cause", "ranks"),
    [
        (SLURM.format("JOB 7", " DUE TO TIME LIMIT"), "TO-E008", "time_limit", ()),
        (SLURM.format("JOB 7", " DUE TO PREEMPTION"), "TO-E008", "preempted", ()),
        (SLURM.format("STEP 7.0", " DUE TO NODE FAILURE"), "TO-E008", "node_failure", ()),
        (SLURM.format("STEP 7.0", ""), "TO-E008", "cancelled", ()),
        ("srun: error: node7: task 3: Out Of Memory\n", "TO-H004", "host_memory", (3,)),
        ("W0920 api.py] Received Signals.SIGTERM death signal, shutting down\n", "TO-E008", "terminated", ()),
        ("      Reason:       OOMKilled\n      Exit Code:    137\n", "TO-E002", "host_memory", ()),
        ("      Reason:       Error\n      Exit Code:    139\n", "TO-E005", "native_crash", ()),
        ("5m  Warning  Evicted  pod/t-0  The node had condition: [DiskPressure].\n", "TO-E007", "evicted_disk", ()),
        ("./run.sh: line 3:   415 Segmentation fault      (core dumped) python x.py\n", "TO-E005", "native_crash", ()),
    ],
)  # fmt: skip
def test_what_slurm_kubernetes_and_the_shell_say(told, text: str, rule: str, cause: str, ranks) -> None:
    said = told(f"step 10 loss 2.1\n{text}")
    (root,) = said.roots
    assert (root.rule, root.cause, root.ranks) == (rule, cause, ranks)
    assert root_advice(root) and len(hang_sentence(said)) < 400


@pytest.mark.parametrize(
    "text",
    [
        '"State": {"Status": "exited", "OOMKilled": false, "ExitCode": 0}\n',
        "      Reason:       Completed\n      Exit Code:    0\n",
        "Killed the old server, starting the new one\n",
        "saving: File cut, Exit Code: 3 in the table\n",
    ],
)
def test_what_only_looks_like_an_end_is_none(told, text: str) -> None:
    said = told(text + "[rank1]: RuntimeError: Connection reset by peer\n")
    assert said.roots == () and len(said.evidence.log) == 1


def test_what_a_scheduler_did_follows_from_a_failure_before_it(told) -> None:
    raised = "".join(f"[rank2]: {line}\n" for line in CRASH)
    (root,) = told(raised + SLURM.format("STEP 7.0", "")).roots
    assert (root.rule, root.ranks) == ("TO-E005", (2,))
