"""Whether HTA's own code gives the same tables as ours: every value of one held against that of the other."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from traceops.measure.hta_breakdown import Columns
from traceops.measure.hta_tables import HtaTables

_ROUNDING = 1e-9  # relative; µs below a billionth are rounding too
_NAMES = tuple(name for name in HtaTables.__struct_fields__ if name != "failed")


class HtaAgreement(Struct, frozen=True):
    """How many values of HTA's tables were compared, and how many differ by more than rounding.

    `by` is HTA as installed ('HolisticTraceAnalysis 0.5.0'), `ranks` those with a table to compare, `tables` those of
    HtaTables in which values differ. A table that HTA's code fails at is not compared. Where a table has other rows,
    values are compared as they stand under each other.
    """

    by: str
    ranks: int = 0
    values: int = 0
    differing: int = 0
    tables: tuple[str, ...] = ()


def compare_tables(ours: HtaTables, theirs: HtaTables, by: str) -> HtaAgreement:
    """The agreement on one rank."""
    found = HtaAgreement(by)
    for name in _NAMES:
        table: Columns | None = getattr(theirs, name)
        if table is None:
            continue
        values, differing = _compare(getattr(ours, name) or {}, table)
        found = replace(
            found,
            values=found.values + values,
            differing=found.differing + differing,
            tables=(*found.tables, name) if differing else found.tables,
        )
    return replace(found, ranks=int(found.values > 0))


def agreement_of_ranks(found: Iterable[HtaAgreement | None]) -> HtaAgreement | None:
    """The agreement on all ranks; None where no rank was compared."""
    known = [one for one in found if one is not None]
    if not known:
        return None
    return HtaAgreement(
        by=", ".join(dict.fromkeys(one.by for one in known if one.by)),
        ranks=sum(one.ranks for one in known),
        values=sum(one.values for one in known),
        differing=sum(one.differing for one in known),
        tables=tuple(name for name in _NAMES if any(name in one.tables for one in known)),
    )


def _compare(ours: Columns, theirs: Columns) -> tuple[int, int]:
    values = differing = 0
    for column in dict.fromkeys((*ours, *theirs)):
        one, other = ours.get(column, []), theirs.get(column, [])
        values += max(len(one), len(other))
        differing += abs(len(one) - len(other))
        differing += sum(not _same(a, b) for a, b in zip(one, other, strict=False))
    return values, differing


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, (int, float)) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    return bool(one == other)
