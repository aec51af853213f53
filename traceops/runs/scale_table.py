"""Throughput by number of ranks as a table of somebody else's measurements, in place of runs."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence

from msgspec import Struct

from traceops.core.errors import InputError

_RANKS = re.compile(r"^(?:n(?:um)?[ _]?)?(?:gpus?|ranks?|nproc|world[ _]size|devices|accelerators)\b")
_RATE = re.compile(
    r"^(?:throughput|speed)\b|\b(?:samples|images|imgs?|tokens|tok|sequences|seqs?|examples|items)[ _]?(?:/|per|p)[ _]?"
    r"s(?:ec(?:ond)?)?\b"
)
_STEP = re.compile(
    r"\b(?:step|iter(?:ation)?|batch)[ _]?(?:time)?.*\b(ms|s|sec|seconds)\b|^(?:ms|s)[ _]?(?:/|per)[ _]?step"
)
_SAMPLES = re.compile(r"^(?:global[ _]batch(?:[ _]size)?|samples[ _](?:per|a)[ _]step)$")
_EACH = re.compile(r"^(?:(?:micro|local|per[ _]gpu)[ _]?)?batch(?:[ _]size)?(?:[ _](?:per[ _]gpu|per[ _]rank))?$")
_HEADINGS = {"ranks": _RANKS, "rate": _RATE, "step": _STEP, "samples": _SAMPLES, "each": _EACH}
_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?")


class TableRow(Struct, frozen=True):
    """One measurement, of all ranks together. rate: samples (images, tokens) per second. samples: of a step."""

    ranks: int
    rate: float
    samples: float | None = None


def read_table(text: str, name: str) -> list[TableRow]:
    """Rows of a table with a heading: CSV, tabs, semicolons, Markdown or columns of blanks.

    The heading names the ranks (`gpus`, `ranks`, `nproc`) and either a throughput (`samples/s`, `images/s`,
    `tokens/s`, `throughput`) or a step time with its unit (`step ms`) beside a batch (`batch size` of a rank, or
    `global batch size`). Raises InputError that says what is missing.
    """
    rows = _cells(text)
    headings = ((at, _columns(heads)) for at, heads in enumerate(rows))
    at, found = next(((at, columns) for at, columns in headings if "ranks" in columns), (0, {}))
    if not found:
        raise InputError(f"{name} has no column of ranks: name one of the heading's columns gpus, ranks or nproc")
    heads = rows[at]
    if "rate" not in found and not ("step" in found and found.keys() & {"samples", "each"}):
        raise InputError(
            f"{name} has no throughput: name a column samples/s, images/s, tokens/s or throughput, or give step ms and "
            f"batch size. Its heading is: {', '.join(heads)}"
        )
    made = [row for cells in rows[at + 1 :] if (row := _row(cells, heads, found)) is not None]
    if len({row.ranks for row in made}) < 2:
        raise InputError(f"{name} has {len(made)} rows with numbers; scaling needs two numbers of ranks or more")
    return made


def _cells(text: str) -> list[list[str]]:
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#") and set(line) - set("|+-=: ")]
    if any(line.count("|") > 1 for line in lines):
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    for mark in ("\t", ";", ","):
        if lines and mark in lines[0]:
            made = csv.reader(io.StringIO("\n".join(lines)), delimiter=mark, skipinitialspace=True)
            return [[cell.strip() for cell in row] for row in made]
    return [re.split(r"\s{2,}" if re.search(r"\S\s{2,}\S", line) else r"\s+", line) for line in lines]


def _columns(heads: Sequence[str]) -> dict[str, int]:
    """Which column is which; the first that fits."""
    found: dict[str, int] = {}
    for place, head in enumerate(heads):
        plain = re.sub(r"[()\[\]*`#]", " ", head.casefold()).strip()
        if (what := next((what for what, pattern in _HEADINGS.items() if pattern.search(plain)), None)) is not None:
            found.setdefault(what, place)
    return found


def _row(cells: Sequence[str], heads: Sequence[str], found: dict[str, int]) -> TableRow | None:
    """None for a row without the numbers that are needed, as a line of text below the table."""
    given = {what: _number(cells[place]) if place < len(cells) else None for what, place in found.items()}
    ranks, rate, step = (given.get(what) for what in ("ranks", "rate", "step"))
    if ranks is None or ranks != int(ranks):
        return None
    if (samples := given.get("samples")) is None and given.get("each") is not None:
        samples = (given["each"] or 0.0) * ranks
    if rate is None and step and samples:
        unit = _STEP.search(heads[found["step"]].casefold())
        rate = samples / (step / 1e3 if unit is None or (unit[1] or "ms") == "ms" else step)
    return TableRow(int(ranks), rate, samples or None) if rate else None


def _number(cell: str) -> float | None:
    """The number that a cell begins with, above 0: '1,234.5 img/s', '~ 12'."""
    found = _NUMBER.search(cell)
    value = float(found[0].replace(",", "")) if found else math.nan
    return value if 0 < value < 1e15 else None
