"""Reports read back: of this schema version and of version 1, and files that are none."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from traceops.core.errors import InputError
from traceops.measure.ledger import BUCKETS
from traceops.pipeline.analyze import analyze
from traceops.report.document import document_of, load_object, render_json, report_of, to_json_object
from traceops.report.model import ReportDocument
from traceops.report.rows import RankRow, StepRow
from traceops.report.step_times import Ledger

DATA = Path(__file__).parent / "data"


def load_report(path: str) -> ReportDocument:
    return report_of(load_object(path), path)


OLD = sorted((DATA / "reports").glob("*.report.gz"))


@pytest.mark.parametrize("path", OLD, ids=lambda path: path.name.split(".")[0])
def test_a_report_of_version_1_holds_what_it_held(path: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(gzip.decompress(path.read_bytes()))
    value = json.loads((tmp_path / "report.json").read_bytes())
    assert value["schema_version"] == 1
    report = load_report(str(tmp_path / "report.json"))
    assert report.schema_version == 1
    assert [row.duration_ms for row in report.steps] == [row["duration_ms"] for row in value["steps"]]
    assert [finding.message for finding in report.findings] == [f["message"] for f in value["findings"]]
    assert report.summary.ledger_ms.compute == value["summary"]["ledger_ms"]["compute"]
    assert report.run.name == value["run"]["name"]


@pytest.mark.parametrize("run", ["slow_loader4", "hta/cpu_only"])
def test_what_is_written_is_read_back_as_it_was(run: str, tmp_path: Path) -> None:
    report = analyze(DATA / run)
    path = tmp_path / "report.json"
    path.write_text(render_json(report))
    assert load_report(str(path)) == document_of(report)


def test_unknown_keys_are_ignored_and_missing_ones_at_their_defaults() -> None:
    value = to_json_object(analyze(DATA / "slow_loader4"))
    value["later"] = value["run"]["later"] = 1
    del value["inventory"], value["run"]["git"], value["steps"][0]["kernels"]
    report = report_of(value, "report.json")
    assert report.inventory is None and report.run.git is None and report.steps[0].kernels is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not valid JSON"),
        ("[]", "no report.json"),
        ('{"schema_version": 3}', "schema version 3, this traceops reads 1 and 2"),
        ('{"run": {}, "ranks": [], "steps": [{"rank": "x", "duration_ms": 1}]}', "$.steps[0].rank"),
        ('{"run": {}, "ranks": [], "steps": [{"rank": 0, "duration_ms": 1e301}]}', "$.steps[0].duration_ms"),
    ],
)
def test_what_is_no_report_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_report(str(path))
    assert said in str(caught.value) and str(path) in str(caught.value)


def test_rows_and_ledger_have_a_field_for_each_bucket() -> None:
    assert Ledger.__struct_fields__ == BUCKETS
    assert [name for name in StepRow.__struct_fields__ if name in BUCKETS] == list(BUCKETS)
    own = [name.removesuffix("_ms") for name in RankRow.__struct_fields__]
    assert [name for name in own if name in BUCKETS] == list(BUCKETS)
