"""JSON documents: read back, in this version and the first, as their schemas say, and written whole or not at all."""

from __future__ import annotations

import errno
import gzip
import inspect
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest
from msgspec import UNSET, Meta, UnsetType

from traceops.core.documents import json_text
from traceops.core.errors import InputError
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.measure.ledger import BUCKETS
from traceops.pipeline.analyze import analyze
from traceops.render.files import write_files
from traceops.report.document import document_of, load_object, report_of, to_json_object
from traceops.report.model import ReportDocument
from traceops.report.rows import RankRow, StepRow
from traceops.report.step_times import Ledger
from traceops.schemas import DOCUMENTS, SchemaDocument, _classes, schema, schema_path, schema_text
from traceops.words.catalogue import sections

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
    path.write_text(json_text(document_of(report)))
    assert load_report(str(path)) == document_of(report)


def test_unknown_keys_are_ignored_and_missing_ones_at_their_defaults() -> None:
    value = to_json_object(analyze(DATA / "slow_loader4"))
    value["later"] = value["run"]["later"] = 1
    del value["inventory"], value["run"]["git"], value["steps"][0]["kernels"]
    report = report_of(value, "report.json")
    assert report.inventory is None and report.run.git is None and report.steps[0].kernels is None


def test_a_number_that_only_another_version_knows_keeps_its_name() -> None:
    read = msgspec.json.decode(b'{"fact": "gpu_busy", "value": 1, "metric": "GPU busy"}', type=Evidence)
    assert (read.fact, read.metric, read.value) == (Fact.OTHER, "GPU busy", 1)


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


# The JSON Schemas: made from the documents' types, and as the types are now.


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Quote:
    """A line
    of a file."""

    text: str
    line: Annotated[int, Meta(ge=1, description="From 1.")] | None = None


class Part(msgspec.Struct, forbid_unknown_fields=True):
    share: Annotated[float, Meta(gt=0, lt=1)]
    points: tuple[tuple[float, str], ...] = ()
    below: list[Part] = []


class Whole(msgspec.Struct, kw_only=True):
    part: Annotated[Part | None, Meta(description="The part.")]
    quotes: Annotated[list[Quote], Meta(min_length=1)]
    colour: Colour | None = None
    kind: Literal["IB", None] = None
    counts: dict[str, Annotated[int, Meta(ge=0)]] = {}
    other: dict[str, Any] = {}
    rare: int | UnsetType = UNSET


SCHEMA = schema("whole", SchemaDocument(Whole, "A whole", "Of parts.", closed=(Quote,)))
RIGHT: dict[str, Any] = {
    "part": {"share": 0.5, "points": [[1.0, "a"]], "below": []},
    "quotes": [{"text": "x", "line": 1}],
    "colour": "red",
    "kind": None,
    "counts": {"a": 0},
    "other": {"b": [None]},
}


def test_what_the_types_allow_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(RIGHT, SCHEMA)
    jsonschema.validate({**RIGHT, "part": None, "kind": "IB", "colour": None, "rare": 1, "new": 1}, SCHEMA)
    assert SCHEMA["$defs"]["Quote"]["description"] == "A line of a file."
    assert SCHEMA["properties"]["part"]["description"] == "The part."
    assert SCHEMA["$schema"] and SCHEMA["$id"] == "urn:traceops:whole.schema.json"
    assert (SCHEMA["title"], SCHEMA["description"]) == ("A whole", "Of parts.")


@pytest.mark.parametrize(
    "wrong",
    [
        {"part": {"share": 1.0, "points": [], "below": []}},
        {"part": {"share": 0.5, "points": [[1.0]], "below": []}},
        {"part": {"share": 0.5, "points": [], "below": [], "more": 1}},
        {"part": {"share": 0.5, "points": []}},
        {"quotes": []},
        {"quotes": [{"text": "x", "line": 0}]},
        {"quotes": [{"text": "x", "line": 1, "more": 1}]},
        {"quotes": [{"text": "x"}]},
        {"colour": "green"},
        {"kind": "other"},
        {"counts": {"a": -1}},
        {"rare": None},
    ],
)
def test_what_they_forbid_is_not(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**RIGHT, **wrong}, SCHEMA)


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_a_schema_is_that_of_the_types(name: str) -> None:
    """If this fails: `python -m traceops.schemas`."""
    text = schema_path(name).read_text(encoding="utf-8")
    assert text == schema_text(name)
    jsonschema.Draft202012Validator.check_schema(json.loads(text))


def test_every_meaning_is_of_a_field() -> None:
    """words/fields.ini describes what is there, by the names of types and fields."""
    known: dict[str, set[str]] = {}
    for document in DOCUMENTS.values():
        for kind in _classes(document.type).values():
            for one in kind.__mro__:
                known.setdefault(one.__name__, set()).update(inspect.get_annotations(one))
    stale = {name: own.keys() - known.get(name, set()) for name, own in sections("fields").items()}
    assert len(stale) > 90 and not any(stale.values()), {name: own for name, own in stale.items() if own}


def test_two_types_of_one_name_are_refused() -> None:
    other = msgspec.defstruct("Part", [("x", int)])
    both = msgspec.defstruct("Both", [("a", Part), ("b", other)])
    with pytest.raises(TypeError, match="Part"):
        schema("both", SchemaDocument(both, "", ""))


# Every product's folder holds the whole old report or the whole new one, whichever operation fails on the way.


OWN = {"page.html", "report.json", "rows.csv", "more.csv"}
FIRST = {"page.html": "old page", "report.json": "{}", "rows.csv": "old"}
SECOND: dict[str, str | bytes] = {"page.html": b"new page", "report.json": "{1}", "more.csv": "new"}
_CALLS = ("open", "replace", "rename", "link", "mkdir", "write")


def failing(patch: pytest.MonkeyPatch, at: int) -> list[str]:
    """Has the call number `at` of all that change files fail as on a full disk; the calls so far, by name."""
    calls: list[str] = []

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == at:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*args, **options)

        return call

    for name in _CALLS:
        patch.setattr(os, name, wrapped(name, getattr(os, name)))
    return calls


def test_whichever_call_fails_the_report_is_the_old_one_or_the_new_one(tmp_path: Path) -> None:
    old = {name: str(text) for name, text in FIRST.items()}
    new = {name: text.decode() if isinstance(text, bytes) else text for name, text in SECOND.items()}
    failures = 0
    for at in range(1, 200):
        folder = tmp_path / str(at)
        write_files(FIRST, OWN, folder)
        with pytest.MonkeyPatch.context() as patch:
            calls = failing(patch, at)
            try:
                write_files(SECOND, OWN, folder)
                expected = new
            except InputError as error:
                expected, failures = old, failures + 1
                assert str(folder) in str(error) and "No space left on device" in str(error)
        assert {path.name: path.read_text() for path in folder.iterdir()} == expected
        if len(calls) < at:
            break
    assert failures >= 2 * len(SECOND)
