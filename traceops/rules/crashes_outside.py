"""Crashes that the machine or whoever runs it caused: what was refused, and programs that were ended from outside."""

from __future__ import annotations

from traceops.core.rule import Rule

REFUSED = Rule(
    id="TO-E007",
    title="The machine refused: port, network, disk or a limit",
    fires=(
        "The first failure in a log is a port that is in use, a file that could not be written or opened, a thread or "
        "a job that could not be started, or ranks that did not find each other when the process group was made."
    ),
    advice="Free what the message names, then start again.",
    by_cause=(
        (
            "port_in_use",
            "Another job, or one that did not end, listens on the port: find it with ss -ltnp, or take a "
            "free port: "
            "torchrun --standalone, or --rdzv-endpoint localhost:0; else another --master-port.",
        ),
        (
            "disk_full",
            "Free space or raise the quota (df -h, df -i, quota), keep fewer checkpoints, and write them "
            "elsewhere. A checkpoint that was being written is incomplete.",
        ),
        (
            "write_failed",
            "Most often a full disk or quota (df -h, df -i, quota), else a file system that went away. The "
            "checkpoint is incomplete.",
        ),
        (
            "file_too_large",
            "The limit of a file's size is in force (ulimit -f; a service's LimitFSIZE), or the file system "
            "takes no larger file. Raise it, or save the checkpoint in shards.",
        ),
        (
            "open_files",
            "Raise the limit (ulimit -n 65536 before the start; LimitNOFILE of a service; docker run --ulimit "
            "nofile=65536), or torch.multiprocessing.set_sharing_strategy('file_system'). Batches kept in a list hold "
            "one file a tensor: keep numpy arrays, or copies.",
        ),
        (
            "evicted_disk",
            "The container's own file system counts: write checkpoints and caches (HF_HOME, TMPDIR) to a volume, or "
            "request ephemeral-storage.",
        ),
        (
            "rendezvous",
            "Some ranks were not started, run with another WORLD_SIZE (--nnodes, --nproc-per-node), or cannot reach "
            "MASTER_ADDR:MASTER_PORT: nc -vz ADDRESS PORT from each node; a firewall; a name that resolves to another "
            "interface. If a rank crashed while it started, its own output tells.",
        ),
        (
            "store_reused",
            "The store still holds the workers of an attempt before: end what is left of it (pgrep -f on each node) "
            "and take another --master-port or --rdzv-id; with several launchers, give each rank one store only.",
        ),
        (
            "no_threads",
            "A limit of processes or threads is in force: ulimit -u, the container's (docker run --pids-limit, "
            "pids.max of its cgroup) or a service's TasksMax. Raise it, or start fewer: OMP_NUM_THREADS, data-loader "
            "workers, num_cpus of Ray.",
        ),
        (
            "not_launched",
            "No process of the job ran. If a credential expired, the clocks of the nodes differ, or munge fails. If a "
            "script or program is missing, this node does not mount its file system. Start again without the node "
            "(--exclude=NODE), and tell the administrators.",
        ),
        (
            "gloo_connect",
            "gloo takes the address that the host's name resolves to. Set GLOO_SOCKET_IFNAME to the interface that "
            "reaches the other nodes (ip addr) on every node, and let the firewall pass all ports between them.",
        ),
    ),
)

ENDED = Rule(
    id="TO-E008",
    title="The job was ended from outside",
    fires=(
        "The first failure in a log is a scheduler or a terminal that ended the job: a time limit, preemption, a node "
        "that was lost, SIGHUP, SIGTERM or a cancellation that nothing else explains."
    ),
    advice="The log shows no failure of the program itself.",
    by_cause=(
        (
            "time_limit",
            "Ask for more time (--time), or write a checkpoint and start again from it: #SBATCH --signal=B:USR1@300 "
            "tells the script five minutes before. If the last steps took longer than those before, the job was slow "
            "or hung first: traceops run names the cause.",
        ),
        (
            "preempted",
            "Write checkpoints often enough and let the job start again (#SBATCH --requeue); a queue of higher "
            "priority is not preempted.",
        ),
        (
            "node_failure",
            "The node stopped answering; the other ranks' errors follow from that. sacct -j JOB -o NodeList,State "
            "(Slurm), kubectl describe node, or ray status tell which; its kernel log, and its raylet's or kubelet's, "
            "why: out of memory, preempted, or cut off. Start again without it (--exclude=NODE of Slurm).",
        ),
        (
            "hangup",
            "Start it in tmux or screen, with sbatch, or with setsid nohup COMMAND > log 2>&1 &: nohup alone does not "
            "help, as torchrun sets its own handler of SIGHUP.",
        ),
        (
            "terminated",
            "Somebody sent SIGTERM: a scheduler (time limit, preemption, eviction), kill, or the launcher of another "
            "node whose rank failed. Look at that node's log and at sacct or kubectl describe pod.",
        ),
        (
            "cancelled",
            "scancel, or Slurm itself after a failed task (srun --kill-on-bad-exit): sacct -j JOB -o "
            "State,Reason,ExitCode tells who.",
        ),
    ),
)
KILLED_ADVICE = (
    "Nothing in the log says who sent SIGKILL; most often it is the kernel, because the host's memory ran out: "
    "dmesg -T | grep -i -E 'oom|killed process' on that host, sacct -j JOB -o State,MaxRSS, or kubectl describe pod "
    "(OOMKilled). Fewer data-loader workers and no copy of the data set in every worker need less."
)
