"""The timeline in the page: what is packed is what was measured, few bytes of it, and a browser reads it so."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from changed import replace
from html_page import TABLES, Page
from sample_report import sample_report

from traceops.core.arrays import Bars
from traceops.core.words import ROLES
from traceops.pipeline.analyze import analyze, find_traces, run_pipeline
from traceops.pipeline.assemble_detail import MOST_RANKS, chosen_ranks, step_details
from traceops.pipeline.mapping.ranks import MapOptions
from traceops.render.report.html import render_html
from traceops.render.report.rank_groups import drawn_ranks, group_text
from traceops.render.report.step_timeline import finding_place, fitting, packed
from traceops.report.detail import Detail, DetailLane, DetailRank, DetailStep, DetailTransfer
from traceops.report.model import Report

DATA = Path(__file__).parents[1] / "data"


def columns(*rows: list[int]) -> Bars:
    return Bars(*(np.array(row, dtype=np.int64) for row in rows))


def small_detail(length: int = 2_000_000) -> Detail:
    """Two steps of 2 ms on two ranks: rank 1 comes 500 µs late to an all-reduce; another one is not matched."""

    def rank(number: int) -> DetailRank:
        kernels = columns([100_000, 500_000], [400_000, 900_000], [0, 1], [1, 12], [300_000, 350_000])
        host = columns([10_000], [600_000], [2], [1], [590_000])
        late = 500_000 if number else 0
        return DetailRank(
            number,
            0,
            length,
            (DetailLane("stream", 7, 0, kernels), DetailLane("thread", 4001, 2, host)),
            (
                DetailTransfer(900_000 + late, 1_400_000, 1_600_000, "allreduce", "dp", "data", 1_000_000, 5.0, 1),
                DetailTransfer(1_650_000, None, 1_700_000, "<b>gather</b>", "", "unknown", None, None, None, 1),
            ),
        )

    step = DetailStep(4, length, (rank(0), rank(1)))
    return Detail(("gemm", "elementwise", "aten::mm"), (step, replace(step, step=5)))


def unpacked(data: str) -> tuple[dict[str, Any], list[list[list[int]]]]:
    """A step's head and its five columns, each lane by lane."""
    raw = zlib.decompress(base64.b64decode(data, b"+-"))
    size = int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4 : 4 + size])
    for rank in head["ranks"]:
        starts = np.cumsum([moved[0] for moved in rank["moved"]]).tolist()
        for start, moved in zip(starts, rank["moved"], strict=True):
            moved[:3] = start, -1 if moved[1] is None else start + moved[1], start + moved[2]
    values = np.frombuffer(raw[4 + size :], np.uint8).reshape(4, -1).T.copy().view("<i4").ravel()
    counts = [lane[3] for rank in head["ranks"] for lane in rank["lanes"]]
    assert len(values) == 5 * sum(counts)
    lanes = [part.tolist() for part in np.split(values, np.cumsum(counts * 5)[:-1])]
    return head, [lanes[column * len(counts) : (column + 1) * len(counts)] for column in range(5)]


def test_what_is_packed_is_what_was_measured() -> None:
    data = packed(small_detail(), 1, 2)
    assert [step["step"] for step in data["steps"]] == [4, 5]
    assert data["first"] == 1
    head, values = unpacked(data["steps"][0]["data"])
    assert (head["length"], head["unit"]) == (2_000_000, 1)
    assert [rank["lanes"] for rank in head["ranks"]] == [[["s", 7, 0, 2], ["t", 4001, 2, 1]]] * 2
    gaps, lasts, names, more, idle = (column[0] for column in values)
    assert (gaps, lasts, names) == ([100_000, 100_000], [300_000, 400_000], [0, 1])
    assert (more, idle) == ([0, 11], [0, 50_000])
    dp, unknown = list(ROLES).index("data"), list(ROLES).index("unknown")
    assert head["ranks"][1]["moved"] == [
        [1_400_000, 1_400_000, 1_600_000, 0, 1, dp, 1_000_000, 5.0, 1, 0],
        [1_650_000, -1, 1_700_000, 2, 3, unknown, -1, None, -1, 1],
    ]
    assert head["words"] == ["allreduce", "dp", "<b>gather</b>", ""]


def test_a_long_step_is_counted_in_larger_units() -> None:
    head, (gaps, lasts, *_) = unpacked(packed(small_detail(length=20_000_000_000), 0, 2)["steps"][0]["data"])
    assert head["unit"] == 19073
    assert (gaps[0], lasts[0]) == ([5, 6], [15, 21])


@pytest.fixture(scope="module")
def real() -> Report:
    return analyze(str(DATA / "slow_loader4"), cache=False, jobs=1)


def test_steps_that_pack_badly_are_fewer_and_the_longest_is_one_of_them() -> None:
    step = small_detail().steps[0]
    drawn = np.random.default_rng(1)
    start = np.sort(drawn.integers(0, 9_000_000, 2_000))
    many = Bars(start, start + drawn.integers(1, 4_000, 2_000), np.zeros_like(start), np.ones_like(start), start * 0)
    rank = replace(step.ranks[0], lanes=(replace(step.ranks[0].lanes[0], bars=many),))
    steps = tuple(
        replace(step, step=number, length_ns=10_000_000, ranks=(replace(rank, begin=0, end=9_000_000 + number),))
        for number in range(20)
    )
    kept = fitting(replace(small_detail(), steps=steps)).steps
    numbers = [one.step for one in kept]
    assert 2 < len(numbers) < 20 and numbers[-1] == 19 and numbers == sorted(numbers)
    assert fitting(small_detail()).steps == small_detail().steps


def test_a_real_run_in_few_bytes_with_links_from_findings_and_commands(real: Report) -> None:
    written = render_html(real)
    assert len(written) <= 300_000
    page = Page(written)
    (data,) = [json.loads(text) for text in page.scripts() if text.startswith('{"names"')]
    assert len(json.dumps(data)) < 100_000
    head, _ = unpacked(data["steps"][0]["data"])
    assert [rank["rank"] for rank in head["ranks"]] == [0, 1, 2, 3]
    assert {head["words"][moved[3]] for rank in head["ranks"] for moved in rank["moved"]} == {"allreduce"}
    waits = [sum(turn - start for start, turn, *_ in rank["moved"]) for rank in head["ranks"]]
    assert waits[1] == min(waits) and min(waits[0], waits[2], waits[3]) > 30e6, "all wait for rank 1"
    late = [moved[8] for rank in head["ranks"] for moved in rank["moved"][:1]]
    assert late == [1, 1, 1, 1]
    links = [(a.get("data-step"), a.get("data-rank")) for a in page.all("a") if "data-rank" in a or "data-step" in a]
    assert links and all(step in {"3", "4", "5"} for step, _ in links)
    assert next(rank for _, rank in links) == "1"
    assert all(a["href"] == "#timeline" for a in page.all("a") if "data-step" in a)
    assert "--around TO-S001" in page.text()
    assert msgspec.structs.replace(real, detail=None).detail is None
    plain = Page(render_html(msgspec.structs.replace(real, detail=None)))
    assert not [a for a in plain.all("a") if "data-step" in a]
    assert plain.scripts() == [TABLES]


def test_a_name_that_a_shell_would_read_is_quoted_in_commands(real: Report) -> None:
    """Lightning names files fit-lightning-[Strategy]…"""
    named = msgspec.structs.replace(real, run=msgspec.structs.replace(real.run, name="fit-[Strategy]it's"))
    assert "traceops view 'profile/fit-[Strategy]it'\"'\"'s' --" in Page(render_html(named)).text()


def test_of_many_ranks_a_few_are_drawn_those_of_findings_first(real: Report) -> None:
    found = find_traces(str(DATA / "slow_loader4"))
    analysis = run_pipeline(found, found.windows[-1], MapOptions(jobs=1, cache=False))
    assert 1 in chosen_ranks(analysis.run, real.findings, real.ranks, 2)
    late = next(finding for finding in real.findings if finding.rule == "TO-S001")
    assert late.ranks == (1,)
    two = step_details(analysis.run, [late], real.ranks, 2)
    assert two is not None
    shown = {rank.rank for step in two.steps for rank in step.ranks}
    assert 1 in shown and len(shown) == 2
    assert finding_place(late, msgspec.structs.replace(real, detail=two)) is not None
    assert MOST_RANKS == 8


def test_a_finding_of_steps_that_were_not_recorded_has_no_place_in_it(real: Report) -> None:
    """The evaluations in steps 50, 100 and 150 were to be seen in step 10."""
    late = next(finding for finding in real.findings if finding.rule == "TO-S001")
    assert finding_place(replace(late, steps=(50, 4)), real) == (4, 1)
    assert finding_place(replace(late, steps=(50, 100)), real) is None
    assert finding_place(replace(late, steps=()), real) is not None


def test_a_report_that_no_summary_draws_has_none() -> None:
    page = Page(render_html(sample_report()))
    assert not [text for text in page.scripts() if "canvas" in text]


@pytest.mark.browser
def test_a_browser_draws_it_and_tells_what_the_trace_says(browser: Any, tmp_path: Path) -> None:
    path = tmp_path / "summary.html"
    path.write_bytes(render_html(msgspec.structs.replace(sample_report(), detail=small_detail())))
    tab = browser.new_context(offline=True, viewport={"width": 1280, "height": 900}).new_page()
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.goto(f"{path.as_uri()}#step=5&rank=1")
    canvas = tab.locator(".step-timeline canvas")
    canvas.wait_for(state="visible")
    tab.wait_for_function("document.querySelector('.step-choice').value === '1'")
    assert not tab.locator(".without-script").first.is_visible()
    canvas.focus()
    told = []
    for key in ("ArrowDown", "ArrowDown", ".", "ArrowDown", "ArrowDown"):
        tab.keyboard.press(key)
        told.append(tab.inner_text(".step-said"))
    assert told[0].splitlines()[:3] == ["Rank 0, host, operator", "aten::mm", "590 µs"]
    assert told[1].splitlines()[:3] == ["Rank 0, stream 7", "gemm", "300 µs"]
    assert "12 events drawn as one; the longest is\nelementwise\n350 µs of 400 µs busy" in told[2]
    assert "allreduce · 1 MB · group dp · data parallel" in told[3]
    assert "waited 500 µs, then transferred for 200 µs\nrank 1 came last" in told[3]
    assert "bus bandwidth of the transfer 5 GB/s, the waiting left out" in told[3]
    assert "<b>gather</b>" in told[4] and "not matched" in told[4]
    tab.keyboard.press("?")
    assert tab.locator(".step-keys").is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator(".step-keys").is_visible()
    tab.keyboard.press("/")
    tab.keyboard.type("gemm")
    tab.keyboard.press("Enter")
    assert tab.inner_text(".step-said").splitlines()[1] == "gemm"
    tab.keyboard.press("Escape")
    canvas.evaluate("one => one.scrollIntoView({ block: 'center', behavior: 'instant' })")
    width = canvas.bounding_box()["width"]
    canvas.hover(position={"x": 170, "y": 5})  # from the time axis down: every row; waits until nothing moves
    tab.mouse.down()
    canvas.hover(position={"x": width - 1, "y": 60})
    tab.mouse.up()
    measured = tab.inner_text(".step-said")
    assert measured.startswith(("2 ms selected, summed over 2 ranks: ", "1.99")), measured
    assert "compute 1.3 ms" in measured and "waiting for ranks 500 µs" in measured
    tab.keyboard.press("PageUp")
    tab.wait_for_function("document.querySelector('.step-choice').value === '0'")
    tab.emulate_media(media="print")
    assert tab.locator(".without-script").first.is_visible()
    assert not canvas.is_visible()
    assert said == []
    without = browser.new_context(java_script_enabled=False).new_page()
    without.goto(path.as_uri())
    assert without.locator("#chart-timeline").is_visible()
    assert not without.locator(".step-timeline").is_visible()


def test_ranks_stand_by_host_and_one_of_a_kind_can_stand_for_it() -> None:
    """Of 16 ranks on two hosts, rank 3 is named by a finding; two of the other ones are drawn beside it."""
    report = sample_report(16)
    first = report.ranks[0]
    rows = [msgspec.structs.replace(first, rank=rank, host=f"node-{rank // 8}") for rank in range(16)]
    named = [replace(finding, ranks=(3,)) for finding in report.findings[:1]]
    report = msgspec.structs.replace(report, ranks=rows, findings=named)
    detail = small_detail()
    step = detail.steps[0]
    few = replace(detail, steps=(replace(step, ranks=tuple(replace(step.ranks[0], rank=r) for r in (3, 9, 12))),))
    drawn = drawn_ranks(report, few)
    assert [(one["host"], one["rank"], one["label"]) for one in drawn["shown"]] == [
        ("node-0", 3, "rank 3"),
        ("node-1", 9, "rank 9 and 13 alike, on 2 hosts"),
        ("node-1", 12, "rank 12"),
    ]
    assert [one["label"] for one in drawn["folded"]] == ["rank 3", "rank 9 and 14 alike, on 2 hosts"]
    assert drawn["unlike"] == 0
    assert group_text(2, [2, 3], {"a"}, 8) == "ranks 2–3: alike, this is rank 2"
    assert group_text(0, range(8), {"a"}, 8) == "all 8 ranks: alike, this is rank 0"
