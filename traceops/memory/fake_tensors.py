"""Tensors of a GPU that have a shape and no data, on a torch with or without CUDA.

Python sees them on ``cuda:N``, so a script's own choices are those it makes on a GPU, and so are autocast's and the
optimizers', which go by dispatch keys. Only torch's C++ is told that they are on the CPU: autograd would ask a CUDA
runtime for streams.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

_DATA: Any = torch._C.TensorBase.data
SMALL_BYTES = 4 << 20  # what a script makes on the CPU is real up to here: indices, masks, steps of optimizers
_CPU, _META = torch.device("cpu"), torch.device("meta")
_DEVICE = torch.ops.prim.device.default
_ATEN = torch.ops.aten
# Their first argument is the number of elements or, of arange, the last of up to three.
_TO_COPY, _LOCAL_SCALAR = _ATEN._to_copy.default, _ATEN._local_scalar_dense.default
_COUNTED = {"aten::randperm", "aten::arange", "aten::linspace", "aten::eye"}


class GpuMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Tensors of the GPU are fake; small ones of the CPU are real, so that a script can read what it put there."""

    avoid_device_init = True

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        # Whether each torch function that is running works on tensors of the GPU. C++ in it asks a tensor where it is,
        # is told the CPU, and makes another there: a gradient's cast, DistributedDataParallel's buckets.
        self.on_gpu: list[bool] = []
        self._values: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if self.on_gpu and self.on_gpu[-1] and _takes_device(func) and self._is_meant_for_gpu(device, tensors):
            kwargs["device"] = torch.device("cuda", torch.cuda.current_device())
        elif (device is None or device.type == "cpu") and self._is_real(func, args, tensors):
            return func(*args, **kwargs)
        if (known := self._known_value(func, args, kwargs)) is not None:
            return known
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func is _TO_COPY and not is_fake(args[0]) and args[0].numel() * 8 <= SMALL_BYTES:
            self._values[result] = args[0].detach()
        return result

    def _known_value(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What a small tensor held that was copied to the GPU and comes back, or is read there, unchanged."""
        if not self._values or not args:
            return None
        if func._schema.is_mutable and func.namespace != "c10d":
            for one in args:
                if isinstance(one, FakeTensor):
                    self._values.pop(one, None)  # type: ignore[no-untyped-call]
            return None
        if func not in (_TO_COPY, _LOCAL_SCALAR) or not isinstance(args[0], FakeTensor):
            return None
        value = self._values.get(args[0])  # type: ignore[no-untyped-call]
        if value is None:
            return None
        if func is _LOCAL_SCALAR:
            return value.item()
        if (device := kwargs.get("device")) is None or device.type != "cpu":
            return None
        return value.to(kwargs.get("dtype") or value.dtype, copy=True)

    def _is_real(self, func: Any, args: Any, tensors: list[Tensor]) -> bool:
        if tensors:
            return all(type(one) is Tensor and one.device == _CPU for one in tensors) and (
                sum(one.numel() * one.element_size() for one in tensors) <= SMALL_BYTES
            )
        if func._schema.name in _COUNTED:
            counts = [abs(one) for one in args if isinstance(one, int | float)]
            return max(counts, default=0) * 8 <= SMALL_BYTES
        sizes = next((one for one in args if isinstance(one, list | tuple)), ())
        return math.prod(sizes) * 4 <= SMALL_BYTES

    @staticmethod
    def _is_meant_for_gpu(device: torch.device | None, tensors: list[Tensor]) -> bool:
        """Whether C++ names the CPU, or nothing, where it has tensors of the GPU or none."""
        if device is None:
            return not tensors
        return device.type == "cpu" and all(one.device.type == "cuda" for one in tensors)

    @contextmanager
    def everything_on_gpu(self, so: bool = True) -> Iterator[None]:
        """What C++ makes inside is on the GPU, also where it asks for the CPU."""
        self.on_gpu.append(so)
        try:
            yield
        finally:
            self.on_gpu.pop()


@functools.cache
def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


@contextmanager
def hidden_from_cpp() -> Iterator[None]:
    """While it is open, fake tensors of a GPU tell C++ that they are on the CPU."""
    dispatch: Callable[..., Any] = vars(FakeTensor)["__torch_dispatch__"].__func__

    def answer(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _device(args) if func is _DEVICE else dispatch(cls, func, types, args, kwargs or {})

    wrap: Callable[..., Any] = Tensor._make_wrapper_subclass

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if (device := kwargs.get("device")) is not None and torch.device(device).type == "cuda":
            kwargs["device"] = _CPU
        return wrap(*args, **kwargs)

    with ExitStack() as stack:
        for name, value in (
            ("__torch_dispatch__", classmethod(answer)),
            ("is_cuda", property(lambda self: self.device.type == "cuda")),
            ("is_cpu", property(lambda self: self.device.type == "cpu")),
            ("data", property(lambda self: _DATA.__get__(self), _set_data)),
            ("get_device", lambda self: self.device.index if self.device.index is not None else -1),
        ):
            stack.enter_context(patch.object(FakeTensor, name, value, create=True))
        for kind, inside in ((DTensor, "_local_tensor"), (AsyncCollectiveTensor, "elem")):
            for name in ("device", "is_cuda", "is_cpu"):
                read = property(operator.attrgetter(f"{inside}.{name}"))
                stack.enter_context(patch.object(kind, name, read, create=True))
        stack.enter_context(patch.object(Tensor, "_make_wrapper_subclass", staticmethod(wrapped)))
        stack.enter_context(patch.dict(fake_tensor._DISPATCH_META_HANDLERS, {_DEVICE: _device}))
        stack.enter_context(patch.object(fake_tensor, "init_gpu_context", lambda _: None))
        yield


def _set_data(tensor: FakeTensor, value: Tensor) -> None:
    _DATA.__set__(tensor, value)
    if isinstance(value, FakeTensor):
        tensor.fake_device = value.fake_device


def _device(args: Any) -> torch.device:
    return _META if args[0].fake_mode.in_kernel_invocation else _CPU


def is_fake(value: object) -> bool:
    """Whether `value` is a tensor without data."""
    local = getattr(value, "_local_tensor", value)
    return isinstance(local, FakeTensor)


def within(context: Callable[[], AbstractContextManager[Any]], function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, each call of which runs within a `context` of its own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return call


def with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` on real tensors: the ranks of a mesh are read, and samples are put together as in a training."""
    return within(_disable_current_modes, function)
