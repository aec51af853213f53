"""TO-S002 names the steps in which a rank is late: one that is late in none is not named."""

import gzip
import json
from pathlib import Path

from traceops.pipeline.analyze import analyze

PIPELINE = Path(__file__).parents[1] / "data" / "pipeline_uneven2"


def test_a_rank_that_is_late_in_no_step_is_not_named(tmp_path):
    """Of a pipeline whose traces hold no operators, a stage was 'late in steps :'."""
    for path in PIPELINE.glob("*.json.gz"):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        trace["traceEvents"] = [
            e for e in trace["traceEvents"] if e.get("cat") != "cpu_op" or "Collective name" in e.get("args", {})
        ]
        (tmp_path / path.stem).write_text(json.dumps(trace))
    report = analyze(tmp_path)
    assert not [one for one in report.findings if one.rule == "TO-S002" and not one.steps]
    assert all("in steps :" not in one.message for one in report.findings)
    [check] = [one for one in report.checks if one.rule == "TO-S002"]
    assert check.status != "fired"
