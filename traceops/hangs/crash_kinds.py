"""What a message of a program that crashed is a case of: the wordings of torch, NCCL and Linux, by kind."""

from __future__ import annotations

import re
from collections.abc import Mapping

from traceops.hangs.crash_wordings import WORDINGS
from traceops.hangs.crash_wordings import CrashKind as CrashKind
from traceops.hangs.not_finite import says_not_finite

# The rule that each kind is a case of.
RULE_OF: Mapping[CrashKind, str] = {
    "gpu_memory": "TO-E001",
    "host_memory": "TO-E002", "shared_memory": "TO-E002", "evicted_memory": "TO-E002",
    "mappings": "TO-E002",
    "illegal_access": "TO-E003", "device_assert": "TO-E003", "launch_failure": "TO-E003", "gpu_hardware": "TO-E003",
    "no_such_gpu": "TO-E003", "no_kernel": "TO-E003", "gpu_hang": "TO-E003", "driver_old": "TO-E003",
    "nccl_system": "TO-E004", "nccl_usage": "TO-E004", "nccl_internal": "TO-E004", "nccl_gpu": "TO-E004",
    "duplicate_gpu": "TO-E004", "rank_twice": "TO-E004",
    "import_error": "TO-E005", "assertion": "TO-E005", "exception": "TO-E005", "nan_loss": "TO-E005",
    "loss_scale": "TO-E005",
    "native_crash": "TO-E005", "bus_error": "TO-E005", "state_dict": "TO-E005", "broken_file": "TO-E005",
    "loader_died": "TO-E005", "actor_died": "TO-E005",
    "scaler_bf16": "TO-E006", "batch_norm": "TO-E006", "cuda_fork": "TO-E006", "unused_parameters": "TO-E006",
    "ready_twice": "TO-E006", "shared_view": "TO-E006", "load_device": "TO-E006", "two_devices": "TO-E006",
    "modified_inplace": "TO-E006", "scaler_fp16": "TO-E006", "models_differ": "TO-E006", "dtypes_differ": "TO-E006",
    "index_range": "TO-E006", "leaf_inplace": "TO-E006", "backward_twice": "TO-E006", "no_gradient": "TO-E006",
    "nothing_to_train": "TO-E006", "no_group": "TO-E006", "no_backend": "TO-E006", "unpicklable": "TO-E006",
    "no_cuda": "TO-E003", "no_nccl": "TO-E003", "nccl_interface": "TO-E004", "file_too_large": "TO-E007",
    "port_in_use": "TO-E007", "disk_full": "TO-E007", "write_failed": "TO-E007", "open_files": "TO-E007",
    "evicted_disk": "TO-E007", "rendezvous": "TO-E007", "gloo_connect": "TO-E007",
    "time_limit": "TO-E008", "preempted": "TO-E008", "node_failure": "TO-E008", "hangup": "TO-E008",
    "terminated": "TO-E008", "cancelled": "TO-E008",
    "no_threads": "TO-E007", "not_launched": "TO-E007", "store_reused": "TO-E007",
    "killed": "TO-H004",
}  # fmt: skip


# What the name of the exception that ended a program says, where its message is of no kind above.
_BY_EXCEPTION: tuple[tuple[CrashKind, tuple[str, ...]], ...] = (
    ("import_error", ("ImportError", "ModuleNotFoundError")),
    ("assertion", ("AssertionError",)),
    ("host_memory", ("MemoryError", "_ArrayMemoryError")),
)
# One-line messages that the log's other rules do not know, and that are a crash without a traceback too.
ALONE: tuple[CrashKind, ...] = (
    "scaler_bf16", "batch_norm", "cuda_fork", "unused_parameters", "ready_twice", "shared_view", "shared_memory",
    "disk_full", "write_failed", "port_in_use", "duplicate_gpu", "no_such_gpu", "no_kernel", "illegal_access",
    "device_assert", "launch_failure", "gpu_memory", "nan_loss", "loss_scale", "bus_error", "native_crash",
    "import_error", "gpu_hardware", "gpu_hang",
    "host_memory", "evicted_memory", "evicted_disk",
    "open_files", "driver_old", "load_device", "two_devices", "modified_inplace", "state_dict", "broken_file",
    "loader_died", "time_limit", "preempted", "node_failure", "hangup", "terminated", "cancelled",
    "gloo_connect", "rendezvous",
    "scaler_fp16", "models_differ", "dtypes_differ", "index_range", "leaf_inplace", "backward_twice", "no_gradient",
    "nothing_to_train", "no_group", "no_backend", "no_cuda", "no_nccl", "file_too_large", "no_threads", "not_launched",
    "mappings",
)  # fmt: skip
# What follows from another's failure as often as it is one: told only where nothing else failed.
LATER: tuple[CrashKind, ...] = (
    "nccl_system", "nccl_internal", "nccl_gpu", "native_crash", "bus_error", "loader_died", "rendezvous",
    "gloo_connect", "store_reused", "actor_died", "killed", "time_limit", "terminated", "cancelled",
)  # fmt: skip
# What no program says of itself: whoever ended it.
FROM_OUTSIDE: tuple[CrashKind, ...] = (
    "time_limit", "preempted", "node_failure", "hangup", "terminated", "cancelled", "evicted_memory", "evicted_disk",
    "not_launched",
)  # fmt: skip

# More workers at the store than there are ranks: those of an attempt before count too.
_WORKERS = re.compile(r"world_size=(\d{1,7}), worker_count=(\d{1,7})\b")
_CODE = ("raise ", "warnings.warn", "#")  # a line of a traceback, or of the program's own text
# What has not happened: 'if you see CUDA out of memory', 'to avoid NCCL errors', '--retry  on CUDA out of memory'.
_ONLY_SAID = re.compile(r"\b(?i:if|unless|avoid(?:s|ing)?|prevent(?:s|ing)?|in case of)\b[^.;:!?()\[\]]{0,60}$")
_OPTION = re.compile(r"\s{0,80}--?[A-Za-z][\w-]{0,60}[ ,=]")


def crash_kind(text: str, *, raised: bool = True) -> CrashKind | None:
    """What a message is a case of; None where it is no known crash. raised: it is the end of a traceback."""
    for wording in WORDINGS:
        if wording.is_in(text):
            return "store_reused" if wording.kind == "rendezvous" and _too_many(text) else wording.kind
    if not raised:
        return None
    if says_not_finite(text):
        return "nan_loss"
    name = text.partition(":")[0].rpartition(".")[2].strip()
    return next((kind for kind, names in _BY_EXCEPTION if name in names), "exception")


def _too_many(text: str) -> bool:
    counts = _WORKERS.search(text)
    return counts is not None and int(counts[2]) > int(counts[1])


def only_said(text: str, words: str) -> bool:
    """Whether a line speaks of what `words` name, and not that it happened: advice, or the help of an option."""
    before = text[: text.index(words)]
    return _ONLY_SAID.search(before[-100:]) is not None or _OPTION.match(before) is not None


def told_alone(text: str) -> bool:
    """Whether a line by itself tells of a crash."""
    words = [word for word in _ALONE_BY_WORD if word in text]
    if not words or text.lstrip().startswith(_CODE):
        return False
    told = [word for word in words if any(wording.is_in(text) for wording in _ALONE_BY_WORD[word])]
    return any(not only_said(text, word) for word in told)


# Of `ALONE` by their first word: most lines hold none of these, and there are many lines.
_ALONE_BY_WORD = {
    word: tuple(wording for wording in WORDINGS if wording.kind in ALONE and wording.words[0] == word)
    for word in dict.fromkeys(wording.words[0] for wording in WORDINGS if wording.kind in ALONE)
}
# A block of a log without any of these tells of no crash: a word of each message of `ALONE`.
NEEDLES: tuple[bytes, ...] = tuple(word.encode() for word in _ALONE_BY_WORD)
