"""States that pass and failures that are tried again: they end nothing where the job went on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from quiet import is_quiet

from traceops.cli import main
from traceops.hangs.diagnose import diagnose
from traceops.report.hang_seen import seen_events
from traceops.report.hang_text import hang_level, hang_sentence

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
    assert "no such column" in root.statement


TALK = "the model says something, and says it at length, so that a log grows by what it says\n" * 12


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
    went_on = told(failure + "".join(line.format(number) + TALK for number in range(1, 120)))
    assert went_on.roots == () and [event.kind for event in seen_events(went_on)] == ["outlived"]
    assert told("".join(line.format(number) + TALK for number in range(1, 120)) + failure).roots


def test_what_traceops_wrote_is_no_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A second look at a folder that holds the first one's hang.json named the cause that this quotes."""
    monkeypatch.chdir(tmp_path)
    steps = "".join(f"step {number} loss 2.1\n{TALK}" for number in range(1, 120))
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
