"""NCCL Inspector's files: what ranks completed is read and said, and nobody is accused of what an interval does."""

from __future__ import annotations

import gzip
import io
import json
import sys
from pathlib import Path

import pytest
from inspector_lines import coll, dump, p2p

from traceops.cli import main
from traceops.core.errors import InputError
from traceops.fabric.read import named_fabric, run_fabric
from traceops.fabric.to_json import fabric_json
from traceops.hangs.diagnose import diagnose
from traceops.report.hang_seen import what_would_decide
from traceops.report.hang_text import hang_sentence, read_text

VERSIONS = pytest.mark.parametrize("version", ["v4.0", "v4.2", "v4.3"])


def write(folder: Path, ends: dict[int, int], every_s: float = 4, version: str = "v4.2", op: str = "AllReduce"):
    """A file a rank, in which operations 1 to ends[rank] stand, eight a dump."""
    for rank, end in ends.items():
        numbers = range(1, end + 1)
        dumps = [numbers[at : at + 8] for at in range(0, end, 8)]
        text = "".join(
            dump((coll(number, op, gbs=341 + rank) for number in some), rank, len(ends), at * every_s, version)
            for at, some in enumerate(dumps)
        )
        if version == "v4.0":
            text = "".join(line for line in text.splitlines(True) if "dump_stats" not in line)
        (folder / f"host-1-pid{1000 + rank}.log").write_text(text)
    return folder


@VERSIONS
def test_equal_ranks_are_read_and_nobody_is_named(tmp_path: Path, version: str) -> None:
    diagnosis = diagnose(write(tmp_path, dict.fromkeys(range(4), 57), version=version))
    assert diagnosis.roots == () and diagnosis.evidence.log == ()
    assert read_text(diagnosis) == (
        "4 files of NCCL Inspector: 57 collectives of ranks 0–3, AllReduce of 268 MB at 342 GB/s (median); "
        "4 files in all"
    )
    assert "No rank hangs" in hang_sentence(diagnosis)


@VERSIONS
def test_the_rank_on_which_inspector_stopped_is_a_lead_and_no_cause(tmp_path: Path, version: str) -> None:
    diagnosis = diagnose(write(tmp_path, {0: 57, 1: 57, 2: 57, 3: 41}, version=version))
    assert diagnosis.roots == ()
    (event,) = diagnosis.evidence.log
    assert (event.kind, event.op, event.sequence, event.rank) == ("inspector", "AllReduce", 41, None)
    assert Path(event.path).name == "host-1-pid1003.log"
    said = hang_sentence(diagnosis)
    assert said.startswith(
        "Rank 3 of communicator 7f8c496ae9f661 (4 ranks): the last AllReduce that NCCL Inspector wrote is #41, and it "
        "wrote on to #57 for ranks 0–2, over 8 s. All ranks take part in each AllReduce, so more was done there"
    )
    assert "does not say whether the job hangs" in said
    assert "how its process ended" in what_would_decide(diagnosis)


def test_a_difference_within_one_write_or_between_short_writes_proves_nothing(tmp_path: Path) -> None:
    for name, ends, every_s in (("one", {0: 48, 1: 41}, 30), ("short", {0: 57, 1: 41}, 0.0005)):
        (tmp_path / name).mkdir()
        assert diagnose(write(tmp_path / name, ends, every_s)).evidence.log == ()


def test_a_rank_may_be_behind_in_what_does_not_need_all(tmp_path: Path) -> None:
    (event,) = diagnose(write(tmp_path, {0: 57, 1: 41}, op="Broadcast")).evidence.log
    assert "#41" in event.text and "take part" not in event.text


def test_bad_lines_hide_no_good_ones(tmp_path: Path) -> None:
    whole = dump([coll(1), coll(2), p2p(1, 2)], 0)
    long = dump([coll(3)[:-1] + ',"event_trace_sn":{"kernel_events":[' + "1," * 50_000 + "1]}}"], 0)
    path = tmp_path / "a.log"
    path.write_text(whole + '{"header":{"id":7}}\n' + "{" * 5000 + "\n" + long + dump([coll(4)], 0)[:-30])
    fabric = named_fabric([path])
    assert {(row.op, row.last, row.count) for row in fabric.inspector.completed} == {
        ("AllReduce", 3, 3),
        ("Send", 1, 1),
    }
    assert fabric.problems == (
        (str(path), "2 lines of NCCL Inspector cannot be read (cut or damaged) and are left out"),
    )


def test_operations_without_their_marker_are_tied_to_no_rank(tmp_path: Path) -> None:
    """From v4.3 on only the marker says of which rank lines are: after a damaged one they may be any rank's."""
    path = tmp_path / "a.log"
    other = dump([coll(900)], 1, version="v4.3", comm="0xb").split("\n", 1)
    path.write_text(dump([coll(1)], 0, version="v4.3", comm="0xa") + other[0][:-9] + "\n" + other[1])
    fabric = named_fabric([path])
    assert [(row.communicator, row.last) for row in fabric.inspector.completed] == [("a", 1)]
    assert any("stand without the line" in what for _, what in fabric.problems)
    path.write_text(other[1])
    with pytest.raises(InputError, match="give the file whole"):
        diagnose(path)


def test_gzip_a_paste_and_a_name_that_says_nothing(tmp_path: Path, monkeypatch, capsys) -> None:
    text = dump([coll(1)], 0, 1)
    (tmp_path / "x.bin.gz").write_bytes(gzip.compress(text.encode()))
    assert "1 collective of rank 0" in read_text(diagnose(tmp_path / "x.bin.gz"))
    paste = "my training\nRuntimeError: loss is NaN\n" + text + "{'loss': 1}\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(paste.encode())))
    main(["diagnose", "-", "-o", str(tmp_path / "out"), "--format", "json"])
    assert "1 file of NCCL Inspector: 1 collective of rank 0" in " ".join(capsys.readouterr().out.split())


def test_the_doctor_tells_what_it_read_and_writes_bandwidths(tmp_path: Path, capsys) -> None:
    write(tmp_path, {0: 9, 1: 9})
    main(["doctor", "--from", str(tmp_path), "-o", str(tmp_path / "out")])
    said = " ".join(capsys.readouterr().out.split())
    assert (
        "2 files of NCCL Inspector: 9 collectives of ranks 0–1, AllReduce of 268 MB at 342 GB/s (median)"
        in said.replace("0-1", "0–1")
    )
    rows = json.loads((tmp_path / "out" / "doctor.json").read_text())["inspector"]
    assert [(row["rank"], row["busbw_gbs"], row["count"]) for row in rows] == [(0, 341.0, 9), (1, 342.0, 9)]
    assert "What NCCL Inspector measured" in (tmp_path / "out" / "doctor.html").read_text()


def test_beside_traces_the_report_has_the_bandwidths(tmp_path: Path) -> None:
    fabric = run_fabric(str(write(tmp_path, {0: 9, 1: 9})))
    assert fabric is not None
    assert [(row.rank, row.op, row.busbw_gbs) for row in fabric_json(fabric).inspector] == [
        (0, "AllReduce", 341.0),
        (1, "AllReduce", 342.0),
    ]
