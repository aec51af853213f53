"""Why some sentences of docs/verdicts.md have no example of a real run yet, and what would give one."""

from __future__ import annotations

from verdict_kinds import Kind

_CLOCK = "it takes a GPU beside others whose clock is lower while it trains: "
_SMI = "no public output of nvidia-smi -q -x that we found shows it; "

REASONS: dict[Kind, str] = {
    Kind("TO-V006", "one_host"): (
        "it takes two captures of one host with GPUs, mixed in one folder, whose run.json names the host and not the "
        "processes; where it names them, as ours does, TO-V002 leaves the other run's traces out (tried on two H200)"
    ),
    Kind("TO-S003", "slower"): (
        "a slow group has four ranks or more, on GPUs: 8 GPUs, 4 of which have a lower clock or power limit"
    ),
    Kind(
        "TO-W002", "power_cap"
    ): f"{_CLOCK}nvidia-smi -pl on one of two GPUs, which takes root on bare metal",
    Kind("TO-W002", "too_hot"): f"{_CLOCK}one that is hot, as in a rack with a fan that failed",
    Kind(
        "TO-W002", "slow_clock"
    ): f"{_CLOCK}nvidia-smi -lgc on one of two GPUs, which takes root on bare metal",
    Kind("TO-W002", "stolen"): (
        "it takes a virtual machine with more cores promised than its host has; ours lost 0.2 % of its time at most"
    ),
    Kind("TO-P004"): (
        "it takes NCCL's log of a job over several hosts beside its topology; public logs have one or the other"
    ),
    Kind("TO-D005"): (
        "the one public output of nvidia-smi -q -x that shows it is of 2013, and we do not know whose; it takes "
        "nvidia-smi -c EXCLUSIVE_PROCESS, as root on bare metal"
    ),
    Kind("TO-D010"): f"{_SMI}it takes a host with two models of GPUs",
    Kind(
        "TO-D102"
    ): "it takes a host with NVSwitch whose fabric manager was stopped, which takes root on bare metal",
    Kind("TO-D105"): "it takes several GPUs on bare metal with the IOMMU on; virtual machines are not judged",
    Kind(
        "TO-D205"
    ): "soft RoCE always makes a RoCE v2 address; it takes a card whose port has none but RoCE v1",
    Kind("TO-D206"): "it takes a machine of Amazon's with EFA and GPUs, without aws-ofi-nccl",
    Kind("TO-D207"): "it takes GPUs and RDMA devices in one host, without nvidia-peermem",
    Kind("TO-D306"): "it takes GPUs on two NUMA nodes and a process bound to one of them (taskset)",
    Kind(
        "TO-D307"
    ): "it takes GPUs in a host whose CPU has the governor powersave; virtual machines have none",
}
