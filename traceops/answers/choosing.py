"""Chooses the rows that a question asks for; an error lists what there is."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from traceops.answers.asked import Asked
from traceops.answers.lines import CollectiveLine
from traceops.answers.opening import Opened
from traceops.core.errors import UsageError
from traceops.core.rank_text import ranks_text
from traceops.rules.registry import BY_ID, family_of

_MOST_LISTED = 20

Row = TypeVar("Row", bound=msgspec.Struct)


def of_group(rows: Sequence[CollectiveLine], group: str) -> Sequence[CollectiveLine]:
    """Those of a group that is called so, or else whose role it is, or else with it in their name."""
    if not group:
        return rows
    for matches in (
        lambda line: line.group == group,
        lambda line: line.role == group,
        lambda line: group.casefold() in line.group.casefold(),
    ):
        if chosen := [line for line in rows if matches(line)]:
            return chosen
    there = dict.fromkeys(f"{line.group or 'no name'} ({line.role or 'role unknown'})" for line in rows)
    raise UsageError(f"there is no group or role {group!r}; groups: {listed(there) or 'none'}")


def check_ranks(found: Opened, ranks: Iterable[int]) -> None:
    there = {row.rank for row in found.report.ranks}
    if found.hang is not None:
        there |= {row.rank for row in found.hang.ranks}
    if missing := sorted(set(ranks) - there):
        raise UsageError(f"rank {missing[0]} is not in this report; ranks: {ranks_text(there) or 'none'}")


def holding(rows: Sequence[Row], field: str, part: str, what: str) -> Sequence[Row]:
    """Those rows whose field is, or else holds, `part`."""
    if not part:
        return rows
    values = [str(getattr(row, field)) for row in rows]
    if part in values:
        return [row for row, value in zip(rows, values, strict=True) if value == part]
    chosen = [row for row, value in zip(rows, values, strict=True) if part.casefold() in value.casefold()]
    if not chosen:
        there = listed(dict.fromkeys(values)) or "none"
        raise UsageError(f"there is no {what} {part!r}{meant(part, set(values))}; there are: {there}")
    return chosen


def ordered(rows: Sequence[Row], asked: Asked, usual: str) -> tuple[str, list[Row]]:
    """The rows by a column of numbers, most first and unknown last; rows that are equal stay in their order."""
    by = asked.by or usual
    if rows and by not in (numbers := _numbers(rows)):
        raise UsageError(f"there is no column of numbers {by!r}{meant(by, numbers)}; columns: {', '.join(numbers)}")
    return by, sorted(rows, key=lambda row: _sort_key(getattr(row, by)))


def _numbers(rows: Sequence[msgspec.Struct]) -> list[str]:
    names = rows[0].__struct_fields__
    kinds = {name: {type(getattr(row, name)) for row in rows} - {type(None)} for name in names}
    return [name for name, kind in kinds.items() if kind and kind <= {int, float}]


def _sort_key(value: Any) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


def meant_rule(wanted: str) -> str:
    """The rules of the family that an id names, else the rule that it is most like."""
    family = family_of(wanted)
    if family is None:
        return meant(wanted, BY_ID)
    return f"; rules of {family.about}: {listed(rule.id for rule in family.rules)}"


def meant(word: str, there: Collection[str]) -> str:
    close = difflib.get_close_matches(word, list(there), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def listed(names: Iterable[str]) -> str:
    all_names = [name if len(name) <= 100 else f"{name[:99]}…" for name in names]
    rest = len(all_names) - _MOST_LISTED
    return ", ".join(all_names[:_MOST_LISTED]) + (f" and {rest} more" if rest > 0 else "")
