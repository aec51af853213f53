"""TO-I004 where neither a copy nor its call says how large it is; and where the call alone does, as in ROCm."""

import gzip
import json
from pathlib import Path

import pytest

from traceops.pipeline.analyze import analyze

COPIES = Path(__file__).parents[1] / "data" / "copies"


def without_sizes(name, folder, in_the_calls=False):
    trace = json.loads(gzip.decompress((COPIES / name / "trace.json.gz").read_bytes()))
    copies = [event for event in trace["traceEvents"] if event.get("cat") == "gpu_memcpy"]
    size = {event["args"]["correlation"]: str(event["args"]["bytes"]) for event in copies}
    for event in copies:
        event["args"] = {key: told for key, told in event["args"].items() if "byte" not in key.lower()}
    for event in trace["traceEvents"] if in_the_calls else ():
        if event.get("cat") == "cuda_runtime" and (args := event["args"])["correlation"] in size:
            args["size"] = size[args["correlation"]]
    (folder / "trace.json").write_text(json.dumps(trace))
    return analyze(folder)


def exposed(report):
    return [one for one in report.findings if one.rule == "TO-I004"]


@pytest.mark.parametrize("name", ["adam_on_host", "pageable", "to_host", "many_small", "saved_on_host"])
def test_rocm_tells_the_size_in_the_call(name, tmp_path):
    """As in tests/data/hta/amd: nothing was known of such copies' sizes."""
    whole = exposed(analyze(COPIES / name))
    assert exposed(without_sizes(name, tmp_path, in_the_calls=True)) == whole
    assert all("GB/s" in one.message for one in whole)


def test_a_trace_of_rocm():
    report = analyze(COPIES.parent / "hta" / "amd")
    [copies] = report.tables.copies
    assert (copies.count, copies.bytes, copies.purpose) == (2, 2560, "input") and copies.gbs


@pytest.mark.parametrize("name", ["adam_on_host", "saved_on_host"])
def test_offload_is_no_input_and_no_result(name, tmp_path):
    """Weights and activations that are kept on the host were two errors: batches to pin, and results."""
    (one,) = exposed(without_sizes(name, tmp_path))
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
    assert [one.cause for one in exposed(without_sizes(name, tmp_path))] == [cause]
