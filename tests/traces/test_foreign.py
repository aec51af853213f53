"""Chrome traces of other programs are told as what they are; torch's own, whatever is left of them, are not."""

import gzip
import json

import pytest

from traceops.core.errors import InputError
from traceops.measure.summary import summarize
from traceops.traces.discover import discover
from traceops.traces.foreign import why_foreign
from traceops.traces.kineto import load_trace

SPAN = {"ph": "X", "pid": 1, "tid": 1, "ts": 100.0, "dur": 10.0}
NAMED = {"ph": "M", "pid": 1, "tid": 1, "name": "process_name"}
FOREIGN = {
    "JAX": {
        "displayTimeUnit": "ns",
        "metadata": {"highres-ticks": True},
        "traceEvents": [NAMED | {"args": {"name": "/device:GPU:0"}}, SPAN | {"name": "fusion.1"}, {}],
    },
    "VizTracer": {"traceEvents": [SPAN | {"name": "f (a.py:1)", "cat": "FEE"}], "viztracer_metadata": {"version": "1"}},
    "ONNX Runtime": [SPAN | {"cat": "Session", "name": "model_loading_uri", "args": {}}],
    "Horovod": [NAMED | {"args": {"name": "w"}}, {"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 1}],
    "Chrome": {
        "traceEvents": [SPAN | {"cat": "toplevel", "name": "ThreadControllerImpl::RunTask"}],
        "metadata": {"source": "DevTools"},
    },
    "torch.autograd.profiler": [SPAN | {"name": "aten::mm", "pid": "CPU functions", "args": {}}],
    "none of torch's profiler": {"traceEvents": [SPAN | {"cat": "mine", "name": "work"}]},
}


@pytest.mark.parametrize("maker", FOREIGN)
def test_the_program_is_named_and_nothing_is_called_damaged(tmp_path, maker):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(FOREIGN[maker]).encode()))
    (window,) = discover(str(path)).windows
    with pytest.raises(InputError) as told:
        summarize(window.files[0])
    said = str(told.value)
    assert said.startswith(str(path)) and maker in said and "Chrome trace" in said
    assert "damaged" not in said and "summary" not in said


@pytest.mark.parametrize(
    "content", [[{"id": 1, "timestamps": [{"name": "RECV", "ns": 5}]}], [{"frame": {"name": "k"}}]]
)
def test_a_list_of_something_else_is_no_chrome_trace(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    (window,) = discover(str(path)).windows
    with pytest.raises(InputError, match="it is no Chrome trace: what it lists has no phase"):
        summarize(window.files[0])


@pytest.mark.parametrize(
    "content",
    [
        {"traceEvents": [SPAN | {"cat": "Kernel", "name": "k"}]},  # older torch wrote capitals
        {"traceEvents": [SPAN | {"cat": "privateuse1_runtime", "name": "launch"}]},
        {"distributedInfo": {"rank": 3, "world_size": 4}, "traceEvents": [SPAN | {"cat": "mine", "name": "x"}]},
    ],
)
def test_what_torch_wrote_is_torchs(tmp_path, content):
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    assert why_foreign(load_trace(str(path))) == ""


def test_a_trace_that_was_cut_off_stays_damaged(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": [{"ph": "X", "cat": "mi')
    assert why_foreign(load_trace(str(path))) == ""


OPERATOR = SPAN | {"cat": "cpu_op", "name": "aten::mm"}
CALL = SPAN | {"cat": "cuda_runtime", "name": "cudaGetDeviceCount", "args": {"correlation": 1}}


@pytest.mark.parametrize(
    ("events", "cut", "says"),
    [
        ([OPERATOR, SPAN | {"cat": "enqueue"}, SPAN | {"cat": "dequeue"}], "", "Ascend NPU"),
        ([CALL, CALL], "", "2 calls of the GPU's runtime, but no operator, no kernel and no step"),
        (
            [{"name": "k", "ph": "b", "cat": "GPU", "ts": 1, "pid": 1, "tid": 1}],
            ", ",
            "what can be read of it holds no",
        ),
    ],
)
def test_a_trace_of_which_nothing_can_be_judged_says_why(tmp_path, events, cut, says):
    path = tmp_path / "rank0.json"
    text = json.dumps(events)
    path.write_text(text[:-1] + cut if cut else text)
    (window,) = discover(str(path)).windows
    with pytest.raises(InputError) as told:
        summarize(window.files[0])
    assert says in str(told.value) and "cannot be read as a summary" not in str(told.value)


def test_collectives_of_nccl_without_a_gpu_in_the_trace_are_not_missed_in_backward(tmp_path):
    path = tmp_path / "rank0.json"
    host = [
        ("user_annotation", "ProfilerStep#1", 0, 100),
        ("cpu_op", "DistributedDataParallel.forward", 1, 10),
        ("cpu_op", "autograd::engine::evaluate_function: Mm", 20, 10),
        ("user_annotation", "nccl:all_to_all", 50, 5),
        ("cpu_op", "record_param_comms", 50, 5),
    ]
    events = [SPAN | {"cat": cat, "name": name, "ts": ts, "dur": dur} for cat, name, ts, dur in host]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    (window,) = discover(str(path)).windows
    backward = summarize(window.files[0]).backward
    assert backward.steps_with_backward == 1 and not backward.launches_known
