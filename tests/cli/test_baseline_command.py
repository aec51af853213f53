"""`traceops baseline` as a user and a CI job run it: captures in, words and pages out, exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from sample_captures import capture, commit_of, run_of

from traceops.baseline.entry import load
from traceops.baseline.store import find, save
from traceops.cli import main

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACEOPS_BASELINES", raising=False)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What the command prints on both streams; asserts its exit code."""
    assert main(["baseline", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.mark.slow
def test_traces_and_their_report_are_saved_as_the_same(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(DATA / "ddp4", here / "profile" / "run")
    assert main(["analyze", "profile/run", "-q", "--format", "json"]) == 0
    text = said(
        capsys, "save", "profile/run", "reports/run", "reports/run/report.json", "--name", "my net", "--branch", "main"
    )  # fmt: skip
    assert text.count("saved as baselines/my-net_w4_") == 3 and "my net · 4 ranks" in text
    first, *others = find("baselines", "my net", last=9)
    assert [entry.source for entry in (first, *others)].count("profile/run") == 1 and len(others) == 2
    saved = json.loads(Path("reports/run/report.json").read_text())
    own = saved["run"]
    for entry in (first, *others):
        report = load(entry.url).content
        assert report["summary"] == saved["summary"] and report["steps"] == saved["steps"]
    assert find("baselines", "my net", like=run_of({"run": {**own, "started_ns": 1}}))
    listed = said(capsys, "list", "--key", "my net")
    assert "3 entries" in listed and " ms" in listed
    assert "unless --name says more" in said(capsys, "save", "profile/run") and "unless" not in text


def test_keys_are_listed_shown_and_pruned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for day in range(4):
        save("baselines", capture(day, 50.0 + day))
    save("baselines", capture(0), branch="topic")
    (here / "baselines" / "README").touch()
    text = said(capsys, "list")
    assert text.count("gpt-l8-d1024-s512-b8 · 4 ranks") == 2 and "4 entries, the latest of commit 0000003" in text
    assert "53.00 ms" in text and "README is left out" in text
    assert "No baseline in baselines matches 'x'" in said(capsys, "list", "--key", "x")

    shown = said(capsys, "show", "main")
    assert shown.count(" ms  baselines/") == 4 and "0000002" in shown
    (here / "baselines" / "README").unlink()
    (key,) = json.loads(said(capsys, "show", "main", "--json"))
    assert [entry["commit"] for entry in key["entries"]] == [commit_of(day) for day in range(4)]
    assert key["entries"][3]["values"]["step_time"] == 53.0 and key["key"]["branch"] == "main"
    assert "matches 'x'" in said(capsys, "show", "x", code=3)

    assert "--keep N" in said(capsys, "prune", code=2)
    assert "would delete every entry" in said(capsys, "prune", "--older-than", "0", code=2)
    dry = said(capsys, "prune", "--keep", "2", "--dry-run")
    assert "2 entries would be deleted, 3 kept" in dry and len(find("baselines", "main", last=9)) == 4
    assert "2 entries deleted, 3 kept" in said(capsys, "prune", "--keep", "2")
    assert [entry.commit for entry in find("baselines", "main", last=9)] == [commit_of(2), commit_of(3)]
    with pytest.raises(SystemExit):
        main(["baseline", "prune", "--keep", "0"])


def test_history_is_written_and_says_what_changed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no baseline in empty" in said(capsys, "history", "--store", "empty", code=3)
    save("store", capture(0))
    text = said(capsys, "history", "--store", "store", "-o", "out", "--plotlyjs", "cdn")
    assert "nothing to compare" in text and "History: out/history.html" in text
    for day in range(1, 20):
        save("store", capture(day, 50.0 if day < 10 else 60.0))
    text = said(capsys, "history", "--store", "store", "-o", "out", "--key", "main", "--plotlyjs", "cdn")
    assert f"Step time +20.0 % since commit {commit_of(10)[:7]} (2026-10-01)" in text
    assert sorted(path.name for path in (here / "out").iterdir()) == [
        "history.csv", "history.html", "history.json",
    ]  # fmt: skip


def test_what_is_no_capture_is_an_error_and_saves_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "folder").mkdir()
    assert "folder" in said(capsys, "save", "folder", code=3)
    assert not (here / "baselines").exists()
