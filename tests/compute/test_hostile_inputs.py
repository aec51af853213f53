"""Whatever inputs a file tells of an operator, kernels are measured without an error."""

import json

from drawn import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from recorded_step import launched_of, op, write

from traceops.compute.measure import measure_compute

NAMES = [
    "aten::mm", "aten::addmm", "aten::bmm", "aten::_softmax", "aten::cudnn_convolution", "aten::convolution_backward",
    "aten::_cudnn_attention_forward", "aten::_cudnn_attention_backward", "aten::copy_", "aten::cat", "aten::index",
    "aten::embedding_dense_backward", "aten::scatter_add_", "aten::native_batch_norm", "aten::_fused_adamw_",
    "aten::add",
    "aten::one_hot", "aten::fill_", "aten::sum", "triton_poi_fused_add_1", "aten::sort", "aten::addcdiv_", "aten::gelu",
]  # fmt: skip
NODES = ["", "SelectBackward0", "ToCopyBackward0", "EmbeddingBackward0", "ExpandBackward0"]
sizes = st.sampled_from([0, 1, 2, 64, 4096, 50257, 10**9, 10**30])
dims = st.one_of(
    st.lists(sizes, max_size=5), st.lists(st.lists(sizes, max_size=3), max_size=3), st.just(7), st.just("x")
)
strides = st.lists(st.sampled_from([0, 1, 64, -5, 10**30]), max_size=5)
types = st.sampled_from(["float", "c10::BFloat16", "double", "long int", "bool", "TensorList", "Scalar", "", "other"])
inputs = st.lists(st.builds(lambda d, t, s: {"dims": d, "type": t, "strides": s}, dims, types, strides), max_size=4)


@st.composite
def calls(draw):
    node = draw(st.sampled_from(NODES))
    inside = (f"autograd::engine::evaluate_function: {node}", node) if node else ()
    kernel = draw(st.sampled_from(["k", "sgemm", "nchwToNhwcKernel", "nvjet_h", "DeviceRadixSort"]))
    return op(
        draw(st.sampled_from(NAMES)),
        *draw(inputs),
        inside=inside,
        kernel=kernel,
        us=draw(st.sampled_from([0.5, 50, 5000])),
    )


@given(st.lists(calls(), min_size=1, max_size=12), st.sampled_from([1, 40]), st.sampled_from([0.7, 50.0]))
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_inputs_are_measured(tmp_path, several, times, host_us):
    found = measure_compute(*launched_of(write(tmp_path / "trace.json", several * times, host_us=host_us, steps=1)))
    assert 0 <= found.attainable_ns <= found.known_ns * 1.000001 and found.known_ns <= found.busy_ns * 1.000001
    for loss in found.losses:
        assert 0 <= loss.device_ns <= found.busy_ns * 1.000001 and 0 <= loss.step_after_ns[0] <= loss.step_after_ns[1]
    json.dumps([loss.sizes for loss in found.losses])
