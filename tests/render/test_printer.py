"""The two ways of printing agree: by rich on a terminal, as plain text elsewhere."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from traceops.core.text import show_our_signs
from traceops.render.cells import Cell, Column, Table
from traceops.render.document import TableBlock, text
from traceops.render.printer import Printer, wrapped_printer
from traceops.render.writers.terminal import write_terminal

HOSTILE = "[red]b \x1b[31m:x: ü"
ROWS = (
    ("compute", "157.25", "█" * 40, "157.34 ms on rank 2"),
    ("idle_dependency", "0.97", "█", "1.23 ms on rank 1023"),
    (HOSTILE, "–", "", ""),
)


def on_terminal(monkeypatch: pytest.MonkeyPatch, *parts: tuple[str, str], hanging: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    Printer(terminal).line(*parts, hanging=hanging)
    return re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()).splitlines()


def test_a_terminal_gets_lines_broken_at_words_and_indented(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = on_terminal(monkeypatch, ("● TO-X001 ", "cyan"), ("A title. ", "bold"), ("word " * 20, ""), hanging=2)
    assert lines[0].startswith("● TO-X001 A title. word")
    assert all(line.startswith("  word") and len(line) <= 40 for line in lines[1:])
    assert sum(line.count("word") for line in lines) == 20


def test_what_is_wider_than_the_terminal_is_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/a/path" * 10
    assert on_terminal(monkeypatch, (f"    see {path} there", ""), hanging=6) == [
        "    see",
        f"      {path}",
        "      there",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def printed(file: io.StringIO) -> list[str]:
    printer = Printer(file)
    printer.line(("run: ", "bold"), (HOSTILE, "bold red"), (" word" * 40, ""))
    printer.table(("where", "ms", "", "worst"), ROWS, left=(0, 2, 3), caption="less than all", bars=2)
    printer.table(("rank", "idle %"), [("0", "1.5"), ("10", "22.5")], left=())
    return [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", file.getvalue()).splitlines()]


def test_a_terminal_gets_the_same_text_as_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = Terminal(), io.StringIO()
    lines = printed(pipe)
    shown = printed(terminal)
    words = next(place for place, line in enumerate(shown) if "where" in line)  # above: one line, broken at words
    assert " ".join(shown[:words]).split() == lines[0].split()
    assert shown[words:] == lines[1:]
    assert max(map(len, shown)) <= 80
    assert "\x1b[1m" in terminal.getvalue() and "\x1b" not in pipe.getvalue()
    assert lines[0].startswith("run: [red]b \ufffd[31m:x: ü") and lines[0].count("word") == 40
    assert max(map(len, lines[1:])) == 80 and "█…" in lines[2]
    assert lines[-3:] == ["rank  idle %", "   0     1.5", "  10    22.5"]


def test_a_table_in_a_log_keeps_its_columns_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    columns = tuple(Column(name, name, number=False) for name in ("metric", "base", "head", "verdict"))
    cells = tuple(Cell(text) for text in ("step time", "53.37 ms", "45.22 ms", "inconclusive"))
    printer = wrapped_printer(terminal, (40, 110))
    printer.line(("word " * 20, ""))
    printer.table(Table("", columns, (cells,)), {})
    lines = re.sub(r"\x1b\[[\d;]*m", "", terminal.getvalue()).splitlines()
    assert "53.37 ms" in lines[-1] and "inconclusive" in lines[-1] and max(map(len, lines[:-2])) <= 40


@pytest.mark.parametrize("wrapped", [False, True])
def test_lines_of_ascii_are_as_wide_as_they_are_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrapped: bool
) -> None:
    """A sign that takes three columns in ASCII ('...' for '…') counted as one, and lines were 62 wide of 60."""
    for name, value in {"COLUMNS": "60", "LC_ALL": "C", "PYTHONUTF8": "", "PYTHONIOENCODING": ""}.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    columns = (Column("a", "where", number=False), Column("b", "", number=False, css="bar"))
    table = Table("", columns, ((Cell("… of it"), Cell("█" * 90)),))
    signs = "12 → 30 ms … " * 12
    with (tmp_path / "shown").open("w", encoding="utf-8") as file:
        show_our_signs(file)
        write_terminal([TableBlock(table), text(signs)], file, widths=(60, 60) if wrapped else None)
    lines = (tmp_path / "shown").read_text("ascii").splitlines()
    assert max(map(len, lines)) <= 60
    words = " ".join(lines).split()
    assert words[-60:] == signs.replace("→", "->").replace("…", "...").split()
    assert words[:5] == ["where", "...", "of", "it", words[4]] and words[4].startswith("####")
