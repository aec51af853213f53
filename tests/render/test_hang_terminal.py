"""A hang as plain text: the cause first, nothing too wide, nothing said that is not known."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from changed import replace
from sample_hang import HOSTILE, dead_with_log, many, mismatch, nobody_waits, skipped, two_roots

from traceops.hangs.model import Diagnosis
from traceops.render.hang.terminal import print_diagnosis

ALL = (skipped(), two_roots(), mismatch(), dead_with_log(), nobody_waits(), nobody_waits(4, 0), many())


def printed(diagnosis: Diagnosis) -> list[str]:
    out = io.StringIO()
    print_diagnosis(diagnosis, out, Path("reports/x/hang.html"))
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


def test_the_path_of_the_report_is_the_one_it_was_written_to() -> None:
    out = io.StringIO()
    print_diagnosis(skipped(), out, Path("reports/a–b/hang.html"))
    assert out.getvalue().endswith("Report: reports/a–b/hang.html\n")


def test_the_first_line_names_who_what_and_who_waits() -> None:
    lines = printed(skipped())
    assert lines[0].startswith("✖ Rank 3 never entered all_reduce #64 of default_pg (4.2 MB, train.py:128); ranks 0-2")
    text = flowing(skipped())
    assert "It is sleeping in load_batch (data.py:31). [TO-H001, error, high confidence]" in text
    assert text.count("load_batch (data.py:31)") == 3  # the sentence, its proof, the table
    assert "last enqueued by rank 3: #63 of default_pg" in text
    assert "No step ended for 42 s (limit 30 s) and nothing moved." in text
    assert "Not used: evidence/dump_x: it is empty" in text and "Note: a note" in text


def test_who_waits_and_what_it_does_are_added_where_the_message_lacks_them() -> None:
    text = flowing(two_roots())
    assert (
        "Rank 5 never entered all_reduce #31 of replicate_1; ranks 0-1, 4, 8-9, 12-13 wait for it. It is in forward"
        in text
    )


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
