"""The page's section on kernels: its roofline and tables, what files and frames have of them, and where modules are."""

import csv
import io
import json
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from recorded_step import HALF, NODE, op, tensor, write

from traceops.integrations.loaded_run import load
from traceops.pipeline.analyze import analyze
from traceops.render.report.compute import place_times, roofline_figure
from traceops.render.report.html import describe, render_html
from traceops.render.writers.csv import render_csv_files
from traceops.report.document import to_json_object

DATA = Path(__file__).parents[1] / "data" / "compute"


@pytest.fixture(scope="module")
def report():
    return analyze(DATA / "odd_width.pt.trace.json.gz", jobs=1)


def section_of(report):
    return next((one for one in describe(report).sections if one.id == "compute"), None)


def test_the_section_has_losses_a_roofline_and_tables_that_sum_to_the_busy_time(report):
    section = section_of(report)
    kinds = [block.kind for block in section.blocks]
    assert kinds[:6] == ["text", "table", "text", "chart", "table", "table"] and "fold" in kinds
    assert section.blocks[0].plain.startswith(
        "Kernels of rank 0 take 22.5 ms per step, at 26 % of attainable speed. The same"
    )
    losses = section.blocks[1].table
    assert losses.rows[0][0].text == "misaligned shape" and "addmm" in losses.rows[0][-1].text
    places = place_times(report.compute)
    assert sum(place.ms for place in places) == pytest.approx(report.compute.busy_ms, rel=1e-3)
    assert sum(place.attainable_ms for place in places) == pytest.approx(report.compute.attainable_ms, rel=1e-3)
    assert [place.name for place in places] == ["backward", "forward", "optimizer"]
    assert b'id="compute"' in render_html(report)


def test_operators_lie_below_the_lines_of_the_roofline(report):
    figure, roofs = roofline_figure(report), report.compute.roofs
    points = [trace for trace in figure["data"] if trace["mode"] == "markers"]
    assert points
    for trace in points:
        for intensity, speed in zip(trace["x"], trace["y"], strict=True):
            assert speed <= 1.05 * min(intensity * roofs.memory_tbs, roofs.half_tflops)
    assert "misaligned_shape" in points[0]["customdata"][0]


def test_kernels_in_files_and_frames_have_their_work(report):
    rows = list(csv.DictReader(io.StringIO(render_csv_files(report)["kernels.csv"])))
    most = rows[0]
    assert most["cause"] == "misaligned_shape" and most["operator"] == "addmm"
    assert float(most["flops"]) == pytest.approx(4 * 2 * 8192 * 4095 * 4095)
    assert float(most["efficiency_pct"]) < 25
    frame = load(report).kernels
    assert frame.iloc[0]["cause"] == "misaligned_shape"
    operators = load(report).operators
    assert {"flops", "bytes", "attainable_ms", "cause", "module", "line"} <= set(operators.columns)


def with_modules(path, frames):
    """The trace with Python frames, each (name, first and last operator in it)."""
    document = json.loads(path.read_text())
    events = document["traceEvents"]
    for step in range(2):
        operators = [one for one in events if one["cat"] == "cpu_op" and one["name"].startswith("aten::")]
        mine = operators[step * len(operators) // 2 : (step + 1) * len(operators) // 2]
        for name, first, last in frames:
            start, end = mine[first]["ts"] - 0.05, mine[last]["ts"] + mine[last]["dur"] + 0.05
            event = {"ph": "X", "cat": "python_function", "name": name, "ts": start, "dur": end - start}
            events.append({**event, "pid": 1, "tid": 1, "args": {}})
    path.write_text(json.dumps(document))
    return path


def test_modules_and_lines_of_operators_are_those_of_the_frames_around_and_backward_has_its_forward_s(tmp_path):
    odd = [op("aten::mm", tensor((8192, 4095)), tensor((4095, 4095)), us=2000, kernel="nvjet_h", sequence=at)
           for at in (1, 2)]  # fmt: skip
    node = op("aten::mm", tensor((4095, 8192)), tensor((8192, 4095), HALF), us=3000, kernel="nvjet_h",
              inside=(f"{NODE}MmBackward0",))  # fmt: skip
    path = write(tmp_path / "trace.json", [*odd, node], host_us=900)
    text = path.read_text()
    document = json.loads(text)
    for event in document["traceEvents"]:  # autograd runs the second product's backward
        if event["name"].startswith(NODE):
            event["args"]["Sequence number"] = 2
    path.write_text(json.dumps(document))
    path = with_modules(
        path, [("nn.Module: GPT_0", 0, 1), ("model.py(42): forward", 0, 1), ("nn.Module: Block_0", 0, 0),
               ("nn.Module: Block_1", 1, 1), ("nn.Module: Linear_7", 1, 1)],
    )  # fmt: skip
    report = analyze(path, jobs=1)
    found = {(row.module, row.phase): row for row in report.compute.operators}
    assert set(found) == {("GPT/Block", "forward"), ("GPT/Block/Linear", "forward"), ("GPT/Block/Linear", "backward")}
    assert {row.line for row in found.values()} == {"model.py:42"}
    [loss] = [one for one in report.compute.losses if one.cause == "misaligned_shape"]
    assert loss.where[-1] == "GPT/Block/Linear (model.py:42)"
    tables = [block.table for block in section_of(report).blocks if block.kind == "table"]
    [by_module] = [table for table in tables if table.caption.endswith("by module")]
    assert by_module.rows[0][0].text == "GPT/Block/Linear (backward)"
    assert to_json_object(report)["compute"]["operators"][0]["module"]


def test_a_run_whose_kernels_are_not_known_has_no_section(report):
    assert section_of(replace(report, compute=UNSET)) is None
