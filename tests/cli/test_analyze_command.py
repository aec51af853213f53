"""`traceops analyze` as a user runs it: files, places, exit codes."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from traceops.cli import main
from traceops.cli.arguments import output_folder
from traceops.traces.discover import discover

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


def test_out_is_output(folder, tmp_path):
    assert analyze(folder, "--out", tmp_path / "out", "--format", "json", "-q") == 0
    assert (tmp_path / "out" / "report.json").is_file()


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
    assert theirs.pop("hta_frequent_sequences.csv").startswith(b"rank,pattern,count,")
    documents = [json.loads(files.pop("report.json")) for files in (ours, theirs)]
    assert documents[1]["summary"].pop("hta_agreement")["differing"] == 0
    sources = [{row.pop("breakdown_source") for row in document["ranks"]} for document in documents]
    assert sources == [{"traceops"}, {"hta"}]
    for files in (ours, theirs):
        files["summary.csv"] = files["summary.csv"].replace(b",hta,", b",traceops,")
    assert documents[0] == documents[1] and ours == theirs
    monkeypatch.setattr("traceops.measure.hta_bridge._ANALYSES", {})
    monkeypatch.setattr("traceops.measure.hta_bridge._ONLY_HTAS", {})
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


STRAGGLER = Path(__file__).parents[1] / "data" / "straggler_gloo2"
LATER_NS = 60_000_000_000


@pytest.fixture
def evaluated(tmp_path):
    """Both windows of two ranks, under the names that Lightning 2.6 gives them; the later one without steps' marks."""
    run = tmp_path / "profile"
    run.mkdir()
    for number, path in enumerate(sorted(STRAGGLER.glob("*.json.gz"))):
        name = f"fit-fit-{number}-[Strategy]DDPStrategy"
        shutil.copy(path, run / f"{name}.training_step.179547009516364019{number}.pt.trace.json.gz")
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["baseTimeNanoseconds"] = trace.get("baseTimeNanoseconds", 0) + LATER_NS
        later = run / f"{name}.validation_step.179547009770396914{number}.pt.trace.json"
        later.write_text(json.dumps(trace))
    return run


def test_the_window_of_training_is_analysed(evaluated, tmp_path):
    """Validation was analysed as the training's step."""
    found = discover(str(evaluated))
    assert [window.index for window in found.windows] == [0, 1] and found.latest.index == 0
    assert found.notes == ("window 0 is analysed, and not window 1: that one is of evaluation",)
    assert main(["analyze", str(evaluated), "-o", str(tmp_path / "out"), "--quiet"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    used = {Path(rank["trace"]).name.split(".")[1] for rank in report["ranks"]}
    assert used == {"training_step"}


def test_where_only_validation_was_recorded_it_is_analysed(evaluated):
    for path in evaluated.glob("*training_step*"):
        path.unlink()
    assert discover(str(evaluated)).latest.index == 0


ALL_DATA = Path(__file__).parents[1] / "data"
TRACE = (ALL_DATA / "ddp4" / "rank_0.pt.trace.json.gz").read_bytes()


def _several() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("rank_0.log", "a")
        archive.writestr("rank_1.log", "b")
    return packed.getvalue()


def _tar() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("rank_0.log"))
    return packed.getvalue()


# Name: content; None for what `folder` below makes itself, or does not.
BAD: Mapping[str, bytes | None] = {
    "missing.json": None,
    "empty.json": b"",
    "empty.log": b"",
    "blank.txt": b"\n \n",
    "binary.bin": bytes(range(256)) * 20,
    "binary.json": bytes(range(255, -1, -1)) * 20,
    "cut.json.gz": TRACE[:200],
    "magic.gz": b"\x1f\x8b",
    "not.json.gz": b"hello",
    "object.json": b'{"a": 1}',
    "string.json": b'"x"',
    "torn.json": b'{"traceEvents": [',
    "deep.json": b"[" * 20_000,
    "nan.json": b'{"traceEvents": NaN}',
    "utf16.json": '{"a": 1}'.encode("utf-16"),
    "page.json": b"<html><body>404 Not Found</body></html>",
    "pointer.json": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
    "several.zip": _several(),
    "logs.tar.gz": _tar(),
    "folder.json": None,
    "dangling.json": None,
    "loop.json": None,
    "pipe.json": None,
    "x" * 300: None,
}
COMMANDS: Mapping[str, Callable[[str], list[str]]] = {
    "analyze": lambda path: ["analyze", path, "-o", "out"],
    "analyze --evidence": lambda path: ["analyze", "good", "-o", "out", "--evidence", path],
    "compare": lambda path: ["compare", path, path],
    "diagnose": lambda path: ["diagnose", path, "-o", "out"],
    "doctor --from": lambda path: ["doctor", "--from", path, "-o", "out"],
    "memory": lambda path: ["memory", path],
    "query": lambda path: ["query", path, "select 1"],
    "run --settings": lambda path: ["run", "--settings", path, "--dry-run", "--", "train.py"],
    "show": lambda path: ["show", path],
    "view": lambda path: ["view", path, "-o", "out/t.json"],
}
LINES_OF_TEXT = ("not.json.gz", "page.json", "several.zip")  # for diagnose: nothing failed in them
RAISED = "Traceback (most recent call last):\n  File \"t.py\", line 4, in f\n    g()\nKeyError: 'labels'\n"


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, content in BAD.items():
        if content is not None:
            (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "dangling.json").symlink_to("nowhere")
    (tmp_path / "loop.json").symlink_to("loop.json")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "rank_0.pt.trace.json.gz").write_bytes(TRACE)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_input_ends_with_a_message_that_names_it(
    empty_folder: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """'this is a mistake in traceops' was said of a name that is too long, 'ask the owner for permission' of a pipe."""
    monkeypatch.setattr("traceops.cli.query.find_processor", lambda: "true", raising=False)
    Path("train.py").touch()
    for name in BAD:
        code = main(COMMANDS[command](name))
        if command == "diagnose" and name in LINES_OF_TEXT:
            assert code == 0 and "No failure found" in capsys.readouterr().out, name
            continue
        assert code == 3, name
        said = capsys.readouterr().err
        *before, last = [line for line in said.splitlines() if line.startswith("traceops ")]
        assert last.startswith(f"traceops {command.partition(' ')[0]}: ") and name in last + said, name
        assert "Traceback" not in said and "mistake in traceops" not in said, name
        assert len(before) <= 1, name


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "memory"])
def test_an_empty_path_is_not_the_folder_one_is_in(
    empty_folder: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`traceops diagnose "$RUN"` with RUN unset told of whatever was there; show ended with a traceback."""
    assert main(COMMANDS[command]("")) == 2
    assert "an empty path was given" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "name", "words"),
    [
        ("diagnose", "empty.log", "empty.log: it is empty"),
        ("diagnose", "binary.bin", "binary.bin: it is no text and no flight recorder's dump"),
        ("diagnose", "pointer.json", "pointer.json: it is a pointer of Git LFS, not the file: git lfs pull"),
        ("diagnose", "pipe.json", "pipe.json is a pipe, a socket or a device"),
        ("diagnose", "s3://bucket/run", "s3://bucket/run is remote; diagnose reads local files"),
        ("doctor --from", "empty.log", "empty.log is empty"),
        ("doctor --from", "cut.json.gz", "nothing can be read before the place where the archive is cut off"),
        ("view", "pointer.json", "pointer.json: it is a pointer of Git LFS, not the file: git lfs pull"),
        ("view", "torn.json", "torn.json: its list of events is cut off before the first one"),
        ("view", "pipe.json", "pipe.json is a pipe, a socket or a device: give a file or a folder"),
    ],
)
def test_what_is_wrong_with_it_is_said(
    empty_folder: Path, command: str, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(COMMANDS[command](name)) == 3
    assert words in capsys.readouterr().err


def test_good_files_beside_bad_ones_are_judged(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = [name for name, content in BAD.items() if content is not None]
    logs = empty_folder / "logs"
    logs.mkdir()
    for name in bad:
        shutil.copy(empty_folder / name, logs / name)
        shutil.copy(empty_folder / name, empty_folder / "good" / name)
    (logs / "train.log").write_text(RAISED)
    (logs / "more.log.gz").write_bytes(gzip.compress(b"step 1\n"))
    assert main(["diagnose", "logs", "-o", "out"]) == 0
    assert "KeyError: 'labels'" in capsys.readouterr().out
    assert main(["analyze", "good", "-o", "out"]) == 0
    assert "step 22.8" in capsys.readouterr().out
