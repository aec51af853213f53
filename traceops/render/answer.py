"""Parts of the answer that a document opens with: what a step costs, and one step of several ranks on one clock."""

from __future__ import annotations

from typing import ClassVar, Literal

from msgspec import Struct

from traceops.core.findings import Confidence

# How sure a finding is, in words.


SURE: dict[Confidence, str] = {
    "high": "High",
    "medium": "Medium: likely; check it before you act",
    "low": "Low: a hint, no proof",
}


class Cost(Struct, frozen=True):
    """How long a step takes, ms: a bar. least_ms: where it may be anything from there to `ms`."""

    label: str
    ms: float
    text: str
    least_ms: float | None = None
    look: Literal["now", "then", "worse"] = "now"


class Piece(Struct, frozen=True):
    """A stretch of a lane, ms since the first lane begins; `key` names its kind."""

    key: str
    start_ms: float
    duration_ms: float


class PieceKind(Struct, frozen=True):
    """What a piece can be: its key, what people call it, and its colour."""

    key: str
    label: str
    colour: str


class Mark(Struct, frozen=True):
    """A stretch of a lane that is pointed out, ms, and what is said of it."""

    start_ms: float
    end_ms: float
    text: str
    colour: str = ""


class StepLane(Struct, frozen=True):
    """What one rank does in a step, for itself or as the example of others. blamed: it is the cause."""

    label: str
    pieces: tuple[Piece, ...]
    marks: tuple[Mark, ...] = ()
    blamed: bool = False


class AlignedSteps(Struct, frozen=True):
    """One step on several ranks, on one clock: a lane each over ms from 0 to `end_ms`.

    `label` says what it shows to those who cannot see it; `kinds` are those of its pieces.
    """

    kind: ClassVar[str] = "aligned"
    id: str
    label: str
    lanes: tuple[StepLane, ...]
    end_ms: float
    kinds: tuple[PieceKind, ...]
