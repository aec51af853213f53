"""Rows of a report as pandas frames."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pandas as pd

from traceops.core.documents import meanings
from traceops.traces.model import Events


def frame(rows: Iterable[msgspec.Struct], kind: type[msgspec.Struct]) -> pd.DataFrame:
    """A column a field of `kind`, also without rows; its name ends in its unit. Whole numbers are Int64, so that what
    is not known is <NA> and not 0; other numbers are float64 with NaN. What the columns mean is in
    `frame.attrs["columns"]`."""
    data = [msgspec.structs.astuple(row) for row in rows]
    columns = kind.__struct_fields__
    made = pd.DataFrame(data, columns=list(columns), dtype=object)
    hints = get_type_hints(kind)
    for name in columns:
        if (dtype := _dtype(hints[name])) is not None:
            made[name] = made[name].astype(dtype)
    made.attrs["columns"] = {name: said for name, said in meanings(kind).items() if name in columns}
    return made


def events_frame(events: Events) -> pd.DataFrame:
    """Raw events as a frame: begin and duration in ns, -1 for a missing stream or correlation."""
    return pd.DataFrame(
        {
            "name": np.array(events.names, dtype=object)[events.name],
            "category": np.array(events.cats, dtype=object)[events.cat],
            "ts_ns": events.ts,
            "dur_ns": events.dur,
            "stream": events.stream,
            "correlation": events.correlation,
        }
    )


def _dtype(hint: Any) -> Literal["Int64", "float64"] | None:
    parts = set(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else {hint}
    parts -= {type(None)}
    return "Int64" if parts == {int} else "float64" if parts and parts <= {int, float} else None
