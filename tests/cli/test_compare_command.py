"""`traceops compare` and `traceops baseline` as users and CI jobs meet them: captures in, exit codes out."""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from sample_captures import capture, commit_of, run_of
from started import environment

from traceops.baseline.entry import load
from traceops.baseline.store import find, save
from traceops.cli import main

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".git").mkdir()  # settings of folders above are not ours
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "TRACEOPS_BASELINES"):
        monkeypatch.delenv(name, raising=False)


def report(name: str, folder: Path | None = None) -> str:
    """A real report.json in a folder of its own."""
    target = (folder or Path("reports", name)) / "report.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.decompress((DATA / "reports" / f"{name}.report.gz").read_bytes()))
    return str(target)


def compared(*argv: str) -> dict:  # type: ignore[type-arg]
    main(["compare", *argv, "-o", "out", "--format", "json", "-q"])
    result: dict = json.loads(Path("out/compare.json").read_text())  # type: ignore[type-arg]
    return result


@pytest.mark.usefixtures("elsewhere")
def test_a_regression_exits_1_and_writes_where_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    slow, fast = report("resnet50_workers_0"), report("resnet50_workers_4")
    assert main(["compare", fast, slow]) == 1
    said = capsys.readouterr().out
    assert said.startswith("✖ Regression: step time") and "waits longer for input" in said
    written = Path(said.strip().splitlines()[-1].removeprefix("Report: "))
    assert {path.name for path in written.parent.iterdir()} >= {"compare.html", "compare.md", "compare.json"}
    assert main(["compare", slow, fast, "-o", "out"]) == 0


@pytest.mark.usefixtures("elsewhere")
def test_inconclusive_fails_only_when_strict(capsys: pytest.CaptureFixture[str]) -> None:
    pair = [report("ddp"), report("item_sync")]
    assert main(["compare", *pair, "-q"]) == 0
    assert capsys.readouterr().out.startswith("Inconclusive: 3 steps a side, 6 needed")
    assert main(["compare", *pair, "-q", "--strict"]) == 4
    assert main(["compare", report("ddp"), report("socket"), "-q"]) == 1


@pytest.mark.usefixtures("elsewhere")
def test_a_gate_does_not_fail_by_steps_that_are_not_of_one_kind(capsys: pytest.CaptureFixture[str]) -> None:
    """One run's window came before its steps settled: the exit code was 1, beside a warning."""
    slow, fast = Path(report("resnet50_workers_0")), report("resnet50_workers_4")
    early = {"before_ms": 177.0, "later_ms": 120.0, "settled": 17}
    whole = {"steps": 60, "typical_steps": 50, "typical_ms": 120.0, "early_window": early}
    slow.write_text(json.dumps(json.loads(slow.read_text()) | {"whole_run": whole}))
    assert main(["compare", fast, str(slow), "-q"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Inconclusive: head's recorded steps may not be like its later ones")
    assert "record both sides with the same --skip-first, 17 or more" in said
    assert main(["compare", fast, str(slow), "-q", "--strict"]) == 4
    assert main(["compare", fast, str(slow), "-q", "--force"]) == 1


@pytest.mark.usefixtures("elsewhere")
def test_folders_and_traces_are_taken_as_well_as_reports(capsys: pytest.CaptureFixture[str]) -> None:
    report("item_sync")
    from_folder = compared(str(DATA / "ddp4"), "reports/item_sync")
    assert [side["captures"][0]["steps"] for side in (from_folder["base"], from_folder["head"])] == [3, 3]
    from_traces = compared(str(DATA / "ddp4"), str(DATA / "item_sync4"))
    assert from_traces["explanations"][0]["cause"] == from_folder["explanations"][0]["cause"] == "blocking_calls"


@pytest.mark.usefixtures("elsewhere")
def test_not_comparable_is_wrong_usage_unless_forced(capsys: pytest.CaptureFixture[str]) -> None:
    pair = [report("ddp"), report("resnet50_workers_4")]
    assert main(["compare", *pair]) == 2
    assert "world size: base 4, head 1" in capsys.readouterr().err
    assert not Path("reports", "resnet50_workers_4", "compare.html").exists()
    assert compared(*pair, "--force")["refusals"]


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["one"], "one does not exist; give two things to compare"),
        (["a", "b", "c"], "give two things to compare"),
        (["a", "--head", "b"], "give either BASE HEAD, or --base"),
        (["--base", "a"], "give either BASE HEAD, or --base"),
        (["a", "b", "--format", "pdf"], "--format pdf: takes"),
        (["a", "b", "--threshold", "steptime=3"], "did you mean step_time?"),
        (["a", "b", "--config", "none.toml"], "none.toml cannot be read"),
    ],
)
def test_wrong_usage(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *argv]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"schema_version": 1, "tool": {"name": "traceops"}', "is not valid JSON"),
        ('{"schema_version": 1, "tool": {"name": "traceops"}}', "is no report.json of traceops"),
        ("", "is not valid JSON"),
        ("[]", "is no report.json"),
        ('{"schema_version": 1, "run": {}, "summary": {}, "ranks": [], "steps": [{"rank": "x", "duration_ms": 1}], '
         '"findings": [], "collectives": []}', "$.steps[0].rank"),
    ],
)  # fmt: skip
def test_unreadable_input_is_named(content: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken").mkdir()
    Path("broken/report.json").write_text(content)
    assert main(["compare", report("ddp"), "broken/report.json"]) == 3
    err = capsys.readouterr().err
    assert said in err and "broken/report.json" in err


@pytest.mark.usefixtures("elsewhere")
def test_a_report_of_a_later_schema_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(report("ddp"))
    path.write_text(path.read_text().replace('"schema_version":1', '"schema_version":3'))
    assert main(["compare", str(path), report("socket")]) == 3
    assert "schema version 3" in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", report("ddp"), "nowhere"]) == 3
    assert "nowhere does not exist" in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
def test_a_series_is_compared_by_its_folder_and_not_analysed(capsys: pytest.CaptureFixture[str]) -> None:
    order = []
    for number in (1, 2):
        for side, name in (("base", "resnet50_workers_4"), ("head", "resnet50_workers_0")):
            path = Path(report(name, Path("profile", "series", f"{side}_{number}")))
            held = json.loads(path.read_text())
            held["run"]["started_ns"] += number * 10**9
            path.write_text(json.dumps(held))
            order.append(f"{side}_{number}")
    Path("profile/series/pairs.json").write_text(json.dumps({"schema_version": 1, "order": order}))
    result = compared("profile/series")
    assert [c["name"] for c in result["head"]["captures"]] != [c["name"] for c in result["base"]["captures"]]
    assert len(result["base"]["captures"]) == len(result["head"]["captures"]) == 2
    capsys.readouterr()
    assert main(["analyze", "profile/series"]) == 3
    assert "traceops compare profile/series" in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
def test_a_series_without_one_side_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    Path("profile/series").mkdir(parents=True)
    Path("profile/series/pairs.json").write_text('{"order": ["base_1"]}')
    assert main(["compare", "profile/series"]) == 3
    assert "no capture of both sides yet" in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
def test_a_stored_baseline(capsys: pytest.CaptureFixture[str]) -> None:
    fast = report("resnet50_workers_4")
    assert main(["baseline", "save", fast, "--store", "store", "--name", "resnet", "--branch", "main"]) == 0
    slow = report("resnet50_workers_0")
    capsys.readouterr()
    assert main(["compare", "baseline:resnet", slow, "--store", "store", "-o", "out"]) == 1
    assert main(["compare", "baseline:other", slow, "--store", "store"]) == 3
    assert "other" in capsys.readouterr().err


@pytest.mark.usefixtures("elsewhere")
def test_thresholds_of_the_settings_and_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    pair = [report("resnet50_workers_4"), report("resnet50_workers_0")]
    Path("traceops.toml").write_text("[compare.thresholds]\nstep_time = 60\nkernels = false\n")
    assert main(["compare", *pair, "-q", "-o", "out"]) == 0
    assert main(["compare", *pair, "-q", "-o", "out", "--threshold", "10"]) == 1


@pytest.mark.usefixtures("elsewhere")
def test_in_a_github_job_it_announces_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert main(["compare", report("resnet50_workers_4"), report("resnet50_workers_0"), "-q", "-o", "out"]) == 1
    assert "\n::error" in capsys.readouterr().out
    assert "Regression" in (tmp_path / "summary.md").read_text()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("lines", [0, 1])
def test_a_gate_fails_also_where_nobody_reads_all_that_it_says(tmp_path: Path, lines: int) -> None:
    """`set -o pipefail; traceops compare … | head -1` let a regression pass with 0."""
    sides = [str(DATA / name) for name in ("ddp4", "slow_gpu4")]
    options = ["--force", "--threshold", "kernels=0.01", "-o", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "traceops", "compare", *sides, *options], stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        for _ in range(lines):
            assert b"Regression" in process.stdout.readline()
        process.stdout.close()
        assert process.wait() == 1
    assert (tmp_path / "compare.json").exists()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TRACEOPS_BASELINES", raising=False)
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    """What the command prints on both streams; asserts its exit code."""
    assert main(["baseline", *arguments]) == code
    captured = capsys.readouterr()
    return captured.out + captured.err


@pytest.mark.usefixtures("here")
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


@pytest.mark.usefixtures("here")
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


@pytest.mark.usefixtures("here")
def test_history_is_written_and_says_what_changed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no baseline in empty" in said(capsys, "history", "--store", "empty", code=3)
    save("store", capture(0))
    text = said(capsys, "history", "--store", "store", "-o", "out", "--plotlyjs", "cdn")
    assert "no other to compare it with" in text and "History: out/history.html" in text
    for day in range(1, 20):
        save("store", capture(day, 50.0 if day < 10 else 60.0))
    text = said(capsys, "history", "--store", "store", "-o", "out", "--key", "main", "--plotlyjs", "cdn")
    assert f"Step time +20.0 % since commit {commit_of(10)[:7]} (2026-10-01)" in text
    assert sorted(path.name for path in (here / "out").iterdir()) == [
        "history.csv", "history.html", "history.json",
    ]  # fmt: skip


@pytest.mark.usefixtures("here")
def test_what_is_no_capture_is_an_error_and_saves_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "folder").mkdir()
    assert "folder" in said(capsys, "save", "folder", code=3)
    assert not (here / "baselines").exists()
