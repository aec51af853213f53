"""Why some sentences of sentences.md have no example of a real run: what they rest on, and what would give one."""

from __future__ import annotations

from benchmarks.verdicts.kinds import Kind

_NCCL = "NVIDIA/nccl@5067397"
_CLOCK = (
    "the clocks and NVML's reasons for them of ranks that compute longer (NVML API Reference, "
    "NvmlClocksEventReasons: {}); it takes "
)

_TRACE = "a trace with shapes of a GPU in which {}; its bounds are those of the causes measured in benchmarks/compute"

REASONS: dict[Kind, str] = {
    Kind("compare", "inconclusive"): "too few steps on a side; two default captures of a run have enough",
    Kind("analyze", "clear"): "a trace with shapes of a known GPU in which no rule fires and kernels are rated",
    Kind("TO-I001", "computes_on_cpu"): (
        "operators of the host that compute where the GPU waits; it takes a program that computes on the CPU in between"
    ),
    Kind("TO-I005", ""): "a training of one rank on the CPU; it takes a program that works outside of torch",
    Kind("TO-T001", "round"): "the times of all steps; it takes a run whose steps repeat with a period",
    Kind("TO-W004", ""): "the same; benchmarks/phases has such programs",
    Kind("TO-W004", "evaluation"): "the same, with steps that evaluate",
    Kind("TO-W004", "stages"): "the times of all steps; it takes a run whose steps change for good",
    Kind("TO-T001", "allocation"): (
        "cudaMalloc and cudaFree in the long step; it takes a run whose memory grows between steps"
    ),
    Kind("TO-K004", "redundant_casts"): _TRACE.format("a tensor is cast to another type and straight back"),
    Kind("TO-K005", "one_hot_product"): _TRACE.format("a product takes rows of aten::one\\_hot"),
    Kind("TO-K007", "low_occupancy"): _TRACE.format("a kernel of 20 µs has fewer blocks than half of the processors"),
    Kind("TO-K008", "below_attainable"): _TRACE.format("kernels run at less than 60 % and no cause is known"),
    Kind("TO-K008", "impossible_speed"): _TRACE.format("an operator is faster than 105 % of the data sheet's peak"),
    Kind("TO-K008", "bandwidth_bound_at_limit"): _TRACE.format("a third of the time goes to products of up to 64 rows"),
    Kind("TO-E004", "wrong_rank"): "NCCL's own words (init.cc); it takes a process with RANK = WORLD_SIZE",
    Kind(
        "TO-E004", "rdma_not_ready"
    ): "the status codes of InfiniBand verbs (ibv_wc_status 13); it takes a receiver that hangs on another host",
    Kind("TO-E004", "rdma_memory"): "the same (4, 6, 8, 10); it takes hosts with RDMA and no nvidia_peermem",
    Kind("TO-E004", "rdma_refused"): "the same (1-3, 7, 9, 11, 14-18); it takes two hosts with RDMA whose ends differ",
    Kind("TO-E004", "rdma_device"): "the same (19, 21); it takes a NIC that fails",
    Kind(
        "TO-E004", "nccl_usage"
    ): "NCCL's results as torch prints them; it takes a call that NCCL refuses before it sends",
    Kind(
        "TO-E005", "arguments"
    ): "the words of Python's argparse; it takes an option that is not known or has no value",
    Kind(
        "TO-E007", "nccl_id"
    ): "torch's words (ProcessGroupNCCL.cpp); it takes a first rank that ends before it has written NCCL's id",
    Kind(
        "TO-E007", "rendezvous_lost"
    ): "torchrun's words (dynamic_rendezvous.py); it takes a first host that ends while the others run",
    Kind("TO-W002", "too_hot"): (
        f"{_CLOCK.format('SwThermalSlowdown, HwThermalSlowdown')}a GPU that is hot, as in a rack with a fan that failed"
    ),
    Kind("TO-W002", "slow_clock"): (
        "the clock of a rank that computes longer, below 93 % of its peers', where NVML gives neither power nor "
        "heat for it "
        "(NVML API Reference, nvmlDeviceGetClockInfo); it takes nvidia-smi -lgc on one of two GPUs, as root on bare "
        "metal"
    ),
    Kind("TO-W002", "stolen"): (
        "steal in /proc/stat, time in which the hypervisor ran something else (proc\\_stat(5), steal); it takes a "
        "virtual machine with more cores promised than its host has: with both cores busy ours lost 0.2 % of its time, "
        "those with GPUs as much, and none of them starts a guest of its own whose cores could be taken"
    ),
    Kind("TO-P004"): (
        "NCCL's own choice, more bandwidth on the way first and then the nearer NIC "
        f"({_NCCL}:src/graph/topo.cc, ncclTopoGetLocal); it takes NCCL's log of a job over several hosts beside "
        "`nvidia-smi topo -m` and `nvidia-smi -q`, where NCCL\\_IB\\_HCA leaves out a GPU's own NIC; in the public "
        "logs that tell both, each rank takes its nearest (NVIDIA/nccl-tests issue 350), or which rows of the matrix "
        "the job has is not told (NVIDIA/nccl-tests issue 311). NVIDIA/nccl issue 2345 is of a far NIC, as its author "
        "says, but what was posted has one rank's lines, without the list of NCCL's devices: nothing in it says which "
        "NIC NET/IB/1 is"
    ),
    Kind("TO-D206"): (
        "NCCL's user guide, NCCL\\_NET\\_PLUGIN, and source, which opens libnccl-net.so unless told otherwise "
        f"({_NCCL}:src/plugin/net.cc); aws-ofi-nccl always installs libnccl-net-ofi.so, and the other name not always "
        "(aws/aws-ofi-nccl@2daf7d3:src/Makefile.am); reported of a container without its path "
        "(NVIDIA-NeMo/RL issue 1973), whose log does not say that there is EFA; it takes the doctor on a machine of "
        "Amazon's with EFA and GPUs, without that plugin"
    ),
}
