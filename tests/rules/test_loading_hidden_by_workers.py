"""TO-I002 of loading that workers do while a late rank is waited for: their looks tell what the replay cannot."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from generated_run import ddp, simulate
from measured_runs import across, program
from observed_run import usual, write_loader, write_rank

from traceops.answers.answering import answer
from traceops.answers.asked import Asked
from traceops.answers.opening import open_run
from traceops.core.claims import claim_of
from traceops.core.facts import Fact
from traceops.core.step_words import step_words
from traceops.pipeline.analyze import analyze
from traceops.render.report.card import card_of
from traceops.render.report.cross_sections import replay_sentence
from traceops.rules.idle import INPUT_BOUND, BehindLate, hidden_loading
from traceops.rules.idle_claims import HiddenLoading
from traceops.rules.stragglers_claims import Late

DATA = Path(__file__).parents[1] / "data"


def behind_late(tmp_path, looks):
    """slow_hsdp4, whose rank 1 is late by its GPU, as if its loaders had workers that were seen in these places."""
    run = tmp_path / "run"
    run.mkdir()
    for path in (DATA / "slow_hsdp4").iterdir():
        raw = path.read_bytes()
        if path.suffix == ".gz":
            text = gzip.decompress(raw).replace(b"_SingleProcessDataLoaderIter", b"_MultiProcessingDataLoaderIter")
            raw = gzip.compress(text, 1)
        (run / path.name).write_bytes(raw)
    manifest = {"world_size": 4, "ranks": [{"rank": rank, "pid": 100 + rank} for rank in range(4)]}
    (run / "run.json").write_text(json.dumps(manifest))
    for rank in range(4):
        write_rank(run, rank, [usual(79.0) for _ in range(40)])
        if looks:
            write_loader(run, rank, 0, looks)
    report = analyze(run)
    [late] = [one for one in report.findings if one.rule == "TO-S001"]
    assert late.ranks == (1,)
    return report, late, [one for one in report.findings if one.rule == "TO-I002"]


def predicted(report, change):
    [row] = [row for row in report.what_if if row.change == change]
    return row.predicted_step_time_ms


def test_workers_that_need_longer_than_the_cured_step_are_told(tmp_path):
    """Batches lay ready behind the late rank, so the replay had no waiting for input: the rule was clear."""
    _, late, [hidden] = behind_late(tmp_path, {"idle": 4, "tokenize": 76})
    assert hidden.ranks == (0, 1, 2, 3)
    [step] = [one.value for one in hidden.evidence if one.fact is Fact.STEP]
    assert step == pytest.approx(0.95 * 79, rel=0.001)
    claim = claim_of(hidden, HiddenLoading)
    assert (claim.step, claim.loading) == (pytest.approx(step), pytest.approx(75.0, abs=0.06))
    assert (late.severity, late.impact_ms) == ("info", pytest.approx(79.38 - step, abs=0.02)), "not 15.76"
    assert hidden.impact_ms == pytest.approx(0.95 * 79 - 65, abs=4), "beyond the step that the cure leaves"


def test_workers_that_keep_up_are_not(tmp_path):
    report, late, hidden = behind_late(tmp_path, {"idle": 40, "tokenize": 40})
    assert not hidden and "would take 63.7 ms instead of 79.4 ms" in late.message
    assert report.summary.replay.loaders_unknown == ()


def test_a_late_ranks_cure_leaves_the_loaders_pace(tmp_path):
    """It was 63.62 ms in TO-S001, the headline and the what-if, beside a step of 70 ms in TO-I002."""
    report, late, [hidden] = behind_late(tmp_path, {"idle": 9, "tokenize": 71})
    [step] = [one.value for one in hidden.evidence if one.fact is Fact.STEP]
    assert step == pytest.approx(71 / 80 * 79, rel=0.001)
    assert claim_of(late, Late).then == pytest.approx(step, abs=0.001)
    assert late.impact_ms == pytest.approx(79.38 - step, abs=0.01)
    assert predicted(report, "rank 1 as its peers") == pytest.approx(step, abs=0.001)
    assert predicted(report, "all ranks as their median") == pytest.approx(step, abs=0.001)
    card = card_of(report)
    assert card.fixed_ms == pytest.approx(step, abs=0.01) and card.fixed_least_ms is None


def test_a_claim_is_a_bound_where_nobody_looked_at_the_workers(tmp_path):
    """Without looks at them it was 'would take 63.62 ms', which workers that are slower do not allow."""
    report, late, hidden = behind_late(tmp_path, {})
    assert not hidden and report.summary.replay.loaders_unknown == (0, 1, 2, 3)
    assert claim_of(late, Late).then_or_more == pytest.approx(63.69, abs=0.01)
    card = card_of(report)
    assert (card.fixed_least_ms, card.saved_pct) == pytest.approx((63.69, 19.8), rel=0.01)
    assert card.fixed_ms == card.now_ms
    assert "the pace of data loaders' workers is not known" in replay_sentence(report)
    shown = answer(open_run(tmp_path / "run"), Asked("what-if"))
    assert shown.loaders_unknown == (0, 1, 2, 3)


@pytest.mark.parametrize(("pace_ms", "told"), [(0.0, False), (12.0, False), (13.5, True)])
def test_batches_that_workers_have_ready_are_waited_for_by_nobody(pace_ms, told):
    """'Rank 1 would wait 1.66 ms; its workers need 0.000 ms', and a warning that asked for more workers."""
    run = SimpleNamespace(**msgspec.structs.asdict(across(simulate(program(ddp, device="cpu"), 2))))
    run.loading_ms, run.step_words = dict.fromkeys((0, 1), pace_ms), step_words("step")
    behind = BehindLate((1,), (), 14.06, 1.66, serious=True)
    found = hidden_loading(INPUT_BOUND, (5.0, 10.0, 25.0), SimpleNamespace(run=run, manifest={}), behind)
    assert bool(found) == told
