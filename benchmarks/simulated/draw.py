"""Draws runs: the same seed gives the same run."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log
from random import Random
from typing import Any

from benchmarks.simulated.spec import OF_A_RANK, OF_ALL, Kernel, Kind, Spec, Trouble, TroubleKind

_GEMMS = (
    ("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT", "aten::addmm", "AddmmBackward0"),
    ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "aten::mm", "MmBackward0"),
)
_OTHERS = (
    ("void at::native::vectorized_elementwise_kernel<8, gelu>", "aten::gelu", "GeluBackward0"),
    ("void at::native::vectorized_layer_norm_kernel<float>", "aten::native_layer_norm", "NativeLayerNormBackward0"),
    ("void at::native::vectorized_elementwise_kernel<4, add>", "aten::add", "AddBackward0"),
    ("pytorch_flash::flash_fwd_kernel<64>", "aten::_flash_attention_forward", "FlashAttentionBackward0"),
    ("void at::native::unrolled_elementwise_kernel<copy>", "aten::copy_", "ToCopyBackward0"),
    ("void at::native::reduce_kernel<512, 1, sum>", "aten::sum", "SumBackward1"),
)  # fmt: skip
LOADERS = (
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
)
MOST_STEPS = 8
LEAST, MOST = 0.08, 1.0  # of the healthy step: what a trouble of a rank adds to it, before anything hides it


def draw(seed: int) -> Spec:
    """A run: a fifth of them healthy, two fifths with one trouble, two fifths with two."""
    random = Random(f"simulated run {seed}")
    spec = _healthy(seed, random)
    troubles: list[Trouble] = []
    for _ in range((0, 1, 1, 2, 2)[seed % 5]):
        troubles.append(_trouble(spec, random, troubles))
    return replace(spec, troubles=tuple(troubles))


def _healthy(seed: int, random: Random) -> Spec:
    kind: Kind = random.choice(("ddp", "ddp", "fsdp2", "fsdp2", "tp", "pp", "ep"))
    world = random.choice((2, 4, 4, 8) if kind in ("ddp", "fsdp2") else (4, 4, 8))
    hosts = 1 if world == 2 or random.random() < 0.6 else 2
    degree = random.choice((2, 4)) if kind in ("tp", "pp") else 1
    layers = random.randint(1, 3) if kind == "pp" else random.randint(3, 6)
    kernels = _kernels(random)
    layer_us = sum(kernel.us for kernel in kernels)
    far = _between(random, 15, 50)
    near = random.uniform(290, 400)
    # Gradients of a layer take this share of its backward pass.
    share = _between(random, 0.05, 0.6)
    elements = max(int(2 * layer_us * share * (near if hosts == 1 else far) * 1e3 / 8), 1 << 14)
    return Spec(
        seed=seed, kind=kind, world=world, per_host=world // hosts, layers=layers, kernels=kernels,
        steps=random.randint(3, MOST_STEPS), elements=elements, launch_us=_between(random, 6, 35),
        input_us=_between(random, 30, 300),
        input_bytes=int(_between(random, 1 << 14, 1 << 20)),
        bandwidth_gbs=near, far_gbs=far, latency_us=random.uniform(10, 25), jitter=random.uniform(0.01, 0.04),
        sync=random.random() < 0.35, buckets=random.randint(2, max(layers, 2)), degree=degree,
        micro_batches=random.choice((4, 6, 8)), hosts=tuple(random.uniform(0.97, 1.05) for _ in range(world)),
        devices=tuple(random.uniform(0.99, 1.015) for _ in range(world)),
        clocks=_clocks(random, world, world // hosts), seq=random.random() < 0.5, stacks=random.random() < 0.25,
        noted=random.random() < 0.25, **_habits(random, hosts),
    )  # fmt: skip


def _habits(random: Random, hosts: int) -> dict[str, Any]:
    """What makes healthy runs differ: hosts that pause, samples of different length, a network that others use."""
    busy = random.uniform(0, 0.4) if hosts > 1 else 0.0
    return {
        "hiccups": random.choice((0.0, 0.0, _between(random, 0.001, 0.03))),
        "uneven": random.choice((0.0, 0.0, 0.0, random.uniform(0.03, 0.25))),
        "net": tuple(1 + busy * random.random() ** 2 for _ in range(MOST_STEPS + 1)),
        "accumulate": random.choice((1, 1, 1, 2, 3)),
        "metric": random.random() < 0.2,
        "loader": random.choice((*LOADERS, "")),
        "marked": random.random() < 0.9,
    }


def _kernels(random: Random) -> tuple[Kernel, ...]:
    scale = _between(random, 20, 600)
    made = []
    for _ in range(random.randint(2, 3)):
        name, forward, backward = random.choice(_GEMMS)
        made.append(Kernel(name, scale * random.uniform(0.8, 2.0), forward, backward, 132, persistent=True))
    for name, forward, backward in random.sample(_OTHERS, random.randint(2, 4)):
        us = max(scale * random.uniform(0.05, 0.4), 2.0)
        made.append(Kernel(name, us, forward, backward, int(40 * us)))
    random.shuffle(made)
    return tuple(made)


def _clocks(random: Random, world: int, per_host: int) -> tuple[tuple[float, float], ...]:
    """Ranks of one host share its clock."""
    own = [(random.uniform(-3000, 3000), random.uniform(-15, 15)) for _ in range(world // per_host)]
    return tuple(own[rank // per_host] for rank in range(world))


def _between(random: Random, least: float, most: float) -> float:
    return exp(random.uniform(log(least), log(most)))


def step_ms(spec: Spec) -> float:
    """About how long a step takes, to draw troubles that are neither nothing nor everything."""
    layers = spec.layers * (spec.micro_batches if spec.kind == "pp" else 1)
    layers *= spec.accumulate if spec.kind == "ddp" else 1
    device = 3 * layers * sum(kernel.us for kernel in spec.kernels) / 1e3
    host = 2 * layers * len(spec.kernels) * spec.launch_us / 1e3
    return max(device, host) + spec.input_us / 1e3 * spec.sync


def _trouble(spec: Spec, random: Random, before: list[Trouble]) -> Trouble:
    taken = {one.kind for one in before}
    while True:
        if random.random() < 0.55:
            kind: TroubleKind = random.choice(OF_A_RANK)
        else:
            kind = random.choice(tuple(OF_ALL))
        fits = spec.kind in OF_ALL.get(kind, (spec.kind,))
        if kind == "slow_link" and spec.per_host == spec.world and spec.kind != "pp":
            fits = False
        if kind == "slow_node" and spec.per_host == spec.world:
            fits = False
        if kind == "uneven_batch" and spec.kind in ("tp", "pp"):
            fits = False
        both = {kind, *taken}
        if fits and kind not in taken and not both >= {"tiny_buckets", "one_bucket"}:
            break
    share = _between(random, LEAST, MOST)
    size = {
        "slow_gpu": 1 + share, "throttled": 1 + share, "slow_node": 1 + share, "uneven_batch": 1 + share,
        "slow_stage": 1 + 1.5 * share,
        "slow_link": random.uniform(2.5, 8), "hot_expert": random.uniform(1.3, 2.2),
        "tiny_buckets": random.randint(8, 30), "item_sync": random.randint(1, 2 * spec.layers),
        "one_bucket": 1.0,
    }.get(kind, share * step_ms(spec))  # fmt: skip
    rank = random.randrange(spec.world)
    if kind == "slow_stage":
        rank = random.randrange(spec.stages)
    if kind == "late_loader" and spec.kind == "pp":
        rank = random.randrange(spec.world // spec.stages)
    steps: tuple[int, ...] = ()
    if kind == "evaluation":
        rank, steps, size = 0, (random.randrange(spec.steps),), size * 4
    if kind == "checkpoint":
        rank, steps, size = 0, (random.randrange(spec.steps),), size * 4
    if kind == "throttled":
        steps = tuple(sorted(random.sample(range(spec.steps), max(spec.steps // 2, 1))))
    if kind == "gc_by_turns":
        size *= 2
    if kind == "gc":
        few = random.sample(range(spec.steps), random.choice((1, 1, 2)))
        steps, size = tuple(sorted(few)), size * 3
    return Trouble(kind, size, rank, steps, random.randrange(3))
