"""The JSON Schemas of the documents that traceops writes, made from their types: `python -m traceops.schemas`.

A key is required if it is always written, so unless its struct has `omit_defaults` or its type `UnsetType`. An object
takes further keys unless its struct has `forbid_unknown_fields` or is listed in `SchemaDocument.closed`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from msgspec import inspect

from traceops.answers import model as answers
from traceops.baseline.entry import Key
from traceops.baseline.json_types import CaptureJson, CommitJson, HistoryDocument, KeyJson, LevelChangeJson, TrendJson
from traceops.baseline.store import Problem
from traceops.compare.model import (
    CaptureInfo,
    Change,
    Comparison,
    Explanation,
    MetricChange,
    OutlierStep,
    Samples,
    Side,
    StepPoint,
    Waiver,
)
from traceops.core.documents import FileProblem, Tool, meanings
from traceops.core.findings import Check, Evidence, Finding
from traceops.doctor.document import DoctorDocument
from traceops.hangs.json_types import HangDocument, RootEvidence
from traceops.memory.model import CategoryMemory, MemoryChange, MemoryEstimate, ModuleMemory, RankMemory
from traceops.report.model import ReportDocument
from traceops.report.step_times import Ledger, StepTime, WorstRank
from traceops.report.summary import Clocks, Matching, Replay
from traceops.runs.row import FindingCount, RunRow, RunsDocument
from traceops.runs.scale import LostPart, PredictionRow, ScaleDocument, SizeRow
from traceops.runs.sweep import LedgerDifference, PointRow, SweepDocument, SweepTrial

FOLDER = Path(__file__).parent
_URN = "urn:traceops:{}.schema.json"


@dataclass(frozen=True)
class SchemaDocument:
    """A kind of file that traceops writes: its type, and the types within that take no further keys."""

    type: Any
    title: str
    description: str
    closed: tuple[Any, ...] = ()


_KEYS = "Keys may be added within a schema version; none is removed or changes its meaning."
DOCUMENTS: dict[str, SchemaDocument] = {
    "compare": SchemaDocument(
        Comparison,
        "traceops compare.json",
        f"What `traceops compare` found. Null means not known, never zero. {_KEYS}",
        closed=(
            Comparison, Tool, Side, CaptureInfo, Samples, MetricChange, Waiver, Change, Explanation, OutlierStep,
            StepPoint, Finding, Evidence, Check,
        ),
    ),
    "doctor": SchemaDocument(
        DoctorDocument,
        "traceops doctor.json",
        "What `traceops doctor` found, and the settings that `traceops run --settings` takes. Null means not known, "
        f"never zero. {_KEYS}",
        closed=(DoctorDocument, Tool, FileProblem, Finding, Evidence, Check),
    ),
    "hang": SchemaDocument(
        HangDocument,
        "traceops hang.json",
        f"What `traceops diagnose` found. Null means not known, never zero. {_KEYS}",
        closed=(HangDocument, Tool, RootEvidence, FileProblem, Finding, Evidence, Check),
    ),
    "history": SchemaDocument(
        HistoryDocument,
        "traceops history.json",
        f"What `traceops baseline history` found. Null means not known, never zero. {_KEYS}",
        closed=(
            HistoryDocument, Tool, KeyJson, Key, CommitJson, CaptureJson, TrendJson, LevelChangeJson, Problem,
        ),
    ),
    "memory": SchemaDocument(
        MemoryEstimate,
        "traceops memory.json",
        "What `traceops memory --json` writes: what a training would need of each GPU. Null means not known, never "
        f"zero. {_KEYS}",
        closed=(MemoryEstimate, RankMemory, CategoryMemory, ModuleMemory, MemoryChange),
    ),
    "report": SchemaDocument(
        ReportDocument,
        "traceops report.json",
        "What `traceops analyze` found. Times in the unit of the key's ending; null means not known, never zero. "
        f"{_KEYS}",
        closed=(
            ReportDocument, Tool, StepTime, Ledger, WorstRank, Matching, Clocks, Replay, RootEvidence, FileProblem,
            Finding, Evidence, Check,
        ),
    ),
    "runs": SchemaDocument(
        RunsDocument,
        "traceops runs.json",
        "Several runs that `traceops analyze` was given, a row each. Times in the unit of the key's ending; null means "
        f"not known, never zero. {_KEYS}",
        closed=(RunsDocument, Tool, RunRow, FindingCount, Ledger),
    ),
    "scale": SchemaDocument(
        ScaleDocument,
        "traceops scale.json",
        f"How a training scales, as `traceops scale` found. Null means not known, never zero. {_KEYS}",
        closed=(ScaleDocument, Tool, SizeRow, LostPart, PredictionRow, RunRow, FindingCount, Ledger),
    ),
    "sweep": SchemaDocument(
        SweepDocument,
        "traceops sweep.json",
        f"What `traceops sweep` trained and found. Null means not known, never zero. {_KEYS}",
        closed=(SweepDocument, Tool, PointRow, SweepTrial, LedgerDifference, RunRow, FindingCount, Ledger),
    ),
    "show": SchemaDocument(
        answers.AnyAnswer,
        "What `traceops show --json` prints",
        "One answer about a run; `question` says which. Times in the unit of the key's ending; null means not known, "
        f"never zero. {_KEYS}",
    ),
}  # fmt: skip


def schema_path(name: str) -> Path:
    """Where the schema of the document `name` lies."""
    return FOLDER / f"{name}.schema.json"


def schema_text(name: str) -> str:
    """The text of NAME.schema.json; the same for the same types."""
    return json.dumps(schema(name, DOCUMENTS[name]), indent=1, ensure_ascii=False) + "\n"


def schema(name: str, document: SchemaDocument) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a document. Raises TypeError for types that JSON cannot hold."""
    classes = _classes(document.type)
    (top,), parts = msgspec.json.schema_components([document.type], ref_template="#/$defs/{name}")
    for part, cls in classes.items():
        _say(parts[part], cls, closed=cls in document.closed)
    whole = parts.pop(top["$ref"].rpartition("/")[2]) if "$ref" in top else top
    whole.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": _URN.format(name),
        "title": document.title,
        **whole,
        "description": document.description,
        **({"$defs": dict(sorted(parts.items()))} if parts else {}),
    }


def _say(part: dict[str, Any], cls: Any, *, closed: bool) -> None:
    """What msgspec does not say of an object: what its keys mean, which are always there, and whether others may be."""
    part.pop("title", None)
    if "description" in part:
        part["description"] = " ".join(part["description"].split())
    if "properties" not in part:
        return
    for said in part["properties"].values():
        said.pop("default", None)  # of a document that is read, not of one that is written
    info: Any = inspect.type_info(cls)
    meant = meanings(cls)
    for field in info.fields:
        if field.name in meant:
            part["properties"][field.encode_name]["description"] = meant[field.name]
    sparse = getattr(getattr(cls, "__struct_config__", None), "omit_defaults", False)
    # Left out by default: `inspect` shows neither UNSET nor its type.
    unset = {f.name for f in info.fields if f.default is msgspec.NODEFAULT and f.default_factory is msgspec.NODEFAULT}
    part["required"] = [f.encode_name for f in info.fields if f.required or not (sparse or f.name in unset)]
    if closed:
        part["additionalProperties"] = False


def _classes(top: Any) -> dict[str, Any]:
    """Name in the schema -> class, of every class that `top` holds."""
    found: dict[str, Any] = {}
    seen: set[Any] = set()

    def look(kind: Any) -> None:
        if isinstance(kind, (tuple, list)):
            for one in kind:
                look(one)
        elif isinstance(kind, (inspect.Type, inspect.Field)):
            cls = getattr(kind, "cls", None)
            if isinstance(cls, type):
                if found.setdefault(cls.__name__, cls) is not cls:
                    raise TypeError(f"two types in one schema are called {cls.__name__}")
                if cls in seen:
                    return
                seen.add(cls)
            for name in kind.__struct_fields__:
                look(getattr(kind, name))

    look(inspect.type_info(top))
    return found
