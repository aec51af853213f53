"""Figures of speed in the docs are written by a program, with their commit, and do not grow old unnoticed."""

from __future__ import annotations

import subprocess
import warnings
from datetime import date

import pytest

from benchmarks.figures import BEGIN, END, PAGE, Figure, block, commits_since, measured_at, replaced
from benchmarks.speed.stages import STAGES, table

MOST_COMMITS = 200  # to the code that they are of
OURS, THEIRS = Figure("4 ranks", 1.5, 90.0), Figure("HTA, 4 ranks", 30.0, 900.0)


def test_figures_in_the_docs_are_not_much_older_than_the_code():
    commit, when = measured_at(PAGE.read_text(encoding="utf-8"))
    try:
        since = commits_since(commit)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("no history here")
    assert since <= MOST_COMMITS, f"figures of {when} are {since} commits old: make figures"
    if since:
        warnings.warn(f"figures of {when} are {since} commits older than the code: make figures", stacklevel=1)


def test_figures_replace_those_before_them_and_say_of_which_commit_they_are():
    page = replaced(f"before\n{BEGIN}old\n{END}after\n", block([OURS, THEIRS], "0123abcd", date(2026, 11, 29)))
    assert measured_at(page) == ("0123abcd", date(2026, 11, 29))
    assert "old" not in page and page.startswith("before\n") and page.endswith("after\n")
    assert "20.0 times the CPU time and 10.0 times the memory" in page
    assert "times" not in block([OURS], "0123abcd", date(2026, 11, 29))


def test_figures_have_a_place():
    with pytest.raises(ValueError, match="no marks"):
        replaced("a page", "figures")
    with pytest.raises(ValueError, match="no figures"):
        measured_at(f"{BEGIN}{END}At 0123abcd (2026-11-29)")


def test_a_stage_that_changed_by_three_percent_has_a_sign():
    before = dict.fromkeys(STAGES, 100e6)
    rows = table(before, before | {"load": 103.1e6, "write": 96.9e6, "import": 102.0e6}, 1e6).splitlines()
    signs = {row.split("|")[1].strip(): row.rstrip(" |")[-1] for row in rows[2:]}
    assert signs == {**dict.fromkeys((*STAGES, "all"), "%"), "load": "▲", "write": "▼"}
