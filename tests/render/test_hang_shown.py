"""A hang in every format: hang.json against its schema, the page, the terminal, the graph, and the CSV files."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from changed import replace
from html_page import TABLES, TABLES_HASH, Page
from msgspec import structs
from sample_hang import HOSTILE, dead_with_log, many, mismatch, nobody_waits, skipped, two_roots
from sample_report import sample_report

from traceops.core.documents import json_text
from traceops.core.facts import Fact
from traceops.core.findings import Evidence
from traceops.core.rule import Verdict
from traceops.hangs.model import Diagnosis, Wait
from traceops.render.hang.html import MOST_NODES, WIDTH, WaitGraph, render_hang_html, wait_graphs
from traceops.render.hang.tables import HANG_CSV_FILES, render_hang_csv_files
from traceops.render.hang.terminal import print_diagnosis
from traceops.render.report.card import LONGEST, card_of
from traceops.render.report.html import render_html
from traceops.report.document import to_json_object
from traceops.report.hang_json import hang_document, hang_json
from traceops.report.hang_text import hang_sentence, merged_ranks, merged_waits
from traceops.rules.explained import checks
from traceops.rules.registry import BY_ID
from traceops.schemas import schema_path

SCHEMA = json.loads(schema_path("hang").read_text())
REPORT_SCHEMA = json.loads(schema_path("report").read_text())
HANG_ONLY = {"$schema": SCHEMA["$schema"], "$ref": "#/$defs/HangJson", "$defs": SCHEMA["$defs"]}
ALL = (skipped(), two_roots(), mismatch(), dead_with_log(), nobody_waits(), nobody_waits(4, 0), many())


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    checked = checks([Verdict(root.rule, not_evaluated="as a test") for root in diagnosis.roots])
    text = json_text(hang_document(diagnosis, sample_report().findings, checked))
    result: dict[str, Any] = json.loads(text)
    return result


def test_schemas_are_valid_and_share_what_a_hang_is() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    shared = SCHEMA["$defs"].keys() & REPORT_SCHEMA["$defs"].keys()
    assert all(SCHEMA["$defs"][name] == REPORT_SCHEMA["$defs"][name] for name in shared)
    assert SCHEMA["$defs"].keys() - shared == {"HangRun"}


@pytest.mark.parametrize("diagnosis", [*ALL, skipped(text=HOSTILE)])
def test_hang_json_keeps_its_contract(diagnosis: Diagnosis) -> None:
    jsonschema.validate(document(diagnosis), SCHEMA)


def test_schema_refuses_a_wrong_hang() -> None:
    wrong = document(skipped())
    del wrong["hang"]["roots"][0]["waiting"]
    with pytest.raises(jsonschema.ValidationError, match="waiting"):
        jsonschema.validate(wrong, SCHEMA)


def test_hang_json_says_who_is_known_and_what_was_read() -> None:
    held = document(dead_with_log())
    assert held["run"]["ranks_present"] == [3] and held["run"]["ranks_missing"] == [0, 1, 2]
    hang = document(skipped())["hang"]
    assert hang["problems"] == [{"file": "evidence/dump_x", "problem": "it is empty"}]
    assert hang["files"][0] == "evidence/dump_0"
    assert hang["stall"]["stalled_s"] == 42.4
    assert hang["waits"] == [
        {"ranks": [0, 1, 2], "on": [3], "why": "has not called it", "group": "default_pg", "op": "all_reduce",
         "sequence": 64}
    ]  # fmt: skip
    assert hang["roots"][0]["evidence"][0] == {"what": "last enqueued by rank 3", "value": "#63 of default_pg"}


@pytest.mark.parametrize("diagnosis", [None, skipped(), nobody_waits()])
def test_report_json_has_the_same_object_or_null(diagnosis: Diagnosis | None) -> None:
    held = to_json_object(structs.replace(sample_report(), hang=diagnosis))
    assert held["hang"] == (None if diagnosis is None else json.loads(msgspec.json.encode(hang_json(diagnosis))))
    if diagnosis is not None:
        jsonschema.validate(held["hang"], HANG_ONLY)
    jsonschema.validate(held["hang"], {**REPORT_SCHEMA["properties"]["hang"], "$defs": REPORT_SCHEMA["$defs"]})


def test_a_row_a_rank_and_a_row_an_edge() -> None:
    files = render_hang_csv_files(two_roots())
    assert set(files) == set(HANG_CSV_FILES)
    ranks = list(csv.DictReader(io.StringIO(files["hang_ranks.csv"])))
    assert [int(row["rank"]) for row in ranks] == list(range(16))
    assert ranks[14]["state"] == "dead" and ranks[14]["exit_code"] == "137" and ranks[14]["op"] == ""
    waits = list(csv.DictReader(io.StringIO(files["hang_waits.csv"])))
    assert len(waits) == len(two_roots().waits)
    assert waits[0] == {
        "rank": "0",
        "on": "1",
        "group": "pp",
        "op": "recv",
        "sequence": "12",
        "why": "has not called it",
    }


def test_nobody_waiting_still_writes_the_columns() -> None:
    assert render_hang_csv_files(nobody_waits())["hang_waits.csv"] == "rank,on,group,op,sequence,why\n"


def page(diagnosis: Diagnosis) -> Page:
    findings = [
        BY_ID[root.rule].finding(
            "error",
            root.confidence,
            root.message,
            [Evidence(Fact.CLUE, value, subject=what) for what, value in root.evidence],
            ranks=root.ranks,
        )
        for root in diagnosis.roots
    ]
    checked = checks([Verdict(found.rule, (found,)) for found in findings])
    return Page(render_hang_html(diagnosis, findings, [check for check in checked if check.rule.startswith("TO-H")]))


@pytest.mark.parametrize("diagnosis", [*ALL, skipped(text=HOSTILE)])
def test_pages_nest_and_ask_for_nothing(diagnosis: Diagnosis) -> None:
    shown = page(diagnosis)
    assert shown.mismatched == [] and shown.open == []
    assert shown.scripts() == [TABLES] and len(shown.all("script")) == 1 and shown.all("img") == []
    assert all((a.get("href") or "")[:1] in ("#", "d") for a in (*shown.all("a"), *shown.all("link")))
    policy = next(a["content"] for a in shown.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None and f"default-src 'none'; script-src 'sha256-{TABLES_HASH}';" in policy
    assert hang_sentence(diagnosis).replace("\x1b", "\ufffd") in shown.text()
    assert all(a.get("scope") in ("col", "row") for a in shown.all("th"))


def test_every_link_has_its_section() -> None:
    shown = page(skipped())
    ids = [attributes.get("id") for _, attributes in shown.elements if attributes.get("id")]
    assert len(ids) == len(set(ids))
    assert all((a["href"] or "")[1:] in ids for a in shown.all("a"))
    assert [a["id"] for a in shown.all("section")] == ["waits", "findings", "ranks", "stacks", "read", "checks"]


def test_every_cause_is_said_with_evidence_and_the_graph_has_a_table() -> None:
    shown = page(two_roots())
    assert [a["data-rule"] for a in shown.all("article")] == ["TO-H004", "TO-H001"]
    text = shown.text()
    assert "Rank 5 never called all_reduce #31 of replicate_1. Ranks 0–1, 4, 8–9, 12–13 wait for it" in text
    assert "137 (SIGKILL)" in text
    assert len(shown.all("svg")) == 2 and all(a.get("aria-label") for a in shown.all("svg"))
    assert "Which ranks wait for which" in text and "Because" in text


def test_stacks_of_the_cause_and_problems_are_there() -> None:
    text = page(skipped()).text()
    assert "sleep (lib.py:9)" in text and "main (train.py:120)" in text
    assert "evidence/dump_x: it is empty" in text
    assert "No step ended for 42 s (limit 30 s) and nothing moved" in text


def test_what_came_from_a_file_stays_text() -> None:
    shown = page(skipped(text=HOSTILE))
    assert not any("onerror" in attributes for _, attributes in shown.elements)
    assert shown.text().count(HOSTILE.replace("\x1b", "\ufffd")) > 5 and "\x1b" not in shown.text()


def test_512_ranks_stay_a_small_page() -> None:
    findings = render_hang_html(many(), [], [])
    assert len(findings) < 120_000
    assert "448" in Page(findings).text()


def test_without_a_hang_it_says_what_was_read() -> None:
    text = page(nobody_waits()).text()
    assert "These files show no rank waiting for another one." in text
    assert "flight-recorder dumps of ranks 0–3 (4 of 4)" in text


def test_ranks_of_which_nothing_is_known_are_named() -> None:
    assert page(dead_with_log()).text().count("Nothing is known of ranks 0–2.") == 2


def test_summary_leads_with_the_hang_and_keeps_the_rest() -> None:
    report = structs.replace(sample_report(), hang=two_roots())
    card = card_of(report)
    assert card.level == "error" and card.headline.startswith("Rank 14 died") and len(card.headline) <= LONGEST
    shown = Page(render_html(report, plotlyjs="cdn"))
    assert shown.mismatched == []
    assert [a["id"] for a in shown.all("section")][:2] == ["hang", "findings"]
    assert card.headline in shown.text()
    assert "Rank 5 never called all_reduce #31" in shown.text()
    assert len([a for a in shown.all("svg") if a.get("role") == "img"]) == 2


def test_summary_with_evidence_but_no_cause_keeps_its_own_verdict() -> None:
    report = structs.replace(sample_report(), hang=nobody_waits())
    assert card_of(report) == card_of(sample_report())
    assert "No rank waits for another one." in Page(render_html(report, plotlyjs="cdn")).text()


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1400])
def test_page_fits_and_says_nothing_in_a_browser(browser: Any, tmp_path: Path, width: int) -> None:
    said: list[str] = []
    tab = browser.new_context(offline=True, viewport={"width": width, "height": 900}).new_page()
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    for number, diagnosis in enumerate((skipped(text=HOSTILE), two_roots(), many())):
        path = tmp_path / f"hang_{number}.html"
        path.write_bytes(render_hang_html(diagnosis, [], []))
        tab.goto(path.as_uri())
        assert not tab.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert tab.locator("svg.waits:visible").count() == 1
        inside = "b => { const g = b.parentNode.querySelector('rect').getBBox(), t = b.getBBox();"
        inside += " return t.x >= g.x && t.x + t.width <= g.x + g.width && t.y + t.height <= g.y + g.height }"
        for text in tab.locator("svg.waits:visible .node text").element_handles():
            assert text.evaluate(inside), text.text_content()
    assert said == []


def printed(diagnosis: Diagnosis, *, verbose: bool = True) -> list[str]:
    out = io.StringIO()
    print_diagnosis(diagnosis, out, Path("reports/x/hang.html"), verbose=verbose)
    return out.getvalue().splitlines()


def flowing(diagnosis: Diagnosis) -> str:
    """The text without its line breaks."""
    return " ".join(" ".join(printed(diagnosis)).split())


@pytest.mark.parametrize("diagnosis", ALL)
def test_a_few_plain_lines_of_at_most_100_columns(diagnosis: Diagnosis) -> None:
    lines = printed(diagnosis)
    assert len(lines) < 45
    assert all(len(line) <= 100 for line in lines)
    assert not any("\x1b" in line or "–" in line for line in lines)
    assert lines[-1] == "Report: reports/x/hang.html"


@pytest.mark.parametrize("diagnosis", ALL)
def test_the_card_has_at_most_25_lines_and_the_first_cause_whole(diagnosis: Diagnosis) -> None:
    card, whole = printed(diagnosis, verbose=False), printed(diagnosis)
    assert len(card) <= 25 and card[0] == whole[0] and card[-1] == whole[-1]


def test_the_path_of_the_report_is_the_one_it_was_written_to() -> None:
    out = io.StringIO()
    print_diagnosis(skipped(), out, Path("reports/a–b/hang.html"))
    assert out.getvalue().endswith("Report: reports/a–b/hang.html\n")


def test_the_first_line_names_who_what_and_who_waits() -> None:
    lines = printed(skipped())
    assert lines[0].startswith("✖ Rank 3 never called all_reduce #64 of default_pg. Ranks 0-2 wait for it")
    text = flowing(skipped())
    assert "It is sleeping in load_batch (data.py:31). Confidence: high TO-H001" in text
    assert text.count("load_batch (data.py:31)") == 3  # the sentence, its proof, the table
    assert "last enqueued by rank 3: #63 of default_pg" in text
    assert "No step ended for 42 s (limit 30 s) and nothing moved." in text
    assert "Not used: evidence/dump_x: it is empty" in text and "Note: a note" in text


def test_who_waits_and_what_it_does_are_added_where_the_message_lacks_them() -> None:
    text = flowing(two_roots())
    assert "#31 of replicate_1. Ranks 0-1, 4, 8-9, 12-13 wait for it. It is in forward" in text


def test_each_independent_cause_has_its_paragraph_and_leads_the_table() -> None:
    lines = printed(two_roots())
    causes = [number for number, line in enumerate(lines) if line.startswith("✖")]
    assert len(causes) == 2 and lines[causes[1] - 1] == ""
    table = next(number for number, line in enumerate(lines) if line.startswith("rank"))
    assert [line.split()[:2] for line in lines[table + 1 : table + 3]] == [["14", "dead"], ["5", "cause"]]


def test_512_ranks_are_three_rows() -> None:
    lines = printed(many())
    states = [line for line in lines if "waiting" in line or "cause" in line.split()[1:2]]
    assert len(states) == 3
    assert "in 64 groups" in flowing(many())


def test_nobody_waiting_is_said_with_what_was_read() -> None:
    assert "No rank waits for another one. Read: flight-recorder dumps of ranks 0-3 (4 of 4)" in flowing(nobody_waits())
    text = flowing(nobody_waits(4, 3))
    assert "Nothing is known of rank 3: one of them may be what the others wait for." not in text
    assert "Nothing is known of rank 3" in text


@pytest.mark.parametrize("diagnosis", [nobody_waits(4, 0), dead_with_log()])
def test_lack_of_data_is_said_and_never_called_healthy(diagnosis: Diagnosis) -> None:
    text = flowing(diagnosis)
    assert "Nothing is known of ranks 0-" in text
    assert "no hang" not in text.lower()


def test_waiting_without_a_cause_is_said() -> None:
    text = flowing(replace(skipped(), roots=()))
    assert text.startswith(
        "▲ No step ended for 42 s (limit 30 s) and nothing moved. Ranks 0-2 of 4 wait in all_reduce #64."
    )


def test_nothing_from_a_file_steers_the_terminal() -> None:
    text = "\n".join(printed(skipped(text=HOSTILE)))
    assert "\x1b" not in text and "\u2028" not in text


DRAWN = (skipped(), two_roots(), mismatch(), many(), skipped(2, 1), many(64, 2))


@pytest.mark.parametrize("diagnosis", [*DRAWN, dead_with_log(), nobody_waits()])
@pytest.mark.parametrize("most", [3, 14, 1000])
def test_merging_keeps_every_rank_once(diagnosis: Diagnosis, most: int) -> None:
    groups = merged_ranks(diagnosis, most)
    ranks = sorted(rank for group in groups for rank in group.ranks)
    assert ranks == sorted(row.rank for row in diagnosis.ranks)
    blamed = {rank for root in diagnosis.roots for rank in root.ranks}
    assert all((group.root is not None) == bool(blamed & set(group.ranks)) for group in groups)


def test_what_merged_ranks_do_not_share_is_counted() -> None:
    (gathering,) = [group for group in merged_ranks(many(), 14) if group.shared("op") == "_all_gather_base"]
    assert len(gathering.ranks) == 448
    assert gathering.shared("group") is None and len(gathering.differ["group"]) == 64


def test_merged_waits_are_the_same_waits() -> None:
    for diagnosis in DRAWN:
        merged = merged_waits(diagnosis.waits)
        again = {(r, on, w.reason, w.group, w.op, w.sequence) for w in merged for r in w.ranks for on in w.on}
        assert again == {(w.rank, w.on, w.reason, w.group, w.op, w.sequence) for w in diagnosis.waits}
    assert len(merged_waits(many().waits)) == 65


@pytest.mark.parametrize("diagnosis", DRAWN)
@pytest.mark.parametrize("which", [0, 1])
def test_boxes_lie_apart_and_inside(diagnosis: Diagnosis, which: int) -> None:
    graphs = wait_graphs(diagnosis)
    assert graphs is not None
    graph = graphs[which]
    assert 2 <= len(graph.nodes) <= MOST_NODES
    for node in graph.nodes:
        assert node.x >= 0 and node.x + WIDTH <= graph.width
        assert node.y >= 0 and node.y + node.height <= graph.height
    for one, other in itertools.combinations(graph.nodes, 2):
        beside = abs(one.x - other.x) >= WIDTH
        above = one.y + one.height <= other.y or other.y + other.height <= one.y
        assert beside or above
    if which:
        assert graph.width <= 400


def arrows(graph: WaitGraph) -> set[tuple[str, str]]:
    return {(graph.nodes[edge.start].lines[0], graph.nodes[edge.end].lines[0]) for edge in graph.edges}


def test_arrows_lead_to_causes_at_the_right_and_last_in_a_column() -> None:
    graphs = wait_graphs(two_roots())
    assert graphs is not None
    wide, tall = graphs
    assert arrows(wide) == arrows(tall)
    assert ("Ranks 3, 7 … (4 in all)", "Ranks 2, 6 … (3 in all)") in arrows(wide)
    causes = [node for node in wide.nodes if node.kind == "root"]
    assert min(node.x for node in causes) > max(node.x for node in wide.nodes if node.kind != "root")
    below = [node.y for node in tall.nodes if node.kind == "root"]
    assert min(below) > max(node.y for node in tall.nodes if node.kind != "root")


def test_waiting_through_others_lies_further_out() -> None:
    graphs = wait_graphs(many())
    assert graphs is not None
    assert {node.lines[0]: node.layer for node in graphs[0].nodes} == {
        "Rank 29": 0, "Ranks 5, 13 … (63 in all)": 1, "Ranks 0–4, 6–12 … (448 in all)": 2,
    }  # fmt: skip


def test_waiting_in_a_circle_is_drawn() -> None:
    circle = tuple(Wait(rank, (rank + 1) % 3, "not_called") for rank in range(3))
    rows = tuple(structs.replace(row, where=f"line {row.rank}") for row in skipped(4).ranks[:3])
    for roots in ((), (replace(skipped().roots[0], ranks=(0, 1, 2), waiting=()),)):
        graphs = wait_graphs(replace(skipped(), ranks=rows, waits=circle, roots=roots))
        assert graphs is not None and len(graphs[0].edges) == 3


def test_nobody_waiting_is_no_graph() -> None:
    assert wait_graphs(nobody_waits()) is None and wait_graphs(dead_with_log()) is None


def test_who_only_a_root_says_is_waiting_is_drawn() -> None:
    graphs = wait_graphs(replace(mismatch(), waits=()))
    assert graphs is not None and arrows(graphs[0]) == {("Ranks 0–1, 3 (3)", "Rank 2")}
