"""`traceops view` shows what `traceops analyze` finds, no more and no less, in every run of tests/data."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from traceops.pipeline.analyze import analyze
from traceops.timeline.added_packets import FINDINGS_PID
from traceops.timeline.write import write_timeline
from traceops.traces.discover import discover

DATA = Path(__file__).parents[1] / "data"
RUNS = sorted(
    {path.parent.relative_to(DATA).as_posix() for path in DATA.glob("*/rank_*.pt.trace.json.gz")}
    | {path.parent.relative_to(DATA).as_posix() for path in DATA.glob("hta/*/*.json*")}
)
SAID = ("title", "message", "severity", "confidence", "cause", "impact_ms")


@pytest.mark.usefixtures("kept_summaries")
@pytest.mark.parametrize("run", RUNS)
def test_view_shows_exactly_what_analyze_finds(run: str, tmp_path: Path) -> None:
    found = discover(str(DATA / run))
    written = write_timeline(found, found.windows[-1], tmp_path / "timeline.json.gz", jobs=1)
    shown = [
        [event["name"].split()[0], *(event["args"].get(key) for key in (*SAID, "ranks", "steps"))]
        for event in json.loads(gzip.decompress(written.path.read_bytes()))["traceEvents"]
        if event["pid"] == FINDINGS_PID and event["ph"] == "X"
    ]
    expected = [
        [finding.rule, *(getattr(finding, key) for key in SAID), list(finding.ranks), list(finding.steps)]
        for finding in analyze(DATA / run, jobs=1).findings
    ]
    assert sorted(shown, key=str) == sorted(expected, key=str)
