"""What this machine's GPU attains, measured: products, attention, and operators that only move data. Speeds are work
over the durations of kernels as torch.profiler records them, as in traces. Work is the least there is: the operations
of the result, and each input read and each output written once."""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Struct
from torch.profiler import ProfilerActivity, profile, record_function

from traceops.compute.attainable import H200, KEPT, KeptRates, Rates, is_usable, rates_path
from traceops.core.claims import first_phrase, phrases
from traceops.core.errors import InputError
from traceops.core.files import cache_folder, make_own_folder, write_own

SECONDS = 50.0  # the most that it takes, with what is begun then
_MOVED = 400e6  # bytes of an operator that moves: more than caches hold
_REPEATS_S = 4e-3  # of a trial's kernels, about
_MOST_REPEATS, _LEAST_REPEATS = 24, 4
_SIDES = ((512, 384, 256), (512, 512, 1024), (1024, 1024, 1024), (2048, 2048, 1024), (2048, 2048, 2400),
          (4096, 4096, 3072), (8192, 8192, 8192))  # fmt: skip
_LENGTHS = (64, 197, 512, 1024, 2048, 8192)
_TOKENS, _WIDTH, _HEAD = 16_384, 2048, 64
_ROW = 4096  # elements of a row that is normed

Call = Callable[[], object]


class Trial(Struct, frozen=True):
    """Something to time. kind, at: the entry of `Rates`. make: its call. work: of one call, operations or bytes."""

    kind: str
    at: float
    make: Callable[[], Call]
    work: float


def trials() -> Iterator[Trial]:
    """The least that a table needs first."""
    for rows, columns, inner in _SIDES:
        yield _product("half", rows, columns, inner)
    for kind in ("tf32", "simt", "fp64", "fp8"):
        yield _product(kind, *((2048, 2048, 4096) if kind in ("simt", "fp64") else (8192, 8192, 8192)))
    for kind, (move, passes) in _MOVES.items():
        yield Trial(kind, 0.0, move, passes * _MOVED)
    for length, kind in itertools.product(_LENGTHS, ("forward", "backward")):
        operations = 4.0 * _TOKENS * _WIDTH * length * (2.5 if kind == "backward" else 1.0)
        yield Trial(kind, float(length), _attention(length, kind == "backward"), operations)


def _product(kind: str, rows: int, columns: int, inner: int) -> Trial:
    operations = 2.0 * rows * columns * inner

    def make() -> Call:
        x, w = torch.randn(rows, inner, device="cuda"), torch.randn(columns, inner, device="cuda")
        if kind == "fp8":
            one = torch.ones((), device="cuda")
            a, b = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn).t()
            return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        dtype = {"half": torch.bfloat16, "fp64": torch.float64}.get(kind, torch.float32)
        first, second = x.to(dtype), w.to(dtype).t()

        def call() -> object:
            torch.set_float32_matmul_precision("high" if kind == "tf32" else "highest")
            return first @ second

        return call

    return Trial(kind, operations / 1e9, make, operations)


def _attention(length: int, backward: bool) -> Callable[[], Call]:
    """Causal, with the operations of the whole square."""

    def make() -> Call:
        shape = (max(_TOKENS // length, 1), _WIDTH // _HEAD, length, _HEAD)
        q, k, v = (torch.randn(shape, device="cuda", dtype=torch.bfloat16).requires_grad_(backward) for _ in range(3))
        if not backward:
            return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        grad = torch.randn_like(out)
        return lambda: torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)

    return make


def _of(make: Callable[[torch.Tensor], Call], dtype: torch.dtype = torch.bfloat16) -> Callable[[], Call]:
    """With a tensor of _MOVED bytes."""
    return lambda: make(torch.randn(int(_MOVED / dtype.itemsize) // _ROW, _ROW, device="cuda").to(dtype))


def _rows_of(x: torch.Tensor) -> torch.Tensor:
    return torch.randint(len(x), (len(x),), device="cuda")


def _loss(x: torch.Tensor) -> Call:
    target = torch.randint(x.shape[1], (len(x),), device="cuda")
    logs = F.log_softmax(x.float(), -1)
    return lambda: F.nll_loss(logs, target)


def _adamw() -> Call:
    weight = torch.randn(int(_MOVED / 4), device="cuda").requires_grad_()
    weight.grad = torch.randn_like(weight)
    optimizer = torch.optim.AdamW([weight], fused=True)
    return lambda: optimizer.step()


# Kinds of `Rates.memory` that are measured, with how often they pass _MOVED.
_MOVES: dict[str, tuple[Callable[[], Call], float]] = {
    "elementwise": (_of(lambda x: lambda: x + x), 2.0),
    "cast": (_of(lambda x: lambda: x.float()), 3.0),
    "copy": (_of(lambda x: lambda: x.clone()), 2.0),
    "cat": (_of(lambda x: lambda: torch.cat((x, x))), 4.0),
    "fill": (_of(lambda x: lambda: x.zero_()), 1.0),
    "reduction": (_of(lambda x: lambda: x.sum(-1), torch.float32), 1.0),
    "norm": (_of(lambda x: lambda: F.layer_norm(x, x.shape[1:])), 2.0),
    "softmax": (_of(lambda x: lambda: x.softmax(-1)), 2.0),
    "embedding": (_of(lambda x: partial(F.embedding, _rows_of(x), x)), 2.0),
    "index": (_of(lambda x: partial(x.index_select, 0, _rows_of(x))), 2.0),
    "optimizer": (_adamw, 7.0),
}
_LIKE = {"product": "copy", "attention": "copy", "convolution": "norm", "recurrent": "norm", "loss": "reduction"}


def seconds_of(group: Sequence[Trial]) -> dict[int, float]:
    """Seconds of kernels per call, by place; what the GPU or torch cannot run is left out."""
    counts: dict[int, int] = {}
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorder:
        for at, trial in enumerate(group):
            try:
                call = trial.make()
                call()
                torch.cuda.synchronize()
                began = time.perf_counter()
                call()
                torch.cuda.synchronize()
                once = max(time.perf_counter() - began, 1e-6)
                counts[at] = int(min(_MOST_REPEATS, max(_LEAST_REPEATS, _REPEATS_S / once)))
                with record_function(f"trial {at}"):
                    for _ in range(counts[at]):
                        call()
                    torch.cuda.synchronize()
            except (RuntimeError, NotImplementedError):
                counts.pop(at, None)
            torch.cuda.empty_cache()
    events = recorder.events() or []
    spans = {e.name: e.time_range for e in events if e.name.startswith("trial ") and e.device_type.name == "CPU"}
    kernels = [
        (e.time_range.start, e.time_range.end - e.time_range.start)
        for e in events
        if e.device_type.name != "CPU" and not e.name.startswith("trial ")
    ]
    found = {}
    for at, count in counts.items():
        span = spans[f"trial {at}"]
        total = sum(length for start, length in kernels if span.start <= start <= span.end)
        if total > 0:
            found[at] = total / count / 1e6
    return found


def rates_of(found: dict[str, list[tuple[float, float]]]) -> Rates:
    """The table of what was measured: by kind, (size or length, rate). Raises InputError where that is too little."""
    if not found.get("half") or not found.get("copy"):
        raise InputError("doctor --compute: the GPU ran no products or copies that could be timed")
    half = _rising(found["half"])
    tensor, copies = half[-1][1] / H200.half[-1][1], found["copy"][0][1] / H200.memory["copy"]
    rate = {kind: rows[-1][1] for kind, rows in found.items()}
    units = dict(H200.units) | {kind: rate[kind] / half[-1][1] for kind in ("tf32", "fp8") if kind in rate}
    memory = {kind: rate.get(kind, rate.get(_LIKE.get(kind, ""), copies * own)) for kind, own in H200.memory.items()}

    def attended(kind: str, shipped: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
        return _rising(found[kind]) if found.get(kind) else tuple((at, tensor * own) for at, own in shipped)

    made = Rates(
        half=half, units=units, simt=rate.get("simt", tensor * H200.simt), fp64=rate.get("fp64", tensor * H200.fp64),
        forward=attended("forward", H200.forward), backward=attended("backward", H200.backward), memory=memory,
    )  # fmt: skip
    if not is_usable(made):
        raise InputError("doctor --compute: what was measured is no table of speeds")
    return made


def _rising(rows: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """By size; a larger one is at least as fast as those before it: it can be done in parts."""
    best, made = 0.0, []
    for size, rate in sorted(rows):
        best = max(best, rate)
        made.append((size, best))
    return tuple(made)


def keep_rates() -> tuple[KeptRates, str]:
    """Measure the current device and keep its table; with where it is kept, '' for nowhere. Raises InputError."""
    if not torch.cuda.is_available():
        raise InputError("doctor --compute: torch sees no GPU here")
    name = torch.cuda.get_device_name(torch.cuda.current_device())
    # The table of the current device; what there is no time for, or what it cannot run, is an H200's, scaled. Raises
    # InputError where too little could be measured.
    until, found = time.monotonic() + SECONDS, defaultdict[str, list[tuple[float, float]]](list)
    waiting = trials()
    while group := list(itertools.islice(waiting, 8)):
        if time.monotonic() > until:
            break
        for at, spent in seconds_of(group).items():
            found[group[at].kind].append((group[at].at, group[at].work / spent / 1e12))
    kept = KeptRates(name, rates_of(found), str(torch.__version__))
    path, folder = rates_path(name), cache_folder(KEPT)
    if path is None or folder is None:
        return kept, ""
    try:
        make_own_folder(folder, folder)
        write_own(path, msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    return kept, str(path)


def lines_of(kept: KeptRates, path: str) -> list[str]:
    """What the terminal shows."""
    rates, half = kept.rates, kept.rates.half[-1][1]
    facts: dict[str, Any] = {
        "half": half,
        "tf32": half * rates.units["tf32"],
        "simt": rates.simt,
        "forward": rates.forward[-1][1],
        "backward": rates.backward[-1][1],
        "moves": [f"{kind} {rates.memory[kind]:.2f}" for kind in ("copy", "elementwise", "norm", "reduction")],
    }
    lines = [f"  {line}" for line in phrases("doctor", "attained", "rates", **facts)]
    return [f"{kept.gpu} attains", *lines, first_phrase("doctor", "attained", "kept", path=path)]
