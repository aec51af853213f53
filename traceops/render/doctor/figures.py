"""Plotly figure of a checkup: bus bandwidth over message size."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from traceops.core.units import message_text
from traceops.fabric.model import Measured, Reference
from traceops.render.report.figures import Figure, laid_out, rounded

_COLOURS = {"all_reduce": "#0072B2", "all_gather": "#D55E00", "reduce_scatter": "#009E73", "send_recv": "#CC79A7"}
_OTHER = "#7A7A7A"
_DASHES = ("solid", "dot", "dashdot", "longdash")  # hosts, or groups of devices, one after the other
_MOST_TICKS = 10


def sweep_figure(measured: Sequence[Measured], references: Sequence[Reference] = ()) -> Figure | None:
    """Bus bandwidth in GB/s over bytes of a message, a line an operation, with dashed lines of earlier references.

    Lines need two sizes at least; None without any.
    """
    lines = _lines(measured)
    if not lines:
        return None
    whose = list(dict.fromkeys((gpus, host) for _, gpus, host in lines))
    many = len(whose) > 1
    traces = [
        _trace(
            rows,
            f"{_safe(op)}{_whose(gpus, host) if many else ''}",
            _COLOURS.get(op, _OTHER),
            _DASHES[whose.index((gpus, host)) % len(_DASHES)],
        )
        for (op, gpus, host), rows in lines.items()
    ]
    for reference in references:
        for (op, gpus, _), rows in _lines(reference.measured).items():
            now = lines.get((op, gpus, reference.host)) or lines.get((op, gpus, None))
            if now is not None and _points(now) != _points(rows):
                name = f"{_safe(op)} as measured before on {_safe(reference.host)}"
                traces.append(_trace(rows, name, _COLOURS.get(op, _OTHER), "dash", faint=True))
    sizes = sorted({one.bytes for rows in lines.values() for one in rows})
    ticks = sizes[:: -(-len(sizes) // _MOST_TICKS)]
    return laid_out(
        traces,
        14,
        pixels=20,
        xaxis={
            "type": "log",
            "title": {"text": "bytes of a message"},
            "tickvals": ticks,
            "ticktext": [message_text(nbytes) for nbytes in ticks],
        },
        yaxis={"title": {"text": "bus bandwidth, GB/s"}, "rangemode": "tozero", "automargin": True},
        grid_y=True,
        showlegend=True,
        legend={"orientation": "h", "y": -0.28},
    )


def _lines(measured: Sequence[Measured]) -> dict[tuple[str, tuple[int, ...], str | None], list[Measured]]:
    """Collectives by operation, devices and host in order of size; pairs are in the matrix."""
    lines: dict[tuple[str, tuple[int, ...], str | None], list[Measured]] = {}
    for one in measured:
        if one.op != "send_recv":
            lines.setdefault((one.op, one.gpus, one.host), []).append(one)
    return {
        key: sorted(rows, key=lambda one: one.bytes)
        for key, rows in lines.items()
        if len({one.bytes for one in rows}) > 1
    }


def _points(rows: Sequence[Measured]) -> list[tuple[int, float]]:
    return [(one.bytes, one.busbw_gbs) for one in rows]


def _trace(rows: Sequence[Measured], name: str, colour: str, dash: str, *, faint: bool = False) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if faint else "lines+markers",
        "x": [one.bytes for one in rows],
        "y": [rounded(one.busbw_gbs) for one in rows],
        "name": name,
        "line": {"color": colour, "dash": dash, "width": 1.5 if faint else 2.5},
        "opacity": 0.6 if faint else 1.0,
        "text": [f"{message_text(one.bytes)}, {one.time_us:.1f} µs" for one in rows],
        "hovertemplate": f"{name}: %{{y:.4~g}} GB/s<br>%{{text}}<extra></extra>",
    }


def _whose(gpus: Sequence[int], host: str | None) -> str:
    return f", {len(gpus)} devices" + (f" on {_safe(host)}" if host else "")


def _safe(text: str) -> str:
    """Cut and escaped: plotly reads tags in names and hover texts."""
    return html.escape(text[:40], quote=False)
