"""Our steps beside a few lines of pandas that know nothing of traceops, to the microsecond."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from traceops.pipeline.analyze import analyze
from traceops.report.model import Report

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"

# Traces that others published.
RUNS = ["hta/pair", "hta/amd", "hta/ns"]


@pytest.fixture(scope="module")
def ledger():
    """Imported by the worker that needs pandas, and not by each that collects the tests."""
    from benchmarks.field import pandas_ledger

    return pandas_ledger


def traces_of(run: str) -> list[Path]:
    return sorted(path for path in (DATA / run).iterdir() if path.name.endswith(".json.gz"))


def document(report: Report) -> dict:
    rows = {"ranks": [{"rank": row.rank} for row in report.ranks]}
    return rows | {"steps": [msgspec.to_builtins(step) for step in report.steps]}


@pytest.mark.parametrize("run", RUNS)
def test_step_busy_exposed_and_idle_time_are_what_pandas_says(run: str, ledger):
    report = analyze(DATA / run, cache=False, jobs=1)
    compared, differing = ledger.differing_steps(document(report), traces_of(run))
    assert compared == len(report.steps) > 0 and differing == 0


def test_a_step_that_is_off_by_a_microsecond_is_seen(ledger):
    told = document(analyze(DATA / "hta/pair", cache=False, jobs=1))
    told["steps"][0]["compute"] += 0.001
    assert ledger.differing_steps(told, traces_of("hta/pair")) == (4, 1)


def test_the_parts_of_a_step_make_it_whole(ledger):
    (row,) = ledger.steps_of(traces_of("hta/amd")[0]).to_dict("records")
    assert row["busy_ms"] + row["idle_ms"] == pytest.approx(row["step_ms"], abs=1e-9)
    step = {"duration_ms": 9.0, "compute": 1.0, "memory": 0.5, "idle_host": 5.0, "idle_gap": 0.5}
    step |= {"comm_transfer": 1.0, "comm_wait": 0.75, "comm_unmatched": 0.25}
    assert ledger.of_traceops(step) == {
        "step_ms": 9.0, "busy_ms": 3.5, "exposed_ms": 2.0, "memory_ms": 0.5, "idle_ms": 5.5,
    }  # fmt: skip


def test_waiting_is_what_pandas_says_of_the_collectives_of_all_ranks(ledger):
    waiting_ms = [row.wait_ms for row in analyze(DATA / "ddp4", cache=False, jobs=1).ranks]
    assert waiting_ms == pytest.approx(ledger.waiting_of(traces_of("ddp4")), abs=0.001) and max(waiting_ms) > 1
