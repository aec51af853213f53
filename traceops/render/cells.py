"""Tables as data: cells with the digits, titles and marks that a template only has to print."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from traceops.core.text import short_name
from traceops.core.units import UNKNOWN, number_text, size_text, three_digits
from traceops.core.words import STEP, WINDOW, StepWords
from traceops.words.catalogue import sections

Row = TypeVar("Row")
_CLOSE = 0.01  # values within 1 % of each other have no worst one


class Cell(Struct, frozen=True):
    """`text` is shown, `title` on hover, `full` unfolds below the text; `css` is never from a trace. `href`: a page
    beside this one, quoted, beginning with './'. `value`: the number that a text with a unit stands for, by which
    tables are sorted. part: percent of the cell that a bar of `colour` takes."""

    text: str
    title: str = ""
    css: str = ""
    full: str = ""
    colour: str = ""
    href: str = ""
    value: float | None = None
    part: float | None = None

    @property
    def plain(self) -> bool:
        """Whether there is nothing but its text."""
        return self.value is None and not (self.title or self.css or self.full or self.colour or self.href)


NOT_KNOWN = Cell(UNKNOWN, "not known", "unknown")
_WORST = ("worst in this column", "worst")  # title and css


class Column(Struct, frozen=True):
    """How a field of the rows is shown: an attribute of theirs, or a key where they are mappings. `worst` marks the
    highest or lowest value over the rows, if they lie more than `apart` apart; `make` replaces the number by a cell of
    its own."""

    key: str
    label: str
    title: str = ""
    unit: str = ""
    worst: Literal["max", "min"] | None = None
    number: bool = True
    decimals: int | None = None
    scale: float = 1.0
    apart: float = 0.0
    css: str = ""
    make: Callable[[Any], Cell] | None = None


class Table(Struct, frozen=True):
    """Ready to print; the first cell of each row is the row's header. file: the CSV file that has all of its rows."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footer: tuple[tuple[Cell, ...], ...] = ()
    note: str = ""
    file: str = ""


def build_table(
    caption: str, columns: Sequence[Column], rows: Sequence[Any], *, note: str = "", summarize: Sequence[Any] = (),
    file: str = "", most: int | None = None, total: int | None = None, rest_in: str = "",
) -> Table:  # fmt: skip
    """Cells for `rows`; the same number of decimals down a column. `summarize`: the rows that least, median and most
    below the table are taken over, none if empty. `most`: of more rows the first ones are shown, and the note says how
    many others `file` has, or else `rest_in`. total: how many there are, where `rows` are not all."""
    total, rows = total or len(rows), rows[:most]
    if total > len(rows):
        note = f"{total - len(rows)} more in {file or rest_in or 'report.json'}."
    made = [_column_cells(column, rows) for column in columns]
    footer: tuple[tuple[Cell, ...], ...] = ()
    if summarize:
        footer = tuple(
            (Cell(name), *(_summary_cell(column, summarize, pick) for column in columns[1:]))
            for name, pick in (("least", min), ("median", _median), ("most", max))
        )
    return Table(caption, tuple(columns), tuple(zip(*made, strict=True)) if rows else (), footer, note, file)


def table_of(
    kind: str, rows: Sequence[Any], words: StepWords = STEP, *,
    make: Mapping[str, Callable[[Any], Cell]] | None = None, columns: Sequence[Column] = (),
    without: Collection[str] = (), apart: Mapping[str, float] | None = None, facts: Mapping[str, str] | None = None,
    note: str = "", summarize: Sequence[Any] = (), most: int | None = None, total: int | None = None,
) -> Table:  # fmt: skip
    """The table that words/tables.ini declares as [`kind`], of these rows. make: the cells of a field, where they are
    not its value. columns: those that stand in place of a field of theirs, and the others where '*' is. without: fields
    that are left out. apart: as `Column` takes it, by field. facts: what else its texts name."""
    declared = sections("tables")[kind]
    known = {name: getattr(words, name) for name in ("per", "the", "a", "noun", "rate", "heading")}
    known |= {"Noun": words.noun.capitalize(), **(facts or {})}

    def said(key: str) -> str:
        own = declared.get(f"window.{key}") if words is WINDOW else None
        return (declared.get(key, "") if own is None else own).format_map(known)

    own = {column.key: column for column in columns}
    shown: list[Column] = []
    for key in declared:
        if key == "*":
            shown += [column for column in columns if column.key not in declared]
        elif key[0] != "@" and not key.startswith("window.") and key not in without:
            column = own.get(key) or _declared(key, said(key), (make or {}).get(key), (apart or {}).get(key, 0.0), rows)
            shown += [] if column is None else [column]
    return build_table(
        said("@caption"), shown, rows, note=note, summarize=summarize, file=said("@file"), most=most,
        total=total, rest_in=said("@rest"),
    )  # fmt: skip


def _declared(
    key: str, text: str, make: Callable[[Any], Cell] | None, apart: float, rows: Sequence[Any]
) -> Column | None:
    """A column as a line declares it; None where it is left out."""
    label, title, form = (*(part.strip() for part in text.split("|")), "", "")[:3]
    options = form.split()
    if "?" in options and not any(value_of(row, key) for row in rows):
        return None
    decimals = next((int(one[1:]) for one in options if one[0] == "."), None)
    scale = next((float(one[1:]) for one in options if one[0] == "x"), 1.0)
    worst: Literal["max", "min"] | None = "max" if "max" in options else "min" if "min" in options else None
    css = next((one for one in options if one in ("meaning", "ledger", "bar")), "")
    return Column(
        key, label, title, worst=worst, number="text" not in options, decimals=decimals, scale=scale, apart=apart,
        css=css, make=make,
    )  # fmt: skip


def number(value: Any, decimals: int | None = None) -> Cell:
    """A number cell; about three digits without `decimals`; an unknown one is a dash that says so."""
    known = _float(value)
    return NOT_KNOWN if known is None else Cell(number_text(known, decimals))


def blank_or(value: Any, decimals: int | None = None) -> Cell:
    """A number cell; an empty one where there is nothing to say."""
    return Cell("") if value is None else number(value, decimals)


def size(nbytes: Any) -> Cell:
    """Bytes for people: 33.6 MB, with the exact count as title. Units of 1000, as bandwidths are."""
    known = _float(nbytes)
    return NOT_KNOWN if known is None else Cell(size_text(known), f"{known:,.0f} bytes", value=known)


def sizes_apart(sizes: Sequence[int | None]) -> Callable[[int | None], Cell]:
    """Cells for sizes of one column, with as many digits as tell them apart: 33.60 MB and 33.59 MB."""
    known = sorted({nbytes for nbytes in sizes if nbytes is not None})
    decimals = next((n for n in (None, 2, 3, 4) if len({size_text(nbytes, n) for nbytes in known}) == len(known)), 4)

    def cell(nbytes: int | None) -> Cell:
        shown = size(nbytes)
        return shown if nbytes is None else replace(shown, text=size_text(nbytes, decimals))

    return cell


def name(text: str, limit: int = 72) -> Cell:
    """A kernel or operator, shortened where it is long; the whole name unfolds."""
    short = short_name(text, limit)
    return Cell(short, text if short != text else "", "name", text if short != text else "")


def word(value: Any) -> Cell:
    """A fact; one that is not known is a dash that says so."""
    return NOT_KNOWN if value in (None, "") else Cell(str(value)[:120], str(value))


def share(pct: float | None, colour: str) -> Cell:
    """Percent, with a bar as long behind the number."""
    cell = number(pct, 1)
    return cell if pct is None else replace(cell, css="bar", colour=colour, part=min(max(pct, 0.0), 100.0))


def rows_of(rows: Sequence[Row], shown: Sequence[int]) -> list[Row]:
    """The rows of these ranks, in their order."""
    wanted = set(shown)
    return [row for row in rows if value_of(row, "rank") in wanted]


def value_of(row: Any, key: str) -> Any:
    """What a row has under a name; None if nothing."""
    return row.get(key) if type(row) is dict or isinstance(row, Mapping) else getattr(row, key, None)


def _column_cells(column: Column, rows: Sequence[Any]) -> list[Cell]:
    if column.make is not None:
        return [column.make(row) for row in rows]
    if not column.number:
        return [_word(value_of(row, column.key)) for row in rows]
    values = [_scaled(column, row) for row in rows]
    known = [value for value in values if value is not None]
    decimals = three_digits(known) if column.decimals is None else column.decimals
    worst = _worst(column, known)
    return [
        NOT_KNOWN if value is None else Cell(number_text(value, decimals), *(_WORST if value == worst else ()))
        for value in values
    ]


def _summary_cell(column: Column, rows: Sequence[Any], pick: Callable[[list[float]], float]) -> Cell:
    if not column.number or column.make is not None:
        return Cell("")
    known = [value for row in rows if (value := _scaled(column, row)) is not None]
    decimals = three_digits(known) if column.decimals is None else column.decimals
    return Cell(number_text(pick(known), decimals)) if known else NOT_KNOWN


def _worst(column: Column, known: Sequence[float]) -> float | None:
    if column.worst is None or len(known) < 2:
        return None
    low, high = min(known), max(known)
    if high - low <= max(_CLOSE * max(abs(high), abs(low)), column.apart):
        return None
    worst = high if column.worst == "max" else low
    return worst if list(known).count(worst) <= max(1, len(known) // 4) else None  # many are no exception


def _scaled(column: Column, row: Any) -> float | None:
    value = _float(value_of(row, column.key))
    return None if value is None else value * column.scale


def _word(value: Any) -> Cell:
    if value is None or value == "":
        return NOT_KNOWN
    text = str(value)
    return name(text) if len(text) > 80 else Cell(text)


def _float(value: Any) -> float | None:
    if value is None or isinstance(value, (bool, str)):
        return None
    known = float(value)
    return known if math.isfinite(known) else None


def _median(values: list[float]) -> float:  # the module `statistics` takes longer to import than a page to fill
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
