"""TO-I004 where a trace does not say how large its copies are: what they are for is told by their order, or not."""

import gzip
import json
from pathlib import Path

import pytest

from traceops import analyze

COPIES = Path(__file__).parents[1] / "data" / "copies"


def without_sizes(name, folder):
    trace = json.loads(gzip.decompress((COPIES / name / "trace.json.gz").read_bytes()))
    for event in trace["traceEvents"]:
        if event.get("cat") == "gpu_memcpy":
            event["args"] = {key: told for key, told in event["args"].items() if "byte" not in key.lower()}
    (folder / "trace.json").write_text(json.dumps(trace))
    return [one for one in analyze(folder).findings if one.rule == "TO-I004"]


@pytest.mark.parametrize("name", ["adam_on_host", "saved_on_host"])
def test_offload_is_no_input_and_no_result(name, tmp_path):
    """Weights and activations that are kept on the host were two errors: batches to pin, and results."""
    (one,) = without_sizes(name, tmp_path)
    assert (one.cause, one.severity) == ("offload", "warning")
    assert "DataLoader" not in one.advice


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("pageable", "pageable_input"),
        ("same_stream", "pinned_input"),
        ("to_host", "output"),
        ("many_small", "pageable_input"),
    ],
)
def test_what_goes_one_way_is_told_as_before(name, cause, tmp_path):
    assert [one.cause for one in without_sizes(name, tmp_path)] == [cause]
