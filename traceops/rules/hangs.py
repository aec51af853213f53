"""The verdicts on a hang: a finding for each root, and why the other rules are clear or were not judged."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from traceops.core.facts import Fact
from traceops.core.findings import Evidence, Finding
from traceops.core.rank_text import ranks_text
from traceops.core.rule import Rule, Verdict
from traceops.rules.crashes import ENDED, HOST_MEMORY, SCRIPT_ERROR, advice_for

if TYPE_CHECKING:
    from traceops.hangs.model import Diagnosis, Root
    from traceops.rules.inputs import Inputs

NEVER_CALLED = Rule(
    id="TO-H001",
    title="Hang: ranks never entered a collective that others wait in",
    fires=(
        "Ranks at the end of the wait-for graph that have nothing pending and did not call the first unfinished "
        "operation of the others. Also ranks without a record while a member is missing (confidence: high if "
        "stopped, medium if the stack shows it elsewhere, low without any evidence)."
    ),
    advice=(
        "See in the rank's stack what it does instead: a branch that only some ranks take, a data loader that "
        "waits for a worker, a lock, a checkpoint on one rank. Every member of a group has to call every "
        "collective of it, in one order. A longer timeout (init_process_group(timeout=…); NCCL_TIMEOUT is a "
        "setting of neither NCCL nor torch) helps only if the rank would come."
    ),
)

MISMATCH = Rule(
    id="TO-H002",
    title="Hang: ranks called different collectives, sizes or types",
    fires=(
        "The calls that members made under one number of a group differ in operation, number of elements or type "
        "where these must be equal. The smaller side is named; if both sides are equally large, both are. Also "
        "ranks that wait for each other in a circle: the same operations in another order."
    ),
    advice=(
        "Compare the code that makes these calls: a rank that skipped or added a call, an uneven last batch "
        "(drop_last=True), parameters without gradient on some ranks. TORCH_DISTRIBUTED_DEBUG=DETAIL has "
        "torch compare every call and name the ranks; it sends a message before each collective, so use it "
        "for a short run."
    ),
)

GPU_STUCK = Rule(
    id="TO-H003",
    title="Hang: a rank entered but its GPU never got there or never finished",
    fires=(
        "All members called the operation, and the others finished it, or started it while it is still queued on "
        "this rank (starts are recorded where the environment has TORCH_NCCL_ENABLE_TIMING=1, at 2 to 3 % of a step). "
        "Also a rank whose host waits for its own GPU before it could call the operation."
    ),
    advice=(
        "Look for Xid errors of that GPU (kernel log, nvidia-smi -q: ECC, page retirement) and at what it ran "
        "before this collective: a kernel that does not end, or one that waits for another stream. "
        "CUDA_LAUNCH_BLOCKING=1 shows the launch that hangs; it makes the host wait for every kernel, so use "
        "it for a short run."
    ),
)

_BY_SIGNAL = (
    ("native_crash", SCRIPT_ERROR),
    ("bus_error", SCRIPT_ERROR),
    ("terminated", ENDED),
    ("host_memory", HOST_MEMORY),
)
DIED = Rule(
    id="TO-H004",
    title="A rank died, or ended before the others",
    fires=(
        "A process that was gone while others waited, or the first to fail as the launcher or the log says. "
        "Ranks that a watchdog or the launcher ended because of it are not named."
    ),
    advice=(
        "Read the end of that rank's log: its error is the cause, connection errors and timeouts of the "
        "others are echoes. traceops run keeps the rank's output in logs/ where torchrun starts the ranks."
    ),
    by_cause=(
        (
            "ended_early",
            "It failed nowhere: it made fewer steps than the others, or left the loop before them. Uneven data need "
            "drop_last=True, a sampler that pads, or torch's Join; a break or a continue has to be taken on all ranks.",
        ),
        (
            "killed",
            "Nothing in the log says who sent SIGKILL; most often it is the kernel, because the host's memory ran out: "
            "dmesg -T | grep -i -E 'oom|killed process' on that host, or sacct -j JOB -o State,MaxRSS; in Kubernetes "
            "kubectl describe pod (OOMKilled). Else a scheduler or a person ended it.",
        ),
        (
            "memory",
            "The rank ran out of memory. On the host: fewer data-loader workers, less prefetching, no copy of "
            "the data set in every worker, a higher limit of the job or container. On the GPU: a smaller "
            "batch, activation checkpointing, sharding (FSDP).",
        ),
        (
            "gpu",
            "The rank's GPU reported an error. An illegal address or a failed assertion is a bug in a kernel "
            "or an index out of range (run with CUDA_LAUNCH_BLOCKING=1 to see where); ECC and Xid 48, 63, 74, "
            "79 and 94 to 95 are the hardware: drain the node.",
        ),
        *((cause, rule.advice_for(cause)) for cause, rule in _BY_SIGNAL),
    ),
)

NO_START = Rule(
    id="TO-H005",
    title="No progress before the first step",
    fires=(
        "No rank finished a first step within --init-timeout, and the ranks that others wait for are "
        "elsewhere, or all wait where the process group is made."
    ),
    advice=(
        "Check that every rank was started with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE, that they "
        "reach each other (firewall; NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME name the interface), and what "
        "the named rank does instead. If loading takes that long, raise --init-timeout."
    ),
)

NETWORK_STUCK = Rule(
    id="TO-H006",
    title="Hang: every member entered and none finished",
    fires=(
        "All members called the same operation alike and none finished it. High confidence where starts were "
        "recorded and all of them started; else a GPU that hangs on one of them cannot be told from the "
        "network."
    ),
    advice=(
        "Read the NCCL log for warnings and the path it took (NCCL_DEBUG=INFO: `via P2P`, `via SHM`, `via "
        "NET`). To find the link at fault turn paths off, one at a time: NCCL_P2P_DISABLE=1 sends traffic "
        "inside a host through shared memory (on 4 H200 a step of 18 ms took 34), with NCCL_SHM_DISABLE=1 "
        "through sockets (168 ms), NCCL_IB_DISABLE=1 takes TCP between hosts. They show where the fault is; "
        "they are not a cure. If starts were not recorded, TORCH_NCCL_ENABLE_TIMING=1 in the next run tells a GPU "
        "that hangs from the network."
    ),
    by_cause=(
        (
            "p2p",
            "Try NCCL_P2P_DISABLE=1: traffic then goes through host memory. To test it: `traceops run --env "
            "NCCL_P2P_DISABLE=1 -- SCRIPT`; if that gets past the call, P2P is what is broken. `traceops doctor` "
            "tests P2P between each pair of GPUs. What breaks it is mostly the IOMMU or ACS (off, or iommu=pt), a "
            "virtual machine, or the driver: fix that, or keep the variable.",
        ),
        (
            "way_known",
            "Turn off the way that NCCL takes, one at a time: NCCL_P2P_DISABLE=1 sends traffic inside a host "
            "through shared memory, with NCCL_SHM_DISABLE=1 through sockets, NCCL_IB_DISABLE=1 takes TCP between "
            "hosts. `traceops run --env NAME=1 -- SCRIPT` tests one, `traceops doctor` tests them on this "
            "machine. They show where the fault is; they are not a cure.",
        ),
        (
            "gloo",
            "gloo goes over TCP. See whether the interface it took (GLOO_SOCKET_IFNAME; else the one that the host's "
            "name resolves to) is up and reaches the other hosts (ip link, ping), whether its connections stand (ss "
            "-tnp), and in the stacks whether a rank is busy elsewhere.",
        ),
    ),
)
RULES = (NEVER_CALLED, MISMATCH, GPU_STUCK, DIED, NO_START, NETWORK_STUCK)
BY_ID = {rule.id: rule for rule in RULES}


def judge(inputs: Inputs) -> list[Verdict]:
    """The verdicts on the run's hang, or why there are none."""
    if inputs.hang is None:
        return [rule.not_evaluated(inputs.no_hang) for rule in RULES]
    return judge_hang(inputs.hang)


def judge_hang(diagnosis: Diagnosis) -> list[Verdict]:
    """One verdict for each of TO-H001 to TO-H006, in that order."""
    found: dict[str, list[Finding]] = defaultdict(list)
    for root in diagnosis.roots:
        if root.rule not in BY_ID:
            continue
        found[root.rule].append(_finding(diagnosis, root))
    clear = (
        "the ranks wait for another reason"
        if found
        else "a rank crashed, and none waits for another reason"
        if diagnosis.roots
        else "no rank waits in a collective in these files"
    )
    verdicts = []
    for rule in RULES:
        if found[rule.id]:
            verdicts.append(rule.verdict(*found[rule.id]))
        elif rule.id in diagnosis.not_evaluated:
            verdicts.append(rule.not_evaluated(diagnosis.not_evaluated[rule.id]))
        else:
            verdicts.append(rule.clear(clear))
    return verdicts


def _finding(diagnosis: Diagnosis, root: Root) -> Finding:
    stall = diagnosis.evidence.stall
    proof = [Evidence(Fact.CLUE, value, subject=metric) for metric, value in root.evidence]
    if root.doing is not None:
        proof.append(Evidence(Fact.DOING_INSTEAD, root.doing))
    if root.waiting:
        proof.append(Evidence(Fact.WAITING_RANKS, len(root.waiting), f"({ranks_text(root.waiting, 16)})"))
    if root.bytes is not None:
        proof.append(Evidence(Fact.MESSAGE, root.bytes, "bytes"))
    if stall is not None:
        proof.append(Evidence(Fact.NO_STEP_FINISHED_FOR, round(stall.stalled_s, 1), "s", stall.limit_s))
    found = BY_ID[root.rule].finding(
        "error",
        root.confidence,
        root.message,
        proof or [Evidence(Fact.RANKS, ranks_text(root.ranks, 16))],
        ranks=root.ranks,
        cause=root.cause,
    )
    return found if root.crash is None else replace(found, advice=advice_for(root.crash, root.setting))
