"""What is said of idle time in a trace of a program that used no GPU."""

import json

from traceops.pipeline.analyze import analyze
from traceops.render.report.coverage import unjudged_sentence


def test_where_nothing_is_launched_nothing_is_launched_late(tmp_path):
    """'29 % of the window: idle: launched late' of a program on a CPU."""
    rows = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": ts, "dur": 700, "pid": 1, "tid": 1}
        for ts in range(0, 5000, 1000)
    ]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": rows}))
    said = unjudged_sentence(analyze(tmp_path))
    assert "time in which no operator computes, because the traces hold no GPU activity" in said
    assert "launched" not in said
