"""Archives with bad bytes, members of one name, archives deep within: no crash, and what is lost is said."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from quiet import is_quiet

from traceops.core.errors import InputError
from traceops.hangs.diagnose import diagnose

RAISED = "Traceback (most recent call last):\n  File \"train.py\", line 7, in f\n    g()\nKeyError: 'labels'\n"


def zipped(members: Sequence[tuple[str, bytes | str]], packing: int = zipfile.ZIP_STORED) -> bytes:
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
    data = bytearray(zipped([("a.log", RAISED * 50), ("b.log", "x" * 1000)], zipfile.ZIP_LZMA))
    data[60:90] = bytes(byte ^ 0x5A for byte in data[60:90])
    assert "a.log: it is cut off or corrupt" in told_of(tmp_path / "a.zip", bytes(data))


def test_a_bad_byte_in_a_local_header_s_name_costs_its_member(tmp_path: Path) -> None:
    """'UnicodeDecodeError' ended the command: the list of members was whole, the member's own header not."""
    data = bytearray(zipped([("ü.log", RAISED), ("b.log", "x")]))
    data[data.index("ü".encode())] = 0xFF
    assert "it is corrupt" in told_of(tmp_path / "a.zip", bytes(data))


def test_a_tar_whose_numbers_are_none_is_corrupt(tmp_path: Path) -> None:
    """'ValueError: invalid literal for int()' ended the command, of a map of a sparse file."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as archive:
        first, bad = tarfile.TarInfo("rank1.log"), tarfile.TarInfo("c.log")
        first.size, bad.size = len(RAISED), 3
        bad.pax_headers = {"GNU.sparse.map": "0,-,1,2", "GNU.sparse.size": "30"}
        archive.addfile(first, io.BytesIO(RAISED.encode()))
        archive.addfile(bad, io.BytesIO(b"abc"))
    path = tmp_path / "a.tar"
    path.write_bytes(made.getvalue())
    told = diagnose(path)
    assert len(told.roots) == 1
    assert any("cut off or corrupt" in what for _, what in told.evidence.problems)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_members_with_one_name_the_last_is_used_and_that_is_said(tmp_path: Path) -> None:
    """The failure in the first one was lost, and nothing said so."""
    told = told_of(tmp_path / "a.zip", zipped([("r/rank1.log", RAISED), ("r/rank1.log", "step 1\n")]))
    assert "rank1.log: it is there more than once: only the last one is used" in told
    inner = zipped([("rank1.log", RAISED), ("x.log", "step 1\n")])
    path = tmp_path / "b.zip"
    path.write_bytes(zipped([("x.zip", inner), ("x.zip", inner), (".x.zip", "step 1\n")]))
    assert len(diagnose(path).roots) == 1


def test_the_archive_that_a_message_names_can_be_asked_of(tmp_path: Path) -> None:
    """The command that it gave said 'unpack it and give the folder'."""
    inner = zipped([("rank1.log", RAISED), ("x.log", "step 1\n")])
    middle = zipped([("m/inner.zip", inner), ("y.log", "step 1\n")])
    path = tmp_path / "a.zip"
    named = f"{path}:o/middle.zip/m/inner.zip"
    told = told_of(path, zipped([("o/middle.zip", middle), ("z.log", "step 1\n")]))
    assert f"{named}: it is an archive: traceops diagnose {named}" in told
    assert "others" not in told
    (root,) = diagnose(named).roots
    assert root.evidence[0][0].startswith(f"{named}:rank1.log:")
    with pytest.raises(InputError, match=r"a\.zip:o/no\.log does not exist: a\.zip holds no such file"):
        diagnose(f"{path}:o/no.log")
