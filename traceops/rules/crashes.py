"""The verdicts on crashes in a job's logs: a finding for each that is a cause, and for each rank that "
"died of one."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from traceops.core.findings import Evidence, Finding
from traceops.core.rule import Rule, Verdict
from traceops.hangs.crash_kinds import RULE_OF
from traceops.rules.crashes_of_programs import MISUSE, SCRIPT_ERROR
from traceops.rules.crashes_outside import ENDED, KILLED_ADVICE, REFUSED

if TYPE_CHECKING:
    from traceops.hangs.crashes import Crash
    from traceops.hangs.model import Diagnosis, Root
    from traceops.rules.inputs import Inputs

GPU_MEMORY = Rule(
    id="TO-E001",
    title="Out of GPU memory",
    fires=(
        "A log has torch's out-of-memory message. Its numbers say why, where they do: 15 % of the GPU or more is "
        "held by other processes or outside of torch, and would have been enough; or what is reserved but "
        "unallocated would have been enough (fragmented, or full where it is less than 5 % of the GPU); or all of "
        "that would not (too large); or more was free (refused). Where the numbers contradict each other, none is told."
    ),
    advice=(
        "Use a smaller batch per GPU with accumulation, activation checkpointing, or sharding (FSDP). "
        "traceops run "
        "records memory over a step; torch.cuda.memory._record_memory_history() shows who holds it."
    ),
    by_cause=(
        (
            "too_large",
            "PYTORCH_CUDA_ALLOC_CONF will not help: what is reserved but unallocated would not be "
            "enough. Use a smaller batch per "
            "GPU with accumulation, activation checkpointing, or sharding of parameters and optimizer "
            "state (FSDP, "
            "ZeRO). If it is raised in the first optimizer step, the optimizer's state did not fit: "
            "shard it, or use "
            "an optimizer with less state. `traceops memory` says what each saves, "
            "without a GPU.",
        ),
        (
            "fragmented",
            "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (torch 2.1 and later; before it "
            "max_split_size_mb:128). Batches of varying shapes fragment memory: pad them to a few lengths.",
        ),
        (
            "full",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True may let this request pass, and one that is a little "
            "larger fails again. Use a smaller batch per GPU with accumulation, activation checkpointing, or sharding "
            "(FSDP, ZeRO). `traceops memory` says what each saves, without a GPU.",
        ),
        (
            "refused",
            "A smaller batch may not help. On WSL and Windows the driver has limits of its own: less than the GPU's "
            "memory for one process, and the host's memory behind it (.wslconfig, nvidia-smi on the host). With MIG or "
            "a vGPU look at this process's share. Elsewhere others held it at that moment: watch nvidia-smi while it "
            "starts.",
        ),
        (
            "others",
            "See with nvidia-smi which processes are on this GPU: a run that did not end, or several "
            "ranks on one "
            "GPU (torch.cuda.set_device(local_rank), CUDA_VISIBLE_DEVICES).",
        ),
        (
            "outside",
            "See with nvidia-smi (rocm-smi on AMD) on the host, not in a container, which processes are on this GPU: "
            "a run that did not end, another container, several ranks on one GPU "
            "(torch.cuda.set_device(local_rank), CUDA_VISIBLE_DEVICES). If there is only this one, look for what in "
            "it allocates beside torch: JAX, TensorFlow, an inference engine, NVSHMEM, many NCCL communicators.",
        ),
        (
            "outside_own",
            "Look for what in this process allocates beside torch: JAX or TensorFlow (which take most of the GPU "
            "unless told otherwise), an inference engine, NVSHMEM, many NCCL communicators (NCCL_BUFFSIZE), a "
            "library's own pool (RMM, CuPy). PYTORCH_CUDA_ALLOC_CONF has no part in it.",
        ),
    ),
)

HOST_MEMORY = Rule(
    id="TO-E002",
    title="Out of the host's memory or of /dev/shm",
    fires=(
        "A log tells that an allocation on the host failed, that the kernel, the batch system or a daemon killed a "
        "process for its memory, "
        "or that data-loader workers ran out of shared memory."
    ),
    advice=(
        "Use fewer data-loader workers, less prefetching, no copy of the data set in every worker, or "
        "raise the limit "
        "of the job or container (--mem, resources.limits.memory). dmesg tells which process was killed."
    ),
    by_cause=(
        (
            "shared_memory",
            "Give the container more shared memory: docker run --shm-size=16g or --ipc=host; in "
            "Kubernetes an emptyDir "
            "with medium: Memory at /dev/shm. df -h /dev/shm shows it. Fewer workers or "
            "torch.multiprocessing.set_sharing_strategy('file_system') need less.",
        ),
        (
            "mappings",
            "Each tensor that a worker hands over is a mapping of its own, and Linux allows a process "
            "vm.max_map_count of them, 65,530 unless set (sysctl vm.max_map_count; wc -l /proc/PID/maps counts). "
            "Keep fewer of them: no lists of what a loader gave, one tensor a batch in place of one a sample, a "
            "data set that is not many small tensors. Or raise the limit. Far below it, the memory itself ran out: "
            "free -g, df -h /dev/shm.",
        ),
        (
            "evicted_memory",
            "Set the pod's resources.requests.memory to what it needs, so that it is put on a node that has it, "
            "and limits.memory to the same: a pod that uses more than it requested is evicted first. kubectl "
            "describe node shows what else ran there.",
        ),
    ),
)

GPU_ERROR = Rule(
    id="TO-E003",
    title="A GPU reported an error",
    fires=(
        "The first failure in a log is a CUDA error: an illegal access, a failed assertion on the "
        "device, a failed "
        "kernel, hardware, or a device that is not there."
    ),
    advice=(
        "CUDA errors are reported late, so the line of the traceback may not be the one at fault. Run "
        "again with "
        "CUDA_LAUNCH_BLOCKING=1: then it is."
    ),
    by_cause=(
        (
            "illegal_access",
            "The error is reported late, so the line of the traceback may not be the one at fault. Run "
            "once with "
            "CUDA_LAUNCH_BLOCKING=1 to see the call, or under compute-sanitizer to see the kernel and "
            "the address. "
            "Suspects are custom kernels (Triton, CUDA extensions), indexes out of range, and tensors of "
            "another "
            "device. If only one machine has it, look for Xid errors there (dmesg).",
        ),
        (
            "device_assert",
            "Most often an index or a label out of range: a class number of at least num_classes, a "
            "token of at least "
            "the embedding's size. Check the batch on the CPU, or run with CUDA_LAUNCH_BLOCKING=1 to see "
            "the call. "
            "Every later CUDA call of the process fails too.",
        ),
        (
            "gpu_hardware",
            "Drain the node: nvidia-smi -q -d ECC,PAGE_RETIREMENT and dmesg (Xid) tell which GPU. "
            "traceops doctor tests it.",
        ),
        (
            "gpu_hang",
            "The kernel log of that host (dmesg, amdgpu) says which GPU was reset and why: a page fault, a ring "
            "that timed out, RAS errors (rocm-smi --showrasinfo). Run once with AMD_SERIALIZE_KERNEL=3 to see the "
            "kernel that hangs. If it is always one GPU, drain the node; if not, try another ROCm or leave out the "
            "kernel.",
        ),
        (
            "no_such_gpu",
            "More ranks on this host than GPUs it sees, or cuda:RANK where cuda:LOCAL_RANK is meant. Compare "
            "--nproc-per-node with nvidia-smi -L and CUDA_VISIBLE_DEVICES.",
        ),
        (
            "no_cuda",
            "Install a build of torch for CUDA (pytorch.org, Start Locally) and see that nvidia-smi works on "
            "this host, in a container with --gpus all. On a host without GPUs use device='cpu'.",
        ),
        (
            "no_nccl",
            "Without GPUs use the backend gloo: init_process_group('cpu:gloo,cuda:nccl') takes each where it "
            "fits. With GPUs install a build of torch for CUDA, and see that nvidia-smi works on this host.",
        ),
        (
            "driver_old",
            "nvidia-smi shows the driver and the newest CUDA it knows. Install a newer driver, or the build of torch "
            "for that CUDA version (pytorch.org, previous versions).",
        ),
        (
            "no_kernel",
            "Install a build of torch, or of the extension, that was made for this GPU: "
            "torch.cuda.get_arch_list() beside torch.cuda.get_device_capability().",
        ),
    ),
)

NCCL_ERROR = Rule(
    id="TO-E004",
    title="NCCL failed",
    fires=(
        "A log has an NCCL error, and no failure of another kind that it may follow from. Errors that "
        "tell of a "
        "peer that is gone are not counted."
    ),
    advice="Run again with NCCL_DEBUG=INFO: the first WARN line before the error says what failed.",
    by_cause=(
        (
            "nccl_system",
            "A system call failed: a host that cannot be reached (NCCL_SOCKET_IFNAME names the "
            "interface; a firewall), "
            "/dev/shm that is full, a limit on locked memory or open files. NCCL_DEBUG=INFO shows the "
            "first WARN "
            "line; traceops doctor tests the rest.",
        ),
        (
            "nccl_interface",
            "NCCL_SOCKET_IFNAME names an interface that this host does not have (ip addr shows those it has), or "
            "there is none but the loopback. Unset it, or give the beginning of a name that every node has.",
        ),
        (
            "duplicate_gpu",
            "Two ranks chose one GPU: call torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before "
            "the first "
            "collective, and start no more ranks than GPUs.",
        ),
        (
            "rank_twice",
            "Two processes have one RANK: start every rank once. Use srun or torchrun and not both, with as many "
            "tasks a node as the program expects (Lightning: --ntasks-per-node equal to devices), and a "
            "MASTER_PORT that no other job has.",
        ),
        (
            "nccl_gpu",
            "A CUDA call inside NCCL failed: often out of memory, or an earlier CUDA error of the same rank. "
            "NCCL_DEBUG=INFO shows which call.",
        ),
    ),
)

RULES = (GPU_MEMORY, HOST_MEMORY, GPU_ERROR, NCCL_ERROR, SCRIPT_ERROR, MISUSE, REFUSED, ENDED)
BY_ID = {rule.id: rule for rule in RULES}


def advice_for(crash: Crash) -> str:
    """What to do about a crash, whichever rule its rank is a case of."""
    rule = BY_ID.get(RULE_OF[crash.kind])
    return KILLED_ADVICE if rule is None else rule.advice_for(crash.cause)


def judge(inputs: Inputs) -> list[Verdict]:
    """The verdicts on crashes in the run's logs, or why there are none."""
    if inputs.hang is None:
        return [rule.not_evaluated(inputs.no_hang) for rule in RULES]
    return judge_crashes(inputs.hang)


def judge_crashes(diagnosis: Diagnosis) -> list[Verdict]:
    """One verdict for each of these rules, in their order."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for root in diagnosis.roots:
        if root.rule in BY_ID:
            found[root.rule].append(_finding(root))
    if not diagnosis.evidence.log:
        return [rule.not_evaluated("no log tells of an error") for rule in RULES]
    return [rule.verdict(*found[rule.id], clear="no such error is the cause, as far as was read") for rule in RULES]


def _finding(root: Root) -> Finding:
    proof = [Evidence(metric, value) for metric, value in root.evidence]
    return BY_ID[root.rule].finding("error", root.confidence, root.message, proof, ranks=root.ranks, cause=root.cause)
