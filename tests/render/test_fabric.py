"""The fabric in the analyze report: report.json, the page's section, and lines quoted as evidence."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from changed import replace
from html_page import Page
from msgspec import structs
from sample_fabric import fabric, nvswitch, shm_log
from sample_report import HOSTILE, sample_report, with_tables

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.fabric.fabric import Fabric
from traceops.fabric.model import Quote
from traceops.fabric.nccl import Communicator, Connection, NcclLog, RankPlace
from traceops.fabric.to_json import MOST_CONNECTIONS, alike_connections, alike_machines, fabric_json
from traceops.render.document import Drawing
from traceops.render.report.cross_sections import fabric as fabric_section
from traceops.render.report.cross_sections import reference_table
from traceops.render.report.fabric_html import connections_table, fabric_blocks, nccl_sentence
from traceops.render.report.html import render_html
from traceops.render.report.terminal import print_report
from traceops.render.writers.csv import CSV_FILES, render_csv_files
from traceops.report.document import to_json_object
from traceops.report.model import Report
from traceops.report.rows import ReferenceRow
from traceops.report.tables import Tables
from traceops.schemas import schema_path

SCHEMA = json.loads(schema_path("report").read_text())
LINE = "vm:2225:2225 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct"
FOUND = Finding(
    "TO-P002",
    "warning",
    "high",
    "NVLink or P2P is there but not used",
    "message",
    (
        Evidence(Fact.OTHER, 4, subject="pairs without P2P"),
        Evidence(Fact.OTHER, LINE, file="logs/log.txt", line=140, subject="NCCL log"),
    ),
    ranks=(0, 1),
    advice="advice",
)


def row(**values: object) -> ReferenceRow:
    usual: dict[str, object] = {
        "bytes_min": None,
        "bytes_max": None,
        "reference_link": None,
        "group": "default_pg",
        "ranks": [0, 1, 2, 3],
        "op": "allreduce",
        "bytes_p50": 33_600_000,
        "count": 42,
        "busbw_gbs": 24.6,
        "reference_gbs": 350.0,
        "reference_source": "table",
        "reference_pct": 7.03,
        "lost_ms": 26.3,
    }
    return msgspec.convert({**usual, **values}, ReferenceRow)


def with_fabric(hosts: int = 1) -> Report:
    report = sample_report()
    unknown = row(op="send", reference_gbs=None, reference_source=None, reference_pct=None, lost_ms=None)
    report = with_tables(report, reference=(row(), unknown))
    return structs.replace(report, fabric=fabric(hosts), findings=(FOUND,))


def fabric_of_schema(found: Fabric) -> None:
    wanted = {"$ref": "#/$defs/FabricJson", "$defs": SCHEMA["$defs"]}
    jsonschema.validate(json.loads(msgspec.json.encode(fabric_json(found))), wanted)


def test_the_fabric_is_as_published() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    for found in (fabric(), fabric(3), Fabric(), Fabric(log=NcclLog(()))):
        fabric_of_schema(found)
    written = to_json_object(with_fabric())
    assert written["fabric"]["nccl"]["settings"][0]["name"] == "NCCL_P2P_DISABLE"
    assert written["reference"][1]["reference_gbs"] is None
    assert to_json_object(sample_report())["fabric"] is None


def test_serial_numbers_stay_out_and_quotes_are_there() -> None:
    machine = nvswitch(2)
    found = replace(machine, gpus=tuple(replace(gpu, uuid=f"GPU-{gpu.index}") for gpu in machine.gpus))
    text = msgspec.json.encode(fabric_json(Fabric((found,), shm_log()))).decode()
    assert "GPU-0" not in text and "via SHM/direct/direct" in text


def test_hosts_of_one_make_are_one_machine() -> None:
    other = nvswitch(8, "odd")
    found = [nvswitch(4, f"node-{n}") for n in range(3)]
    assert [(m.host, alike) for m, alike in alike_machines([*found, other])] == [
        ("node-0", ("node-1", "node-2")),
        ("odd", ()),
    ]


def large(ranks: int, gpus: int = 8) -> NcclLog:
    """A communicator in which each rank sends to 100 others."""
    quote = Quote("log", 1, "x" * 300)
    places = {rank: RankPlace(rank, f"node-{rank // gpus}", nvml_device=rank % gpus) for rank in range(ranks)}
    connections = tuple(
        Connection(rank, (rank + step) % ranks, "NET" if step >= gpus else "P2P", "IB", 2, quote)
        for rank in range(ranks)
        for step in range(1, 101)
    )
    return NcclLog(("log",), communicators=(Communicator("x", ranks, places, connections),))


def test_a_thousand_ranks_stay_small() -> None:
    log = large(1024)
    machines = tuple(nvswitch(8, f"node-{n}", numas=2, nics=8) for n in range(128))
    text = msgspec.json.encode(fabric_json(Fabric(machines, log)))
    assert len(text) < 300_000
    rows = alike_connections(log.communicators)
    assert len(rows) <= MOST_CONNECTIONS and sum(one.count for one in rows) == 102_400
    assert {one.from_host for one in rows} == {None}


def test_connections_of_few_hosts_name_them() -> None:
    rows = alike_connections(large(128, 64).communicators)
    hosts = {(one.from_host, one.to_host, one.within_host) for one in rows}
    assert ("node-0", "node-1", False) in hosts and ("node-0", "node-0", True) in hosts
    assert sum(one.count for one in rows) == 12_800


def test_connections_of_unknown_places_are_not_said_to_be_inside() -> None:
    log = NcclLog((), communicators=(Communicator("x", 2, {}, (Connection(0, 1, "NET", "IB", 1, Quote("l", 1, "")),)),))
    (only,) = alike_connections(log.communicators)
    assert only.within_host is None
    table = connections_table(log)
    assert table is not None and table.rows[0][1].css == "unknown"


def test_the_page_has_figure_reference_and_the_log() -> None:
    shown = Page(render_html(with_fabric(3), plotlyjs="cdn"))
    assert shown.mismatched == [] and shown.open == []
    assert "fabric" in [a["id"] for a in shown.all("section")]
    text = shown.text()
    assert "node-1 · 4 × NVIDIA H200 · and 2 more hosts of the same make" in text
    assert "NVLink between all GPUs" in text and "NCCL leaves the links unused" in text
    assert "NCCL 2.28.9+cuda13.0 made 1 communicator of 4 ranks; its network is Socket on eth0." in text
    assert "NCCL_P2P_DISABLE=1" in text
    assert "evidence/topo.xml: it is empty" in " ".join(text.split())
    assert len([a for a in shown.all("svg") if a.get("role") == "img"]) == 2


def test_reference_rows_say_where_they_are_from_and_nothing_unknown_as_zero() -> None:
    table = reference_table(with_fabric())
    assert table is not None
    first, second = ([cell.text for cell in cells] for cells in table.rows)
    assert first[4:] == ["24.60", "350.0", "table", "7.0", "26.30"]
    assert second[5:] == ["–", "–", "–", "–"]


def test_references_without_evidence_have_a_section_and_nothing_has_none() -> None:
    report = structs.replace(with_fabric(), fabric=None)
    kinds = [block.kind for block in fabric_section(report, ()).blocks]
    assert kinds == ["text", "table"]
    assert 'id="fabric"' in render_html(report, plotlyjs="cdn").decode()
    assert fabric_section(sample_report(), ()) is None
    assert 'id="fabric"' not in render_html(sample_report(), plotlyjs="cdn").decode()


def test_gpus_without_a_name_have_that_of_the_traces() -> None:
    machine = nvswitch()
    nameless = replace(machine, gpus=tuple(replace(gpu, name=None) for gpu in machine.gpus))
    blocks = fabric_blocks(structs.replace(sample_report(), fabric=Fabric((nameless,))))
    (drawn,) = [block for block in blocks if isinstance(block, Drawing)]
    assert drawn.data[0].title == "node-1 · 4 × NVIDIA H200"


def test_a_log_that_tells_nothing_is_no_error() -> None:
    assert nccl_sentence(NcclLog(())) == "NCCL made no communicator that the log names."
    assert connections_table(NcclLog(())) is None
    cut = NcclLog((), communicators=(Communicator("vm:7:0x", 7, at_least=True),))
    assert nccl_sentence(cut) == "NCCL made 1 communicator of at least 7 ranks."


def test_csv_has_the_reference_and_the_quoted_line() -> None:
    files = render_csv_files(with_fabric())
    assert "reference.csv" in CSV_FILES
    rows = list(csv.DictReader(io.StringIO(files["reference.csv"])))
    assert rows[0]["lost_ms"] == "26.3" and rows[1]["lost_ms"] == ""
    (found,) = csv.DictReader(io.StringIO(files["findings.csv"]))
    assert found["evidence"] == f"pairs without P2P=4; logs/log.txt:140  {LINE}"


def test_a_quoted_line_is_a_quotation_in_the_page_and_on_the_terminal() -> None:
    shown = Page(render_html(with_fabric(), plotlyjs="cdn"))
    assert len(shown.all("q")) == 1 and LINE in shown.text()
    assert "Evidence (1)" in shown.text()
    out = io.StringIO()
    print_report(with_fabric(), out, Path("x"), verbose=True)
    assert f"    logs/log.txt:140  {LINE}" in out.getvalue().splitlines()
    assert "    pairs without P2P 4" in out.getvalue().splitlines()


@pytest.mark.parametrize("count", [4, 9])
def test_the_terminal_quotes_few_lines_and_says_how_many_more(count: int) -> None:
    quotes = tuple(
        Evidence(Fact.OTHER, f"line {n} {'x' * 400}", file="f", line=n + 1, subject="log") for n in range(count)
    )
    out = io.StringIO()
    print_report(
        structs.replace(with_fabric(), findings=(replace(FOUND, evidence=quotes),)), out, Path("x"), verbose=True
    )
    lines = [line for line in out.getvalue().splitlines() if "f:" in line and "xxx" in line]
    assert len(lines) == 4 and all(len(line) < 170 for line in lines)
    assert (f"    … and {count - 4} more lines in the report" in out.getvalue()) == (count > 4)


def test_what_came_from_a_log_stays_text() -> None:
    quote = Quote(HOSTILE, 1, HOSTILE)
    log = replace(shm_log(HOSTILE, detail=HOSTILE), files=(HOSTILE,), nccl_versions=(HOSTILE,), warnings=(quote,))
    found = replace(FOUND, evidence=(Evidence(Fact.OTHER, HOSTILE, file=HOSTILE, line=1, subject=HOSTILE),))
    hostile = Fabric((nvswitch(4, HOSTILE),), log, problems=((HOSTILE, HOSTILE),))
    odd = structs.replace(row(group=HOSTILE, op=HOSTILE), reference_source=HOSTILE)
    report = structs.replace(sample_report(), fabric=hostile, findings=(found,), tables=Tables(reference=(odd,)))
    shown = Page(render_html(report, plotlyjs="cdn"))
    assert shown.mismatched == []
    assert not any("onerror" in attributes for _, attributes in shown.elements)
