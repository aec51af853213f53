"""The crashes that runs.py plants, with what is true of each; written before the first look."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MISMATCH, HOST, DIED = "TO-H002", "TO-H001", "TO-H004"


@dataclass(frozen=True)
class Planted:
    """One crash of train.py.

    kinds: what the conclusion may call it (kinds of crashes, or rules of hangs). fix: a word without which the advice
    is none. line: its own line can be told. ranks: who may be named, the planted one unless said. needs: what machine.
    at: file and line as the script was when it ran, where that is not the line marked now.
    small_shm: /dev/shm of 8 MB. alone: no other job at the same time. options: of `traceops run`.
    """

    name: str
    kinds: tuple[str, ...]
    fix: str = ""
    line: bool = True
    ranks: tuple[tuple[int, ...], ...] = ((1,),)
    needs: Literal["any", "cpu", "gpu"] = "any"
    says: str = ""
    small_shm: bool = False
    alone: bool = False
    options: tuple[str, ...] = ()
    at: str = ""


_ANY = ((0, 1), (1,), (0,))
# Every second one is set aside: no rule was written with it in sight before it was scored once.
PLANTED: tuple[Planted, ...] = (
    Planted("import_missing", ("import_error",), "environment"),
    Planted("import_name", ("import_error",), "environment", needs="cpu"),
    Planted("assertion", ("assertion",), "line"),
    Planted("key_error", ("exception",), "line", needs="cpu"),
    Planted("matmul_shapes", ("exception",), "line", needs="cpu"),
    Planted("dtypes_differ", ("dtypes_differ",), "dtype", needs="cpu"),
    Planted("label_on_cpu_out_of_range", ("exception", "index_range"), "num_classes", needs="cpu"),
    Planted("token_on_cpu_out_of_range", ("exception", "index_range"), "embedding", needs="cpu"),
    Planted("nan_stops", ("nan_loss",), "anomaly", line=False, needs="cpu"),
    Planted("nan_raises", ("nan_loss",), "anomaly"),
    Planted("nan_asserted", ("nan_loss",), "anomaly", needs="cpu"),
    Planted("file_missing", ("exception",), "line", needs="cpu", says="train_00000.bin"),
    Planted("recursion", ("exception",), "line", needs="cpu"),
    Planted("wrapped", ("exception",), "line", needs="cpu", says="tokens"),
    Planted("logged", ("exception",), "line", needs="cpu", says="pop from empty list"),
    Planted("thread_then_assertion", ("assertion",), "line", needs="cpu", says="16 where 8"),
    Planted("sys_exit_message", ("exit",), line=False, needs="cpu", says="config.yaml"),
    Planted("arguments", ("exit",), line=False, needs="cpu", says="unrecognized arguments"),
    Planted("elastic_record", ("exception",), "line", needs="cpu", says="shard of this rank"),
    Planted("sigkill", ("killed",), "dmesg", line=False),
    Planted("sigterm", ("terminated",), "SIGTERM", line=False, needs="cpu"),
    Planted("sigsegv", ("native_crash",), "faulthandler", line=False),
    Planted("sigsegv_with_handler", ("native_crash",), "extensions", needs="cpu"),
    Planted("abort", ("native_crash",), "faulthandler", line=False, needs="cpu"),
    Planted("sigbus", ("bus_error",), "/dev/shm", line=False, needs="cpu"),
    Planted("os_exit", ("exit",), line=False, says="exit code 3"),
    Planted("exit_zero", ("exit",), line=False, needs="cpu", says="exit code 0"),
    Planted("disk_full_checkpoint", ("disk_full", "write_failed"), "df -h"),
    Planted("disk_full_log", ("disk_full",), "df -h", needs="cpu"),
    Planted("file_size_limit", ("disk_full", "file_too_large"), "ulimit", needs="cpu"),
    Planted("open_files", ("open_files",), "ulimit", needs="cpu"),
    Planted("host_memory", ("host_memory",), "memory", needs="cpu"),
    Planted("memory_error", ("host_memory",), "memory", needs="cpu"),
    Planted("loader_error", ("exception",), "line", needs="cpu", says="no caption"),
    Planted("loader_killed", ("host_memory", "loader_died"), "workers"),
    Planted("loader_exit", ("loader_died",), "num_workers=0", needs="cpu"),
    Planted("loader_shm", ("shared_memory",), "--shm-size", small_shm=True),
    Planted("loader_pickle", ("unpicklable",), "module", needs="cpu"),
    Planted("batch_norm", ("batch_norm",), "drop_last"),
    Planted("expand_buffer", ("shared_view",), "clone"),
    Planted("leaf_inplace", ("exception", "leaf_inplace"), "no_grad", needs="cpu"),
    Planted("split_inplace", ("shared_view",), "clone", needs="cpu"),
    Planted("modified_inplace", ("modified_inplace",), "set_detect_anomaly", needs="cpu"),
    Planted("backward_twice", ("exception", "backward_twice"), "retain_graph", needs="cpu"),
    Planted("no_gradient", ("exception", "no_gradient"), "requires_grad", needs="cpu"),
    Planted("unused_parameters", ("unused_parameters",), "find_unused_parameters"),
    Planted("ready_twice", ("ready_twice",), "use_reentrant", needs="cpu"),
    Planted("scaler_bf16", ("scaler_bf16",), "GradScaler", needs="gpu"),
    Planted("scaler_fp16", ("scaler_fp16",), "fp32"),
    Planted("state_dict", ("state_dict",), "checkpoint", needs="cpu"),
    Planted("broken_file", ("broken_file",), "whole", needs="cpu"),
    Planted("load_device", ("load_device",), "map_location"),
    Planted("port_in_use", ("port_in_use",), "ss -ltnp"),
    Planted("wrong_port", ("rendezvous",), "MASTER_PORT", needs="cpu"),
    Planted("world_larger", ("rendezvous",), "WORLD_SIZE", needs="cpu"),
    Planted("model_differs", ("exception", "models_differ"), "same model", ranks=_ANY),
    Planted("shapes_differ", ("exception", "models_differ"), "same model", needs="cpu", ranks=_ANY),
    Planted("size_differs", (MISMATCH,), needs="cpu", ranks=((1,), (0, 1)), line=False),
    Planted("operation_differs", (MISMATCH,), needs="cpu", ranks=((1,), (0, 1)), line=False),
    Planted("barrier_missed", (HOST,), needs="cpu", line=False),
    Planted("no_group", ("exception", "no_group"), "init_process_group", needs="cpu"),
    Planted("nothing_to_train", ("exception", "nothing_to_train"), "requires_grad", needs="cpu"),
    Planted("nccl_without_gpu", ("no_such_gpu", "no_nccl"), "gloo", needs="cpu"),
    Planted("cuda_missing", ("no_such_gpu", "no_cuda"), "build", needs="cpu"),
    Planted("oom_forward", ("gpu_memory",), "smaller batch", needs="gpu", says="400.00 GiB"),
    Planted("oom_backward", ("gpu_memory",), "batch", needs="gpu"),
    Planted("oom_optimizer", ("gpu_memory",), "optimizer", needs="gpu"),
    Planted("oom_fragmented", ("gpu_memory",), "expandable_segments", needs="gpu"),
    Planted("oom_others", ("gpu_memory",), "nvidia-smi", needs="gpu", alone=True),
    Planted("oom_in_nccl", ("gpu_memory", "nccl_gpu"), "memory", needs="gpu", alone=True),
    Planted("oom_in_matmul", ("gpu_memory",), "batch", needs="gpu", alone=True),
    Planted("label_out_of_range", ("device_assert",), "num_classes", needs="gpu"),
    Planted("token_out_of_range", ("device_assert",), "embedding", needs="gpu"),
    Planted("illegal_access", ("illegal_access",), "compute-sanitizer", needs="gpu"),
    Planted("illegal_access_unseen", ("illegal_access",), "compute-sanitizer", needs="gpu", line=False),
    Planted("duplicate_gpu", ("duplicate_gpu",), "set_device", needs="gpu", ranks=_ANY),
    Planted("no_such_gpu", ("no_such_gpu",), "CUDA_VISIBLE_DEVICES", needs="gpu"),
    Planted("cuda_in_worker", ("cuda_fork",), "spawn", needs="gpu"),
    Planted("two_devices", ("two_devices",), "set_device", needs="gpu"),
    Planted(
        "no_interface", ("nccl_interface",), "NCCL_SOCKET_IFNAME", needs="gpu", line=False
    ),
    Planted("cpu_tensor", ("exception", "no_backend"), "device", needs="gpu"),
    Planted("watchdog", (HOST,), needs="gpu", line=False, options=("--hang-timeout", "0")),
)  # fmt: skip
ASIDE = frozenset(planted.name for planted in PLANTED[1::2])
# Planted on 2 H200 by benchmarks/verdicts/faults.py, in archives of tests/data/faults: read again, and not planted by
# runs.py. Rules had seen other messages of the kind before; nothing was set aside.
RECORDED: tuple[Planted, ...] = (
    Planted(
        "out_of_memory", ("gpu_memory",), "smaller batch", needs="gpu", at="verdict_faults.py:217",
        says="so the request is too large",
    ),
    Planted(
        "others", ("gpu_memory",), "nvidia-smi", needs="gpu", at="verdict_faults.py:232",
        says="other processes on this GPU hold the rest",
    ),
    Planted(
        "fragmented", ("gpu_memory",), "expandable_segments", needs="gpu", at="verdict_faults.py:228",
        says="in pieces (fragmented)",
    ),
)  # fmt: skip
