"""plotly's own classes as the judge of our figures."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go

TRACE_TYPES = {"bar", "box", "heatmap", "scatter"}  # what templates/plotly/ was chosen for


def drawn(figure: dict[str, Any]) -> go.Figure:
    """The figure as plotly takes it, which refuses what is not in its schema; nothing is lost or changed by that."""
    assert {trace["type"] for trace in figure["data"]} <= TRACE_TYPES
    made = go.Figure(figure)
    taken, given = json.loads(made.to_json()), json.loads(json.dumps(figure, allow_nan=False))
    assert taken["data"] == given["data"]
    style = taken["layout"].pop("template")
    assert style.keys() <= {"data"}  # ours is empty, and plotly must not put its own there
    assert taken["layout"] == {key: value for key, value in given["layout"].items() if value not in ({}, [])}
    return made
