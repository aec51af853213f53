"""hang.json against its published schema, the `hang` of report.json, and the CSV files of a hang."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import jsonschema
import msgspec
import pytest
from msgspec import structs
from sample_hang import HOSTILE, dead_with_log, many, mismatch, nobody_waits, skipped, two_roots
from sample_report import sample_report

from traceops.core.rule import Verdict
from traceops.hangs.model import Diagnosis
from traceops.render.hang.tables import HANG_CSV_FILES, render_hang_csv_files
from traceops.report.document import render_json
from traceops.report.hang_json import hang_document, hang_json
from traceops.report.write import json_text
from traceops.rules.explained import checks
from traceops.schemas import schema_path

SCHEMA = json.loads(schema_path("hang").read_text())
REPORT_SCHEMA = json.loads(schema_path("report").read_text())
HANG_ONLY = {"$schema": SCHEMA["$schema"], "$ref": "#/$defs/HangJson", "$defs": SCHEMA["$defs"]}
ALL = (skipped(), two_roots(), mismatch(), dead_with_log(), nobody_waits(), nobody_waits(4, 0), many())


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    checked = checks([Verdict(root.rule, not_evaluated="as a test") for root in diagnosis.roots])
    text = json_text(hang_document(diagnosis, sample_report().findings, checked))
    result: dict[str, Any] = json.loads(text)
    return result


def test_schemas_are_valid_and_share_what_a_hang_is() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    shared = SCHEMA["$defs"].keys() & REPORT_SCHEMA["$defs"].keys()
    assert all(SCHEMA["$defs"][name] == REPORT_SCHEMA["$defs"][name] for name in shared)
    assert SCHEMA["$defs"].keys() - shared == {"HangRun"}


@pytest.mark.parametrize("diagnosis", [*ALL, skipped(text=HOSTILE)])
def test_hang_json_keeps_its_contract(diagnosis: Diagnosis) -> None:
    jsonschema.validate(document(diagnosis), SCHEMA)


def test_schema_refuses_a_wrong_hang() -> None:
    wrong = document(skipped())
    del wrong["hang"]["roots"][0]["waiting"]
    with pytest.raises(jsonschema.ValidationError, match="waiting"):
        jsonschema.validate(wrong, SCHEMA)


def test_hang_json_says_who_is_known_and_what_was_read() -> None:
    held = document(dead_with_log())
    assert held["run"]["ranks_present"] == [3] and held["run"]["ranks_missing"] == [0, 1, 2]
    hang = document(skipped())["hang"]
    assert hang["problems"] == [{"file": "evidence/dump_x", "problem": "it is empty"}]
    assert hang["files"][0] == "evidence/dump_0"
    assert hang["stall"]["stalled_s"] == 42.4
    assert hang["waits"] == [
        {"ranks": [0, 1, 2], "on": [3], "why": "has not called it", "group": "default_pg", "op": "all_reduce",
         "sequence": 64}
    ]  # fmt: skip
    assert hang["roots"][0]["evidence"][0] == {"what": "last enqueued by rank 3", "value": "#63 of default_pg"}


@pytest.mark.parametrize("diagnosis", [None, skipped(), nobody_waits()])
def test_report_json_has_the_same_object_or_null(diagnosis: Diagnosis | None) -> None:
    held = json.loads(render_json(structs.replace(sample_report(), hang=diagnosis)))
    assert held["hang"] == (None if diagnosis is None else json.loads(msgspec.json.encode(hang_json(diagnosis))))
    if diagnosis is not None:
        jsonschema.validate(held["hang"], HANG_ONLY)
    jsonschema.validate(held["hang"], {**REPORT_SCHEMA["properties"]["hang"], "$defs": REPORT_SCHEMA["$defs"]})


def test_a_row_a_rank_and_a_row_an_edge() -> None:
    files = render_hang_csv_files(two_roots())
    assert set(files) == set(HANG_CSV_FILES)
    ranks = list(csv.DictReader(io.StringIO(files["hang_ranks.csv"])))
    assert [int(row["rank"]) for row in ranks] == list(range(16))
    assert ranks[14]["state"] == "dead" and ranks[14]["exit_code"] == "137" and ranks[14]["op"] == ""
    waits = list(csv.DictReader(io.StringIO(files["hang_waits.csv"])))
    assert len(waits) == len(two_roots().waits)
    assert waits[0] == {
        "rank": "0",
        "on": "1",
        "group": "pp",
        "op": "recv",
        "sequence": "12",
        "why": "has not called it",
    }


def test_nobody_waiting_still_writes_the_columns() -> None:
    assert render_hang_csv_files(nobody_waits())["hang_waits.csv"] == "rank,on,group,op,sequence,why\n"
