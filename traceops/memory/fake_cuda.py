"""A machine with GPUs, as a script sees it through torch.cuda and torch.accelerator, where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.distributed.tensor import _dispatch as dispatching
from torch.utils._python_dispatch import _disable_current_modes

from traceops.memory.gpu_kernels import attention_on, dropout_on, rms_norm_on
from traceops.memory.tracker import Tracker

_CPU = torch.device("cpu")
_SEEDS = 16  # bytes of a GPU's state of random numbers


class Stream:
    """In place of torch.cuda.Stream: blocks are kept by stream, and nothing waits."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.priority = torch.device("cuda", index_of(device)), priority
        self.cuda_stream = self.stream_id = id(self)
        self._inside: list[Any] = []

    def wait_stream(self, stream: Any) -> None:
        """Every stream is at its end at once."""

    wait_event = wait_stream

    def synchronize(self) -> None:
        """Nothing is under way."""

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def record_event(self, event: Any = None) -> Any:
        return event or Event()

    def __enter__(self) -> Stream:
        on: Any = torch.cuda.stream
        self._inside.append(on(self))
        self._inside[-1].__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._inside.pop().__exit__(*error)


class Event:
    """In place of torch.cuda.Event: always complete."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)

    def record(self, stream: Any = None) -> None:
        """It is complete."""

    wait = record

    def synchronize(self) -> None:
        """Nothing is under way."""

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        return 1.0


def index_of(device: Any) -> int:
    """The number of a GPU, of the current one where `device` does not say."""
    if device is None:
        return int(torch.cuda.current_device())
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return int(torch.cuda.current_device()) if index is None else index


class Device:
    """The GPUs of one host: which is the current one, and what the tracker holds."""

    def __init__(self, count: int, current: int, memory: int, tracker: Tracker) -> None:
        self.count, self.current, self.memory, self.tracker = count, current, memory, tracker
        self.default_stream: Any = None
        self.stream: Any = None

    def properties(self, *_: Any) -> Any:
        return SimpleNamespace(
            name="NVIDIA H100 80GB HBM3", major=9, minor=0, total_memory=self.memory, multi_processor_count=132,
            max_threads_per_multi_processor=2048, warp_size=32, regs_per_multiprocessor=65536, L2_cache_size=50 << 20,
            shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10, gcnArchName="", is_integrated=0,
        )  # fmt: skip

    def use(self, device: Any) -> int:
        before, self.current = self.current, index_of(device)
        return before

    def exchange(self, index: int) -> int:
        return self.use(index) if index >= 0 else self.current

    @contextmanager
    def on_stream(self, stream: Any) -> Iterator[None]:
        if stream is None:
            yield
            return
        before = self.stream, self.tracker.stream
        self.set_stream(stream)
        try:
            yield
        finally:
            self.stream, self.tracker.stream = before

    @property
    def default(self) -> Any:
        self.default_stream = self.default_stream or Stream()
        return self.default_stream

    def set_stream(self, stream: Any) -> None:
        self.stream, self.tracker.stream = stream, 0 if stream is self.default else id(stream)

    def held(self, *_: Any) -> int:
        return self.tracker.held


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _seeds(*_: Any, **__: Any) -> Tensor:
    with _disable_current_modes():
        return torch.zeros(_SEEDS, dtype=torch.uint8)


def _of_cuda(device: Device) -> dict[str, object]:
    silent = (
        "init", "_lazy_init", "synchronize", "empty_cache", "ipc_collect", "reset_peak_memory_stats", "_sleep",
        "reset_max_memory_allocated", "reset_accumulated_memory_stats", "manual_seed", "manual_seed_all", "seed",
        "set_rng_state", "set_rng_state_all", "_lazy_call", "set_per_process_memory_fraction", "_check_capability",
        "set_sync_debug_mode", "reset_max_memory_cached",
    )  # fmt: skip
    return {
        **dict.fromkeys(silent, _nothing),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: device.count,
        "current_device": lambda: device.current,
        "set_device": lambda index: device.use(index) and None,
        "_exchange_device": device.exchange,
        "_maybe_exchange_device": device.exchange,
        "get_device_name": lambda *_: device.properties().name,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_properties": device.properties,
        "get_arch_list": lambda: ["sm_90"],
        "is_bf16_supported": lambda *_, **__: True,
        "is_tf32_supported": lambda: True,
        "can_device_access_peer": lambda *_: True,
        "memory_allocated": device.held,
        "memory_reserved": device.held,
        "max_memory_allocated": device.held,
        "max_memory_reserved": device.held,
        "memory_stats": lambda *_: {},
        "memory_summary": lambda *_, **__: "",
        "mem_get_info": lambda *_: (max(0, device.memory - device.held()), device.memory),
        "utilization": lambda *_: 0,
        "is_current_stream_capturing": lambda: False,
        "get_rng_state": _seeds,
        "get_rng_state_all": lambda: [_seeds() for _ in range(device.count)],
        "initial_seed": lambda: 0,
        "Stream": Stream,
        "Event": Event,
        "stream": device.on_stream,
        "current_stream": lambda *_: device.stream or device.default,
        "default_stream": lambda *_: device.default,
        "set_stream": device.set_stream,
    }


def _of_accelerator(device: Device) -> dict[str, object]:
    cuda = _of_cuda(device)
    same = (
        "is_available", "device_count", "synchronize", "empty_cache", "current_stream", "set_stream",
        "memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved", "memory_stats",
        "reset_peak_memory_stats",
    )  # fmt: skip
    return {
        **{name: cuda[name] for name in same},
        **dict.fromkeys(("current_device_index", "current_device_idx"), cuda["current_device"]),
        **dict.fromkeys(("set_device_index", "set_device_idx"), cuda["set_device"]),
        "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "device_index": lambda *_: nullcontext(),
    }


@contextmanager
def faked_gpus(device: Device) -> Iterator[None]:
    """While it is open, torch says that `device.count` GPUs are there."""
    usual = torch.nn.functional.scaled_dot_product_attention
    parse: Callable[..., Any] = torch._C._nn._parse_to

    def parsed(*args: Any, **kwargs: Any) -> Any:  # what `.to` is given; torch would ask C++ what a number stands for
        if args and type(args[0]) is int:
            args = (torch.device("cuda", args[0]), *args[1:])
        return parse(*args, **kwargs)

    with ExitStack() as stack:
        for owner, names in ((torch.cuda, _of_cuda(device)), (torch.accelerator, _of_accelerator(device))):
            for name, value in names.items():
                stack.enter_context(patch.object(owner, name, value, create=True))
        for owner, name, value in (
            (torch.nn.functional, "scaled_dot_product_attention", attention_on(usual)),
            (torch.nn.functional, "dropout", dropout_on(torch.nn.functional.dropout)),
            (torch.nn.functional, "rms_norm", rms_norm_on(torch.nn.functional.rms_norm)),
            (torch, "rms_norm", rms_norm_on(torch.rms_norm)),
            (torch._C._nn, "scaled_dot_product_attention", attention_on(usual)),
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
            (torch._C._nn, "_parse_to", parsed),
            (torch._C, "_get_accelerator", lambda *_: torch.device("cuda")),
            (torch.cuda.nccl, "version", lambda: (2, 28, 9)),
            (torch.cuda.memory, "_record_memory_history", _nothing),
            (torch.cuda.memory, "_dump_snapshot", _nothing),
            (torch.cuda.nvtx, "range_push", lambda *_: 0),
            (torch.cuda.nvtx, "range_pop", lambda *_: 0),
            (dispatching, "is_rng_supported_mesh", lambda _: False),
            (torch.version, "cuda", torch.version.cuda or "12.8"),
        ):
            stack.enter_context(patch.object(owner, name, value, create=True))
        yield
