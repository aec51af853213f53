"""Each cause is found where kernels do what it says, with what the fix saves, and not in the same work done well."""

import json
from pathlib import Path

import pytest
from recorded_step import BOOL, DOUBLE, FLOAT, HALF, LONG, NODE, launched_of, op, tensor, write

import traceops
from traceops.compute.attainable import gpu_of, moved_ns
from traceops.compute.judged import judge_uses
from traceops.compute.measure import batched_ns, measure_compute
from traceops.compute.named import operator_of

DATA = Path(__file__).parents[1] / "data" / "compute"
SIMT, TF32 = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n", "cutlass_80_tensorop_s1688gemm_tf32"
MB8 = (2048, 4096)  # 8 Mi elements


def losses(tmp_path, calls, **rest):
    found = measure_compute(*launched_of(write(tmp_path / "trace.json", calls, **rest)))
    return {loss.cause: loss for loss in found.losses}


def product(rows, inner, columns, dtype=HALF, us=100.0, kernel="nvjet_sm90_tst_h_bz_TNT", **rest):
    return op("aten::mm", tensor((rows, inner), dtype), tensor((inner, columns), dtype), us=us, kernel=kernel, **rest)


def elementwise(name="aten::mul", dims=MB8, dtype=HALF, us=20.0, **rest):
    return op(name, tensor(dims, dtype), tensor(dims, dtype), us=us, **rest)


def attention_by_hand(heads=64, length=1024, width=64):
    scores = (heads, length, length)
    forward = [
        op("aten::bmm", tensor((heads, length, width)), tensor((heads, width, length)), us=100),
        op("aten::div", tensor(scores), us=100),
        op("aten::masked_fill_", tensor(scores), tensor((length, length), BOOL), us=150),
        op("aten::_softmax", tensor(scores), us=150),
        op("aten::bmm", tensor(scores), tensor((heads, length, width)), us=100),
    ]
    around = (NODE + "SoftmaxBackward0",)
    return [*forward, op("aten::_softmax_backward_data", tensor(scores), tensor(scores), us=200, inside=around)]


def slices(count=16, full=(64, 1024, 1024), part=(1024, 1024)):
    around = (NODE + "SelectBackward0",)
    each = [
        op("aten::fill_", tensor(full, FLOAT), us=60, inside=around),
        op("aten::copy_", tensor(part, FLOAT), tensor(part, FLOAT), us=3, inside=around),
        op("aten::add_", tensor(full, FLOAT), tensor(full, FLOAT), us=180, inside=around),
    ]
    return each * count


def norm_first(us):
    dims = (64, 128, 56, 56)
    weight = tensor((128, 128, 3, 3))
    convolution = op("aten::cudnn_convolution", tensor(dims), weight, us=60, kernel="nchwToNhwcKernel")
    return [convolution, op("aten::native_batch_norm", tensor(dims), us=us)] * 4


def norm_last():
    dims, strides = (64, 128, 56, 56), (56 * 56 * 128, 1, 56 * 128, 128)
    weight = tensor((128, 128, 3, 3))
    convolution = op("aten::cudnn_convolution", tensor(dims, strides=strides), weight, us=60, kernel="xmma_nhwc")
    return [convolution, op("aten::native_batch_norm", tensor(dims, strides=strides), us=90)] * 4


KEYS = (8, 4, 8, 1024, 64)
ONE_HOT = op("aten::scatter_", tensor((8192, 1000), FLOAT), tensor((8192, 1), LONG), us=20, inside=("aten::one_hot",))
CHAIN = [elementwise(name, dtype=FLOAT, us=25) for name in ("aten::pow", "aten::mul", "aten::add", "aten::tanh")]
CASES = {  # cause: calls of a step that wastes, calls of the same work done well
    "float32_products": ([product(4096, 4096, 4096, FLOAT, 2700, SIMT)], [product(4096, 4096, 4096, FLOAT, 330, TF32)]),
    "float32_training": (
        [product(4096, 4096, 4096, FLOAT, 330, TF32), product(4096, 4096, 4096, FLOAT, 330, TF32)],
        [product(4096, 4096, 4096, HALF, 190)],
    ),
    "float64": ([elementwise(dtype=DOUBLE, us=60)], [elementwise(dtype=FLOAT, us=30)]),
    "unfused_attention": (
        attention_by_hand(),
        [op("aten::_cudnn_attention_forward", *[tensor((4, 16, 1024, 64))] * 3, us=100)],
    ),
    "masked_attention": (
        [op("aten::_cudnn_attention_forward", *[tensor((4, 16, 2048, 64))] * 3, tensor((2048, 2048)), us=400)],
        [op("aten::_cudnn_attention_forward", *[tensor((4, 16, 2048, 64))] * 3, us=200)],
    ),
    "misaligned_shape": ([product(8192, 4095, 4095, us=1900)], [product(8192, 4096, 4096, us=390)]),
    "channels_first_layout": (norm_first(250), norm_last()),
    "layout_copies": (
        [
            product(2048, 2048, 2048, us=25),
            op(
                "aten::copy_",
                tensor((64, 512, 512)),
                tensor((64, 512, 512), strides=(512 * 512, 1, 512)),
                us=60,
                inside=("aten::contiguous", "aten::clone"),
            ),
        ],
        [product(2048, 2048, 2048, us=25)],
    ),
    "unfused_elementwise": (CHAIN * 2, [op("aten::gelu", tensor(MB8), us=12)]),
    "redundant_casts": (
        [
            op("aten::copy_", tensor(MB8, FLOAT), tensor(MB8), us=25),
            op("aten::gelu", tensor(MB8, FLOAT), us=20),
            op("aten::copy_", tensor(MB8), tensor(MB8, FLOAT), us=20),
        ],
        [op("aten::gelu", tensor(MB8), us=12)],
    ),
    "slice_gradients": (slices(), [op("aten::add_", tensor((64, 1024, 1024), FLOAT), us=180)]),
    "recompute_with_free_memory": (
        [
            product(2048, 2048, 2048, us=25),
            product(2048, 2048, 2048, us=25, inside=(NODE + "MmBackward0", "MmBackward0"), sequence=5),
        ],
        [product(2048, 2048, 2048, us=25), product(2048, 64, 64, us=2, inside=(NODE + "MmBackward0",))],
    ),
    "repeated_kv": (
        [
            op("aten::copy_", tensor(KEYS), tensor(KEYS, strides=(262144, 64, 0, 256, 1)), us=50),
            op("aten::_cudnn_attention_forward", *[tensor((8, 32, 1024, 64))] * 3, us=110),
        ],
        [op("aten::_cudnn_attention_forward", *[tensor((8, 32, 1024, 64))] * 3, us=110)],
    ),
    "large_float_logits": (
        [
            op("aten::copy_", tensor((8192, 50304), FLOAT), tensor((8192, 50304)), us=1200),
            op("aten::_log_softmax", tensor((8192, 50304), FLOAT), us=1500),
            op("aten::_log_softmax_backward_data", *[tensor((8192, 50304), FLOAT)] * 2, us=1700, inside=(NODE + "L",)),
        ],
        [op("triton_red_fused_log_softmax_1", tensor((8192, 50304)), us=300)],
    ),
    "one_hot_product": (
        [ONE_HOT, product(8192, 1000, 1024, FLOAT, 60, TF32)],
        [op("aten::embedding", tensor((1000, 1024), FLOAT), tensor((8192,), LONG), us=20)],
    ),
    "scatter_or_sort": (
        [
            op("aten::index_select", tensor((10_000, 128), FLOAT), tensor((1_000_000, 128), LONG), us=600),
            op("aten::scatter_add_", tensor((10_000, 128), FLOAT), tensor((1_000_000, 128), FLOAT), us=600),
        ],
        [product(10_000, 512, 128, FLOAT, 20, TF32)],
    ),
    "dense_embedding_gradient": (
        [
            op("aten::fill_", tensor((4_000_000, 128), FLOAT), us=430, inside=(NODE + "EmbeddingBackward0",)),
            op(
                "aten::embedding_dense_backward",
                tensor((8192, 128), FLOAT),
                tensor((8192,), LONG),
                us=50,
                inside=(NODE + "EmbeddingBackward0",),
            ),
        ],
        [op("aten::index_add_", tensor((4_000_000, 128), FLOAT), tensor((8192, 128), FLOAT), us=20)],
    ),
    "low_occupancy": (
        [op("aten::native_layer_norm", tensor((8, 1_000_000), FLOAT), us=400, grid=8)],
        [op("aten::native_layer_norm", tensor((8, 1_000_000), FLOAT), us=30)],
    ),
}


@pytest.mark.parametrize("cause", CASES)
def test_a_cause_is_found_where_it_is_and_nowhere_else(tmp_path, cause):
    sick, well = CASES[cause]
    found = losses(tmp_path, sick)
    spared = sum(one["us"] for one in sick) - sum(one["us"] for one in well)
    assert cause in found, found
    assert 0.4 * spared < found[cause].device_ns / 1e3 < 1.6 * max(spared, 10), (found[cause], spared)
    assert cause not in losses(tmp_path, well)


def table_step(*optimizer, rows=4_000_000, width=64, read=65536):
    full = tensor((rows, width), FLOAT)
    node = (NODE + "EmbeddingBackward0",)
    grad = op("aten::embedding_dense_backward", tensor((read, width), FLOAT), tensor((read,), LONG), us=80, inside=node)
    fill = op("aten::fill_", full, us=250, inside=node)
    return [fill, grad, *(op(f"aten::_foreach_{name}", full, full, us=700, inside=("Optimizer.step#X.step",))
                          for name in optimizer)]  # fmt: skip


IMAGES = [tensor((1, 64, 512, 512), FLOAT), tensor((64, 64, 7, 7), FLOAT)]
TF32_ALLOWED = ["", "", "[3, 3]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
STEP = {"kernel": "multi_tensor", "inside": ("Optimizer.step#RMSprop.step",)}
LOOKALIKES = {  # calls of a step that seem to waste
    "recompute_with_free_memory": [  # create_graph=True: backward is recorded, and repeats nothing
        product(2048, 1024, 2048, us=25),
        product(2048, 2048, 1024, us=25, inside=(NODE + "MmBackward0", "MmBackward0"), sequence=5),
        op("aten::tanh_backward", *[tensor(MB8)] * 2, us=25, inside=(NODE + "TanhBackward0",), sequence=6),
    ],
    "channels_first_layout": [
        *norm_first(250),
        op("aten::native_group_norm", tensor((64, 128, 56, 56)), us=60),
    ],  # slower
    "unfused_attention": attention_by_hand()[:4],  # no product reads the rows of the softmax
    "masked_attention": [  # of padding: the same keys for all queries
        op(
            "aten::_efficient_attention_forward",
            *[tensor((4, 2048, 16, 64))] * 3,
            tensor((4, 16, 2048, 2048), strides=(2048, 0, 0, 1)),
            us=400,
        )
    ],
    "float32_products": [op("aten::cudnn_convolution", *IMAGES, us=450, kernel="sgemm", values=TF32_ALLOWED)],
    "misaligned_shape": [product(100, 255, 255, us=4)] * 4,  # no faster with 256: a kernel takes so long
    "low_occupancy": [
        product(2048, 2048, 2048, us=25),
        op("aten::_sleep", us=400, kernel="at::cuda::spin_kernel", grid=1),
    ],
    "unfused_elementwise": [  # a result of a broadcast that a product reads; the sum is over another one
        op("aten::add", tensor((2048, 1)), tensor((1, 4096)), us=20),
        product(8192, 1024, 8192, us=300),
        op("aten::sum", tensor(MB8), us=20),
    ],
    "unfused_elementwise ": [  # nothing tells how much a graph's kernels read
        elementwise(),
        op("volta_sgemm_128x128_tn", us=700),
        op("aten::sum", us=8),
    ],
    "unfused_elementwise  ": [  # a norm of few blocks is slow by itself
        *CHAIN[:2],
        op("aten::native_batch_norm", tensor(MB8, FLOAT), us=900, grid=8),
    ],
    "unfused_elementwise    ": [
        *[op("aten::_softmax", tensor(MB8, FLOAT), us=25)] * 8,
        *CHAIN[:2],
    ],  # a benchmark's loop
    "float32_training ": [
        op("aten::cudnn_convolution", tensor((64, 16, 31, 31), FLOAT), tensor((32, 16, 3, 3), FLOAT), us=27)
    ],
    "float32_training": [  # autocast's casts take as long
        product(64, 64, 64, FLOAT, 5, TF32),
        product(64, 64, 64, FLOAT, 5, TF32, inside=(NODE + "MmBackward0",)),
    ]
    * 4,
    "float64": [op("CompiledFunction", tensor(MB8, FLOAT), tensor((8,), DOUBLE), us=900, kernel="sgemm")],
    "dense_embedding_gradient": table_step("sqrt", "addcdiv_", rows=50_000, width=2, read=12),  # launches take the time
    "optimizer_loop": [op("aten::addcdiv_", *[tensor((2048, 2048), FLOAT)] * 3, us=60, **STEP)] * 30,  # has no fused=
}


def test_a_chain_that_comes_several_times_is_one_chain_a_turn(tmp_path):
    once, four_times = (losses(tmp_path, CHAIN * turns)["unfused_elementwise"].device_ns for turns in (1, 4))
    assert four_times == pytest.approx(4 * once, rel=0.05)


@pytest.mark.parametrize(("names", "told"), [(("sigmoid", "mul", "mul"), True), (("add", "layer_norm", "mul"), False)])
def test_three_elementwise_kernels_are_a_chain_and_with_a_norm_they_are_not(tmp_path, names, told):
    """A hand-written SwiGLU had 'No problem found'; what a norm is of is often read again."""
    chain = [op(f"aten::{name}", tensor(MB8, FLOAT), tensor(MB8, FLOAT), us=40) for name in names]
    assert ("unfused_elementwise" in losses(tmp_path, [product(4096, 4096, 4096, us=200), *chain] * 2)) == told


def test_complex_doubles_are_doubles(tmp_path):
    """FFTs and products of them took half of 1.16 ms in float32; a fifth was promised."""
    one = op("aten::mul", *[tensor(MB8, "c10::complex<double>")] * 2, us=120)
    assert losses(tmp_path, [one])["float64"].device_ns == pytest.approx(60e3)


def test_of_a_product_of_doubles_only_what_the_type_costs_is_lost(tmp_path):
    """This GPU multiplies doubles as fast as floats: a kernel at half its speed loses nothing to its type."""
    slow = [product(4096, 4096, 4096, DOUBLE, us, "cutlass_80_tensorop_d884gemm_128x64") for us in (2500, 4000)]
    lost = [losses(tmp_path, [one]).get("float64") for one in slow]
    assert all(one is None or one.device_ns < 0.2 * 2500e3 for one in lost)


@pytest.mark.parametrize("cause", LOOKALIKES)
def test_what_only_looks_like_a_cause_is_none(tmp_path, cause):
    path = write(tmp_path / "trace.json", LOOKALIKES[cause])
    path.write_text(path.read_text().replace('"cpu_op", "name": "Optimizer', '"user_annotation", "name": "Optimizer'))
    assert cause.strip() not in {loss.cause for loss in measure_compute(*launched_of(path)).losses}


def test_a_cache_that_grows_by_concatenation(tmp_path):
    def cat(length, more=1):
        parts = [[16, 32, length, 128], [16, 32, more, 128]]
        one = op("aten::cat", us=2 + length / 10)
        one["inputs"] = ({"dims": parts, "type": "TensorList", "strides": [[], []]},)
        return one

    grown = losses(tmp_path, [cat(length) for length in range(100, 160, 4)])["concat_growth"]
    assert grown.device_ns > 0.6 * grown.ns
    assert "concat_growth" in losses(tmp_path, [cat(100) for _ in range(15)])  # one step, of 15 layers
    assert "concat_growth" not in losses(tmp_path, [cat(100, 25) for _ in range(15)])


def test_of_a_sort_whose_first_places_are_read_a_selection_is_enough(tmp_path):
    def step(read):
        sort = op("aten::sort", tensor((32, 512_000), FLOAT), us=1000)
        return [sort, op("aten::gather", tensor((32, 512_000), FLOAT), tensor((32, read), LONG), us=6)]

    few, all_of_them = (losses(tmp_path, step(read))["scatter_or_sort"] for read in (16, 512_000))
    assert few.device_ns == pytest.approx(780e3, rel=0.05) and few.more_ns < 200e3
    assert all_of_them.device_ns < all_of_them.more_ns


def sandwiched(between, us):
    rows, columns = (32, 1024, 1024), (1024 * 1024, 1, 1024)
    turned = op("aten::copy_", tensor(rows), tensor(rows, strides=columns), us=200, inside=("aten::contiguous",))
    work = op(between, tensor(rows), tensor((1024,)), us=us)
    return [turned, work, turned, product(32768, 1024, 1024, us=95)] * 4


def test_copies_to_another_order_for_a_norm_and_back_go_whole(tmp_path):
    norm = losses(tmp_path, sandwiched("aten::native_batch_norm", us=150))["layout_copies"]
    least = 3 * 2 * 1024**2 * 32 / 2.2e3  # ns of a batch norm, which reads twice and writes once
    assert norm.device_ns == pytest.approx(4 * (400e3 + 150e3 - least), rel=0.05)
    other = losses(tmp_path, sandwiched("aten::linalg_inv", us=150))["layout_copies"]
    assert other.device_ns == pytest.approx(4 * 200e3, rel=0.05)


def test_copies_of_heads_and_positions_belong_to_attention_by_hand(tmp_path):
    heads, strides = (4, 16, 1024, 64), (1024 * 1024, 64, 1024, 1)
    copy = op("aten::copy_", tensor(heads), tensor(heads, strides=strides), us=80, inside=("aten::reshape",))
    plain, moved = (
        losses(tmp_path, calls)["unfused_attention"]
        for calls in (attention_by_hand(), [copy] * 3 + attention_by_hand())
    )
    assert moved.device_ns - plain.device_ns == pytest.approx(240e3)
    bias = op("aten::add", tensor((64, 1024, 1024)), tensor((64, 1, 1024)), us=80)  # fused attention reads it too
    assert losses(tmp_path, [bias, *attention_by_hand()])["unfused_attention"].device_ns == plain.device_ns


def test_a_dilated_convolution_has_no_larger_result(tmp_path):
    def flops(dilation):
        values = ["", "", f"[{dilation}, {dilation}]", "[1, 1]", f"[{dilation}, {dilation}]"]
        inputs = [tensor((8, 2048, 64, 64)), tensor((256, 2048, 3, 3)), *[tensor((), LONG)] * 3]
        call = op("aten::cudnn_convolution", *inputs, us=700, values=values)
        return measure_compute(*launched_of(write(tmp_path / "trace.json", [call]))).unpacked().operators[0].flops

    assert flops(1) == flops(36) == 2 * 8 * 64 * 64 * 256 * 2048 * 9


def test_16_bits_halve_norms_too_where_nothing_trains_and_speed_up_no_grouped_convolution(tmp_path):
    step = [product(4096, 4096, 4096, FLOAT, 330, TF32), op("aten::layer_norm", tensor(MB8, FLOAT), us=100)]
    norms = (
        losses(tmp_path, step)["float32_training"].device_ns - losses(tmp_path, step[:1])["float32_training"].device_ns
    )
    assert norms == pytest.approx(moved_ns(8 * 2**20, "norm", gpu_of("H200")) * 4, rel=0.1)
    shapes = (tensor((8, 768, 32, 32), FLOAT), tensor((768, 48, 3, 3), FLOAT))
    grouped = op("aten::cudnn_convolution", *shapes, us=400, kernel=TF32)
    assert losses(tmp_path, [*step, grouped])["float32_training"].ns == losses(tmp_path, step)["float32_training"].ns


COPY = (
    "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(c10::BFloat16)#1}>(at::TensorIteratorBase&)>"
)
SILU = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::silu_kernel(x)::{lambda(c10::BFloat16)#1}, "
    "std::array<char*, 2ul> >"
)
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<c10::BFloat16, c10::BFloat16, float, 10, false, false>(x)"
SDPA = "cudnn_generated_fort_native_sdpa_sm80_flash_fprop_wmma_f16_knob_35_16x128x64"
GEMM = "nvjet_sm90_tst_64x8_64x16_4x2_h_bz_TNT"
CAST = COPY.replace("_nocast", "")
CAT = "void at::native::CatArrayBatchedCopy<x>"


@pytest.mark.parametrize(
    ("layer", "cause", "saved_us"),
    [
        ([(CAT, 528, 200), (SDPA, 768, 50)], None, 0),  # nothing shows that the tensor grows
        ([(CAST, 40_000, 60), (GEMM, 96, 10)], "redundant_casts", 60),
        ([(GEMM, 96, 10), (SOFTMAX, 4096, 90), (GEMM, 96, 10)], "unfused_attention", 90),
        ([(SILU, 8, 1.2)] * 8 + [(GEMM, 96, 4)], "unfused_elementwise", 6.4),
        ([(GEMM, 96, 10), (SILU, 96, 2)], None, 0),
        ([(COPY, 200_000, 200), (COPY, 200_000, 200), (SDPA, 512, 100)], None, 0),  # nor what copies are for
        ([("nvjet_sm90_tst_256x128_64x4_2x1_v_bz_TNT", 132, 90), (SDPA, 768, 50)], None, 0),
    ],
)
def test_kernels_of_a_cuda_graph_have_causes_by_their_names(tmp_path, layer, cause, saved_us):
    path = write(
        tmp_path / "trace.json", [op("aten::x", us=us, kernel=name, grid=grid) for name, grid, us in layer * 4]
    )
    document = json.loads(path.read_text())
    document["traceEvents"] = [one for one in document["traceEvents"] if one["cat"] != "cpu_op"]
    path.write_text(json.dumps(document))
    found = measure_compute(*launched_of(path)).losses
    assert [one.cause for one in found][:1] == ([cause] if cause else [])
    if cause:
        assert found[0].device_ns == pytest.approx(4 * 1e3 * saved_us, rel=0.02)


def test_names_and_grids_tell_operators_elements_and_types():
    assert operator_of(COPY, 10) == ("aten::copy_", 5120, ("c10::BFloat16",) * 2)
    assert operator_of(CAST, 10) == ("aten::copy_", 5120, ("c10::BFloat16", "float"))
    assert operator_of(SILU, 10) == ("aten::silu", 10240, ("c10::BFloat16",))
    assert operator_of(SILU.replace("std::array", "at::detail::Array"), 10)[1] == 5120
    assert operator_of(SOFTMAX, 10) == ("aten::_softmax", 10 * 4 * 768, ("c10::BFloat16",))
    assert operator_of(SOFTMAX.replace("10, false", "10, true"), 10)[0] == "aten::_log_softmax"
    assert operator_of(GEMM, 10) is None


def test_calls_at_once_take_at_least_as_long_as_one(tmp_path):
    calls = [product(8, 1024, 1024, us=9), elementwise("aten::mul", (64, 1024), HALF, 4), op("aten::nonzero", us=20)]
    launched, _ = launched_of(write(tmp_path / "trace.json", calls))
    for one in judge_uses(launched, gpu_of("H200")).all:
        once = one.ns / one.calls
        assert once <= batched_ns(one, 2, gpu_of("H200")) <= batched_ns(one, 64, gpu_of("H200")) <= 64 * once


def test_the_sum_of_a_tensors_gradients_is_no_loop(tmp_path):
    def step(inside):
        return [op("aten::add_", tensor((64, 256)), tensor((64, 256)), us=3, inside=inside)] * 400

    assert losses(tmp_path, step(()), host_us=20)["many_small_kernels"].launches > 300
    assert losses(tmp_path, step((f"{NODE}CatBackward0",)), host_us=20)["many_small_kernels"].launches == 0


def test_a_long_body_is_a_loop_unless_it_is_a_layer(tmp_path):
    def step(*more):
        steps = [
            product(64, 256, 256, us=3),
            *(op(f"aten::{name}", tensor((64, 256)), us=2) for name in "abcdefghijklmnop"),
        ]
        return [*steps, *(op(name, tensor((64, 256)), us=2) for name in more)] * 30

    assert losses(tmp_path, step(), host_us=20)["many_small_kernels"].launches > 400
    layers = losses(tmp_path, step("aten::_softmax", "aten::tanh"), host_us=20)["many_small_kernels"]
    assert layers.launches == 0


def test_an_optimizer_that_loops_over_parameters_is_one_of_many_kernels(tmp_path):
    path = write(tmp_path / "trace.json", [])
    kinds = ("aten::mul_", "aten::lerp_", "aten::addcmul_", "aten::sqrt", "aten::addcdiv_")
    calls = [elementwise(kind, (1024, 1024), FLOAT, 6) for _ in range(30) for kind in kinds]
    write(path, calls)
    document = json.loads(path.read_text())
    marks = [dict(one) for one in document["traceEvents"] if one["name"].startswith("ProfilerStep")]
    document["traceEvents"] += [
        {**mark, "name": "Optimizer.step#AdamW.step", "ts": mark["ts"] + 0.2, "dur": mark["dur"] - 0.4}
        for mark in marks
    ]
    path.write_text(json.dumps(document))
    found = {loss.cause: loss for loss in measure_compute(*launched_of(path)).losses}
    loop = found["optimizer_loop"]
    assert loop.sizes == (150,) and loop.launches == 148
    assert loop.device_ns == pytest.approx(30 * (30e3 - 28 * 1024**2 / 3.3e3), rel=0.02)


def test_a_loop_of_small_kernels_where_the_host_bounds_the_step(tmp_path):
    body = [product(64, 256, 256, us=3), op("aten::tanh", tensor((64, 256)), us=2)]
    found = losses(tmp_path, body * 100, host_us=20)
    loop = found["many_small_kernels"]
    assert loop.launches == 198 and loop.sizes[0] == 200
    assert "many_small_kernels" not in losses(tmp_path, body * 100, host_us=2.0)  # the device bounds it
    body = [op("aten::copy_", tensor((64, 256)), us=2, kernel="Memcpy DtoH (Device -> Pageable)")]
    assert losses(tmp_path, body * 200, host_us=20)["many_small_kernels"].launches == 0  # no kernel replaces these


RECORDED = {  # cause, what the fix saved (ms) by timing both
    "odd_width": ("misaligned_shape", 17.1),
    "depthwise_first": ("channels_first_layout", 8.1),
    "dense_table": ("dense_embedding_gradient", 2.2),
    "fp32_products": ("float32_products", 24.8),
}


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_programs(name):
    cause, saved_ms = RECORDED[name]
    found = measure_compute(*launched_of(DATA / f"{name}.pt.trace.json.gz"))
    assert found.losses[0].cause == cause and found.rates == "measured"
    assert found.losses[0].device_ns / 1e6 == pytest.approx(saved_ms, rel=0.15)
    assert found.known_ns > 0.75 * found.busy_ns


def test_float32_products_have_both_gains_of_tf32_and_of_bf16(tmp_path):
    calls = [product(4096, 4096, 4096, FLOAT, us=3000, kernel=SIMT), elementwise(dtype=FLOAT, us=60)] * 3
    found = list(losses(tmp_path, calls).items())
    (first, tf32), (second, bf16) = found[:2]
    assert (first, second) == ("float32_products", "float32_training")
    assert bf16.device_ns > tf32.device_ns > 0 and bf16.step_after_ns[0] < tf32.step_after_ns[0]


@pytest.mark.parametrize("gpu", ["Tesla T4", "Tesla V100-SXM2-16GB"])
def test_a_gpu_without_tf32_and_bf16_is_offered_fp16(tmp_path, gpu):
    calls = [product(4096, 4096, 4096, FLOAT, us=30000, kernel="volta_sgemm_128x64_nn")] * 3
    run = tmp_path / "run"
    run.mkdir()
    write(run / "rank0.pt.trace.json", calls, device={"id": 0, "name": gpu})
    (found,) = [one for one in traceops.load(run).findings if one.rule == "TO-K001"]
    assert (found.cause, found.facts["half"]) == ("float32_training", "fp16")
    assert "torch.float16" in found.advice and "bf16" not in found.message + found.advice


def test_narrow_convolutions_are_not_promised_tensor_cores(tmp_path):
    narrow = op("aten::cudnn_convolution", tensor((64, 1, 1, 65536), FLOAT), tensor((16, 1, 1, 9), FLOAT),
                us=3000, kernel="implicit_convolve_sgemm")  # fmt: skip
    window = op("aten::mul", tensor((64, 253, 1024), DOUBLE), tensor((1024,), DOUBLE), us=900)
    found = losses(tmp_path, [narrow, window] * 3)
    assert "float32_products" not in found and "float64" in found


def channels_last(batch, channels, side):
    return tensor((batch, channels, side, side), HALF, (channels * side * side, 1, channels * side, channels))


@pytest.mark.parametrize(("channels", "us", "wanted"), [(125, 900, True), (128, 900, False), (125, 110, False)])
def test_odd_channels_are_misaligned_where_their_convolution_is_slow(tmp_path, channels, us, wanted):
    weight = tensor((channels, channels, 3, 3), HALF)
    one = op("aten::cudnn_convolution", channels_last(64, channels, 64), weight, us=us, kernel="sm90_xmma_fprop_bf16",
             values=["", "", "[1, 1]", "[1, 1]"])  # fmt: skip
    found = losses(tmp_path, [one] * 4)
    assert ("misaligned_shape" in found) == wanted


def test_one_hot_targets_are_a_loss_over_many_classes_and_no_one_hot_product(tmp_path):
    rows, classes, width = 8192, 32000, 1024
    logits, hot = tensor((rows, classes), FLOAT), tensor((rows, classes), LONG)
    around = (NODE + "MmBackward0",)
    calls = [
        product(rows, width, classes, us=800),
        op("aten::_log_softmax", logits, us=600),
        op("aten::scatter_", hot, tensor((rows, 1), LONG), us=500, inside=("aten::one_hot",)),
        op("aten::mul", logits, logits, us=900),
        op("aten::sum", logits, us=400),
        op("aten::_log_softmax_backward_data", logits, logits, us=900, inside=(NODE + "LogSoftmaxBackward0",)),
        op("aten::mm", tensor((rows, classes)), tensor((classes, width)), us=800, inside=around),
    ]
    found = losses(tmp_path, calls)
    assert next(iter(found)) == "large_float_logits" and "one_hot_product" not in found


@pytest.mark.parametrize(
    ("optimizer", "rows", "whole"),
    [
        (("addcmul_", "sqrt", "add_", "addcdiv_"), 4_000_000, True),
        (("lerp_", "addcmul_", "addcdiv_"), 4_000_000, False),
        (("lerp_", "addcmul_", "addcdiv_", "add_"), 7_000_000, True),  # of 107 rows one is read
    ],
)
def test_all_of_an_optimizer_goes_with_a_dense_table_gradient_but_for_momentum(tmp_path, optimizer, rows, whole):
    path = write(tmp_path / "trace.json", table_step(*optimizer, rows=rows))
    path.write_text(path.read_text().replace('"cpu_op", "name": "Optimizer', '"user_annotation", "name": "Optimizer'))
    found = {loss.cause: loss for loss in measure_compute(*launched_of(path)).losses}
    saved = found["dense_embedding_gradient"].device_ns if "dense_embedding_gradient" in found else 0.0
    assert (saved > 2.5e6) == whole


def without_shapes(path):
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        for key in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"):
            event.get("args", {}).pop(key, None)
    path.write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize(
    ("kernel", "cause", "share"),
    [
        (SIMT, "float32_products", 0.85),
        ("cutlass_75_tensorop_bf16_s1688gemm_bf16_256x128_nn_align1", "misaligned_shape", 0.8),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_64x128_nn_align2", "misaligned_shape", 0.6),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_nn_align8", None, 0.0),
        (TF32, None, 0.0),
    ],
)
def test_without_shapes_names_of_kernels_tell_of_slow_products(tmp_path, kernel, cause, share):
    path = write(tmp_path / "trace.json", [product(4096, 4096, 4096, us=3000, kernel=kernel)] * 3)
    found = measure_compute(*launched_of(without_shapes(path)))
    assert not found.has_shapes
    assert [one.cause for one in found.losses] == ([cause] if cause else [])
    assert sum(one.device_ns for one in found.losses) == pytest.approx(9e6 * share, rel=0.05)


@pytest.mark.parametrize(("trained", "rows", "wanted"), [(False, 16, True), (False, 8192, False), (True, 16, False)])
def test_weights_that_are_cast_for_each_use_where_nothing_trains(tmp_path, trained, rows, wanted):
    weight = (8192, 8192)
    inside = (NODE + "MmBackward0",) if trained else ()
    cast = op("aten::copy_", tensor(weight), tensor(weight, "signed char"), us=80, inside=inside)
    scale = op("aten::mul", tensor(weight), tensor((8192, 1)), us=70, inside=inside)
    found = losses(tmp_path, [cast, scale, product(rows, *weight, us=60)] * 4)
    assert ("redundant_casts" in found) == wanted
    if wanted:
        assert found["redundant_casts"].device_ns == pytest.approx(600e3)


def test_rows_that_are_scattered_into_fewer_are_no_one_hot_rows(tmp_path):
    rows, graphs = tensor((524_288, 256), FLOAT), tensor((4096, 256), FLOAT)
    places = tensor((524_288, 256), LONG)
    around = (NODE + "ScatterReduceBackward0",)
    calls = [
        op("aten::scatter_", graphs, places, us=300),
        op("aten::scatter_reduce_", graphs, places, rows, us=2500),
        op("aten::addmm", tensor((256,), FLOAT), rows, tensor((256, 256), FLOAT), us=290, kernel=TF32),
        op("aten::scatter", graphs, places, us=300, inside=around),
    ]
    found = losses(tmp_path, calls)
    assert next(iter(found)) == "scatter_or_sort" and "one_hot_product" not in found


@pytest.mark.parametrize(("blocks", "share"), [(1, 0.99), (60, 0.38), (100, 0.0)])
def test_long_kernels_of_few_blocks_leave_processors_idle(tmp_path, blocks, share):
    norm = op("aten::native_group_norm", tensor((1, 512, 16_000), FLOAT), us=5000, grid=blocks)
    calls = [norm, *[product(4096, 4096, 4096, FLOAT, 330, TF32)] * 3]
    found = losses(tmp_path, calls)
    assert ("low_occupancy" in found) == (share > 0)
    if share:
        assert found["low_occupancy"].device_ns == pytest.approx(share * 5e6, rel=0.02)
        assert found["float32_training"].ns == 990e3  # whose fix does nothing about it


def test_of_an_operator_only_the_kernel_of_few_blocks_counts(tmp_path):
    path = write(tmp_path / "trace.json", [op("aten::native_batch_norm", tensor(MB8, FLOAT), us=5000, grid=8)] * 3)
    trace = json.loads(path.read_text())
    for event in [one for one in trace["traceEvents"] if one["cat"] in ("kernel", "cuda_runtime")]:
        args = {**event["args"], "correlation": event["args"]["correlation"] + 1000, "grid": [9000, 1, 1]}
        other = {"name": "transform", "dur": 1000, "args": args} if event["cat"] == "kernel" else {"args": args}
        trace["traceEvents"].append({**event, "ts": event["ts"] + 0.4, **other})
    path.write_text(json.dumps(trace))
    (loss,) = measure_compute(*launched_of(path)).losses
    assert (loss.cause, loss.ns) == ("low_occupancy", 15e6)


def test_casts_around_a_few_float32_products_go_with_them(tmp_path):
    rows, width = 8192, 2048
    up = op("aten::copy_", tensor((rows, width), FLOAT), tensor((rows, width)), us=50)
    calls = [up, product(rows, width, 16, FLOAT, 46, SIMT), product(rows, width, width, us=105)] * 8
    small = [product(rows, width, 16, FLOAT, 46, SIMT), product(rows, width, width, us=105)] * 8
    with_casts, alone = (losses(tmp_path, one)["float32_products"].device_ns for one in (calls, small))
    assert with_casts - alone == pytest.approx(400e3)


def test_a_mask_of_truth_values_is_made_into_numbers_for_each_attention(tmp_path):
    heads = [tensor((1, 32, length, 128)) for length in (1024, 9216, 9216)]
    mask = (1024, 9216)
    attend = op("aten::_cudnn_attention_forward", *heads, tensor(mask), us=460)
    made = op("aten::where", tensor(mask, BOOL), tensor(()), tensor(()), us=25)
    assert losses(tmp_path, [made, attend] * 4)["masked_attention"].device_ns == pytest.approx(100e3)
    assert "masked_attention" not in losses(tmp_path, [attend] * 4)


@pytest.mark.parametrize(("requests", "last"), [(8, "aten::argmax"), (2, "aten::argmax"), (8, "aten::mean")])
def test_forward_passes_in_turn_are_small_batches(tmp_path, requests, last):
    """Of a stack of layers whose mean is read after every sixth one '10 small batches' were told."""
    layer = [product(197, 192, 768, us=4), op("aten::gelu", tensor((197, 768)), us=2), product(197, 768, 192, us=4)]
    one = [op("aten::conv", us=10), *layer * 8, op(last, us=2)]
    found = losses(tmp_path, one * requests, host_us=30)
    told = requests == 8 and last == "aten::argmax"
    assert ("too_small_batch" in found) == told
    if told:
        assert found["too_small_batch"].sizes == (8, 8)
        assert found["too_small_batch"].launches == pytest.approx(26 * 7)


def test_rows_of_a_small_batch_are_those_of_one_product(tmp_path):
    heads = op("aten::bmm", tensor((64, 8, 64)), tensor((64, 64, 8)), us=2)
    layer = [product(8, 512, 512, us=3), heads, *[op(f"aten::{name}", tensor((8, 512)), us=2) for name in "abcdef"]]
    found = losses(tmp_path, [op("aten::first", us=2), *layer * 20], host_us=30)
    assert found["too_small_batch"].sizes == (8,)


def test_passes_between_which_an_optimizer_changes_the_weights_are_no_batch(tmp_path):
    layer = [product(197, 192, 768, us=4), op("aten::gelu", tensor((197, 768)), us=2), product(197, 768, 192, us=4)]
    back = op("aten::mm", tensor((768, 197)), tensor((197, 192)), us=4, inside=(NODE + "MmBackward0",))
    update = op("aten::add_", tensor((192, 768)), us=2, inside=("Optimizer.step#X.step",))
    again = product(768, 197, 192, us=4, inside=(NODE + "MmBackward0", "MmBackward0"), sequence=5)  # create_graph=True
    for between, sizes in ([], [(8, 8)]), ([update], []), ([again], []):
        found = losses(tmp_path, [op("aten::conv", us=10), *layer * 8, back, *between] * 8, host_us=30)
        assert [one.sizes for one in found.values() if one.cause == "too_small_batch"] == sizes


def test_fused_attention_in_float32_takes_nine_times_as_long_as_in_16_bits(tmp_path):
    """16 x 8 heads of 1024 tokens on an H200: plain attention took 16.3 ms, scaled_dot_product_attention over 21."""
    by_hand = attention_by_hand()
    in_float = [json.loads(json.dumps(one).replace(HALF, FLOAT)) for one in by_hand]
    half, slow = (losses(tmp_path, calls)["unfused_attention"] for calls in (by_hand, in_float))
    assert slow.ns - slow.device_ns == pytest.approx(9 * (half.ns - half.device_ns))


def test_what_is_added_to_scores_may_be_a_causal_mask(tmp_path):
    by_hand = attention_by_hand(length=4096)
    added = op("aten::add", tensor((64, 4096, 4096)), tensor((4096, 4096)), us=150)
    surely, maybe = (
        losses(tmp_path, calls)["unfused_attention"] for calls in (by_hand, [*by_hand[:2], added, *by_hand[3:]])
    )
    assert not surely.more_ns and maybe.more_ns == pytest.approx(surely.device_ns - maybe.device_ns)


@pytest.mark.parametrize(("last", "found"), [("aten::argmax", True), ("aten::tanh", False)])
def test_passes_that_read_all_weights_for_few_rows_are_one_batch(tmp_path, last, found):
    layer = [product(2, 8192, 16384, us=62), op("aten::silu", tensor((2, 16384)), us=2), product(2, 16384, 8192, us=64)]
    step = [*layer * 3, op(last, tensor((2, 8192)), us=10)] * 4
    batch = losses(tmp_path, step).get("too_small_batch")
    assert (batch is not None) == found
    if batch:
        assert batch.device_ns == pytest.approx(4 * 3 * 128e3 * 0.75, rel=0.1)


@pytest.mark.parametrize(("read", "found"), [(8, True), (8 * 512, False)])
def test_logits_that_nothing_reads_are_made_for_nothing(tmp_path, read, found):
    cast = op("aten::copy_", tensor((8 * 512, 32000), FLOAT), tensor((8 * 512, 32000)), us=200)
    step = [product(8 * 512, 2048, 32000, us=700), cast, op("aten::argmax", tensor((read, 32000), FLOAT), us=20)]
    loss = losses(tmp_path, step).get("large_float_logits")
    assert (loss is not None) == found
    if loss:
        assert loss.device_ns == pytest.approx(900e3 * (1 - 1 / 512))


@pytest.mark.parametrize(("norm", "found"), [("collect_statistics_kernel", True), ("channels_last_kernel", False)])
def test_without_shapes_conversions_and_norms_tell_of_channels_first(tmp_path, norm, found):
    convolution = op("aten::cudnn_convolution", us=20, kernel="nchwToNhwcKernel")
    step = [
        convolution,
        op("aten::relu", us=280),
        op("aten::native_batch_norm", us=100, kernel=f"batch_norm_{norm}<x>"),
    ]
    loss = losses(tmp_path, step * 8).get("channels_first_layout")
    assert (loss is not None) == found
    if loss:
        assert loss.device_ns == pytest.approx(8 * (20e3 + 60e3))
