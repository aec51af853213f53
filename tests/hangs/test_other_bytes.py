"""Bytes that are no UTF-8, in logs of JSON and in names of a zip archive: what can be read is."""

import io
import json
import zipfile
from pathlib import Path

import pytest

from traceops.cli import main

CRASH = "RuntimeError: CUDA error: an illegal memory access was encountered"
RECORDS = "".join(
    json.dumps({"level": "ERROR", "timestamp": "2026-01-01T00:00:00", "message": line}) + "\n"
    for line in (
        "user café began",
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        CRASH,
    )
)


@pytest.mark.parametrize("pretty", [False, True])
def test_a_log_of_json_with_a_byte_of_another_encoding_is_read(tmp_path: Path, capsys, pretty: bool) -> None:
    """One such byte in one line, and no log of the folder was told: "this is a mistake in traceops"."""
    text = RECORDS.replace("{", "{\n  ").replace(", ", ",\n  ").replace("}", "\n}") if pretty else RECORDS
    path = tmp_path / "rank_0.log"
    path.write_bytes(text.replace("\\u00e9", "é").encode("latin-1"))
    main(["diagnose", str(path), "-o", str(tmp_path / "out")])
    said = capsys.readouterr()
    assert "mistake in traceops" not in said.err
    assert pretty or "illegal memory access" in said.out


def test_a_zip_archive_whose_names_are_damaged_is_named(tmp_path: Path, capsys) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("rängé.log", CRASH)
    raw = bytearray(packed.getvalue())
    for at in (raw.index(b"\xc3"), raw.rindex(b"\xc3")):
        raw[at] = 0xFF
    path = tmp_path / "in.zip"
    path.write_bytes(bytes(raw))
    assert main(["diagnose", str(path), "-o", str(tmp_path / "out")]) == 3
    assert "the zip archive is cut off or corrupt" in capsys.readouterr().err
