"""The summary on the terminal as plain text."""

from __future__ import annotations

import io
from pathlib import Path

from changed import replace
from sample_report import sample_report

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.render.finding_blocks import evidence_lines
from traceops.render.report.terminal import print_report
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
