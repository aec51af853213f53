"""What a product says, as blocks that know nothing of a file format; `render/writers/` turn them into HTML, terminal
text and Markdown. A product describes itself once as a `Document`. Text is data: writers escape it, nothing in it is
markup."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec
from msgspec import Struct

from traceops.core.findings import Check, Confidence, Finding
from traceops.core.words import STEP, StepWords
from traceops.render.cells import Cell, Table

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
    """One step on several ranks, on one clock: a lane each over ms from 0 to `end_ms`. `label` says what it shows to
    those who cannot see it; `kinds` are those of its pieces."""

    kind: ClassVar[str] = "aligned"
    id: str
    label: str
    lanes: tuple[StepLane, ...]
    end_ms: float
    kinds: tuple[PieceKind, ...]


Place = tuple[int | None, int | None]  # step and rank on the timeline; None: the first, or none in particular
Level = Literal["error", "warning", "info", "clear"]
Style = Literal["", "bold", "code", "soft", "quote", "name", "cost slower", "cost faster", "badge"]


class Span(msgspec.Struct, frozen=True):
    """A piece of a line. href: '#id' of a section of the same document, or empty."""

    text: str
    style: Style = ""
    href: str = ""
    title: str = ""


Words: TypeAlias = str | Span


class Text(msgspec.Struct, frozen=True):
    """A paragraph. look: 'soft' for what explains a figure, else a class of the page's style sheet. indent: columns of
    the first line and of the further ones, on a terminal."""

    kind: ClassVar[str] = "text"
    spans: tuple[Span, ...]
    look: str = ""
    indent: tuple[int, int] = (0, 0)

    @property
    def plain(self) -> str:
        """The words alone."""
        return "".join(span.text for span in self.spans)


class Heading(msgspec.Struct, frozen=True):
    """A heading inside a section: level 3 or 4."""

    kind: ClassVar[str] = "heading"
    text: str
    level: Literal[3, 4] = 3


class Items(msgspec.Struct, frozen=True):
    """A list; an item is a line of its own, or several blocks. look: a class of the page's style sheet."""

    kind: ClassVar[str] = "items"
    items: tuple[tuple[Block, ...], ...]
    ordered: bool = False
    look: str = ""


class TableBlock(msgspec.Struct, frozen=True):
    """A table. look: 'narrow' is only as wide as its cells."""

    kind: ClassVar[str] = "table"
    table: Table
    look: str = ""


class Chart(msgspec.Struct, frozen=True):
    """A figure in plotly's JSON schema; `label` says what it shows to those who cannot see it. Pages draw it as SVG
    (`render/svg/`), notebooks and exports by plotly."""

    kind: ClassVar[str] = "chart"
    id: str
    label: str
    figure: dict[str, Any]


class Drawing(msgspec.Struct, frozen=True):
    """A figure that a template of its own draws as SVG: `template` names a macro of `templates/_<template>.html.j2`.
    `data` is what that macro takes; only the HTML writer shows it."""

    kind: ClassVar[str] = "drawing"
    template: str
    data: tuple[Any, ...]


class StepTimeline(msgspec.Struct, frozen=True):
    """What ranks did in any step, to zoom into: a page draws it by `templates/step_timeline.js`, which takes `data`.
    `instead` is what all other writers show, and a page whose script does not run."""

    kind: ClassVar[str] = "step_timeline"
    id: str
    label: str
    data: dict[str, Any]
    instead: tuple[Block, ...]


class FindingBlock(msgspec.Struct, frozen=True):
    """A finding with its evidence. id: where links find it. proof: the section that shows it, ("Steps", "#steps").
    place: step and rank at which the page's timeline shows it, None without one. words: for what its times are of."""

    kind: ClassVar[str] = "finding"
    finding: Finding
    evidence: Table
    id: str = ""
    proof: tuple[str, str] = ("", "")
    place: Place | None = None
    words: StepWords = STEP


class Checks(msgspec.Struct, frozen=True):
    """What each rule says."""

    kind: ClassVar[str] = "checks"
    caption: str
    checks: tuple[Check, ...]
    titles: dict[str, str]


class Term(msgspec.Struct, frozen=True):
    """A word and what it means; `key` is its name in the files, `colour` that of its figures."""

    label: str
    definition: str
    key: str = ""
    colour: str = ""


class Answer(msgspec.Struct, frozen=True):
    """What a reader needs first: short lines under labels (where, why, what to do), and what it costs as bars. note:
    what the bars rest on."""

    kind: ClassVar[str] = "answer"
    lines: tuple[tuple[str, tuple[Block, ...]], ...]
    costs: tuple[Cost, ...] = ()
    note: str = ""


class Terms(msgspec.Struct, frozen=True):
    """Definitions."""

    kind: ClassVar[str] = "terms"
    terms: tuple[Term, ...]


class Facts(msgspec.Struct, frozen=True):
    """Short facts, each under its label."""

    kind: ClassVar[str] = "facts"
    facts: tuple[tuple[str, Cell], ...]


class Code(msgspec.Struct, frozen=True):
    """Lines to copy as they are."""

    kind: ClassVar[str] = "code"
    lines: tuple[str, ...]
    label: str = ""
    look: str = "export"


class Fold(msgspec.Struct, frozen=True):
    """Blocks behind a summary, which opens them."""

    kind: ClassVar[str] = "fold"
    summary: tuple[Span, ...]
    blocks: tuple[Block, ...]
    open: bool = False


Block: TypeAlias = (
    Text | Heading | Items | TableBlock | Chart | Drawing | StepTimeline | FindingBlock | Checks | Terms | Facts | Code
    | Fold | Answer | AlignedSteps
)  # fmt: skip


class Section(msgspec.Struct, frozen=True):
    """A part under a heading; `nav` is its name in the list of sections, the heading if empty. brief: what a reader
    sees of it while it is closed; None where it is always open. open: whether it is at first."""

    id: str
    heading: str
    blocks: tuple[Block, ...]
    nav: str = ""
    brief: str | None = None
    open: bool = True


class Headline(msgspec.Struct, frozen=True):
    """The sentence that a document opens with, and the worst severity it speaks of, 'clear' if none."""

    level: Level
    sentence: str


class Document(msgspec.Struct, frozen=True):
    """All that is said of one run, hang, machine or comparison. title: of the window. heading, command: what it is
    about and who says so (``traceops analyze``). intro: blocks between the verdict and the list of sections. footer:
    what comes last. styles, scripts: files in templates/. files: written beside the page."""

    title: str
    heading: tuple[Span, ...]
    command: str
    verdict: Headline
    intro: tuple[Block, ...]
    sections: tuple[Section, ...]
    footer: str
    styles: tuple[str, ...] = ("summary.css",)
    scripts: tuple[str, ...] = ()
    files: frozenset[str] = frozenset()

    @property
    def charts(self) -> dict[str, dict[str, Any]]:
        """The figures by id, in order."""
        return {block.id: block.figure for block in self.all_blocks if isinstance(block, Chart)}

    @property
    def all_blocks(self) -> tuple[Block, ...]:
        """Every block in reading order, those inside lists and behind summaries too."""
        return tuple(_flat([*self.intro, *(block for section in self.sections for block in section.blocks)]))


def _flat(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Fold):
            yield from _flat(block.blocks)
        elif isinstance(block, StepTimeline):
            yield from _flat(block.instead)
        elif isinstance(block, Items):
            for item in block.items:
                yield from _flat(item)


def spans(*words: Words) -> tuple[Span, ...]:
    """Strings and spans as spans; empty ones left out."""
    made = (Span(word) if isinstance(word, str) else word for word in words)
    return tuple(span for span in made if span.text)


def text(*words: Words, look: str = "", indent: tuple[int, int] = (0, 0)) -> Text:
    """A paragraph of strings and spans."""
    return Text(spans(*words), look, indent)


def soft(*words: Words) -> Text:
    """A paragraph that explains what stands beside it."""
    return Text(spans(*words), "soft")


def bold(word: str) -> Span:
    return Span(word, "bold")


def code(word: str) -> Span:
    return Span(word, "code")


def items(lines: Sequence[Words | Text | Sequence[Block]], look: str = "", *, ordered: bool = False) -> Items:
    """A list whose items are strings, spans, texts or sequences of blocks."""
    made: list[tuple[Block, ...]] = []
    for line in lines:
        one = text(line) if isinstance(line, (str, Span)) else line
        made.append((one,) if isinstance(one, Text) else tuple(one))
    return Items(tuple(made), ordered, look)


def fold(summary: Words | Sequence[Words], *blocks: Block, open: bool = False) -> Fold:
    """Blocks behind a summary."""
    words = (summary,) if isinstance(summary, (str, Span)) else tuple(summary)
    return Fold(spans(*words), blocks, open)
