"""A crash in words: what a rank did, with the arithmetic of memory, as a statement without its full stop."""

from __future__ import annotations

import re
from collections.abc import Mapping

from traceops.core.rank_text import who_first
from traceops.core.units import gib_text as size
from traceops.hangs.crash_kinds import CrashKind
from traceops.hangs.crashes import Crash
from traceops.hangs.memory_message import MemoryCause, MemoryMessage
from traceops.hangs.not_finite import what_is_not_finite

_DID: Mapping[CrashKind, str] = {
    "gpu_memory": "ran out of GPU memory",
    "host_memory": "ran out of the host's memory",
    "shared_memory": "ran out of shared memory (/dev/shm)",
    "mappings": "could not map memory that processes share (mmap: Cannot allocate memory)",
    "illegal_access": "made an illegal memory access on its GPU",
    "device_assert": "failed an assertion on its GPU (device-side assert), most often an index out of range",
    "launch_failure": "had a kernel fail on its GPU",
    "gpu_hardware": "saw its GPU fail (hardware)",
    "gpu_hang": "saw its GPU hang, as ROCm reports",
    "no_such_gpu": "asked for a GPU that it does not see",
    "no_kernel": "runs a build without kernels for this GPU",
    "nccl_system": "saw NCCL fail in a system call or library",
    "nccl_usage": "called NCCL in an invalid way",
    "nccl_internal": "saw NCCL fail inside",
    "nccl_gpu": "saw NCCL fail in a CUDA call",
    "duplicate_gpu": "uses the same GPU as another rank",
    "rank_twice": "started two processes that call themselves the same rank",
    "import_error": "crashed while importing",
    "assertion": "failed an assertion",
    "exception": "crashed",
    "nan_loss": "stopped because a value is not finite",  # of which the message says more
    "loss_scale": "stopped because gradients overflowed in fp16 until the loss scale was at its minimum",
    "native_crash": "crashed in compiled code",
    "bus_error": "crashed with a bus error",
    "scaler_bf16": "used a GradScaler with bf16 gradients, which need no scaler",
    "scaler_fp16": "used a GradScaler with parameters in fp16, which it cannot unscale",
    "models_differ": "has another model than other ranks under DDP",
    "dtypes_differ": "used tensors of two types in one operation",
    "index_range": "used an index or a label that is out of range",
    "leaf_inplace": "changed a parameter in place where its gradient is tracked",
    "backward_twice": "went backward twice through one graph",
    "no_gradient": "went backward from a loss that needs no gradient",
    "nothing_to_train": "wrapped a model without trained parameters in DDP",
    "no_group": "called a collective before there was a process group, or after its end",
    "no_backend": "gave a collective a tensor of a device that its process group has no backend for",
    "unpicklable": "sent something to another process that cannot be pickled",
    "no_cuda": "asked for CUDA, which this build of torch or this host lacks",
    "no_nccl": "asked for NCCL, which needs GPUs and a build of torch for them",
    "nccl_interface": "found no network interface for NCCL",
    "file_too_large": "wrote a file beyond the limit of its size",
    "batch_norm": "gave BatchNorm one value per channel in training",
    "cuda_fork": "used CUDA in a forked process",
    "unused_parameters": "has parameters under DDP that got no gradient",
    "ready_twice": "has a parameter under DDP that was ready twice in one backward pass",
    "shared_view": "wrote in place to a tensor that shares its memory (a view, or one made by expand)",
    "port_in_use": "could not listen: the port is in use",
    "disk_full": "could not write: the disk or the quota is full",
    "write_failed": "could not write a checkpoint",
    "driver_old": "needs a newer NVIDIA driver than this host has",
    "load_device": "loaded a file that was saved from a GPU which this process does not see",
    "two_devices": "used tensors of two devices in one operation",
    "modified_inplace": "changed in place what the backward pass needs",
    "state_dict": "loaded a checkpoint whose names or shapes are not the model's",
    "broken_file": "read a file of weights that is not whole, or none",
    "open_files": "ran out of file descriptors (too many open files)",
    "loader_died": "lost a data-loader worker, which ended by itself",
    "actor_died": "lost an actor of Ray, whose process ended",
    "rendezvous": "did not find all ranks when the process group was made",
    "store_reused": "met more workers than there are ranks when the process group was made",
    "no_threads": "could not start a thread or process: a limit was reached",
    "not_launched": "was not started by Slurm",
    "gloo_connect": "could not connect gloo to the other ranks",
    "evicted_memory": "was evicted by Kubernetes, because its node ran out of memory",
    "evicted_disk": "was evicted by Kubernetes, because its node ran out of disk (ephemeral-storage)",
    "killed": "was killed (SIGKILL)",
    "time_limit": "was ended by Slurm at the job's time limit",
    "preempted": "was ended by Slurm to make room (preempted or requeued)",
    "node_failure": "lost a node",
    "hangup": "was ended by SIGHUP: the terminal or the ssh session that started it was closed",
    "terminated": "was ended from outside (SIGTERM)",
    "cancelled": "was cancelled in Slurm",
}
_MEMORY: Mapping[MemoryCause, str] = {
    "too_large": "all of that would not be enough, so the request is too large",
    "fragmented": "enough is reserved, but in pieces (fragmented)",
    "full": "enough is reserved, but in pieces, and nearly all else of the GPU is in use",
    "others": "other processes on this GPU hold the rest",
    "refused": "more is free than it asked for: a limit refused it, or others have freed that since",
    "outside": "other processes, or other libraries in this one, hold the other",
    "outside_own": "outside of torch's allocator this process holds another",
}
# The kinds whose message is the news: the rest of the statement says it already.
_QUOTED: tuple[CrashKind, ...] = (
    "import_error", "assertion", "exception", "native_crash", "bus_error", "nccl_system", "nccl_usage", "nccl_internal",
    "nccl_gpu", "no_such_gpu", "write_failed", "batch_norm", "rank_twice", "driver_old", "load_device", "two_devices",
    "state_dict", "broken_file", "loader_died", "rendezvous", "node_failure", "nan_loss", "loss_scale",
    "gpu_hardware", "killed",
    "models_differ", "dtypes_differ", "index_range", "no_backend", "unpicklable", "no_cuda", "no_nccl",
    "nccl_interface", "file_too_large", "store_reused", "not_launched", "actor_died",
)  # fmt: skip
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w{0,60}\.){0,8}([A-Za-z_]\w{0,80}: )")
_NCCL_SOURCE = re.compile(r"NCCL error in: [^\s,]{1,200}, ")
_NCCL_HINT = re.compile(r" \(run with NCCL_DEBUG=\w{1,9} for details\)")
# What its result means in general, where its last error says what it was.
_NCCL_RESULT = re.compile(r"(NCCL version [\d.]{1,20})[\s,]{0,8}nccl\w{1,40}: .{0,300}?Last error:\s{0,8}(?=\S)")
_LEAST, _MOST = 80, 240


def crash_statement(crash: Crash) -> str:
    """'Rank 5 ran out of GPU memory at train (train.py:5): it asked for 6.26 GiB, …'."""
    subject = who_first(crash.ranks) if crash.ranks else "The program"
    did = did_what(crash)
    if len(crash.ranks) > 1:
        did = _plural(did)
    return _statement(subject, did, crash)


def somebody_did(somebody: str, crash: Crash) -> str:
    """'a program crashed, at train (train.py:5): ValueError: …', of a failure whose rank no line names."""
    return _statement(somebody, did_what(crash), crash)


def it_did(crash: Crash) -> str:
    """'it ran out of GPU memory, at train (train.py:5): it asked for 6.26 GiB, …'."""
    return _statement("it", did_what(crash), crash)


def _statement(subject: str, did: str, crash: Crash) -> str:
    where = own_line(crash)
    told = f"{subject} {did}" + (" after its training had ended" if crash.event.after_end else "")
    told += f", at {where}" if where else ""
    if crash.memory is not None:
        numbers = memory_told(crash.memory)
        return f"{told}: {numbers}" if numbers else told
    if crash.kind in _QUOTED:
        return f"{told}: {_quoted(crash.event.text)}"
    return told


def did_what(crash: Crash) -> str:
    """'ran out of GPU memory': the clause without who did it."""
    if crash.kind == "nan_loss":
        return f"stopped because {what_is_not_finite(crash.event.text)}"
    return _DID[crash.kind]


def own_line(crash: Crash) -> str | None:
    """The innermost line of the program's own code, as 'train (train.py:5)'."""
    frame = crash.own_frame
    if frame is None:
        return None
    name = frame.file.replace("\\", "/").rpartition("/")[2]
    at = name if frame.line is None else f"{name}:{frame.line}"
    return f"{frame.function} ({at})"


def memory_told(memory: MemoryMessage) -> str:
    """'it asked for 6.26 GiB with 0.14 GiB free of 47.40 GiB; torch uses 46.76 GiB and holds 0.02 GiB more that …'."""
    if memory.asked is None:
        return ""
    text = f"it asked for {size(memory.asked)}"
    if memory.free is not None:
        text += f" with {size(memory.free)} free"
    if memory.total is not None:
        text += f" of {size(memory.total)}"
    if memory.allowed is not None:
        text += f"; it is allowed {size(memory.allowed)}"
    if memory.allocated is not None:
        text += f"; tensors take {size(memory.allocated)}"
    if memory.pools:
        text += f" ({size(memory.pools)} of it in pools of their own, as CUDA graphs have)"
    if memory.unallocated is not None:
        text += f", {size(memory.unallocated)} is reserved but unallocated"
    if memory.cause == "others":
        text += f", other processes hold {size(memory.others or 0)}"
    if memory.cause in ("outside", "outside_own"):
        return f"{text}: {_MEMORY[memory.cause]} {size(memory.outside or 0)}"
    return f"{text}: {_MEMORY[memory.cause]}" if memory.cause is not None else text


def _quoted(text: str) -> str:
    said = _NCCL_SOURCE.sub("NCCL error: ", _EXCEPTION.sub(r"\1", text.strip()))
    said = _NCCL_RESULT.sub(r"\1: ", _NCCL_HINT.sub("", " ".join(said.split()))).rstrip(". ")
    if len(said) <= _MOST:
        return said
    whole = said[:_MOST].rpartition(". ")[0]  # sentences that fit
    return f"{whole if len(whole) >= _LEAST else said[:_MOST]} …"


def _plural(did: str) -> str:
    verb, _, rest = did.partition(" ")
    verb = {"has": "have", "uses": "use", "runs": "run"}.get(verb, verb)
    return f"{verb} {rest}" if rest else verb
