"""Chrome traces that another program than torch's profiler wrote, and which one."""

from __future__ import annotations

from traceops.traces.model import RankTrace, TraceMeta
from traceops.traces.source import Damaged, chunks, open_binary

# Kineto's categories, in lower case; a device's own (``xpu_runtime``, ``privateuse1_driver``) end alike.
_TORCHS = frozenset((
    "cpu_op", "operator", "kernel", "memcpy", "memset", "runtime", "user_annotation", "gpu_user_annotation",
    "python_function", "overhead", "trace", "collective_comm", "cuda_sync", "mtia_ccp_events",
    "concurrent_kernel", "cpu_instant_event", "python_gc",
))  # fmt: skip
# Of torch_npu only: what ran on the NPU is in tracks of its own, in msprof's words.
_NPU_QUEUES = {"enqueue", "dequeue"}
_NPU = (
    "it is a trace of an Ascend NPU (torch_npu, msprof), whose device activity traceops cannot read: the host's "
    "operators alone would tell nothing true of its steps; ui.perfetto.dev shows it"
)
_ENDINGS = ("_runtime", "_driver", "_memcpy", "_memset", "_op", "_kernel", "_user_annotation")
# What is in the first bytes or the last of a file of each program; the first that is found counts.
_MAKERS: tuple[tuple[bytes, str], ...] = (
    (b"viztracer", "VizTracer"),
    (b'"/device:', "the profiler of JAX or TensorFlow"),
    (b'"/host:CPU"', "the profiler of JAX or TensorFlow"),
    (b'"model_loading', "ONNX Runtime"),
    (b"NEGOTIATE_", "Horovod's timeline"),
    (b'"CPU functions"', "torch.autograd.profiler of torch before 1.9"),
    (b'"CUDA functions"', "torch.autograd.profiler of torch before 1.9"),
    (b'"DevTools"', "Chrome"),
    (b'"ThreadControllerImpl', "Chrome"),
    (b'"CrBrowserMain"', "Chrome"),
    (b'"perfetto', "Perfetto"),
    (b'"clang', "clang's -ftime-trace"),
    (b'"Total Frontend"', "clang's -ftime-trace"),
)
_LOOKED_AT = 1 << 20
_PHASE = b'"ph"'
_NO_EVENTS = 'it is no Chrome trace: what it lists has no phase ("ph"), as each event of one has'


def why_foreign(trace: RankTrace) -> str:
    """What a trace is that holds nothing of torch's profiler; empty for torch's own, and for one that is damaged."""
    if {category.lower() for category in trace.events.cats} >= _NPU_QUEUES:
        return _NPU
    if trace.damage or trace.meta != TraceMeta() or any(map(_is_torchs, trace.events.cats)):
        return ""
    text = _ends_of(trace.path)
    maker = next((maker for sign, maker in _MAKERS if sign in text), None)
    if maker is None and _PHASE not in text:
        return _NO_EVENTS
    what = f"it is a Chrome trace by {maker}" if maker else "it is a Chrome trace, but none of torch's profiler"
    return f"{what}: it holds no event of a kind that torch.profiler writes; ui.perfetto.dev shows it"


def _is_torchs(category: str) -> bool:
    name = category.lower()
    return name in _TORCHS or name.endswith(_ENDINGS)


def _ends_of(path: str) -> bytes:
    """The first bytes of a file and the last."""
    begin, end = b"", b""
    try:
        with open_binary(path) as file:
            for piece in chunks(file):
                begin += piece[: _LOOKED_AT - len(begin)]
                end = (end + piece)[-_LOOKED_AT:]
    except Damaged:
        pass
    return begin + end
