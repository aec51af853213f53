"""The JSON Schemas: made from the documents' types, and as the types are now."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest
from msgspec import UNSET, Meta, UnsetType

from traceops.schemas import DOCUMENTS, SchemaDocument, schema, schema_path, schema_text


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


def test_two_types_of_one_name_are_refused() -> None:
    other = msgspec.defstruct("Part", [("x", int)])
    both = msgspec.defstruct("Both", [("a", Part), ("b", other)])
    with pytest.raises(TypeError, match="Part"):
        schema("both", SchemaDocument(both, "", ""))
