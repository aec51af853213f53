"""The critical path that is shown is that of a step like the others."""

from pathlib import Path

from traceops.pipeline.analyze import analyze

DATA = Path(__file__).parents[1] / "data"


def test_of_four_steps_with_a_recompilation_the_path_is_of_a_typical_one():
    report = analyze(DATA / "recompile2")
    shown = {piece.step for piece in report.tables.critical_path}
    assert shown and shown.isdisjoint(report.summary.step_time_ms.unlike)
