"""Logs after public threads: each told as it is true, or nothing told with what would decide; nothing told wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from public_logs import TRUTHS, is_held_out, outcome_of, texts

TEXTS = texts()
# What these do not decide, and that is said: an error of NCCL that may be the fault of another rank.
ABSTAINED = ("nccl_mpi_time_prefix",)


def test_each_log_has_its_truth_and_many_are_healthy() -> None:
    assert set(TEXTS) == set(TRUTHS)
    assert len(TEXTS) >= 72 and sum(truth.healthy for truth in TRUTHS.values()) >= 10
    assert sum(map(is_held_out, TEXTS)) >= 30


@pytest.mark.parametrize("name", TEXTS)
def test_a_public_log_is_told_as_it_is_true(name: str, tmp_path: Path) -> None:
    (tmp_path / "paste.log").write_text(TEXTS[name], encoding="utf-8")
    outcome, told = outcome_of(TRUTHS[name], tmp_path)
    assert outcome == ("abstained" if name in ABSTAINED else "right"), told
