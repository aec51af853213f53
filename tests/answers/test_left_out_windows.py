"""What of a folder is not shown: other windows of the job, and other jobs that recorded there."""

import gzip
import json
from pathlib import Path

from traceops.answers.opening import open_run
from traceops.cli import main

RUN = Path(__file__).parents[1] / "data" / "last_pass_gloo2"


def write(folder, name, later_s, pid):
    """The run again, `later_s` later, by processes of other numbers."""
    for rank, path in enumerate(sorted(RUN.glob("*.json.gz"))):
        trace = json.loads(gzip.decompress(path.read_bytes()))
        for event in trace["traceEvents"]:
            event["ts"] += later_s * 1e6
            event["pid"] = pid + rank
        (folder / f"{name}_rank_{rank}.json").write_text(json.dumps(trace))


def test_windows_of_other_jobs_are_no_earlier_windows(tmp_path, capsys):
    """Two jobs of a window each were 'the last of 2 capture windows', and '1 earlier capture window left out'."""
    write(tmp_path, "a", 0, 700)
    write(tmp_path, "b", 60, 800)
    assert open_run(tmp_path).problems == ("1 capture window of other jobs left out",)
    assert main(["view", str(tmp_path), "-o", str(tmp_path / "out.json")]) == 0
    told = capsys.readouterr().out
    assert "1 capture window of other jobs left out" in told and "one of" not in told
    write(tmp_path, "c", 90, 800)
    assert open_run(tmp_path).problems == ("1 other capture window left out", "1 capture window of other jobs left out")
