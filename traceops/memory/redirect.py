"""What a script asks of tensors in Python, where torch would ask CUDA, or ask C++ which device a fake tensor is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from traceops.memory.fake_cuda import index_of
from traceops.memory.fake_tensors import GpuMode, is_fake
from traceops.memory.tracker import Tracker

_CPU = torch.device("cpu")


class Redirect(TorchFunctionMode):
    """Names the current GPU where a script says "cuda", which torch would ask CUDA for, and tells `gpu` who calls."""

    def __init__(self, tracker: Tracker, gpu: GpuMode) -> None:
        super().__init__()
        self._tracker, self._gpu = tracker, gpu
        self._calls: dict[Any, Callable[..., Any]] = {
            Tensor.cuda: lambda tensor, device=None, *_, **__: _to(tensor, _gpu(device)),
            Tensor.cpu: lambda tensor, *_, **__: _to(tensor, _CPU),
            Tensor.to: _to,
            Tensor.backward: _backward,
            Tensor.new_tensor: _new_tensor,
            Tensor.pin_memory: lambda tensor, *_, **__: tensor,
            Tensor.is_pinned: lambda *_, **__: False,
            Tensor.record_stream: lambda *_, **__: None,
            Tensor.data_ptr: _address,
            Tensor.tolist: self._tolist,
            Tensor.numpy: self._numpy,
            Tensor.__array__: self._numpy,
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device and args and type(args[0]) is int:
            return torch.device("cuda", args[0])
        if func is torch.device or isinstance(func, OpOverload):  # an operator of C++'s comes back here
            return func(*args, **kwargs)
        call = self._calls.get(func)
        if call is not None:
            with self:
                return call(*args, **kwargs)
        args = tuple(_named(one) for one in args)
        if kwargs:
            kwargs = {name: _named(one) for name, one in kwargs.items() if name != "pin_memory"}
            if type(kwargs.get("device")) is int:
                kwargs["device"] = torch.device("cuda", kwargs["device"])
        with self._gpu.everything_on_gpu(_works_on_gpu(func, args, kwargs)):
            return func(*args, **kwargs)

    def _tolist(self, tensor: Tensor) -> Any:
        with torch._C.DisableTorchFunction():
            return self._read(tensor).tolist()

    def _numpy(self, tensor: Tensor, *_: Any, **__: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return self._read(tensor).numpy()

    def _read(self, tensor: Tensor) -> Tensor:
        if not is_fake(tensor):
            return tensor.detach()
        self._tracker.values_read += 1
        with _disable_current_modes():
            dtype = torch.float32 if tensor.dtype is torch.bfloat16 else tensor.dtype
            return torch.ones(tuple(tensor.shape), dtype=dtype)


def _works_on_gpu(func: Any, args: Any, kwargs: Any) -> bool:
    if kwargs.get("device") is not None:
        return False
    found = False
    for one in (*args, *kwargs.values()):
        if isinstance(one, torch.device) or (isinstance(one, str) and one.startswith(("cpu", "cuda", "meta"))):
            return False
        first = one[0] if isinstance(one, list | tuple) and one else one
        found = found or (isinstance(first, Tensor) and first.device.type == "cuda")
    return found


def _backward(
    loss: Tensor, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, inputs: Any = None
) -> None:
    torch.autograd.backward(loss, gradient, retain_graph, create_graph, inputs=inputs)


def _new_tensor(tensor: Tensor, data: Any, dtype: Any = None, device: Any = None, **more: Any) -> Tensor:
    return torch.tensor(data, dtype=dtype or tensor.dtype, device=device or tensor.device, **more)


def _address(tensor: Tensor) -> int:
    """What tells tensors apart that share no memory."""
    with torch._C.DisableTorchFunction():
        if not is_fake(tensor):
            return int(tensor.data_ptr())
        local = getattr(tensor, "_local_tensor", tensor)
        return id(local.untyped_storage()) + int(local.storage_offset()) * local.element_size()


def _named(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "cuda" and value.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    if isinstance(value, str) and value == "cuda":
        return torch.device("cuda", torch.cuda.current_device())
    return value


def _gpu(device: Any) -> torch.device:
    return torch.device("cuda", index_of(device))


def _to(tensor: Tensor, *args: Any, copy: bool = False, **kwargs: Any) -> Tensor:
    """Tensor.to, which would ask C++ where the tensor is."""
    if args and isinstance(args[0], Tensor):
        kwargs = {"dtype": args[0].dtype, "device": args[0].device, **kwargs}
        args = args[1:]
    if args and type(args[0]) is int:
        args = (_gpu(args[0]), *args[1:])
    if type(kwargs.get("device")) is int:
        kwargs["device"] = _gpu(kwargs["device"])
    if len(args) > 3:
        args, copy = args[:3], bool(args[3])
    device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)
    device = tensor.device if device is None else _named(device)
    changed: dict[str, Any] = {} if dtype is None or dtype is tensor.dtype else {"dtype": dtype}
    if device != tensor.device:
        changed["device"] = device
    if not (changed or copy) and (layout is None or tensor.is_contiguous(memory_format=layout)):
        return tensor
    moved: Tensor = torch.ops.aten._to_copy.default(tensor, **changed, memory_format=layout)
    return moved
