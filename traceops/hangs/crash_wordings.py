"""The wordings by which messages of torch, NCCL, Slurm and Linux are known as a kind of crash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CrashKind = Literal[
    "gpu_memory", "host_memory", "illegal_access", "device_assert", "launch_failure", "gpu_hardware",
    "gpu_hang", "nccl_system", "nccl_usage", "nccl_internal", "nccl_gpu", "duplicate_gpu", "rank_twice", "import_error",
    "assertion",
    "scaler_bf16", "batch_norm",
    "cuda_fork", "unused_parameters", "ready_twice", "shared_view", "shared_memory", "port_in_use",
    "disk_full", "write_failed", "no_such_gpu", "no_kernel", "nan_loss", "native_crash", "bus_error", "exception",
    "driver_old", "load_device", "two_devices", "modified_inplace", "state_dict", "broken_file", "open_files",
    "loader_died", "rendezvous", "gloo_connect", "evicted_memory", "evicted_disk", "killed",
    "time_limit", "preempted", "node_failure", "hangup", "terminated", "cancelled",
    "scaler_fp16", "models_differ", "dtypes_differ", "index_range", "leaf_inplace", "backward_twice", "no_gradient",
    "nothing_to_train", "no_group", "no_backend", "unpicklable", "no_cuda", "no_nccl", "nccl_interface",
    "file_too_large", "no_threads", "not_launched", "store_reused", "mappings", "actor_died", "loss_scale",
]  # fmt: skip


@dataclass(frozen=True)
class Wording:
    """A message that holds all of `words` is a case of `kind`, unless it holds one of `but`.

    behind: what stands right before the first of the words, where they are not at the message's beginning; () for
    anything. It tells the kernel's own line from one that quotes it.
    """

    kind: CrashKind
    words: tuple[str, ...]
    but: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()

    def is_in(self, text: str) -> bool:
        if not all(word in text for word in self.words) or any(word in text for word in self.but):
            return False
        before = text[: text.index(self.words[0])]
        return not self.behind or not before.strip() or before.endswith(self.behind)


def _each(kind: CrashKind, *words: str) -> tuple[Wording, ...]:
    return tuple(Wording(kind, (word,)) for word in words)


# What stands before the kernel's words: a time, a tag, a key of JSON.
_BY_KERNEL = ("] ", "kernel: ", "> ", '": "', '":"', "Z ", *(f"{digit} " for digit in range(10)))
# In this order: the first that fits says what a message is.
WORDINGS: tuple[Wording, ...] = (
    Wording("scaler_bf16", ("_amp_foreach_non_finite_check_and_unscale", "BFloat16")),
    *_each("scaler_fp16", "Attempting to unscale FP16 gradients"),
    *_each(
        "models_differ",
        "DDP expects same model across all ranks",
        "appears not to match sizes of the same param in process",
        "appears not to match strides of the same param in process",
    ),
    *_each("dtypes_differ", "must have the same dtype", "Expected all tensors to have the same dtype"),
    Wording("dtypes_differ", ("expected m", " to have the same dtype")),
    Wording("dtypes_differ", ("Found dtype ", " but expected ")),  # a gradient's
    Wording("dtypes_differ", ("expected scalar type ", "but found ")),
    Wording("dtypes_differ", ("Input type (", "weight type (", "should be the same")),
    Wording("dtypes_differ", ("Input type (", "bias type (", "should be the same")),
    Wording("dtypes_differ", ("requires the source and destination dtypes match",)),
    *_each("index_range", "index out of range in self"),
    Wording("index_range", ("Target ", " is out of bounds")),
    *_each("leaf_inplace", "a leaf Variable that requires grad is being used in an in-place operation"),
    *_each("backward_twice", "Trying to backward through the graph a second time"),
    *_each("no_gradient", "does not require grad and does not have a grad_fn"),
    *_each("nothing_to_train", "DistributedDataParallel is not needed when a module doesn't have any param"),
    *_each("no_group", "Default process group has not been initialized"),
    *_each("no_backend", "No backend type associated with device type"),
    *_each("unpicklable", "Can't pickle local object", "Can't get local object"),
    *_each(
        "no_cuda",
        "Torch not compiled with CUDA enabled",
        "Found no NVIDIA driver on your system",
        "can only be used on CUDA devices",  # fp16 of Trainer, where torch sees no GPU
    ),
    *_each("no_nccl", "Distributed package doesn't have NCCL built in", "ProcessGroupNCCL is only supported with GPUs"),
    *_each("nccl_interface", "no socket interface found"),
    *_each("file_too_large", "[Errno 27] File too large"),
    *_each("batch_norm", "Expected more than 1 value per channel when training"),
    *_each("cuda_fork", "Cannot re-initialize CUDA in forked subprocess"),
    *_each("unused_parameters", "Expected to have finished reduction in the prior iteration"),
    *_each("ready_twice", "Expected to mark a variable ready only once"),
    *_each(
        "shared_view",
        "more than one element of the written-to tensor refers to a single memory location",
        "is a view and is being modified inplace",
    ),
    *_each(
        "shared_memory",
        "insufficient shared memory (shm)",
        "workers are out of shared memory",
        "unable to allocate shared memory(shm)",
        "write to file </torch_",
    ),
    Wording("shared_memory", ("No space left on device", "/dev/shm")),
    Wording("shared_memory", ("No space left on device", "shared memory segment")),
    Wording("shared_memory", ("DataLoader worker", "is killed by signal: Bus error")),
    Wording("shared_memory", ("failed to extend", "/dev/shm")),
    Wording(
        "shared_memory",
        ("Error while creating shared memory segment /dev/shm/nccl",),
        ("Permission denied", "Too many open files", "not permitted"),
    ),
    Wording("mappings", ("unable to mmap ", " from file </torch_", "Cannot allocate memory")),
    Wording("mappings", ("unable to mmap ", " from file <filename not specified>", "Cannot allocate memory")),
    *_each("evicted_memory", "low on resource: memory", "had condition: [MemoryPressure]"),
    *_each("evicted_disk", "low on resource: ephemeral-storage", "had condition: [DiskPressure]"),
    Wording("disk_full", ("No space left on device",), ("Warning: ",)),
    Wording("disk_full", ("no space left on device",), ("Warning: ",)),
    *_each("disk_full", "Disk quota exceeded"),
    *_each("write_failed", "PytorchStreamWriter failed writing file", "basic_ios::clear: iostream error"),
    Wording("write_failed", ("inline_container.cc", "unexpected pos ")),  # torch.save: fewer bytes came out
    *_each("port_in_use", "failed to listen on any local network address", "EADDRINUSE"),
    Wording("port_in_use", ("Address already in use",), ("failed to bind to", "failed to listen on [")),
    *_each("open_files", "Too many open files", "received 0 items of ancdata"),
    *_each("no_threads", "thread: Resource temporarily unavailable", "can't start new thread", "pthread_create failed"),
    *_each("no_threads", "Thread creation failed", "fork: Resource temporarily unavailable"),
    Wording("not_launched", ("srun: error: Task launch for ", " failed on node")),
    *_each("not_launched", "slurmstepd: error: execve():"),
    *_each("duplicate_gpu", "Duplicate GPU detected"),
    *_each(
        "driver_old",
        "NVIDIA driver on your system is too old",
        "CUDA driver version is insufficient for CUDA runtime version",
    ),
    *_each("load_device", "Attempting to deserialize object on"),
    *_each("two_devices", "Expected all tensors to be on the same device"),
    *_each("modified_inplace", "variables needed for gradient computation has been modified by an inplace operation"),
    *_each("state_dict", "Error(s) in loading state_dict for"),
    *_each(
        "broken_file",
        "Error while deserializing header",
        "PytorchStreamReader failed",
        "invalid load key, 'v'",
        "unpickling stack underflow",
    ),
    *_each("no_such_gpu", "invalid device ordinal", "No CUDA GPUs are available", "no CUDA-capable device is detected"),
    *_each("no_kernel", "no kernel image is available for execution"),
    *_each(
        "illegal_access",
        "an illegal memory access was encountered",
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "misaligned address",
        "Memory access fault by GPU node",
        "VM_L2_PROTECTION_FAULT_STATUS",
    ),
    *_each("rank_twice", "has already checked in"),
    *_each("device_assert", "device-side assert triggered", "Device-side assertion `"),
    Wording("device_assert", ("Assertion `", "block: [", "thread: [")),
    *_each("gpu_hardware", "uncorrectable ECC error", "uncorrectable NVLink error", "fallen off the bus"),
    *_each("gpu_hang", "HW Exception by GPU"),
    *_each("launch_failure", "unspecified launch failure", "CUBLAS_STATUS_EXECUTION_FAILED"),
    *_each("host_memory", "node running low on memory", "killed due to memory pressure (OOM)"),
    *_each(
        "gpu_memory",
        "Failed to CUDA calloc",
        "CUDA out of memory",
        "HIP out of memory",
        "CUDA error: out of memory",
        "CUDA driver error: out of memory",
        "HIP error: out of memory",
        "CUDA Error: out of memory",  # Darknet
        "MPS backend out of memory",
        "XPU out of memory",
        "NPU out of memory",
        "OutOfMemoryError",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
        "Error out of memory at line",  # bitsandbytes
        "uda runtime error (2)",  # torch before 1.5
        "error == cudaSuccess (2 vs. 0)",  # Caffe
        "cudaErrorMemoryAllocation",
        "cudaMalloc failed: out of memory",
        "Out of memory error on GPU",  # PaddlePaddle
    ),
    Wording("gpu_memory", ("uda failure", "out of memory")),
    Wording("gpu_memory", ("CUDA failure 2",)),  # ONNX Runtime
    Wording("gpu_memory", ("OOM when allocating tensor", "device:GPU:")),  # TensorFlow
    *_each(
        "host_memory",
        "can't allocate memory",
        "annot allocate memory",
        "std::bad_alloc",
        "oom-kill:",
        "oom-kill event",
        "oom_kill event",
        "OOM Killed",
    ),
    # Of batch systems: LSF, Slurm before 21, PBS; and of daemons that end what uses most.
    *_each("host_memory", "TERM_MEMLIMIT", "Exceeded job memory limit", "Exceeded step memory limit"),
    Wording("host_memory", ("exceeded memory limit (", "being killed")),
    Wording("host_memory", ("PBS: job killed: ", "mem ", "exceeded limit")),
    Wording("host_memory", ("systemd-oomd", "Killed ", "memory")),
    Wording("host_memory", ("earlyoom", "sending SIG", "to process ")),
    Wording("host_memory", ("OOMKilled",), ("false", "False", "OOMKilled: 0")),
    Wording("host_memory", ("DataLoader worker", "is killed by signal: Killed")),
    Wording("host_memory", ("Killed process", "ut of memory")),
    Wording("host_memory", ("Killed process", "oom")),
    *_each("loader_died", "DataLoader worker exited unexpectedly"),
    Wording("loader_died", ("DataLoader worker (pid", "exited unexpectedly")),
    *_each("actor_died", "The actor died unexpectedly before finishing this task"),  # Ray
    *_each(
        "nan_loss",
        "Loss is nan, stopping",
        "loss is NaN, stopping",
        "Loss is inf, stopping",
        "Loss is -inf, stopping",
        "non-finite loss, ending training",
        "found NaN in local",
        "found Inf in local",
        "diverged with loss = NaN",
    ),
    *_each("loss_scale", "Current loss scale already at minimum", "Minimum loss scale reached"),
    *_each("time_limit", "DUE TO TIME LIMIT"),
    *_each("preempted", "DUE TO PREEMPTION", "DUE TO JOB REQUEUE"),
    Wording("node_failure", ("Kernel panic - not syncing",), behind=_BY_KERNEL),
    *_each(
        "node_failure",
        "error: Node failure on",
        "DUE TO NODE FAILURE",
        "NodeNotReady",
        "has been marked dead because the ",  # Ray: 'the detector has missed too many heartbeats'
        "because its node has died",
    ),
    *_each("hangup", "Signals.SIGHUP death signal", "Received 1 death signal", "closing signal SIGHUP"),
    *_each("terminated", "Signals.SIGTERM death signal", "Received 15 death signal"),
    *_each("terminated", "Main process received SIGTERM, exiting"),  # DeepSpeed, unless a process of it failed
    Wording("cancelled", ("error: *** ", " CANCELLED AT ")),
    *_each("gloo_connect", "Gloo connectFullMesh failed"),
    Wording("rendezvous", ("waiting for clients", "clients joined")),
    Wording("rendezvous", ("waiting for workers", "workers joined")),
    Wording("rendezvous", ("client socket has timed out after", "while trying to connect to")),
    Wording("rendezvous", ("client socket has failed to connect to any network address",)),
    Wording("rendezvous", ("process group in store based barrier on rank",)),
    *_each("rendezvous", "RendezvousTimeoutError"),
    # Once the workers run, the store is lost: 'has failed to send a keep-alive heartbeat to the rendezvous'.
    Wording("rendezvous", ("RendezvousConnectionError",), ("has failed to ",)),
    # The results of NCCL's calls, by name or in the words of ncclGetErrorString.
    *_each("nccl_usage", "ncclInvalidUsage", "ncclInvalidArgument", "NCCL error: invalid usage"),
    *_each("nccl_usage", "invalid usage (run with NCCL_DEBUG", "invalid argument (run with NCCL_DEBUG"),
    *_each("nccl_internal", "ncclInternalError", "please report this issue to the NCCL developers"),
    *_each("nccl_gpu", "ncclUnhandledCudaError", "unhandled cuda error"),
    *_each("nccl_system", "ncclSystemError", "unhandled system error"),
    Wording("bus_error", ("Fatal Python error: Bus error",)),
    Wording("bus_error", ("Caught signal 7 (Bus error",)),
    Wording("bus_error", ("a process crashed: SIGBUS",)),
    *_each("native_crash", "Fatal Python error: ", "Caught signal 11 (", "Caught signal 4 (", "Caught signal 8 ("),
    Wording("import_error", ("Failed to import ", "because of the following error")),
    *_each("native_crash", "a process crashed: SIG"),
    *_each("killed", "a process was killed: SIGKILL"),
    *_each("terminated", "a process was ended: SIGTERM"),
)


_RECOVERED = ("Nonfatal", "Non-fatal", "nonfatal", "non-fatal")  # the link goes on


def _xids(kind: CrashKind, *codes: int) -> tuple[Wording, ...]:
    """Errors that the NVIDIA driver wrote into the kernel's log, by their number."""
    told = [("Xid (", f"): {code},") for code in codes] + [("caused by previous Xid", f" {code}") for code in codes]
    return tuple(Wording(kind, words, _RECOVERED) for words in told)


WORDINGS += (
    *_xids("gpu_hardware", 48, 61, 62, 64, 74, 79, 94, 95, 119, 120, 140, 143, *range(144, 151)),
    *_xids("illegal_access", 31),
    *_xids("launch_failure", 13),
)
