"""Operations and least bytes of operators, from whatever inputs a file has; and the operator of each kernel."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from drawn import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from recorded_step import BOOL, FLOAT, HALF, LONG, NODE, launched_of, op, tensor, write

from traceops.compute.attainable import attention_ns, gpu_of, product_ns
from traceops.compute.judged import judge_uses
from traceops.compute.measure import measure_compute
from traceops.compute.passes import _broadcast
from traceops.compute.uses import read_inputs
from traceops.compute.work import Attention
from traceops.measure.activity import find_activity
from traceops.measure.flops import measure_flops
from traceops.measure.steps import find_steps

NHWC = (56 * 56 * 64, 1, 56 * 64, 64)
JOINED = "void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<OpaqueType<{}u>, unsigned int>(char*)"
WORKS = [  # operator, kind, operations, bytes
    (op("aten::mm", tensor((8, 16)), tensor((16, 32))), "product", 2 * 8 * 16 * 32, 2 * (8 * 16 + 16 * 32 + 8 * 32)),
    (op("aten::bmm", tensor((4, 8, 16)), tensor((4, 16, 32))), "product", 4 * 2 * 8 * 16 * 32, None),
    (op("aten::addmm", tensor((32,)), tensor((8, 16)), tensor((16, 32))), "product", 2 * 8 * 16 * 32, None),
    (op("aten::mm", tensor((8, 16)), tensor((15, 32))), "other", 0, None),
    (op("aten::_flash_attention_forward", *[tensor((2, 128, 4, 64))] * 3), "attention", 4 * 8 * 128 * 128 * 64, None),
    (
        op("aten::_cudnn_attention_backward", tensor((2, 4, 128, 64)), *[tensor((2, 4, 128, 64))] * 3),
        "attention",
        10 * 2 * 4 * 128 * 128 * 64,
        None,
    ),
    (
        op(
            "aten::cudnn_convolution",
            tensor((8, 64, 56, 56), strides=NHWC),
            tensor((128, 64, 3, 3)),
            values=["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1"],
        ),
        "convolution",
        2 * 8 * 128 * 28 * 28 * 64 * 9,
        None,
    ),
    (
        op(
            "aten::miopen_convolution",
            *(tensor((4, 3, 224, 224)), tensor((768, 3, 16, 16)), tensor((768,))),
            values=["", "", "", "[0, 0]", "[16, 16]", "[1, 1]", "1", "False", "False"],
        ),
        "convolution",
        2 * 4 * 768 * 14 * 14 * 3 * 16 * 16,
        None,
    ),
    (  # transposed: each input element meets its channel's weights, and the result has four times as many places
        op(
            "aten::convolution",
            tensor((4, 512, 8, 8)),
            tensor((512, 256, 4, 4)),
            values=["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[0, 0]", "1"],
        ),
        "convolution",
        2 * 4 * 512 * 8 * 8 * 256 * 4 * 4,
        2 * (4 * 512 * 8 * 8 + 512 * 256 * 4 * 4 + 4 * 256 * 16 * 16),
    ),
    (
        op(
            "aten::convolution_backward",
            *(tensor((4, 256, 16, 16)), tensor((4, 512, 8, 8)), tensor((512, 256, 4, 4)), tensor(())),
            values=["", "", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True"],
        ),
        "convolution",
        2 * 2 * 4 * 512 * 8 * 8 * 256 * 4 * 4,
        None,
    ),
    (op("aten::mul", tensor((4, 8), FLOAT), tensor((4, 8))), "elementwise", 0, 4 * 8 * (4 + 2 + 4)),
    (op("aten::mul", tensor((4, 8), FLOAT), tensor((4, 8), FLOAT, (0, 1))), "elementwise", 0, 4 * 8 * 8 + 8 * 4),
    (op("aten::mul", tensor((1,), FLOAT), *[tensor((4, 8), FLOAT)] * 2), "elementwise", 0, 4 * 8 * 8 + 4),  # in place
    (op("aten::add_", tensor((4, 8)), tensor((4, 8), FLOAT)), "elementwise", 0, 4 * 8 * (2 + 4 + 2)),
    (op("aten::eq", tensor((4, 8), LONG), tensor((), LONG)), "elementwise", 0, 4 * 8 * 8 + 8 + 4 * 8),
    (op("aten::copy_", tensor((4, 8)), tensor((4, 8), FLOAT)), "cast", 0, 4 * 8 * 6),
    (op("aten::copy_", tensor((4, 8)), tensor((4, 8), strides=(1, 4))), "copy", 0, 4 * 8 * 4),
    (op("aten::copy_", *[tensor((4, 8))] * 2, kernel="Memcpy HtoD (Pinned -> Device)"), "other", 0, None),
    (op("aten::copy_"), "copy", 0, None),  # no shapes were recorded: it was "at 1 % of attainable speed"
    (op("aten::fill_", tensor((4, 8), BOOL)), "fill", 0, 32),
    (op("aten::sum", tensor((4, 8), FLOAT)), "reduction", 0, 128),
    (op("aten::native_layer_norm", tensor((4, 8), FLOAT)), "norm", 0, 256),
    (op("aten::cat", tensor((4, 8)), tensor((4, 8)), kernel=JOINED.format(4)), "cat", 0, 2 * 4 * 64),
    (op("aten::cat", tensor((4, 8)), tensor((4, 8)), kernel="k"), "cat", 0, 2 * 2 * 64),
    (op("aten::nll_loss_forward", tensor((64, 1000)), tensor((64,), LONG)), "loss", 0, 64 * (32 + 8)),
    (op("aten::index", tensor((64, 1000)), values=["", ""]), "index", 0, None),
    (op("aten::gather", tensor((64, 1000)), tensor((), LONG), tensor((8, 9), LONG)), "index", 0, 72 * (4 + 8)),
    (op("aten::sort", tensor((4, 8), FLOAT)), "other", 0, None),
    (op("aten::copy_", tensor((4, 8)), tensor((4, 8)), kernel="Memcpy PtoP (Device -> Device)"), "other", 0, None),
    (op("triton_poi_fused_add_mul_3", tensor((4, 8)), tensor((4, 8), FLOAT)), "elementwise", 0, 4 * 8 * 6),
]


@pytest.mark.parametrize(
    ("one", "kind", "flops", "moved"), WORKS, ids=lambda value: value["name"] if isinstance(value, dict) else ""
)
def test_what_an_operator_has_to_do(tmp_path, one, kind, flops, moved):
    launched, device = launched_of(write(tmp_path / "trace.json", [one]))
    [judged] = judge_uses(launched, gpu_of(device)).all
    assert (judged.kind, judged.work.flops) == (kind, flops)
    assert moved is None or judged.work.bytes == moved


def test_nothing_is_attainable_on_a_gpu_that_is_not_known(tmp_path):
    """'At 15 % of attainable speed. Attainable speed: unknown.'"""
    launched, _ = launched_of(write(tmp_path / "trace.json", [op("aten::mul", tensor((4, 8)))]))
    assert [judge_uses(launched, gpu_of(gpu)).all[0].attainable_ns is None for gpu in ("H200", None)] == [False, True]


def test_a_kernel_has_the_innermost_operator_around_its_launch_and_its_node(tmp_path):
    around = (NODE + "MulBackward0", "MulBackward0")
    calls = [op("aten::mul", tensor((4, 8)), inside=around), op("aten::mul", tensor((4, 8)))]
    launched, device = launched_of(write(tmp_path / "trace.json", calls, steps=3))
    backward, forward = sorted(
        (one.use for one in judge_uses(launched, gpu_of(device)).all), key=lambda use: not use.node
    )
    assert backward.name == forward.name == "aten::mul"
    assert backward.path == ("MulBackward0", "MulBackward0") and forward.path == ()
    assert (backward.node, forward.node) == ("MulBackward0", "") and backward.calls == forward.calls == 3


def test_a_kernel_whose_launch_was_lost_has_the_operator_of_its_external_id(tmp_path):
    calls = [op("aten::mul", tensor((4, 8))), op("aten::sum", tensor((4, 8)))]
    path = write(tmp_path / "trace.json", calls, host_us=40)
    document = json.loads(path.read_text())
    calls = [one for one in document["traceEvents"] if one["name"] == "cudaLaunchKernel"]
    document["traceEvents"].remove(calls[1])
    path.write_text(json.dumps(document))
    launched, _ = launched_of(path)
    names = [launched.events.names[launched.events.name[launched.operators[at]]] for at in launched.operator.tolist()]
    assert sorted(names) == ["aten::mul", "aten::mul", "aten::sum", "aten::sum"]


@pytest.mark.parametrize(
    "texts",
    [
        ("", "", "", ""),
        ("[[", "[]", "", ""),
        ("7", '"x"', "{}", "null"),
        ('[["a"]]', '["float"]', "", ""),
        ("[[-1]]", '["float"]', "[[1]]", "[]"),
    ],
)
def test_inputs_that_are_none_are_no_tensors(texts):
    assert read_inputs(*texts).tensors == []


def test_types_are_known_whatever_their_case():
    inputs = read_inputs("[[1024, 4096]]", '["c10::bfloat16"]', "", "")
    assert [(t.dims, t.dtype) for t in inputs.tensors] == [((1024, 4096), "c10::BFloat16")]


def test_lists_of_tensors_and_scalars():
    inputs = read_inputs(
        "[[[2, 3], [4]], [], [5]]", '["TensorList", "Scalar", "float"]', "[[[3, 1], [1]], [], [1]]", '["", "2", ""]'
    )
    assert [t.dims for t in inputs.tensors] == [(2, 3), (4,), (5,)] and inputs.value(1) == "2"


def test_rates_of_other_gpus_follow_their_data_sheets():
    h200, h100, unknown = gpu_of("NVIDIA H200"), gpu_of("NVIDIA H100 80GB HBM3"), gpu_of("NVIDIA Whatever")
    assert (h200.source, h100.source, unknown.source) == ("measured", "scaled", "assumed")
    large = product_ns(1.1e12, 0, "half", h200)
    assert product_ns(1.1e12, 0, "half", h100) == large and product_ns(0, 4e9, "half", h100) > product_ns(
        0, 4e9, "half", h200
    )
    assert product_ns(1.1e12, 0, "half", gpu_of("NVIDIA A100-SXM4-80GB")) == pytest.approx(large * 989.4 / 312)
    assert gpu_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb").source == "assumed"
    assert gpu_of("NVIDIA GH200 480GB").source == "scaled", "its memory is not an H200's"


def test_a_causal_mask_spares_half_of_long_attention():
    one = Attention(64, 4096, 4096, 64, False, HALF, False, True)
    times = [attention_ns(one, gpu_of("NVIDIA H200"), causal) for causal in (True, False)]
    assert np.diff(times)[0] > 0.6 * times[0]


def uses(name, *shapes):
    tensors = [SimpleNamespace(dims=dims) for dims in shapes]
    return SimpleNamespace(use=SimpleNamespace(name=name), tensors=tensors)


@pytest.mark.parametrize(
    ("name", "shapes", "elements"),
    [
        ("aten::add", [(8, 1), (1, 16)], 128),
        ("aten::split_with_sizes_copy", [(4, 3149056), (4, 256)], 0),
        ("fsdp::all_gather_copy_in", [(8, 1), (1, 16)], 0),
    ],
)
def test_only_shapes_that_fit_have_a_common_one(name, shapes, elements):
    assert _broadcast(uses(name, *shapes)) == elements


@pytest.mark.parametrize(("mask", "gradients"), [("[True, True, False]", 2), ("[False, True, False]", 1)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_convolution_s_backward_counts_the_gradients_that_it_makes(tmp_path, mask, gradients, transposed):
    small, large = tensor((4, 512, 8, 8)), tensor((4, 256, 16, 16))
    grad, source = (large, small) if transposed else (small, large)
    rest = ["[2, 2]", "[1, 1]", "[1, 1]", str(transposed), "[0, 0]", "1", mask]
    call = op("aten::convolution_backward", grad, source, tensor((512, 256, 4, 4)), tensor(()), values=[""] * 4 + rest)
    path = write(tmp_path / "trace.json", [call])
    launched, gpu = launched_of(path)
    events = launched.events
    activity = find_activity(events)
    counted = measure_flops(events, activity, find_steps(events, activity)).model
    [judged] = judge_uses(launched, gpu_of(gpu)).all
    assert counted == judged.work.flops == gradients * 2 * 4 * 512 * 8 * 8 * 256 * 4 * 4


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


def test_operations_of_unlike_steps_are_their_mean_as_the_step_is(tmp_path):
    """Five short passes and five long ones: the median's operations over the mean's time were 29 TFLOP/s for 17."""
    path = write(tmp_path / "trace.json", [op("aten::mm", tensor((8, 8)), tensor((8, 8)))], steps=4)
    document = json.loads(path.read_text())
    first, second, *_ = (one for one in document["traceEvents"] if one["name"].startswith("ProfilerStep"))
    first["dur"] = second["ts"] + second["dur"] - first["ts"]
    document["traceEvents"].remove(second)
    path.write_text(json.dumps(document))
    events = launched_of(path)[0].events
    activity = find_activity(events)
    assert measure_flops(events, activity, find_steps(events, activity)).model == pytest.approx(2 * 8**3 * 4 / 3)
