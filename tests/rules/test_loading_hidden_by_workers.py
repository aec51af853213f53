"""TO-I002 of loading that workers do while a late rank is waited for: their looks tell what the replay cannot."""

import gzip
import json
from pathlib import Path

import pytest
from observed_run import usual, write_loader, write_rank

from traceops import analyze

DATA = Path(__file__).parents[1] / "data"


def hidden_behind_late(tmp_path, looks):
    """slow_hsdp4, whose rank 1 is late by its GPU, as if its loaders had workers that were seen in these places."""
    run = tmp_path / "run"
    run.mkdir()
    for path in (DATA / "slow_hsdp4").iterdir():
        raw = path.read_bytes()
        if path.suffix == ".gz":
            text = gzip.decompress(raw).replace(
                b"_SingleProcessDataLoaderIter", b"_MultiProcessingDataLoaderIter"
            )
            raw = gzip.compress(text, 1)
        (run / path.name).write_bytes(raw)
    manifest = {"world_size": 4, "ranks": [{"rank": rank, "pid": 100 + rank} for rank in range(4)]}
    (run / "run.json").write_text(json.dumps(manifest))
    for rank in range(4):
        write_rank(run, rank, [usual(79.0) for _ in range(40)])
        write_loader(run, rank, 0, looks)
    report = analyze(run)
    assert [one.ranks for one in report.findings if one.rule == "TO-S001"] == [(1,)]
    return [one for one in report.findings if one.rule == "TO-I002"]


def test_workers_that_need_longer_than_the_cured_step_are_told(tmp_path):
    """Batches lay ready behind the late rank, so the replay had no waiting for input: the rule was clear."""
    [hidden] = hidden_behind_late(tmp_path, {"idle": 4, "tokenize": 76})
    assert hidden.ranks == (0, 1, 2, 3)
    assert f"a step of {0.95 * 79:.2f} ms" in hidden.message
    assert "loader need 75.0 ms for what a step takes" in hidden.message
    assert hidden.impact_ms == pytest.approx(0.95 * 79 - 65, abs=4), "beyond the step that the cure leaves"


def test_workers_that_keep_up_are_not(tmp_path):
    assert not hidden_behind_late(tmp_path, {"idle": 40, "tokenize": 40})
