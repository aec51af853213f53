"""Traces with stacks name the function that a host is in, where nothing else does."""

import gzip
import json
import re
import shutil
from pathlib import Path

import pytest

from traceops.core.facts import Fact
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of

DATA = Path(__file__).parents[1] / "data"
LATE = DATA / "stacks_late2"


def found(report, rule):
    return next(one for one in report.findings if one.rule == rule)


def rewritten(folder, change):
    """A copy of the late run, each trace's text changed."""
    for path in sorted(LATE.glob("*.json.gz")):
        text = change(path.name, gzip.decompress(path.read_bytes()))
        (folder / path.name.removesuffix(".gz")).write_bytes(text)
    return folder


def test_a_late_rank_is_named_with_the_function_that_its_host_is_in():
    """Rank 1's host runs `busy` for 60 ms before each step; 36 % of its lateness has no cause by the devices alone."""
    report = analyze(LATE)
    one = found(report, "TO-S001")
    assert one.ranks == (1,)
    assert one.cause == "host"
    assert one.facts["does"] == "host"
    assert (
        "rank 1's host is in busy (ranks_ddp.py:32) for 60.0 ms of each step, its peers less than 1.53 ms; for"
        " 14.1 ms of that its GPU has nothing to run." in one.message
    )
    held = next(e for e in one.evidence if e.subject == "busy (ranks_ddp.py:32)")
    assert (held.value, held.peers, held.rank) == (pytest.approx(60.03, abs=0.01), 0, 1)
    card = card_of(report)
    assert card.headline == "Rank 1's host launches late: the other rank waits 26.8 ms per step"
    assert found(report, "TO-S001").proof(Fact.REASON).value == "in busy (ranks_ddp.py:32)"


def test_what_a_library_does_counts_for_the_function_that_calls_it(tmp_path):
    """The training's loop ran before the recording began: where in the file it begins is not known."""
    busy = re.compile(rb"ranks_ddp\.py\(32\): busy")
    report = analyze(rewritten(tmp_path, lambda name, text: busy.sub(b"transformers/trainer.py(32): busy", text)))
    one = found(report, "TO-S001")
    assert one.cause == "host"
    assert "rank 1's host is in loop (ranks_sharded.py) for 66.2 ms of each step, its peers 5.85 ms;" in one.message


def test_functions_that_explain_less_than_a_fifth_are_not_named(tmp_path):
    """All frames but those of the model, in which the late rank is hardly longer."""
    loop = re.compile(rb"ranks_(ddp|sharded|train)\.py|case\.py")
    report = analyze(rewritten(tmp_path, lambda name, text: loop.sub(b"torch/busy.py", text)))
    one = found(report, "TO-S001")
    assert one.cause == "unknown"
    assert "stacks" not in one.message


def test_without_stacks_of_the_peers_nothing_is_compared(tmp_path):
    def change(name, text):
        return text.replace(b"python_function", b"python_func") if name.startswith("rank_0") else text

    one = found(analyze(rewritten(tmp_path, change)), "TO-S001")
    assert one.cause == "unknown"
    assert "stacks" not in one.message


def test_of_one_gpu_input_and_launches_are_named(tmp_path):
    """Hugging Face's Trainer on one H200, whose collate function in the main process takes 30 ms a step."""
    shutil.copy(DATA / "plain_profiler" / "own_collate" / "trace.json.gz", tmp_path)
    report = analyze(tmp_path)
    assert found(report, "TO-I002").message.endswith(
        "By the stacks of its trace, rank 0's host is in collate (gpu_traces_frames.py:48) for 30.4 of the recorded "
        "31.5 ms a step in which its GPU waits for input."
    )
    assert "is in compute_loss (gpu_traces_frames.py:55) for 19.0 of the recorded" in found(report, "TO-I001").message


@pytest.mark.parametrize(("call_ms", "named"), [(3.0, True), (0.75, False)])
def test_calls_that_are_too_short_to_be_kept_on_peers_are_no_difference(tmp_path, call_ms, named):
    """'Its peers none', though they call it as often, 0.1 ms quicker: too short for a frame to be kept."""

    def many(name, text):
        trace = json.loads(text)
        for event in [one for one in trace["traceEvents"] if one["name"] == "ranks_ddp.py(32): busy"]:
            trace["traceEvents"].remove(event)
            for at in range(int(event["dur"] / (1000 * call_ms))):
                own = {"ts": event["ts"] + at * 1000 * call_ms, "dur": 1000 * call_ms}
                trace["traceEvents"].append({**event, **own})
        return json.dumps(trace).encode()

    one = found(analyze(rewritten(tmp_path, many)), "TO-S001")
    assert one.ranks == (1,)
    assert ("in busy (ranks_ddp.py:32)" in one.message) == named
