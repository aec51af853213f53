"""torch.autocast("cuda") for fake tensors: torch's own casts those that C++ finds on a GPU, and these it does not.

The lists are those of ATen/autocast_mode.h, for CUDA.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.library import Library
from torch.utils._pytree import tree_leaves, tree_map

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
