"""Operators bound by memory bandwidth: each function gives a call and its least bytes, for about the bytes wanted."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F

Call = Callable[[], object]
Move = Callable[[float, torch.dtype], tuple[Call, float]]
MEGABYTE = 1e6


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype)


def _flat(total: float, tensors: float, dtype: torch.dtype) -> int:
    return int(total / tensors / dtype.itemsize) // 4096 * 4096


def _rows(total: float, tensors: float, width: int, dtype: torch.dtype) -> int:
    return max(1, int(total / tensors / dtype.itemsize / width))


def add(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    n = _flat(total, 3, dtype)
    x, y = normal(n, dtype=dtype), normal(n, dtype=dtype)
    return lambda: x + y, 3.0 * n * dtype.itemsize


def gelu(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_flat(total, 2, dtype), dtype=dtype)
    return lambda: F.gelu(x), 2.0 * x.nbytes


def scale_in_place(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_flat(total, 2, dtype), dtype=dtype)
    return lambda: x.mul_(1.0), 2.0 * x.nbytes


def broadcast_add(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, bias = normal(_rows(total, 2, 2048, dtype), 2048, dtype=dtype), normal(2048, dtype=dtype)
    return lambda: x + bias, 2.0 * x.nbytes


def strided_add(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    side = math.isqrt(_flat(total, 3, dtype)) // 32 * 32
    x, y = normal(side, side, dtype=dtype), normal(side, side, dtype=dtype)
    return lambda: x.t() + y, 3.0 * x.nbytes


def dropout(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_flat(total, 2.5, dtype), dtype=dtype)
    return lambda: torch.native_dropout(x, 0.1, True), 2.0 * x.nbytes + x.numel()


def cast_up(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_flat(total, 3, torch.bfloat16), dtype=torch.bfloat16)
    return lambda: x.float(), 3.0 * x.nbytes


def cast_down(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_flat(total, 3, torch.bfloat16))
    return lambda: x.bfloat16(), 1.5 * x.nbytes


def fill(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_flat(total, 1, dtype), dtype=dtype)
    return lambda: x.zero_(), 1.0 * x.nbytes


def copy(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_flat(total, 2, dtype), dtype=dtype)
    y = torch.empty_like(x)
    return lambda: y.copy_(x), 2.0 * x.nbytes


def transposed_copy(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_rows(total, 2, 1024 * 512, dtype), 1024, 512, dtype=dtype)
    return lambda: x.transpose(1, 2).contiguous(), 2.0 * x.nbytes


def heads_copy(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_rows(total, 2, 1024 * 1024, dtype), 1024, 16, 64, dtype=dtype)
    return lambda: x.transpose(1, 2).contiguous(), 2.0 * x.nbytes


def cat_rows(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, y = (normal(_rows(total, 4, 1024, dtype), 1024, dtype=dtype) for _ in range(2))
    return lambda: torch.cat([x, y], 0), 4.0 * x.nbytes


def cat_columns(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, y = (normal(_rows(total, 4, 1024, dtype), 1024, dtype=dtype) for _ in range(2))
    return lambda: torch.cat([x, y], -1), 4.0 * x.nbytes


def layer_norm(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, w = normal(_rows(total, 2, 2048, dtype), 2048, dtype=dtype), torch.ones(2048, device="cuda", dtype=dtype)
    return lambda: F.layer_norm(x, (2048,), w, w), 2.0 * x.nbytes


def layer_norm_backward(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, w = normal(_rows(total, 3, 2048, dtype), 2048, dtype=dtype), torch.ones(2048, device="cuda", dtype=dtype)
    _, mean, rstd = torch.native_layer_norm(x, (2048,), w, w, 1e-5)
    backward, grad = torch.ops.aten.native_layer_norm_backward, torch.randn_like(x)
    return lambda: backward(grad, x, (2048,), mean, rstd, w, w, [True, True, True]), 3.0 * x.nbytes


def rms_norm(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, w = normal(_rows(total, 2, 2048, dtype), 2048, dtype=dtype), torch.ones(2048, device="cuda", dtype=dtype)
    return lambda: F.rms_norm(x, (2048,), w, 1e-5), 2.0 * x.nbytes


def rms_norm_backward(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, w = normal(_rows(total, 3, 2048, dtype), 2048, dtype=dtype), torch.ones(2048, device="cuda", dtype=dtype)
    x.requires_grad_()
    y = F.rms_norm(x, (2048,), w.requires_grad_(), 1e-5)
    grad = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (x, w), grad, retain_graph=True), 3.0 * x.nbytes


def group_norm(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_rows(total, 2, 256 * 1024, dtype), 256, 32, 32, dtype=dtype)
    return lambda: F.group_norm(x, 32), 2.0 * x.nbytes


def softmax(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_rows(total, 2, 1024, dtype), 1024, dtype=dtype)
    return lambda: torch.softmax(x, -1), 2.0 * x.nbytes


def softmax_backward(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = torch.softmax(normal(_rows(total, 3, 1024, dtype), 1024, dtype=dtype), -1)
    grad = torch.randn_like(x)
    return lambda: torch.ops.aten._softmax_backward_data(grad, x, -1, dtype), 3.0 * x.nbytes


def log_softmax(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_rows(total, 2, 32000, dtype), 32000, dtype=dtype)
    return lambda: torch.log_softmax(x, -1), 2.0 * x.nbytes


def log_softmax_backward(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = torch.log_softmax(normal(_rows(total, 3, 32000, dtype), 32000, dtype=dtype), -1)
    grad = torch.randn_like(x)
    return lambda: torch.ops.aten._log_softmax_backward_data(grad, x, -1, dtype), 3.0 * x.nbytes


def cross_entropy(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_rows(total, 1, 32000, dtype), 32000, dtype=dtype)
    y = torch.randint(0, 32000, (x.shape[0],), device="cuda")
    return lambda: F.cross_entropy(x, y), 1.0 * x.nbytes


def _batch_norm(total: float, dtype: torch.dtype, last: bool, backward: bool) -> tuple[Call, float]:
    form = torch.channels_last if last else torch.contiguous_format
    count = 3 if backward else 2
    x = normal(_rows(total, count, 128 * 1024, dtype), 128, 32, 32, dtype=dtype).contiguous(memory_format=form)
    w, b = (torch.ones(128, device="cuda", requires_grad=True) for _ in range(2))
    mean, var = torch.zeros(128, device="cuda"), torch.ones(128, device="cuda")
    if not backward:
        return lambda: F.batch_norm(x, mean, var, w, b, True), 2.0 * x.nbytes
    x.requires_grad_()
    y = F.batch_norm(x, mean, var, w, b, True)
    grad = torch.randn_like(y)
    return lambda: torch.autograd.grad(y, (x, w, b), grad, retain_graph=True), 3.0 * x.nbytes


def batch_norm_nchw(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    return _batch_norm(total, dtype, False, False)


def batch_norm_nhwc(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    return _batch_norm(total, dtype, True, False)


def batch_norm_nchw_backward(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    return _batch_norm(total, dtype, False, True)


def batch_norm_nhwc_backward(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    return _batch_norm(total, dtype, True, True)


def sum_all(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_flat(total, 1, dtype), dtype=dtype)
    return lambda: x.sum(), 1.0 * x.nbytes


def sum_rows(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_rows(total, 1, 1024, dtype), 1024, dtype=dtype)
    return lambda: x.sum(-1), 1.0 * x.nbytes


def sum_columns(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_rows(total, 1, 1024, dtype), 1024, dtype=dtype)
    return lambda: x.sum(0), 1.0 * x.nbytes


def cumulative_sum(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_rows(total, 2, 1024, dtype), 1024, dtype=dtype)
    return lambda: x.cumsum(-1), 2.0 * x.nbytes


def _picked(total: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """A table and rows of it: as many as half the bytes."""
    count = _rows(total, 2, 256, dtype)
    return normal(count, 256, dtype=dtype), torch.randint(0, count, (count,), device="cuda")


def index(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, at = _picked(total, dtype)
    return lambda: x[at], 2.0 * x.nbytes + at.nbytes


def index_select(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, at = _picked(total, dtype)
    return lambda: torch.index_select(x, 0, at), 2.0 * x.nbytes + at.nbytes


def gather(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    rows = max(1, int(total / (8 + 2 * dtype.itemsize) / 1024))
    x, at = normal(rows, 1024, dtype=dtype), torch.randint(0, 1024, (rows, 1024), device="cuda")
    return lambda: x.gather(-1, at), 2.0 * x.nbytes + at.nbytes


def scatter_add(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    rows = max(1, int(total / (8 + 3 * dtype.itemsize) / 1024))
    x, at = normal(rows, 1024, dtype=dtype), torch.randint(0, 1024, (rows, 1024), device="cuda")
    out = torch.zeros_like(x)
    return lambda: out.scatter_add_(-1, at, x), 3.0 * x.nbytes + at.nbytes


def index_add(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, at = _picked(total, dtype)
    out = torch.zeros_like(x)
    return lambda: out.index_add_(0, at, x), 3.0 * x.nbytes + at.nbytes


def index_put(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x, at = _picked(total, dtype)
    out = torch.zeros_like(x)
    return lambda: out.index_put_((at,), x, accumulate=True), 3.0 * x.nbytes + at.nbytes


def embedding(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    table = normal(32000, 1024, dtype=dtype)
    at = torch.randint(0, 32000, (_rows(total, 2, 1024, dtype),), device="cuda")
    return lambda: F.embedding(at, table), 2.0 * at.numel() * 1024 * dtype.itemsize


def embedding_backward(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    count = _rows(total, 2, 1024, dtype)
    grad, at = normal(count, 1024, dtype=dtype), torch.randint(0, count, (count,), device="cuda")
    return lambda: torch.ops.aten.embedding_dense_backward(grad, at, count, -1, False), 2.0 * grad.nbytes


def sort(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(max(1, int(total / (2 * dtype.itemsize + 8) / 32000)), 32000, dtype=dtype)
    return lambda: x.sort(-1), 2.0 * x.nbytes + 8 * x.numel()


def topk(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    x = normal(_rows(total, 1, 32000, dtype), 32000, dtype=dtype)
    return lambda: x.topk(50, -1), 1.0 * x.nbytes


def fused_adamw(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    n = _flat(total, 7, dtype)
    p = torch.nn.Parameter(normal(n, dtype=dtype))
    p.grad = normal(n, dtype=dtype)
    return torch.optim.AdamW([p], lr=1e-9, fused=True).step, 7.0 * p.nbytes


def foreach_lerp(total: float, dtype: torch.dtype) -> tuple[Call, float]:
    n = _flat(total, 3, dtype) // 8
    a, b = ([normal(n, dtype=dtype) for _ in range(8)] for _ in range(2))
    return lambda: torch._foreach_lerp_(a, b, 0.1), 3.0 * 8 * n * dtype.itemsize


ONE_DTYPE: dict[Move, torch.dtype] = {
    cast_up: torch.bfloat16, cast_down: torch.float32, fused_adamw: torch.float32, foreach_lerp: torch.float32,
    cumulative_sum: torch.float32, sort: torch.float32,
}  # fmt: skip
SLOW = {sort, index_put, embedding_backward}
MOVES: list[Move] = [
    *(add, gelu, scale_in_place, broadcast_add, strided_add, dropout, cast_up, cast_down, fill, copy, transposed_copy),
    *(heads_copy, cat_rows, cat_columns, layer_norm, layer_norm_backward, rms_norm, rms_norm_backward, group_norm),
    *(softmax, softmax_backward, log_softmax, log_softmax_backward, cross_entropy, sum_all, sum_rows, sum_columns),
    *(batch_norm_nchw, batch_norm_nhwc, batch_norm_nchw_backward, batch_norm_nhwc_backward, cumulative_sum),
    *(index, index_select, gather, scatter_add, index_add, index_put, embedding, embedding_backward, sort, topk),
    *(fused_adamw, foreach_lerp),
]
