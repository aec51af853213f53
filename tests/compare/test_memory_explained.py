"""Peak memory that grew is explained by what grew of it: by line where both sides have snapshots, else by kind."""

from typing import Any

from comparison_reports import edited, made

from traceops.compare import ComparedCapture, compare
from traceops.traces.snapshot_rows import NO_STACK

GIB = 1 << 30


def twice(at: float, *of: Any, **more: int) -> tuple[ComparedCapture, ...]:
    """Two captures of the same code."""
    return tuple(holding(at + apart, *of, **more) for apart in (0, 10))


def holding(at: float, peak: int, lines: dict[str, int] | None = None, **more: int) -> ComparedCapture:
    """A capture whose rank 1 held most: `peak` GiB, 4 of them between steps."""
    row: dict[str, Any] = {
        "rank": 1, "peak_bytes": peak * GIB, "between_steps_bytes": 4 * GIB, "parameters_bytes": GIB,
        "gradients_bytes": GIB, "optimizer_state_bytes": 2 * GIB, **{k: v * GIB for k, v in more.items()},
        "lines": [{"line": line, "held_bytes": size * GIB, "blocks": 3} for line, size in (lines or {}).items()],
    }  # fmt: skip

    def edit(report: dict[str, Any]) -> None:
        report["memory"] = {"ranks": [{"rank": 0, "peak_bytes": GIB}, row]}

    return edited(made([100.0] * 20, at=at, peak=peak * GIB), edit)


def reason(base: tuple[ComparedCapture, ...], head: tuple[ComparedCapture, ...]) -> str:
    result = compare(base, head)
    assert result.sentence.startswith("Regression: peak memory") and "%). At its peak rank 1" in result.sentence
    assert " GiB → " in result.sentence and "GB" not in result.sentence  # one unit in all of it
    assert result.verdict == "regression"
    [found] = [one for one in result.explanations if one.cause == "peak_memory"]
    [finding] = [one for one in result.findings if "memory" in one.message]
    assert found.text[1:] in finding.message
    return found.text


def test_activations_grew() -> None:
    text = reason(twice(0, 10), twice(100, 16))
    assert text.startswith("at its peak rank 1 holds 6.00 GiB more: 6.00 GiB more activations and temporaries within")


def test_the_optimizer_grew() -> None:
    more = {"between_steps_bytes": 8, "optimizer_state_bytes": 6}
    assert "4.00 GiB more optimizer state" in reason(twice(0, 10), twice(100, 14, **more))


def test_by_line() -> None:
    base = twice(0, 10, {"model.py:40 forward": 6, "train.py:9 main": 4})
    head = twice(100, 17, {"model.py:40 forward": 6, "train.py:9 main": 4, "train.py:77 keep": 7})
    assert reason(base, head).endswith("7.00 GiB more made in train.py:77 keep")


def test_lines_that_moved_are_the_same_lines() -> None:
    """Four lines were put in above `forward`, which holds 6 GiB as before; `keep` is new."""
    base = twice(0, 10, {"model.py:40 forward": 5, "model.py:44 forward": 1, "train.py:9 main": 4})
    lines = {"model.py:45 forward": 5, "model.py:49 forward": 1, "train.py:9 main": 4, "train.py:77 keep": 7}
    text = reason(base, twice(100, 17, lines))
    assert text.endswith("holds 7.00 GiB more: 7.00 GiB more made in train.py:77 keep")


def test_what_has_no_stack_is_made_in_no_line() -> None:
    base, head = twice(0, 10, {NO_STACK: 6}), twice(100, 17, {NO_STACK: 13})
    assert reason(base, head).endswith("7.00 GiB more made where no stack was recorded")


def test_nothing_is_said_where_a_side_does_not_tell() -> None:
    result = compare([made([100.0] * 20, peak=10 * GIB)], [holding(100, 16)])
    assert not [one for one in result.explanations if one.cause == "peak_memory"]
