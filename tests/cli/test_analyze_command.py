"""`traceops analyze` as a user runs it: files, places, exit codes."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from traceops.cli import main
from traceops.cli.arguments import output_folder

DATA = Path(__file__).parents[1] / "data"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(DATA / "item_sync4", tmp_path / "profile" / "some run"))


def analyze(*args):
    return main(["analyze", *map(str, args)])


def test_profile_becomes_reports(folder, tmp_path, capsys):
    assert analyze("profile/some run", "--format", "json,csv") == 0
    out = tmp_path / "reports" / "some run"
    assert {"summary.csv", "report.json", "findings.csv"} <= {path.name for path in out.iterdir()}
    assert "TO-I003" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("profile/a", "reports/a"),
        ("/x/profile/deep/a", "/x/reports/deep/a"),
        ("elsewhere/a", "reports/a"),
        ("profile", "reports/a"),
        ("s3://bucket/profile/a", "reports/a"),
    ],
)
def test_where_reports_go(tmp_path, monkeypatch, path, expected):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "is_dir", lambda _: True)
    assert output_folder(path, "a") == Path(expected)


def test_all_formats_are_written(folder, tmp_path):
    assert analyze(folder, "-o", tmp_path / "out", "-q") == 0
    page = (tmp_path / "out" / "summary.html").read_text()
    assert "TO-I003" in page


@pytest.mark.parametrize(("bound", "code"), [("info", 1), ("warning", 0), ("error", 0)])
def test_fail_on(folder, bound, code):
    assert analyze(folder, "--format", "json", "-q", "--fail-on", bound) == code


def test_strict_fails_on_damage_and_still_reports(folder, tmp_path):
    (folder / "rank_2.pt.trace.json.gz").write_bytes(b"")
    args = (folder, "-o", tmp_path / "out", "--format", "json", "-q")
    assert analyze(*args) == 0
    assert analyze(*args, "--strict") == 3
    assert json.loads((tmp_path / "out" / "report.json").read_text())["run"]["ranks_missing"] == [2]


def test_all_windows_get_their_own_folder(folder, tmp_path):
    for path in list(folder.iterdir()):
        shutil.copy(path, folder / path.name.replace(".pt.", ".window_1.pt."))
        path.rename(folder / path.name.replace(".pt.", ".window_0.pt."))
    assert analyze(folder, "-o", tmp_path / "out", "--select", "all", "--format", "json", "-q") == 0
    assert sorted(path.name[:6] for path in (tmp_path / "out").iterdir()) == ["run_0_", "run_1_"]


def test_one_window_of_many_says_so(folder, tmp_path, capsys):
    for path in list(folder.iterdir()):
        shutil.copy(path, folder / path.name.replace(".pt.", ".window_1.pt."))
        path.rename(folder / path.name.replace(".pt.", ".window_0.pt."))
    assert analyze(folder, "-o", tmp_path / "out", "--format", "json") == 0
    assert "1 other capture window was left out" in capsys.readouterr().out


@pytest.mark.parametrize("args", [("--format", "pdf"), ("--format", "")])
def test_wrong_usage_is_2(folder, args, capsys):
    assert analyze(folder, *args) == 2
    assert "--format" in capsys.readouterr().err


def test_nothing_to_read_is_3_and_named(tmp_path, capsys):
    assert analyze(tmp_path / "nowhere") == 3
    assert "nowhere does not exist" in capsys.readouterr().err


def test_unwritable_place_is_3_and_named(folder, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert analyze(folder, "-o", tmp_path / "file" / "out", "--format", "json", "-q") == 3
    assert "-o DIR" in capsys.readouterr().err


def test_the_report_is_the_same_with_hta_itself(folder, tmp_path, monkeypatch):
    for out, flags in (("ours", []), ("theirs", ["--hta"])):
        assert analyze(folder, "-o", tmp_path / out, "--format", "json,csv", "-q", *flags) == 0
    ours, theirs = ({file.name: file.read_bytes() for file in (tmp_path / out).iterdir()} for out in ("ours", "theirs"))
    assert "hta_kernels.csv" in ours
    assert ours == theirs
    monkeypatch.setattr("traceops.measure.hta_bridge._ANALYSES", {})
    assert analyze(folder, "-o", tmp_path / "none", "--format", "json,csv", "-q", "--hta") == 0
    assert not list((tmp_path / "none").glob("hta_*.csv"))


@pytest.mark.parametrize("missing", ["hta", "hta.analyzers", "pandas"])
def test_hta_that_is_not_there_is_2_and_says_how_to_install_it(folder, tmp_path, monkeypatch, capsys, missing):
    for name in [name for name in sys.modules if name.split(".")[0] == "hta"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert analyze(folder, "-o", tmp_path / "out", "-q", "--hta") == 2
    said = capsys.readouterr().err
    assert "pip install HolisticTraceAnalysis 'pandas<3' psutil PyYAML" in said and missing in said
    assert not (tmp_path / "out" / "report.json").exists()


def test_plain_ascii_terminal(folder, tmp_path):
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    command = [sys.executable, "-m", "traceops", "analyze", str(folder), "-o", "o", "--format", "json"]
    done = subprocess.run(command, capture_output=True, env=env, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert b"TO-I003" in done.stdout


def test_compressed_and_plain_traces_give_one_report(folder, tmp_path):
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in folder.iterdir():
        (plain / path.name.removesuffix(".gz")).write_bytes(gzip.decompress(path.read_bytes()))
    for source, out in ((folder, "a"), (plain, "b")):
        assert analyze(source, "-o", tmp_path / out, "--format", "json", "-q") == 0
    first, second = (json.loads((tmp_path / out / "report.json").read_text()) for out in "ab")
    assert first["steps"] == second["steps"]
    assert first["findings"] == second["findings"]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_error(folder, closed):
    command = f'"$0" -m traceops analyze "$1" --format json {closed}'
    subprocess.run(["sh", "-c", command, sys.executable, str(folder)], check=True, stdout=subprocess.DEVNULL)
