"""TO-I002 where ranks get no core: a loader whose workers have nothing to do is not what they wait for."""

import gzip
import json
from pathlib import Path

import pytest
from observed_run import usual, write_loader, write_rank

from traceops.core.claims import claim_of
from traceops.pipeline.analyze import analyze
from traceops.rules.idle_claims import InputBound

RUN = Path(__file__).parents[1] / "data" / "starved_loader2"


def waiting_for_batches(tmp_path, core_ms, looks, workers=True):
    """starved_loader2 as if its loader had a worker: 164 ms of each step of 271 ms pass until the next batch comes.

    core_ms: what the ranks wait for a core in each recorded step, or each of them. looks: at the worker, by what it is
    seen in; a list of them for several workers. workers: False as it is, without one.
    """
    run = tmp_path / "run"
    for path in sorted(RUN.rglob("*")):
        if path.is_file():
            raw = path.read_bytes()
            if path.suffix == ".gz" and workers:
                text = gzip.decompress(raw).replace(b"_SingleProcessDataLoaderIter", b"_MultiProcessingDataLoaderIter")
                raw = gzip.compress(text, 1)
            (run / path.relative_to(RUN)).parent.mkdir(parents=True, exist_ok=True)
            (run / path.relative_to(RUN)).write_bytes(raw)
    manifest = json.loads((run / "run.json").read_text())
    manifest["ranks"] = [{"rank": rank, "pid": 100 + rank} for rank in range(2)]
    (run / "run.json").write_text(json.dumps(manifest))
    window = range(8, 14)
    for rank in range(2):
        own_ms = core_ms[rank] if isinstance(core_ms, tuple) else core_ms
        steps = [usual(271.0, recorded=n in window, core_wait_ms=own_ms * (n in window)) for n in range(20)]
        write_rank(run, rank, steps)
        for worker, own in enumerate(looks if isinstance(looks, list) else [looks] if looks else []):
            write_loader(run, rank, worker, own)
    report = analyze(run)
    [check] = [check for check in report.checks if check.rule == "TO-I002"]
    return [one for one in report.findings if one.rule == "TO-I002"], check


def test_a_rank_without_a_core_does_not_wait_for_its_loader(tmp_path):
    """It was 'one process needs 271 ms to load: more workers', of a worker that waited for work all the time."""
    found, check = waiting_for_batches(tmp_path, 170.0, {"idle": 60, "tokenize": 2})
    assert not found and check.status == "clear"
    assert "nothing to do for 97 % of the time, and it waits 170 ms of each recorded step for a core" in check.reason


@pytest.mark.parametrize(
    "core_ms, looks, severity, workers",
    [
        (170.0, {"tokenize": 60}, "error", ""),
        (10.0, {"tokenize": 60}, "error", ""),
        (10.0, {"idle": 60}, "error", "idle"),
        (170.0, {}, "info", "unsure"),
        (10.0, {}, "error", ""),
    ],
)
def test_what_more_workers_would_do_is_said_where_it_is_known(tmp_path, core_ms, looks, severity, workers):
    [found], _ = waiting_for_batches(tmp_path, core_ms, looks)
    assert found.severity == severity
    claim = claim_of(found, InputBound)
    assert claim.workers == workers and (claim.need is None) == bool(workers)


def test_a_busy_worker_beside_idle_ones_is_not_overlooked(tmp_path):
    """Batches come in order, so one slow worker holds up all; and workers of a second loader may wait for its epoch.

    It was '75 % of the time nothing to do: more of them would not help', and with full cores no finding at all.
    """
    looks = [{"tokenize": 60}, *({"idle": 60},) * 3]
    for core_ms in (10.0, 170.0):
        [found], _ = waiting_for_batches(tmp_path / str(core_ms), core_ms, looks)
        assert found.severity == "error" and claim_of(found, InputBound).workers != "idle"


def test_the_one_busy_worker_is_named_and_more_workers_are_not_promised(tmp_path):
    """One of two workers was always late: 'busy for half of the time' named no line, and '8 times as many' would do."""
    [found], _ = waiting_for_batches(tmp_path, 10.0, [{"tokenize": 60}, {"idle": 64}])
    claim = claim_of(found, InputBound)
    assert (claim.workers, claim.seen_workers, claim.busiest_pct) == ("one_busy", 2, 100)
    assert "100 % of what rank 0's loader workers do is in tokenize" in found.message
    assert claim.need is None


@pytest.mark.parametrize("core_ms, severity", [(10.0, "error"), (150.0, "info"), (100.0, "warning")])
def test_what_may_be_waiting_for_a_core_is_no_loading_of_a_rank_without_workers(tmp_path, core_ms, severity):
    """A loader that took 3 to 6 % of the steps was a warning of 12: the ranks waited 44 % of them for a core."""
    [found], _ = waiting_for_batches(tmp_path, core_ms, {}, workers=False)
    assert found.severity == severity
    assert (claim_of(found, InputBound).core_pct is not None) == (severity != "error")


@pytest.mark.parametrize("core_ms", [(150.0, 10.0), (10.0, 150.0)])
@pytest.mark.parametrize("workers", [False, True])
def test_a_rank_that_loads_is_not_excused_by_another_that_gets_no_core(tmp_path, core_ms, workers):
    """Both ranks load as long: a remark where the rank that waits for a core loads a millisecond longer."""
    waits = tuple(ms * (1.2 if workers else 1.0) for ms in core_ms)
    [found], _ = waiting_for_batches(tmp_path, waits, {}, workers=workers)
    assert found.severity == "error"
