"""Why some sentences of docs/verdicts.md have no example of a real run: what they rest on, and what would give one."""

from __future__ import annotations

from verdict_kinds import Kind

_CLOCK = (
    "the clocks and NVML's reasons for them (NvmlClocksEventReasons) of ranks that compute longer; it takes "
)

REASONS: dict[Kind, str] = {
    Kind("TO-V006", "one_host"): (
        "run.json, which names the host: its ranks share one clock; it takes two captures of one host with GPUs, mixed "
        "in one folder, whose run.json does not name the processes. Where it names them, as ours does, TO-V002 leaves "
        "the other run's traces out (tried on two H200)"
    ),
    Kind("TO-S003", "slower"): (
        "what TO-S001 calls `slower`, of a group; it takes four ranks or more of eight on GPUs whose clock or power "
        "limit is lower"
    ),
    Kind("TO-W001", "allocator"): (
        "the steps in which the program calls torch.cuda.empty_cache() itself, by its frames; it takes such a program "
        "on a GPU, observed whole"
    ),
    Kind("TO-W002", "power_cap"): f"{_CLOCK}nvidia-smi -pl on one of two GPUs, as root on bare metal",
    Kind("TO-W002", "too_hot"): f"{_CLOCK}a GPU that is hot, as in a rack with a fan that failed",
    Kind("TO-W002", "slow_clock"): f"{_CLOCK}nvidia-smi -lgc on one of two GPUs, as root on bare metal",
    Kind("TO-W002", "stolen"): (
        "steal in /proc/stat, time in which the hypervisor ran something else (proc(5)); it takes a virtual machine "
        "with more cores promised than its host has; ours lost 0.2 % of its time at most"
    ),
    Kind("TO-P004"): (
        "NCCL's own choice by the path's type (PIX, PXB, PHB, SYS); it takes NCCL's log of a job over several hosts "
        "beside its topology; public logs have one or the other"
    ),
    Kind("TO-D102"): (
        "NVIDIA's Fabric Manager user guide: a GPU that is In Progress was not registered, and CUDA ends with error "
        "802; NVIDIA/gpu-operator issue 2511 quotes that state of a real node, not the whole output"
    ),
    Kind("TO-D105"): (
        "NCCL's troubleshooting guide, on IOMMU and ACS; it takes several GPUs on bare metal with the IOMMU on; "
        "virtual machines are not judged"
    ),
    Kind("TO-D205"): (
        "NCCL's source, which prefers RoCE v2 (NCCL_IB_ROCE_VERSION_NUM) and keeps what there is; soft RoCE always "
        "makes a RoCE v2 address; it takes a card whose port has none but RoCE v1"
    ),
    Kind(
        "TO-D206"
    ): "the guide of aws-ofi-nccl; it takes a machine of Amazon's with EFA and GPUs, without that plugin",
    Kind("TO-D207"): (
        "NVIDIA's GPUDirect RDMA guide: nvidia-peermem, or dma-buf with the open kernel modules on Linux 5.12; it "
        "takes GPUs and RDMA devices in one host with neither"
    ),
    Kind("TO-D306"): (
        "the GPU's local_cpulist in sysfs; it takes GPUs on two NUMA nodes and a process bound to one of them (taskset)"
    ),
    Kind("TO-D307"): (
        "the kernel's cpufreq guide: powersave asks for the lowest frequency, but in intel_pstate's and amd-pstate's "
        "own modes; it takes GPUs in a host with that governor; virtual machines have none"
    ),
}
