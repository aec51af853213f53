"""What a script asks of tensors in Python, where torch would ask CUDA, or ask C++ which device a fake tensor is on.

torch.autocast("cuda") is among it; its lists are those of ATen/autocast_mode.h, for CUDA.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.library import Library
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

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
            Tensor.new_tensor: lambda tensor, data, dtype=None, device=None, **more: torch.tensor(
                data, dtype=dtype or tensor.dtype, device=device or tensor.device, **more
            ),
            Tensor.pin_memory: lambda tensor, *_, **__: tensor,
            Tensor.is_pinned: lambda *_, **__: False,
            Tensor.record_stream: lambda *_, **__: None,
            Tensor.data_ptr: _address,
            Tensor.tolist: lambda tensor: self._read(tensor, Tensor.tolist),
            Tensor.numpy: lambda tensor, *_, **__: self._read(tensor, Tensor.numpy),
            Tensor.__array__: lambda tensor, *_, **__: self._read(tensor, Tensor.numpy),
        }

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.device and args and type(args[0]) is int:
            return torch.device("cuda", args[0])
        if func is torch.device or isinstance(func, OpOverload):  # an operator of C++'s comes back here
            return func(*args, **kwargs)
        if (call := self._calls.get(func)) is not None:
            with self:
                return call(*args, **kwargs)
        args = tuple(_named(one) for one in args)
        if kwargs:
            kwargs = {name: _named(one) for name, one in kwargs.items() if name != "pin_memory"}
            if type(kwargs.get("device")) is int:
                kwargs["device"] = torch.device("cuda", kwargs["device"])
        with self._gpu.everything_on_gpu(_works_on_gpu(func, args, kwargs)):
            return func(*args, **kwargs)

    def _read(self, tensor: Tensor, read: Callable[[Tensor], Any]) -> Any:
        with torch._C.DisableTorchFunction():
            if not is_fake(tensor):
                return read(tensor.detach())
            self._tracker.values_read += 1
            with _disable_current_modes():
                dtype = torch.float32 if tensor.dtype is torch.bfloat16 else tensor.dtype
                ones = torch.ones(tuple(tensor.shape), dtype=dtype)
            return read(ones)


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


_LOWER = (
    "_convolution", "conv1d", "conv2d", "conv3d", "conv_tbc", "conv_transpose1d", "conv_transpose2d.input",
    "conv_transpose3d.input", "convolution", "prelu", "addmm", "addmv", "addr", "matmul", "einsum", "mm", "mv",
    "linalg_vecdot", "linear", "addbmm", "baddbmm", "bmm", "chain_matmul", "linalg_multi_dot", "lstm_cell", "gru_cell",
    "rnn_tanh_cell", "rnn_relu_cell",
)  # fmt: skip
_FP32 = (
    "acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh",
    "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus", "layer_norm", "native_layer_norm",
    "rms_norm", "group_norm", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss",
    "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss",
    "margin_ranking_loss",
    "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss", "multi_margin_loss",
    "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm", "logsumexp", "upsample_nearest1d",
    "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
    "upsample_bicubic2d",
)  # fmt: skip
_FP32_RESULT = (
    "prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm", "sum",
    "sum.dim_IntList",
)  # fmt: skip
_WIDEST = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put", "tensordot",
    "scatter_add",
)  # fmt: skip


class Autocast:
    """The kernels, and the casts of parameters that torch keeps until the outermost autocast is left."""

    def __init__(self) -> None:
        self._casts: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}
        self._keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)
        self.library = Library("aten", "IMPL")  # type: ignore[no-untyped-call]
        for names, change in (
            (_LOWER, self._lower), (_FP32, self._fp32), (_FP32_RESULT, self._fp32_result), (_WIDEST, self._widest)
        ):  # fmt: skip
            for name in names:
                self._put(name, change)

    def _put(self, name: str, change: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        if operator is None:  # of another version
            return

        def kernel(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(self._keys):
                args, kwargs = change(args, kwargs)
                return operator(*args, **kwargs)

        put: Any = self.library.impl
        put(name, kernel, "AutocastCUDA", allow_override=True)

    def clear(self) -> None:
        """The outermost autocast is left."""
        self._casts.clear()

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if not _is_eligible(value) or value.dtype is dtype:
            return value
        keeps = (
            value.dtype is torch.float32 and dtype is not torch.float32 and value.requires_grad and value.is_leaf
            and not value._is_view() and torch.is_autocast_cache_enabled()
        )  # fmt: skip
        if not keeps:
            return value.to(dtype)
        key = (id(value), dtype)
        if key not in self._casts:
            self._casts[key] = (value, value.to(dtype))
        return self._casts[key][1]

    def _lower(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        dtype = torch.get_autocast_dtype("cuda")
        return tree_map(lambda one: self._cast(one, dtype), (args, kwargs))  # type: ignore[no-any-return]

    def _fp32(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return tree_map(lambda one: self._cast(one, torch.float32), (args, kwargs))  # type: ignore[no-any-return]

    def _fp32_result(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        half = _is_eligible(args[0]) and args[0].dtype in (torch.float16, torch.bfloat16)
        given = kwargs.get("dtype") is not None or any(isinstance(one, torch.dtype) for one in args)
        return args, {**kwargs, "dtype": torch.float32} if half and not given else kwargs

    def _widest(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        found = [one.dtype for one in tree_leaves((args, kwargs)) if _is_eligible(one)]
        if len(set(found)) < 2:
            return args, kwargs
        return self._fp32(args, kwargs)


def _is_eligible(value: Any) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.dtype is not torch.float64
        and value.device.type == "cuda"
    )


@contextmanager
def faked_autocast() -> Iterator[None]:
    """While it is open, autocast casts fake tensors of the GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of each kernel that is taken the place of
        found = Autocast()
    before = torch.clear_autocast_cache

    def clear() -> None:
        found.clear()
        before()

    with patch.object(torch, "clear_autocast_cache", clear):
        yield
    found.library._destroy()  # type: ignore[no-untyped-call]
