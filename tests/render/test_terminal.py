"""The summary on the terminal as plain text, and how lines and tables are broken."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from changed import replace
from sample_report import sample_report

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.text import show_our_signs
from traceops.render.cells import Cell, Column, Table
from traceops.render.document import TableBlock, text
from traceops.render.finding_blocks import evidence_lines
from traceops.render.printer import Printer, wrapped_printer
from traceops.render.report.terminal import print_report
from traceops.render.writers.terminal import write_terminal
from traceops.report.model import Report

KERNEL = (
    "void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16, at::native::func_wrapper_t<"
    "c10::BFloat16, at:"
)


def printed(report: Report) -> list[str]:
    out = io.StringIO()
    print_report(report, out, Path("reports/x/summary.html"), verbose=True)
    return out.getvalue().splitlines()


def with_what_if(*saved: float) -> Report:
    row = sample_report().what_if[0]
    return replace(
        sample_report(), what_if=tuple(replace(row, change=f"change {pct:g}", saved_pct=pct) for pct in saved)
    )


def test_the_three_changes_that_save_most_and_the_replays_error() -> None:
    lines = printed(with_what_if(0.5, 3.0, 60.0, 2.0, 5.0))
    at = next(i for i, line in enumerate(lines) if line.startswith("what if"))
    assert [line.split()[1] for line in lines[at + 1 : at + 4]] == ["60", "5", "3"]
    assert "50.00 → 20.00" in lines[at + 1] and lines[at + 1].split()[-1] == "60.0"
    assert lines[at + 4].strip() == "unchanged, the replay is within 0.27 % of the measured steps"
    assert lines[at + 5].startswith("rank")
    assert "caused wait" in lines[at + 5]


def test_the_heading_says_of_how_many_steps_it_speaks() -> None:
    """'mean of 1 typical of 3, p5–p95 20.96–98.69' beside 20.77 ms: the percentiles are of other steps."""
    report = sample_report()
    time = replace(report.summary.step_time_ms, typical=20.77, n=3, unlike=(3, 4), p5=20.96, p95=98.69)
    said = {"one": replace(time, n=1, unlike=()), "few": time, "all": replace(time, unlike=())}
    heads = {
        name: printed(replace(report, summary=replace(report.summary, step_time_ms=row)))[0]
        for name, row in said.items()
    }
    assert "step 20.77 ms (one step)" in heads["one"]
    assert "step 20.77 ms (mean of 1 typical one, p5–p95 of all 3 20.96–98.69)" in heads["few"]
    assert "step 20.77 ms (mean of 3, p5–p95 20.96–98.69)" in heads["all"]


def test_changes_that_save_next_to_nothing_are_not_printed() -> None:
    lines = printed(with_what_if(0.99, 0.0, -5.0))
    assert not any("change 0" in line or line.startswith("what if") for line in lines)
    assert [line for line in lines if "replay" in line] == [
        "What if: no change that was replayed saves 1 % of the step."
    ]


def test_a_report_without_replay_prints() -> None:
    report = with_what_if(60.0)
    report = replace(report, summary=replace(report.summary, replay=None))
    assert any("change 60" in line for line in printed(report))


def test_long_names_in_evidence_are_short_and_say_what_the_peers_need() -> None:
    evidence = (
        Evidence(Fact.GREW, 0.598, "ms/step", rank=2, peers=0.512, grown=KERNEL, subject=KERNEL),
        Evidence(Fact.SEEN_AS, "x" * 300),
    )
    found = Finding("TO-S001", "error", "high", "Title", "Message.", evidence, ranks=(2,))
    (line,) = [line for line in printed(replace(sample_report(), findings=(found,))) if "grew: " in line]
    assert "0.598 ms/step, peers 0.512" in line
    assert "reduce_kernel" in line and "at::native" not in line
    assert len(line) < 240


def test_names_cannot_steer_the_terminal() -> None:
    report = sample_report(hostile="\x1b[31mred\x07")
    assert not any("\x1b" in line or "\x07" in line for line in printed(report))


def test_numbers_of_one_metric_say_whose_they_are() -> None:
    waits = [Evidence(Fact.WAITS_FOR_A_CORE, pct, "% of steps", rank=rank) for rank, pct in ((1, 34.3), (0, 22.2))]
    evidence = (*waits, Evidence(Fact.OTHER, 3, "ms", rank=1, subject="alone"))
    assert evidence_lines(Finding("TO-W002", "info", "high", "title", "message", evidence)) == [
        "waits for a core 34.3 % of steps (rank 1); waits for a core 22.2 % of steps (rank 0); alone 3 ms"
    ]


def test_a_label_that_says_what_is_counted_needs_no_unit() -> None:
    without = Evidence(Fact.RANKS_WITHOUT_A_TRACE, 1, "ranks")
    assert evidence_lines(Finding("TO-V001", "info", "high", "title", "message", (without,))) == [
        "ranks without a trace 1"
    ]


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


def printed_by(file: io.StringIO) -> list[str]:
    printer = Printer(file)
    printer.line(("run: ", "bold"), (HOSTILE, "bold red"), (" word" * 40, ""))
    printer.table(("where", "ms", "", "worst"), ROWS, left=(0, 2, 3), caption="less than all", bars=2)
    printer.table(("rank", "idle %"), [("0", "1.5"), ("10", "22.5")], left=())
    return [line.rstrip() for line in re.sub(r"\x1b\[[\d;]*m", "", file.getvalue()).splitlines()]


def test_a_terminal_gets_the_same_text_as_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    terminal, pipe = Terminal(), io.StringIO()
    lines = printed_by(pipe)
    shown = printed_by(terminal)
    words = next(place for place, line in enumerate(shown) if "where" in line)  # above: one line, broken at words
    assert " ".join(shown[:words]).split() == lines[0].split()
    assert shown[words:] == lines[1:]
    assert max(map(len, shown)) <= 80
    assert "\x1b[1m" in terminal.getvalue() and "\x1b" not in pipe.getvalue()
    assert lines[0].startswith("run: [red]b \ufffd[31m:x: ü") and lines[0].count("word") == 40
    assert max(map(len, lines[1:])) == 80 and "██  157.34 ms" in lines[2] and "█…" not in lines[2]
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
