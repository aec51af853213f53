"""The frame that a figure's marks lie in: axes, and how many px of height the plot has."""

from __future__ import annotations

from dataclasses import dataclass

from traceops.render.svg.axis import Axis


@dataclass(frozen=True)
class PlotFrame:
    """x to percent, y to px from the top. `top` px are kept free for notes above the plot."""

    x: Axis
    y: Axis
    height: float
    top: float = 0.0

    def across(self, value: object) -> float | None:
        """Percent of the width, cut at what lies outside."""
        share = self.x.share(value)
        return None if share is None else round(100 * min(max(share, 0.0), 1.0), 3)

    def down(self, value: object) -> float | None:
        """Px from the top. An axis whose low end is the larger number begins on top."""
        share = self.y.share(value)
        return None if share is None else round(self.top + (1 - share) * (self.height - self.top), 2)

    @property
    def band(self) -> float:
        """Px that one category or place of the y axis takes."""
        return (self.height - self.top) / abs((self.y.high - self.y.low) or 1.0)
