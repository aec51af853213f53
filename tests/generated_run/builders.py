"""Typical programs: data parallel, sharded, hybrid sharded, tensor with data parallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .program import Collective, Compute, Device, Groups, HostSync, HostWork, Join, LoadInput, Memcpy, Op, Program


@dataclass(frozen=True)
class Size:
    """How large the model is and how fast the machine.

    A layer has `elements` parameters and runs `kernels` kernels of `kernel_us` µs forward, twice as long
    backward. Where kernel_us is below launch_us, the host bounds the step. Bandwidths are bus bandwidths, GB/s.
    """

    kernels: int = 4
    kernel_us: float = 50.0
    elements: int = 1 << 22
    input_us: float = 100.0
    input_bytes: int = 1 << 20
    launch_us: float = 8.0
    bandwidth_gbs: float = 100.0
    far_bandwidth_gbs: float = 40.0  # between hosts: replicas of HSDP, data parallel beside tensor parallel
    latency_us: float = 12.0
    jitter: float = 0.02
    end_jitter_us: float = 2.0


def ddp(
    layers: int = 4, buckets: int = 2, steps: int = 3, size: Size = Size(), device: Device = "cuda", sync: bool = False
) -> Program:  # fmt: skip
    """Gradients all-reduced in buckets while backward runs; the optimizer waits for all of them.

    `sync` reads the loss on the host at the end of every step.
    """
    sizes = [layers // buckets + (bucket < layers % buckets) for bucket in range(buckets)]
    ops = [*_input(size)]
    for layer in range(layers):
        ops += _forward(layer, size)
    layer = layers
    for bucket, own in enumerate(sizes):
        for _ in range(own):
            layer -= 1
            ops += _backward(layer, size)
        ops.append(Collective("allreduce", "world", max(own, 1) * size.elements, f"bucket.{bucket}"))
    ops += [Join(f"bucket.{bucket}") for bucket in range(buckets)]
    return _program("ddp", [_world(size)], [*ops, *_optimizer(layers, size, sync)], steps, size, device)


def fsdp2(layers: int = 4, steps: int = 3, size: Size = Size(), device: Device = "cuda", sync: bool = False) -> Program:
    """Parameters gathered a layer ahead on their own stream, gradients reduce-scattered on another."""
    ops = _sharded(layers, "world", None, 1, size)
    return _program("fsdp2", [_world(size)], [*ops, *_optimizer(layers, size, sync)], steps, size, device)


def hsdp(
    layers: int = 4, shard: int = 2, steps: int = 3, size: Size = Size(), device: Device = "cuda", sync: bool = False
) -> Program:  # fmt: skip
    """FSDP2 inside groups of `shard` ranks, whose gradients are then all-reduced between replicas."""
    groups = [
        Groups("shard", "mesh_shard", shard, 1, size.bandwidth_gbs, size.latency_us),
        Groups("replicate", "mesh_rep", None, shard, size.far_bandwidth_gbs, size.latency_us),
    ]
    ops = _sharded(layers, "shard", "replicate", shard, size)
    return _program("hsdp", groups, [*ops, *_optimizer(layers, size, sync)], steps, size, device)


def tp_dp(
    layers: int = 4, tp: int = 2, steps: int = 3, size: Size = Size(), device: Device = "cuda", sync: bool = False
) -> Program:  # fmt: skip
    """Each layer all-reduces its activations in groups of `tp` ranks, gradients are all-reduced across them."""
    groups = [
        Groups("tp", "mesh_tp", tp, 1, size.bandwidth_gbs, size.latency_us),
        Groups("dp", "mesh_dp", None, tp, size.far_bandwidth_gbs, size.latency_us),
    ]
    activations = size.elements // 4
    ops = [*_input(size)]
    for way, kernels, order in (("forward", _forward, range(layers)), ("backward", _backward, range(layers)[::-1])):
        for layer in order:
            ops += kernels(layer, size)
            label = f"tp.{way}.{layer}"
            ops += [Collective("allreduce", "tp", activations, label, "tp", "BFloat16"), Join(label)]
            if way == "backward":
                ops.append(Collective("allreduce", "dp", size.elements, f"grad.{layer}", "dp"))
    ops += [Join(f"grad.{layer}") for layer in range(layers)]
    return _program("tp_dp", groups, [*ops, *_optimizer(layers, size, sync)], steps, size, device)


def _sharded(layers: int, shard: str, replicate: str | None, shards: int, size: Size) -> list[Op]:
    def gather(way: str, layer: int) -> Collective:
        return Collective("_allgather_base", shard, size.elements, f"gather.{way}.{layer}", "gather", "BFloat16")

    def gathered(way: str, order: Sequence[int]) -> Iterator[tuple[int, list[Op]]]:
        """Before a layer computes it joins its own all-gather and starts the next one's."""
        for at, layer in enumerate(order):
            ops: list[Op] = [gather(way, layer)] if at == 0 else []
            ops += [Join(f"gather.{way}.{layer}"), Compute("split_with_sizes_copy", 5.0, f"copy_out.{layer}")]
            yield layer, ops + ([gather(way, order[at + 1])] if at + 1 < len(order) else [])

    ops: list[Op] = [*_input(size)]
    for layer, before in gathered("forward", range(layers)):
        ops += [*before, *_forward(layer, size)]
    last = []
    for layer, before in gathered("backward", range(layers)[::-1]):
        ops += [*before, *_backward(layer, size)]
        ops += [Compute("chunk_cat", 5.0, f"copy_in.{layer}")]
        ops += [Collective("_reduce_scatter_base", shard, size.elements, f"scatter.{layer}", "scatter")]
        last.append(f"scatter.{layer}")
        if replicate:
            part, after = size.elements // shards, (f"scatter.{layer}",)
            label = f"replicate.{layer}"
            ops.append(Collective("allreduce", replicate, part, label, "replicate", waits=after))
            last.append(f"replicate.{layer}")
    return ops + [Join(label) for label in last]


def _program(name: str, groups: list[Groups], ops: list[Op], steps: int, size: Size, device: Device) -> Program:
    launches = sum(isinstance(op, Compute | Memcpy | Collective) for op in ops)
    return Program(
        name=name,
        groups=tuple(groups),
        steps=(tuple(ops),) * (steps + 1),
        device=device,
        launch_us=size.launch_us,
        queue=max(launches, 8),  # so that the host of a small model is no more than a step ahead either
        jitter=size.jitter,
        end_jitter_us=size.end_jitter_us,
    )


def _world(size: Size) -> Groups:
    return Groups("world", "default_pg", None, 1, size.bandwidth_gbs, size.latency_us)


def _input(size: Size) -> list[Op]:
    return [LoadInput(size.input_us), Memcpy(size.input_bytes, label="input")]


def _forward(layer: int, size: Size) -> list[Op]:
    return [Compute(_kernel(k), size.kernel_us, f"forward.{layer}", _OPS[k % len(_OPS)]) for k in range(size.kernels)]


def _backward(layer: int, size: Size) -> list[Op]:
    op = "autograd::engine::evaluate_function: MmBackward0"
    return [Compute(_kernel(k), 2 * size.kernel_us, f"backward.{layer}", op) for k in range(size.kernels)]


def _optimizer(layers: int, size: Size, sync: bool) -> list[Op]:
    ops: list[Op] = [HostWork("Optimizer.step#AdamW.step", 30.0)]
    ops += [Compute("multi_tensor_apply_kernel", size.kernel_us / 2, "optimizer", "aten::_fused_adamw_")] * layers
    return [*ops, HostSync("compute")] if sync else ops


_OPS = ("aten::mm", "aten::add", "aten::gelu", "aten::native_layer_norm")
_KERNELS = ("nvjet_tst_128x256", "vectorized_elementwise_kernel", "gelu_kernel", "layer_norm_kernel")


def _kernel(number: int) -> str:
    return _KERNELS[number % len(_KERNELS)]
