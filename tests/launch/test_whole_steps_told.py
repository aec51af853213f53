"""How `traceops run` tells what was recorded: a trace without a whole step is none."""

from dataclasses import asdict

import pytest

from traceops.capture.environment import host
from traceops.capture.manifest import RankManifest, WindowRecord, write_rank
from traceops.capture.schedule import Schedule
from traceops.launch import ended, session
from traceops.launch.plan import Cluster, Plan
from traceops.launch.process import TorchrunResult


@pytest.fixture
def told(tmp_path, monkeypatch, capfd):
    """What the launcher says of two ranks that ended after so many steps, having recorded these whole."""
    monkeypatch.setattr(ended, "git_state", lambda folder: None)
    monkeypatch.setattr(ended, "software_versions", dict)
    monkeypatch.setattr(session, "FabricEvidence", lambda *args, **options: None)

    def say(steps, whole, status="finished"):
        out = tmp_path / "run"
        windows = [WindowRecord(0, "rank_0/t.json", whole, len(whole) == 4)]

        def training(*args, **options):
            for rank in range(2):
                own = RankManifest(
                    rank, rank, 2, host(), 1, {"type": "cpu"}, asdict(Schedule()), {},
                    status=status, traces=["rank_0/t.json"], windows=windows, steps=steps,
                )  # fmt: skip
                write_rank(out, own)
            (out / "rank_0" / "t.json").write_text("{}")
            return TorchrunResult(0, None, "")

        monkeypatch.setattr(session, "run", training)
        assert session.launch(Plan("mine", out, Cluster(2), ["train.py"], {}, {})) == 0
        return capfd.readouterr().err

    return say


def test_ranks_with_whole_steps_are_traced(told):
    said = told(14, [10, 11, 12, 13])
    assert "2 of 2 ranks traced in" in said
    assert "next: traceops analyze" in said


def test_ranks_without_one_are_not_and_what_would_record_them_is_said(told):
    said = told(10, [])
    assert "0 of 2 ranks recorded a whole step in" in said
    assert "next: run it again with --skip-first 2 --unprofiled 2 --warmup 2 --active 4" in said
    assert "ranks traced" not in said
    assert "traceops analyze" not in said


def test_where_the_program_was_not_too_short_no_schedule_is_proposed(told):
    said = told(40, [], status="given_way")
    assert "0 of 2 ranks recorded a whole step in" in said
    assert "run it again with" not in said
