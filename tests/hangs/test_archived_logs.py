"""Archives of logs, and what is pasted: read as the files they hold, and named as people know them."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from traceops.cli import main
from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose
from traceops.traces import archives

RAISED = "Traceback (most recent call last):\n  File \"train.py\", line 7, in step\n    g()\nKeyError: 'labels'\n"
MEMBERS = {"logs/rank_0.log": "step 1\nstep 2\n", "logs/rank_1.log": RAISED, "logs/junk": "\0\1\2" * 900}


def zipped(path: Path, members: Mapping[str, str]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return path


def tarred(path: Path, members: Mapping[str, str]) -> Path:
    packing = path.suffix.lstrip(".") if path.suffix in (".gz", ".xz", ".bz2") else ""
    with tarfile.open(path, f"w:{packing}") as archive:  # type: ignore[call-overload]
        for name, text in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("name", ["logs.zip", "logs.tar", "logs.tar.gz", "logs.tar.xz", "logs.tar.bz2"])
def test_an_archive_is_told_as_the_files_in_it(tmp_path: Path, name: str) -> None:
    """'unpack it and give the folder' was said of each."""
    path = (zipped if name.endswith(".zip") else tarred)(tmp_path / name, MEMBERS)
    told = diagnose(path)
    assert [(root.ranks, root.where) for root in told.roots] == [((1,), "step (train.py:7)")]
    assert told.roots[0].evidence[0][0].startswith(f"{path}:logs/rank_1.log:")
    assert (told.evidence.root, told.evidence.name) == (str(path), "logs")
    alone = diagnose(f"{path}:logs/rank_1.log")
    assert alone.roots[0].where == told.roots[0].where and alone.evidence.files == (f"{path}:logs/rank_1.log",)
    with pytest.raises(InputError, match="holds no such file"):
        diagnose(f"{path}:../rank_1.log")


def test_no_member_is_written_outside_and_each_bad_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "logs.tar"
    bad = {"../../out.log": RAISED, "/abs.log": "step 1\n", "a\0.log": "", "x" * 300: "step 1\n"}
    with tarfile.open(tarred(path, {**bad, **MEMBERS}), "a") as archive:
        link = tarfile.TarInfo("logs/rank_5.log")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    told = diagnose(path)
    assert [root.ranks for root in told.roots] == [(1,)]
    problems = {Path(file.partition(":")[2]).name: what for file, what in told.evidence.problems}
    assert problems["out.log"] == "its name leads out of the archive: it is left out"
    assert problems["x" * 300] == "it cannot be unpacked (File name too long)"
    assert [path.name for path in tmp_path.iterdir()] == ["logs.tar"] and not (tmp_path.parent / "out.log").exists()


def test_a_damaged_archive_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    noise = "".join(f"{n * 7919 % 104729} tokens\n" for n in range(9000))
    path = tarred(tmp_path / "logs.tar.gz", {**MEMBERS, "logs/rank_2.log": noise})
    path.write_bytes(path.read_bytes()[:-9000])
    told = diagnose(path)
    assert [root.ranks for root in told.roots] == [(1,)]
    assert any("cut off" in what for file, what in told.evidence.problems if file == str(path))
    path = zipped(tmp_path / "logs.zip", {"rank_0.log": noise, **MEMBERS})
    data = bytearray(path.read_bytes())
    data[60:200] = b"\xff" * 140  # of the first member
    path.write_bytes(data)
    told = diagnose(path)
    assert [root.ranks for root in told.roots] == [(1,)]
    assert [file for file, _ in told.evidence.problems] == [f"{path}:rank_0.log"]


def test_what_an_archive_unpacks_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = zipped(tmp_path / "logs.zip", {"rank_1.log": RAISED, **{f"rank_{n}.log": "x" * 9000 for n in range(2, 9)}})
    for name, most in (("bytes_left", 20_000), ("files_left", 3)):
        limits = {"bytes_left": 1 << 30, "files_left": 99, name: most}
        monkeypatch.setattr(archives, "Unpacked", lambda limits=limits: _unpacked(**limits))
        told = diagnose(path)
        assert [root.ranks for root in told.roots] == [(1,)]
        assert any("left out" in what for _, what in told.evidence.problems), name
    with tarfile.open(tmp_path / "long.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("n" * (2 << 20)))
        archive.addfile(tarfile.TarInfo("rank_1.log"))
    with pytest.raises(InputError, match="cut off or corrupt"):
        diagnose(tmp_path / "long.tar")


_unpacked = archives.Unpacked


def test_archives_in_archives_and_in_folders(tmp_path: Path) -> None:
    inner = tarred(tmp_path / "node1.tar.gz", MEMBERS)
    zipped(tmp_path / "other.zip", {"a.txt": "step 1\n", "b.txt": "step 2\n"})
    told = diagnose(tmp_path)
    assert [root.ranks for root in told.roots] == [(1,)] and told.evidence.root == str(tmp_path)
    assert told.evidence.files == (f"{inner}:logs/rank_1.log",)
    outer = tmp_path / "all.tar"
    with tarfile.open(outer, "w") as archive:
        archive.add(inner, "job/node1.tar.gz")
        archive.add(tmp_path / "other.zip", "job/other.zip")
    assert diagnose(outer).evidence.files == (f"{outer}:job/node1.tar.gz/logs/rank_1.log",)
    (tmp_path / "rank_3.log").write_text(RAISED)  # beside it, archives are only named
    told = diagnose(tmp_path)
    assert [root.ranks for root in told.roots] == [(3,)]
    assert {Path(file).name: what for file, what in told.evidence.problems} == {
        name: f"it is an archive: traceops diagnose {tmp_path / name}" for name in ("all.tar", "other.zip")
    }


def test_a_paste_is_called_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path of a temporary file was told, in which nobody finds the line."""
    paste = io.BytesIO(RAISED.encode())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=paste))
    assert main(["diagnose", "-", "-o", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "standard input:1" in told and "paste.log" not in told
    for written in (tmp_path / "out").iterdir():
        assert b"paste.log" not in written.read_bytes(), written.name
    for text in (b"all is well\n", b"a:1:2 [0] NCCL INFO cudaDriverVersion 12040\n"):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))
        assert main(["diagnose", "-", "-o", str(tmp_path / "out")]) == 0
        said = capsys.readouterr().out
        assert said.startswith("● No failure found in the 1 line of standard input") and "paste.log" not in said
    archive = zipped(tmp_path / "logs.zip", {**MEMBERS, "../x.log": ""}).read_bytes()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(archive)))
    assert main(["diagnose", "-", "-o", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "standard input:logs/rank_1.log:1" in told and "standard input:../x.log" in told
