"""What kernels do against what they could do: losses, a roofline, and the time of modules, operators and kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape
from typing import Any

from msgspec import UNSET, Struct

from traceops.core.text import short_name
from traceops.core.units import fixed_text, ms_text, number_text
from traceops.render.cells import NOT_KNOWN, Cell, Table, name, number, table_of
from traceops.render.document import Block, Chart, Section, TableBlock, fold, soft, text
from traceops.render.report.coverage import check_of
from traceops.render.report.figures import Figure, axis, dots, laid_out, line, worded
from traceops.render.report.terms import say, say_first, section_of
from traceops.report.inventory import ComputeRows, OperatorRow, RoofRows
from traceops.report.model import Report
from traceops.rules.compute import BOUNDS, SPEED

_MOST_PLACES = 12  # whose operators unfold
_MOST_OPERATORS = 20
_LEAST_PCT = 0.1  # of the busy time, that a loss or a place is listed from
_OTHERS = "other operators"
_COLOURS = {"product": "#0072B2", "attention": "#D55E00", "convolution": "#009E73", "other": "#808080"}
_ROOF = "#808080"


class PlaceTime(Struct, frozen=True):
    """The operators of one module, or of one phase where modules are not recorded."""

    name: str
    operators: tuple[OperatorRow, ...]

    @property
    def ms(self) -> float:
        return sum(row.ms for row in self.operators)

    @property
    def known_ms(self) -> float:
        return sum(row.known_ms or 0.0 for row in self.operators)

    @property
    def attainable_ms(self) -> float | None:
        known = [min(row.attainable_ms or 0.0, row.known_ms or 0.0) for row in self.operators]
        return sum(known) if self.known_ms else None

    @property
    def lost_ms(self) -> float | None:
        """What they take beyond attainable speed."""
        least = self.attainable_ms
        return None if least is None else max(self.known_ms - least, 0.0)

    @property
    def efficiency_pct(self) -> float | None:
        return efficiency_pct(self.known_ms, self.attainable_ms)


def efficiency_of(report: Report) -> float | None:
    """How fast kernels are, in percent of what is attainable on their GPU; None where that or the GPU is unknown."""
    if report.compute is UNSET or report.compute.rates == "assumed" or why_unrated(report):
        return None
    return report.compute.efficiency_pct


def why_unrated(report: Report) -> str:
    """Why nothing is known of how fast kernels on a GPU could be; '' where it is, or where there are none."""
    check = check_of(report, SPEED.id)
    unrated = check is not None and check.status == "not_evaluated" and check.lacking != "no_gpu_activity"
    return check.reason if check is not None and unrated else ""


def kernels_sentence(report: Report) -> str:
    """How fast kernels are, of what is attainable for their work, or what that is unknown for."""
    efficiency, compute = efficiency_of(report), report.compute
    saved = None
    if compute and efficiency is not None and efficiency >= BOUNDS.attainable_pct:
        # Speed is of the types and shapes that ran: another may be faster.
        told = {found.cause for found in report.findings}
        saved = max((loss.device_ms for loss in compute.losses if loss.cause in told), default=None)
    return say_first(
        "compute", "kernels", pct=efficiency, saved=saved, busy=compute.busy_ms if compute else None,
        why=why_unrated(report),
    )  # fmt: skip


def efficiency_pct(known_ms: float | None, attainable_ms: float | None) -> float | None:
    """The share of attainable speed; None where the work is not known."""
    return min(100 * attainable_ms / known_ms, 100.0) if known_ms and attainable_ms is not None else None


def compute(report: Report, shown: Sequence[int]) -> Section | None:
    """Where device time goes against what it could be; None where nothing is known of kernels."""
    if report.compute is UNSET or not report.compute.operators:
        return None
    rows = report.compute
    words = report.summary.step_words
    facts = {"rank": rows.rank, "busy": rows.busy_ms, "attainable": rows.attainable_ms, "rates": rows.rates}
    blocks: list[Block] = [text(say("compute", "rated", words, efficiency=efficiency_of(report), **facts))]
    if losses := [loss for loss in rows.losses if loss.device_ms > _LEAST_PCT / 100 * rows.busy_ms]:
        cells = {
            "cause": lambda row: Cell(row.cause.replace("_", " ")),
            "where": lambda row: name(", ".join(row.where)),
        }
        blocks.append(TableBlock(table_of("losses", losses, report.summary.step_words, make=cells)))
    if (figure := roofline_figure(report)) is not None:
        blocks += [soft(say("compute", "roofline")), Chart("roofline", say("compute", "chart"), figure)]
    places = place_times(rows)
    blocks += [TableBlock(places_table(report, places)), TableBlock(operators_table(report, rows))]
    large = [place for place in places[:_MOST_PLACES] if place.ms >= _LEAST_PCT / 100 * rows.busy_ms]
    blocks += [
        fold(f"{place.name}: {ms_text(place.ms)} ms", TableBlock(kernels_table(report, place))) for place in large
    ]
    return section_of("compute", blocks)


def place_times(rows: ComputeRows) -> list[PlaceTime]:
    """Operators by module, or by phase where no modules are recorded; most time first."""
    parts: defaultdict[str, list[OperatorRow]] = defaultdict(list)
    modules = any(row.module for row in rows.operators)
    for row in rows.operators:
        phase = "" if row.phase == "forward" else f" ({row.phase})"
        parts[f"{row.module}{phase}" if modules and row.module else row.phase].append(row)
    made = [PlaceTime(place, tuple(own)) for place, own in parts.items()]
    return sorted(made, key=lambda place: -place.ms)


def places_table(report: Report, places: Sequence[PlaceTime]) -> Table:
    """A row a module or phase."""
    busy = sum(place.ms for place in places) or 1.0
    cells = {"name": lambda row: name(row.name), "share": lambda row: number(100 * row.ms / busy, 1)}
    return table_of("modules", places, report.summary.step_words, make=cells)


def operators_table(report: Report, rows: ComputeRows) -> Table:
    """A row an operator on one set of inputs."""
    shown = sorted((row for row in rows.operators if row.name), key=lambda row: -row.ms)
    return _operators(report, shown, say("compute", "operators"), "kernels")


def kernels_table(report: Report, place: PlaceTime) -> Table:
    """The operators of a place, each with its kernels."""
    rows = sorted(place.operators, key=lambda row: -row.ms)
    return _operators(report, rows, f"Operators of {place.name}", "shape")


def _operators(report: Report, rows: Sequence[OperatorRow], caption: str, without: str) -> Table:
    cells = {
        "name": lambda row: name(row.name.removeprefix("aten::") or _OTHERS),
        "shape": lambda row: name(row.shape, 40),
        "kernels": _kernels_cell,
        "module": lambda row: name(row.module),
        "line": lambda row: name(row.line),
        "lost": lambda row: _known_cell(_lost_ms(row), 3),
        "efficiency": lambda row: _known_cell(efficiency_pct(row.known_ms, row.attainable_ms), 0),
        # 10⁹ of work a ms: TFLOP/s of operations, TB/s of bytes
        "speed": lambda row: _known_cell(row.flops / row.ms * 1e-9 if row.flops and row.ms else None),
        "memory": lambda row: _known_cell(row.bytes / row.ms * 1e-9 if row.bytes and row.ms else None),
        "cause": lambda row: Cell((row.cause or "").replace("_", " ")),
    }
    words, facts = report.summary.step_words, {"caption": caption}
    return table_of("operator_work", rows, words, make=cells, without=(without,), facts=facts, most=_MOST_OPERATORS)


def _lost_ms(row: OperatorRow) -> float | None:
    return max(row.known_ms - row.attainable_ms, 0.0) if row.known_ms and row.attainable_ms is not None else None


def _known_cell(value: float | None, decimals: int | None = None) -> Cell:
    if value is None:
        return NOT_KNOWN
    return Cell(number_text(value) if decimals is None else fixed_text(value, decimals), value=value)


def _kernels_cell(row: OperatorRow) -> Cell:
    if not row.kernels:
        return Cell("")
    lines = [
        f"{kernel.name}: {ms_text(kernel.ms)} ms, {number_text(kernel.launches)} launches" for kernel in row.kernels
    ]
    return Cell(short_name(row.kernels[0].name, 50), row.kernels[0].name, "name", "\n".join(lines))


def _operator_text(row: OperatorRow) -> str:
    pct, shape = fixed_text(efficiency_pct(row.known_ms, row.attainable_ms), 0), escape(row.shape)
    facts = {"name": escape(short_name(row.name, 60)), "shape": shape, "ms": ms_text(row.ms), "pct": pct}
    return worded("operator_cause" if row.cause else "operator", cause=row.cause, **facts)


def roofline_figure(report: Report) -> Figure | None:
    """Operators as points: operations per byte against TFLOP/s, below what memory and the units attain. None where no
    operator's operations are known, or the GPU's rates are not."""
    if report.compute is UNSET or (roofs := report.compute.roofs) is None:
        return None
    rows = [row for row in report.compute.operators if row.flops and row.bytes and row.ms]
    if not rows:
        return None
    kinds: defaultdict[str, list[OperatorRow]] = defaultdict(list)
    for row in rows:
        kinds[row.kind if row.kind in _COLOURS else "other"].append(row)
    points = [
        dots(
            kind, [(row.flops or 0.0) / (row.bytes or 1.0) for row in own],
            [1e-9 * (row.flops or 0.0) / row.ms for row in own],
            {"size": 8, "opacity": 0.7, "color": _COLOURS[kind]}, worded("roofline"), showlegend=True,
            customdata=[_operator_text(row) for row in own],
        )
        for kind, own in sorted(kinds.items())
    ]  # fmt: skip
    intensities = [x for trace in points for x in trace["x"]]
    least, most = min(*intensities, 1.0) / 2, max(*intensities, 1e3) * 2
    lines, names = _roof_traces(roofs, least, most)
    xaxis, yaxis = axis("operations per byte", type="log"), axis("TFLOP/s", type="log", automargin=True)
    return laid_out([*lines, *points, names], 10, pixels=30, xaxis=xaxis, yaxis=yaxis, grid_y=True)


def _roof_traces(roofs: RoofRows, least: float, most: float) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """A line for each number format's speed, and their names."""
    named = {"16 bits": roofs.half_tflops, "TF32": roofs.tf32_tflops, "float32": roofs.float32_tflops}
    lines = [
        line(
            f"{label}: {number_text(roof)} TFLOP/s", [least, roof / roofs.memory_tbs, most],
            [least * roofs.memory_tbs, roof, roof], _ROOF, 1.5, showlegend=False, hoverinfo="skip",
        )
        for label, roof in named.items()
    ]  # fmt: skip
    for dotted in lines[1:]:
        dotted["line"]["dash"] = "dot"
    names = {
        "type": "scatter", "mode": "text", "x": [most / 2] * len(lines), "y": [1.25 * one["y"][-1] for one in lines],
        "text": [one["name"] for one in lines], "textposition": "top left", "hoverinfo": "skip", "showlegend": False,
    }  # fmt: skip
    return lines, names
