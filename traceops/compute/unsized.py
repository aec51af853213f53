"""Causes where a trace has no shapes, or no operators, as in a CUDA graph: by names, grids and order of kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator

from traceops.compute.attainable import expected_ns, product_ns
from traceops.compute.judged import Judged, Kernels, call_ns, launches_of, time_of
from traceops.compute.named import converts_layout, few_rows_of, fused_names, unaligned

_MOST_BETWEEN = 12  # kernels on the scores, between the products
_OF_PRODUCTS = 0.5  # of the time of an attention's products goes where they neither write nor read scores
_BY_ELEMENT = {1: 0.8, 2: 0.6}  # of products in 16 bits goes with aligned rows, by the elements read at once
_LONG_NS = 20_000
_LARGE = 1e6  # elements
_MUCH = 0.1  # of the busy time
_CONVERTED = 0.02  # of the busy time
_NORM_FIRST = re.compile(r"batch_norm_(collect_statistics|backward)_kernel")
_OF_NORMS = 0.6  # of batch norm with channels first goes with channels last: it takes 2.4 to 3 times as long
_CHAIN = 6  # small kernels in a row that one does as well
_SMALL = frozenset({"elementwise", "cast", "copy", "fill", "reduction", "norm"})


def find_unsized_attention(kernels: Kernels) -> None:
    """A softmax between two batched products, with all kernels between them. Fused attention saves at least what
    lies between the products."""
    between: list[Judged] = []
    uses: dict[int, Judged] = {}
    saved = launches = around = 0.0
    products = 0
    batched, breaks = set[int](), set[int]()  # by identity: of each, the order of a step has many
    for each in kernels.all:
        if each.use.name in ("aten::bmm", "aten::baddbmm") or (each.use.alone and each.kind == "product"):
            batched.add(id(each))
        elif each.kind in ("product", "attention", "convolution"):
            breaks.add(id(each))
    for one in kernels.order:
        if id(one) in batched:
            softmax = any("softmax" in each.use.name and "log_softmax" not in each.use.name for each in between)
            if products and softmax and len(between) <= _MOST_BETWEEN:
                saved += call_ns(between)
                around += 2 * call_ns([one])
                launches += len(between)
                uses |= {id(each): each for each in between}
            products, between = 1, []
        elif id(one) in breaks:
            products, between = 0, []
        else:
            between.append(one)
    if saved > 0.05 * kernels.busy_ns:
        more = _OF_PRODUCTS * around
        kernels.claim("unfused_attention", uses.values(), saved, launches=launches, more_ns=more)


def find_unsized_products(kernels: Kernels) -> None:
    """Products whose kernels, by their names, miss the tensor cores or their full speed."""
    long = kernels.free(
        lambda one: one.kind in ("product", "convolution") and one.ns > _LONG_NS * max(one.launches, 1.0)
    )
    slow = [
        one for one in long if one.unit == "simt" and "implicit_convolve" not in one.use.main_kernel
    ]  # of few channels
    # In TF32 at full speed, from their time without tensor cores
    flops = [one.ns / one.calls * kernels.gpu.rates.simt * kernels.gpu.simt * 1e3 for one in slow]
    least = [one.calls * product_ns(of, 0.0, "tf32", kernels.gpu) for one, of in zip(slow, flops, strict=True)]
    saved = sum(max(one.ns - ns, 0.0) for one, ns in zip(slow, least, strict=True))
    if kernels.gpu.tf32 and saved > 0.02 * kernels.busy_ns:
        kernels.claim("float32_products", slow, saved)
    odd = [
        (one, _BY_ELEMENT[width]) for one in long if one.unit == "half" and (width := unaligned(one.use.main_kernel))
    ]
    kernels.claim("misaligned_shape", [one for one, _ in odd], sum(one.ns * share for one, share in odd))


def _stretches(order: list[Judged]) -> Iterator[tuple[list[Judged], Judged]]:
    """What runs between two products or attentions, with the later of these."""
    between: list[Judged] = []
    for one in order:
        if one.kind in ("product", "attention", "convolution"):
            yield between, one
            between = []
        else:
            between.append(one)


def find_widened_weights(kernels: Kernels) -> None:
    """Large casts before products of few rows: weights are converted for each use."""
    uses: dict[int, Judged] = {}
    for between, after in _stretches(kernels.order):
        if after.kind != "product" or not few_rows_of(after.use.main_kernel):
            continue
        large = [one for one in between if one.numel >= _LARGE and one.kind in ("cast", "elementwise", "copy")]
        if any(one.kind == "cast" for one in large):
            uses |= {id(one): one for one in large if one.cause is None}
    if time_of(uses.values()) > _MUCH * kernels.busy_ns:
        kernels.claim("redundant_casts", uses.values(), time_of(uses.values()), launches=launches_of(uses.values()))


def find_float32_kernels(kernels: Kernels) -> None:
    """Only products in float32 or TF32: in 16 bits, both operations and bytes take half the time."""
    products = [one for one in kernels.all if one.kind in ("product", "convolution")]
    floats = [one for one in products if one.use.alone and one.cause is None and one.unit in ("simt", "tf32")]
    if time_of(one for one in products if one.unit in ("half", "fp8")) > _MUCH * time_of(floats):
        return
    saved = sum(max(one.ns - one.launches * expected_ns(one.kind, 0.0), 0.0) / 2 for one in floats)
    if saved > _MUCH * kernels.busy_ns:
        kernels.claim("float32_training", floats, saved)


def find_converted_layouts(kernels: Kernels) -> None:
    """Kernels that convert images between channels first and last around convolutions, and norms between them."""
    converted = kernels.free(lambda one: any(map(converts_layout, one.use.kernels)))
    saved = sum(one.use.kernel_ns_of(converts_layout) * one.calls / one.use.calls for one in converted)
    norms = kernels.free(lambda one: any(map(_NORM_FIRST.search, one.use.kernels)))
    if (
        kernels.norms_groups or saved <= (_CONVERTED if norms else _MUCH) * kernels.busy_ns
    ):  # three channels are converted anyway
        return
    kernels.claim("channels_first_layout", [*converted, *norms], saved + _OF_NORMS * time_of(norms))


def find_small_chains(kernels: Kernels) -> None:
    """Small kernels in a row, each about as short as a kernel can be: one fused kernel could replace them."""
    uses: dict[int, Judged] = {}
    saved = launches = 0.0
    for between, _ in _stretches(kernels.order):
        small = [one for one in between if one.use.alone and one.kind in _SMALL and one.cause is None
                 and fused_names(one.use.name) is None]  # fmt: skip
        if len(small) < _CHAIN:
            continue
        saved += max(call_ns(small) - max(call_ns([one]) for one in small) - expected_ns("norm", 0.0), 0.0)
        launches += len(small) - 2
        uses |= {id(one): one for one in small}
    if saved > _MUCH * kernels.busy_ns:
        kernels.claim("unfused_elementwise", uses.values(), saved, launches=launches)
