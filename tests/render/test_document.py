"""A document says the same in every format, and nothing in it is markup."""

import io
from html.parser import HTMLParser

import pytest
from html_page import TABLES

from traceops.core.facts import Fact
from traceops.core.findings import Check, Evidence, Finding
from traceops.render.cells import Cell, Column, Table, build_table
from traceops.render.document import (
    Chart,
    Checks,
    Code,
    Document,
    Facts,
    FindingBlock,
    Heading,
    Headline,
    Section,
    Span,
    TableBlock,
    Term,
    Terms,
    bold,
    code,
    fold,
    items,
    soft,
    spans,
    text,
)
from traceops.render.finding_blocks import not_used
from traceops.render.writers.html import write_html
from traceops.render.writers.markdown import FoldedPart, folded, size
from traceops.render.writers.terminal import write_terminal

HOSTILE = "<script>alert(1)</script> @someone `x` |"
TABLE = build_table("Times", (Column("name", "Name", number=False), Column("ms", "ms")), [{"name": HOSTILE, "ms": 1.5}])
FINDING = Finding(
    "TO-X001",
    "error",
    "high",
    "Too slow",
    HOSTILE,
    (Evidence(Fact.OTHER, 3.5, "ms", subject="time"),),
    (1,),
    advice="Wait.",
)
BLOCKS = (
    text("One ", bold("two"), " ", code(HOSTILE), Span(" three", "", "#part")),
    soft("soft words"),
    Heading("Inside"),
    items(["first", text("second ", bold("b"))]),
    items(["1st"], ordered=True),
    not_used([("file.json", "is empty")]),
    TableBlock(TABLE),
    Facts((("Ranks", Cell("4")),)),
    Terms((Term("Dot", "One capture", "dot", "#123456"),)),
    Code(("export A=1",), "Lines"),
    Checks("What each rule says", (Check("TO-X001", "fired", HOSTILE),), {"TO-X001": "Too slow"}),
    FindingBlock(FINDING, TABLE),
    fold("More", text("folded words"), open=True),
)


def document(*blocks, charts=()):
    return Document(
        "Title",
        spans("name ", Span(HOSTILE, "name")),
        "traceops test",
        Headline("error", HOSTILE),
        (),
        (Section("part", "A part", (*blocks, *charts), "Part"),),
        "the end",
    )


class Seen(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)


def test_the_page_says_every_block_and_escapes_all_of_it():
    seen = Seen(write_html(document(*BLOCKS)).decode())
    said = " ".join(" ".join(seen.words).split())
    for words in ("One two", "soft words", "Inside", "first", "second b", "1st", "is empty", "Times", "Ranks", "Dot",
                  "export A=1", "Too slow", "folded words", "the end", HOSTILE):  # fmt: skip
        assert words in said.replace("  ", " "), words
    assert [tag for tag, _ in seen.tags].count("script") == 1 and TABLES in seen.words
    assert ("a", {"href": "#part"}) in seen.tags
    assert [attrs["id"] for tag, attrs in seen.tags if tag == "section"] == ["part"]


def test_only_a_page_with_a_chart_has_scripts():
    chart = Chart("ledger", "Bars", {"data": [], "layout": {}})
    plain, charted = document(*BLOCKS), document(fold("Behind", chart), charts=(chart,))
    assert plain.charts == {} and list(charted.charts) == ["ledger"]
    tags = [tag for tag, _ in Seen(write_html(charted, plotlyjs="cdn").decode()).tags]
    assert tags.count("script") == 3
    with pytest.raises(ValueError, match="plotlyjs"):
        write_html(charted, plotlyjs="else")


def test_the_terminal_has_the_same_words():
    out = io.StringIO()
    write_terminal(BLOCKS, out)
    said = out.getvalue()
    for words in ("One two", "soft words", "Inside", "- first", "- second b", "1. 1st", "Ranks: 4", "export A=1",
                  "✖ TO-X001 Too slow.", "→ Wait.", "folded words"):  # fmt: skip
        assert words in said, words


def test_a_log_gets_lines_broken_at_words_and_what_is_copied_whole():
    out = io.StringIO()
    blocks = (
        text("word " * 30, look="level-error", indent=(2, 6)),
        text(""),
        Code(("export PATH=" + "x" * 90 + " a–b",), look="bold"),
        TableBlock(Table("", (Column("a", "a–b", css="nowrap"),), ((Cell("1–2", css="level-error"),),))),
    )
    write_terminal(blocks, out, widths=(40, 50))
    lines = out.getvalue().splitlines()
    assert lines[0].startswith("  word") and lines[1].startswith("      word")
    assert max(map(len, lines[:4])) <= 50 and lines[4] == ""
    assert lines[5:] == ["export PATH=" + "x" * 90 + " a–b", "a-b", "1-2"]


def test_markdown_keeps_to_its_bytes():
    rows = tuple(f"- row {number} with <b>words</b>" for number in range(40))
    part = FoldedPart("A part", (), rows, len(rows), more="report.json")
    short = folded(part, 300)
    assert size(short) <= 300 and short[-1] == "</details>" and "more in report.json." in "\n".join(short)
    assert folded(part, 10) == []
