"""Bad inputs for each command that reads: one clear message that names the file, the exit code of docs/formats.md."""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from traceops.cli import main

DATA = Path(__file__).parents[1] / "data"
TRACE = (DATA / "ddp4" / "rank_0.pt.trace.json.gz").read_bytes()


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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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
    folder: Path, command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
    folder: Path, command: str, capsys: pytest.CaptureFixture[str]
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
        ("doctor --from", "cut.json.gz", "nothing is told before the place where the archive is cut off"),
        ("view", "pointer.json", "pointer.json: it is a pointer of Git LFS, not the file: git lfs pull"),
        ("view", "torn.json", "torn.json: its list of events is cut off before the first one"),
        ("view", "pipe.json", "pipe.json is a pipe, a socket or a device: give a file or a folder"),
    ],
)
def test_what_is_wrong_with_it_is_said(
    folder: Path, command: str, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(COMMANDS[command](name)) == 3
    assert words in capsys.readouterr().err


def test_good_files_beside_bad_ones_are_judged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = [name for name, content in BAD.items() if content is not None]
    logs = folder / "logs"
    logs.mkdir()
    for name in bad:
        shutil.copy(folder / name, logs / name)
        shutil.copy(folder / name, folder / "good" / name)
    (logs / "train.log").write_text(RAISED)
    (logs / "more.log.gz").write_bytes(gzip.compress(b"step 1\n"))
    assert main(["diagnose", "logs", "-o", "out"]) == 0
    assert "KeyError: 'labels'" in capsys.readouterr().out
    assert main(["analyze", "good", "-o", "out"]) == 0
    assert "step 22.8" in capsys.readouterr().out
