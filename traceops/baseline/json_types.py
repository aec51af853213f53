"""What history.json holds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from traceops.baseline.entry import Key
from traceops.baseline.store import Problem
from traceops.core.documents import Tool

SCHEMA_VERSION = 1
LevelVerdict = Literal["worse", "better", "neither"]


class CaptureJson(msgspec.Struct, frozen=True):
    """A capture: where it lies, where it came from, and its value of each metric."""

    url: str
    started_ns: int | None
    saved_ns: int
    commit: str | None
    dirty: bool | None
    branch: str
    source: str
    values: dict[str, float | None]


class CommitJson(msgspec.Struct, frozen=True):
    """Captures of one commit, in time order."""

    commit: str | None
    label: str
    captures: tuple[CaptureJson, ...]


class LevelChangeJson(msgspec.Struct, frozen=True):
    """A lasting change of a metric."""

    text: str
    position: Annotated[int, Meta(ge=0)]
    since_commit: str | None
    since: str
    last_commit_before: str | None
    before: float
    after: float
    change_pct: float | None
    p: float
    verdict: LevelVerdict


class TrendJson(msgspec.Struct, frozen=True):
    """A metric over the key's commits."""

    metric: str
    label: str
    unit: str
    better: Literal["lower", "higher", "neither"]
    values: tuple[float | None, ...]
    changes: tuple[LevelChangeJson, ...]


class KeyJson(msgspec.Struct, frozen=True):
    """Captures with one key."""

    slug: str
    key: Key
    commits: tuple[CommitJson, ...]
    trends: tuple[TrendJson, ...]


class HistoryDocument(msgspec.Struct, frozen=True, kw_only=True):
    """All of history.json."""

    schema_version: Annotated[int, Meta(extra_json_schema={"const": SCHEMA_VERSION})] = SCHEMA_VERSION
    tool: Tool = Tool()
    store: str
    keys: tuple[KeyJson, ...]
    problems: tuple[Problem, ...]
