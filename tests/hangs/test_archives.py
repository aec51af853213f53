"""Evidence in archives and handed over in other forms; hostile archives cost themselves only."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from quiet import is_quiet

from traceops.cli import main
from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose
from traceops.hangs.readers.whole_lines import is_newest_first
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


LABELS = "Traceback (most recent call last):\n  File \"train.py\", line 7, in f\n    g()\nKeyError: 'labels'\n"


def zip_of(members: Sequence[tuple[str, bytes | str]], packing: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", packing) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return made.getvalue()


def told_of(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    try:
        diagnosis = diagnose(path)
    except InputError as error:
        return str(error)
    assert is_quiet(diagnosis)
    return "\n".join(f"{file}: {what}" for file, what in diagnosis.evidence.problems)


def test_bytes_of_lzma_that_are_bad_cost_their_member(tmp_path: Path) -> None:
    """'_lzma.LZMAError: Corrupt input data' ended the command."""
    data = bytearray(zip_of([("a.log", LABELS * 50), ("b.log", "x" * 1000)], zipfile.ZIP_LZMA))
    data[60:90] = bytes(byte ^ 0x5A for byte in data[60:90])
    assert "a.log: it is cut off or corrupt" in told_of(tmp_path / "a.zip", bytes(data))


def test_a_bad_byte_in_a_local_header_s_name_costs_its_member(tmp_path: Path) -> None:
    """'UnicodeDecodeError' ended the command: the list of members was whole, the member's own header not."""
    data = bytearray(zip_of([("ü.log", LABELS), ("b.log", "x")]))
    data[data.index("ü".encode())] = 0xFF
    assert "it is corrupt" in told_of(tmp_path / "a.zip", bytes(data))


def test_a_tar_whose_numbers_are_none_is_corrupt(tmp_path: Path) -> None:
    """'ValueError: invalid literal for int()' ended the command, of a map of a sparse file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        first, bad = tarfile.TarInfo("rank1.log"), tarfile.TarInfo("c.log")
        first.size, bad.size = len(LABELS), 3
        bad.pax_headers = {"GNU.sparse.map": "0,-,1,2", "GNU.sparse.size": "30"}
        archive.addfile(first, io.BytesIO(LABELS.encode()))
        archive.addfile(bad, io.BytesIO(b"abc"))
    path = tmp_path / "a.tar"
    path.write_bytes(made.getvalue())
    told = diagnose(path)
    assert len(told.roots) == 1
    assert any("cut off or corrupt" in what for _, what in told.evidence.problems)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_members_with_one_name_the_last_is_used_and_that_is_said(tmp_path: Path) -> None:
    """The failure in the first one was lost, and nothing said so."""
    told = told_of(tmp_path / "a.zip", zip_of([("r/rank1.log", LABELS), ("r/rank1.log", "step 1\n")]))
    assert "rank1.log: it is there more than once: only the last one is used" in told
    inner = zip_of([("rank1.log", LABELS), ("x.log", "step 1\n")])
    path = tmp_path / "b.zip"
    path.write_bytes(zip_of([("x.zip", inner), ("x.zip", inner), (".x.zip", "step 1\n")]))
    assert len(diagnose(path).roots) == 1


def test_the_archive_that_a_message_names_can_be_asked_of(tmp_path: Path) -> None:
    """The command that it gave said 'unpack it and give the folder'."""
    inner = zip_of([("rank1.log", LABELS), ("x.log", "step 1\n")])
    middle = zip_of([("m/inner.zip", inner), ("y.log", "step 1\n")])
    path = tmp_path / "a.zip"
    named = f"{path}:o/middle.zip/m/inner.zip"
    told = told_of(path, zip_of([("o/middle.zip", middle), ("z.log", "step 1\n")]))
    assert f"{named}: it is an archive: traceops diagnose {named}" in told
    assert "others" not in told
    (root,) = diagnose(named).roots
    assert root.evidence[0][0].startswith(f"{named}:rank1.log:")
    with pytest.raises(InputError, match=r"a\.zip:o/no\.log does not exist: a\.zip holds no such file"):
        diagnose(f"{path}:o/no.log")


LINES = (
    "INFO step 11 loss 2.2",
    "INFO step 12 loss 2.1",
    "ERROR Traceback (most recent call last):",
    'ERROR   File "train.py", line 10, in main',
    "ERROR     x = x.view(2, 3)",
    "ERROR RuntimeError: shape '[2, 3]' is invalid for input of size 5",
)


def log(lines: tuple[str, ...] = LINES) -> list[str]:
    return [f"2026-11-24T00:05:{second:02}.100Z {line}\n" for second, line in enumerate(lines)]


def test_a_log_with_its_newest_line_first_is_not_judged(tmp_path):
    """Its launcher's error was told, and its traceback, upside down, as four messages of trouble."""
    file = tmp_path / "downloaded.txt"
    file.write_text("".join(reversed(log())))
    with pytest.raises(InputError, match=r"has its newest line first: .*--order=asc"):
        diagnose(file)


@pytest.mark.parametrize(
    "text",
    [
        "".join(log()),
        "".join(log() + log() + log() + log()),  # several runs, one after the other
        "".join(line for pair in zip(log(), log()[1:], strict=False) for line in reversed(pair)),  # ranks, mixed
        "step 9\nstep 8\nstep 7\nstep 6\nstep 5\nstep 4\nstep 3\n",
    ],
)
def test_other_logs_are_read(text: str):
    assert not is_newest_first(text.encode())
