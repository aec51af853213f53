"""Where in a step a node of the graph lies, so that steps can be held against each other."""

from __future__ import annotations

from collections.abc import Mapping

from traceops.across.replay.graph import Label


def place_of(label: Label) -> Label:
    """The same in each step."""
    return (label[0], *label[2:]) if label[0] == "step" else label[1:]


def step_of(label: Label, index: Mapping[int, int], count: int) -> int:
    """Index of the step that what comes before this label is of; -1 outside of them."""
    if label[0] != "step":
        return index.get(label[0], -1)
    return count - 1 if label[1] == "end" else index[label[1]] - 1
