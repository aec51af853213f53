"""Two ranks that share one H200 and send over sockets, by plain torch.profiler: what their traces do not tell."""

import re
import shutil

import pytest
from fault_runs import unpacked

from traceops.core.claims import claim_of
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.coverage import unjudged_sentence
from traceops.rules.bandwidth import LowBandwidth


def test_steps_that_only_some_ranks_recorded_count_in_no_mean(tmp_path):
    """Of four steps a rank two are shared: 9.3 of 16 ms of transfer were told, and a step of 88.7 ms for 87.3."""
    report = analyze(unpacked("sockets_shifted", tmp_path))
    step = report.summary.step_time_ms
    assert step.unshared == (2, 3, 6, 7)
    assert step.typical == pytest.approx(87.26, rel=0.02)
    assert report.summary.ledger_ms.comm_transfer == pytest.approx(16.3, rel=0.03)
    assert report.summary.ledger_ms.comm_unmatched == 0


def test_nobody_knows_whether_ranks_that_each_see_one_gpu_share_a_host(tmp_path):
    """They were held to NVLink, as an error. Names that the program chose have no host."""
    both = unpacked("sockets_plain", tmp_path)
    for rank, path in enumerate(sorted(both.iterdir())):
        path.rename(both / f"rank{rank}.1795470461619331944.pt.trace.json")
    report = analyze(both)
    [slow] = [one for one in report.findings if one.rule == "TO-C001"]
    assert (slow.severity, slow.confidence) == ("warning", "low")
    assert claim_of(slow, LowBandwidth).may_be_apart


def test_the_name_of_a_trace_says_the_host(tmp_path):
    """tensorboard_trace_handler writes HOST_PID.time.pt.trace.json, unless the program names the worker itself."""
    report = analyze(unpacked("sockets_plain", tmp_path))
    assert report.run.hosts == ("vm",)
    [slow] = [one for one in report.findings if one.rule == "TO-C001"]
    assert slow.confidence == "high" and "of one host." in slow.message


def test_ranks_of_one_host_recorded_minutes_apart_are_of_two_runs(tmp_path):
    """Their collectives match by number, and clocks that nobody sets may be off by minutes; one host has one clock."""
    both = unpacked("sockets_plain", tmp_path)
    path = sorted(both.iterdir())[1]
    text = path.read_text()
    [base] = re.findall(r'"baseTimeNanoseconds": (\d+)', text)
    path.write_text(text.replace(base, str(int(base) + 120 * 10**9)))
    report = analyze(both)
    assert report.run.ranks_present == (1,)
    [left] = [one.message for one in report.findings if one.rule == "TO-V002"]
    assert "begins 2:00 before rank 1 does: it is of another capture. It is left out" in left


def test_one_rank_alone_says_what_of_its_step_nobody_can_judge(tmp_path):
    """The first sentence had a missing rank, and nothing of a fifth of the step in collectives."""
    both = unpacked("sockets_plain", tmp_path)
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(sorted(both.iterdir())[0], alone)
    report = analyze(alone)
    card = card_of(report)
    assert card.headline.startswith("1 of 2 ranks has no trace") and card.judged_pct < 85
    assert "Add the traces of the missing ranks" in unjudged_sentence(report)
