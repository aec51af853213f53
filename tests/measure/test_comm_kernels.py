"""Kernels that communicate are known by library, by the collective in their name, and by patterns of one's own."""

import json

import pytest

from traceops.core.errors import UsageError
from traceops.measure.activity import communicates
from traceops.pipeline.analyze import own_kernels

COMMUNICATE = """
ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)
void ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)
rcclGenericKernel<1>
mscclKernel_Sum_float_LL_false
void vllm::cross_device_reduce_1stage<half, 8>
void aiter::cross_device_reduce_2stage_write_mode
void dpsk::ep::internode::dispatch<true, 10>(int4*)
void deep_ep::intranode::dispatch
mori::moe::EpDispatchInterNodeV1Kernel
userbuffers_fp16_sum_inplace_gpu_rr_rs_atomic
void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<x>
void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 8>
void tensorrt_llm::kernels::moe_comm::moeAllToAllKernel
two_shot_all_reduce_kernel
multimem_all_reduce_kernel
void c10d::symm_mem::(anonymous namespace)::barrier_kernel
oneccl_allreduce_small_kernel
nvshmemx_barrier_kernel
void quickreduce::allreduce_prototype_twoshot
AllToAllInterNodeDispatchKernel
void hcclAllReduce
""".strip().splitlines()
COMPUTE = """
nvjet_tst_128x256
void at::native::reduce_kernel<512, 1, at::native::ReduceOp>
void at::native::vectorized_gather_kernel
void BlockAllReduce<float>
warpAllReduceSum
all_gather_gemm_kernel
split_embedding_codegen_forward_kernel
void cub::DeviceReduceKernel
triton_red_fused_all_mean
flattened_ccl_labels_kernel
occlusion_kernel
""".strip().splitlines()


@pytest.mark.parametrize("name", COMMUNICATE)
def test_communication_is_known_by_its_name(name):
    assert communicates(name)


@pytest.mark.parametrize("name", COMPUTE)
def test_computation_is_not(name):
    assert not communicates(name)


def test_patterns_of_ones_own_are_read_from_the_settings(tmp_path):
    (tmp_path / ".git").mkdir()
    assert own_kernels(tmp_path) == ()
    (tmp_path / "traceops.toml").write_text('[analyze]\ncommunication_kernels = ["^my_ring", "halo"]\n')
    assert own_kernels(tmp_path) == ("^my_ring", "halo")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[analyze]\ncommunication_kernels = "one"\n', "must be a list of regular expressions"),
        ('[analyze]\ncommunication_kernels = ["("]\n', "is no regular expression"),
        ("[analyze]\ncomunication_kernels = []\n", "did you mean communication_kernels"),
        ("[analize]\n", "did you mean analyze"),
    ],
)
def test_settings_that_make_no_sense_name_the_file(tmp_path, text, said):
    (tmp_path / "traceops.toml").write_text(text)
    with pytest.raises(UsageError, match=said) as raised:
        own_kernels(tmp_path)
    assert str(tmp_path / "traceops.toml") in str(raised.value)


def test_a_kernel_of_ones_own_counts_as_communication(tmp_path, monkeypatch):
    from traceops.pipeline.analyze import analyze

    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {"stream": 7, "correlation": 1}}
    rows = [{**kernel, "name": name, "ts": 100.0 * at, "dur": 50.0} for at, name in enumerate(("mm", "my_ring_kernel"))]
    info = {"rank": 0, "world_size": 2, "backend": "nccl"}
    trace = {"distributedInfo": info, "baseTimeNanoseconds": 0, "traceEvents": rows}
    (tmp_path / "rank_0.json").write_text(json.dumps(trace))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".git").mkdir()
    told = {check.rule: check.status for check in analyze(tmp_path, cache=False).checks}
    assert told["TO-V009"] == "fired"
    (tmp_path / "traceops.toml").write_text('[analyze]\ncommunication_kernels = ["^my_ring"]\n')
    report = analyze(tmp_path, cache=False)
    assert {row.kind for row in report.tables.kernels if row.name == "my_ring_kernel"} == {"comm"}
    assert {check.rule: check.status for check in report.checks}["TO-V009"] == "clear"
