"""The rules of hangs: what each means when it fires, and what to do about it."""

from __future__ import annotations

from traceops.core.rule import Rule

HANG_RULES: tuple[Rule, ...] = (
    Rule(
        "TO-H001",
        "Hang: ranks never entered a collective that others wait in",
        "See in the rank's stack what it does instead: a branch that only some ranks take, a data loader that waits "
        "for a worker, a lock, a checkpoint on one rank. Every member of a group has to call every collective of it, "
        "in one order. A longer timeout (init_process_group(timeout=…); NCCL_TIMEOUT is a setting of neither NCCL nor "
        "torch) helps only if the rank would come.",
        True,
        "Ranks at the end of the wait-for graph that have nothing pending and did not call the first unfinished "
        "operation of the others; or that left no record while a member is missing (stopped: high confidence; seen "
        "elsewhere by their stack: medium; no evidence at all: low).",
    ),
    Rule(
        "TO-H002",
        "Hang: ranks called different collectives, sizes or types",
        "Compare the lines of code above: a rank that skipped or added a call, an uneven last batch (drop_last=True), "
        "parameters without gradient on some ranks. TORCH_DISTRIBUTED_DEBUG=DETAIL has torch compare every call and "
        "name the ranks; it sends a message before each collective, so use it for a short run.",
        True,
        "The calls that members made under one number of a group differ in operation, number of elements or type where "
        "these must be equal; the smaller side is named, both where they are as many. Also ranks that wait for each "
        "other in a circle: the same operations in another order.",
    ),
    Rule(
        "TO-H003",
        "Hang: a rank entered but its GPU never got there or never finished",
        "Look for Xid errors of that GPU (kernel log, nvidia-smi -q: ECC, page retirement) and at what it ran before "
        "this collective: a kernel that does not end, or one that waits for another stream. CUDA_LAUNCH_BLOCKING=1 "
        "shows the launch that hangs; it makes the host wait for every kernel, so use it for a short run.",
        True,
        "All members called the operation, and the others finished it, or started it while it is still queued on this "
        "rank (starts are recorded with TORCH_NCCL_ENABLE_TIMING=1, which traceops run sets); or the rank's host waits "
        "for its own GPU before it could call it.",
    ),
    Rule(
        "TO-H004",
        "A rank died and the others wait for it",
        "Read the end of that rank's log: its error is the cause, connection errors and timeouts of the others are "
        "echoes. traceops run keeps the rank's output in logs/.",
        True,
        "A process that was gone while others waited, or the first to fail as the launcher or the log says. Ranks "
        "that a watchdog or the launcher ended because of it are not named.",
        (
            (
                "memory",
                "The rank ran out of memory. On the host: fewer data-loader workers, less prefetching, no copy of the "
                "data set in every worker, a higher limit of the job or container. On the GPU: a smaller batch, "
                "activation checkpointing, sharding (FSDP).",
            ),
            (
                "gpu",
                "The rank's GPU reported an error. An illegal address or a failed assertion is a bug in a kernel or an "
                "index out of range (run with CUDA_LAUNCH_BLOCKING=1 to see where); ECC and Xid 48, 63, 74, 79 and 94 "
                "to 95 are the hardware: drain the node.",
            ),
        ),
    ),
    Rule(
        "TO-H005",
        "No progress before the first step",
        "Check that every rank was started with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE, that they reach each "
        "other (firewall; NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME name the interface), and what the named rank does "
        "instead. If loading takes that long, raise --init-timeout.",
        True,
        "No rank finished a first step within --init-timeout, and the ranks that others wait for are elsewhere, or all "
        "wait where the process group is made.",
    ),
    Rule(
        "TO-H006",
        "Hang: every member entered and none finished",
        "Read the NCCL log for warnings and the path it took (NCCL_DEBUG=INFO: `via P2P`, `via SHM`, `via NET`). To "
        "find the link at fault turn paths off, one at a time: NCCL_P2P_DISABLE=1 sends traffic inside a host through "
        "shared memory (on 4 H200 a step of 18 ms took 34), with NCCL_SHM_DISABLE=1 through sockets (168 ms), "
        "NCCL_IB_DISABLE=1 takes TCP between hosts. These tell where the fault is and are no cure.",
        True,
        "All members called the same operation alike and none finished it. High confidence where starts were "
        "recorded and all of them started; else a GPU that hangs on one of them cannot be told from the network.",
    ),
)
