"""Figures of a report as plotly's own objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go


def figure(described: Mapping[str, Any]) -> go.Figure:
    """A figure in plotly's JSON schema as a Figure, to show, change, or write with `write_image`."""
    return go.Figure(described)
