"""What is true of each trace of the third set (programs/third_*.py), written before any of them was made.

As second_truth.py; no case here resembles one of the first 57.
"""

from __future__ import annotations

from benchmarks.field.input import INPUT, STARVES
from benchmarks.gpu_traces.second_truth import CLEAN
from benchmarks.gpu_traces.truth import ALARM, LATE, LONG, RANKS, SYNC, Expected, sound

_LOADER = rf"{INPUT}|TO-I002|DataLoader|num_workers"
_HOST = rf"{LATE}|{SYNC}"
_COPIES = r"TO-I004|runs nothing but copies|copies from or to"
_ALLOCATOR = r"TO-M005|cudaMalloc|cudaFree|empty_cache|ran out of memory"
_ALONE = r"optimizer alone"


def _sound(truth: str, never: str = "▲") -> Expected:
    """Nothing planted, and no alarm of any kind."""
    return sound(truth, rf"▲|{ALARM}|{_COPIES}|{never}")


THIRD: dict[str, Expected] = {
    "long_loop_300": _sound(
        "four large layers in bf16, the whole training of 300 steps in one window, no marks; bound by the GPU", LONG
    ),
    "prefetched_stream": _sound(
        "convolutions; the next batch is copied from pinned memory on a stream of its own, hidden; bound by the GPU"
    ),
    "graph_by_hand": _sound(
        "a training step in one CUDA graph made by hand, twelve replays, no marks and no optimizer on the host; bound "
        "by the GPU", rf"{_ALONE}|{STARVES}",
    ),
    "augmented_on_gpu": _sound(
        "a vision transformer, two micro-batches a step, activations computed again; stacks and modules recorded"
    ),
    "ddp_of_one": _sound(
        "a GPT in DDP with a single rank, which alone profiles; bound by the GPU: no rank is missing",
        r"world size|of [2-9] ranks",
    ),
    # Written as `sound` at first, which forbids even a remark of TO-I003: its 12 is_nonzero() a step are there.
    "hf_accumulates": Expected(
        "HF's Trainer on a GPT-2, four micro-batches a step, two workers that keep up; bound by the GPU",
        CLEAN, never=rf"{RANKS}|{ALARM}|▲|{_COPIES}|{INPUT}|TO-I002|{LONG}",
    ),
    "decode_server": Expected(
        "a server's loop of decoding: requests chosen in Python, tokens read on the host: launched late; no training",
        _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}|{_ALONE}|[Bb]ackward", troubles=("host", "sync"),
    ),
    "ppo_four_models": Expected(
        "PPO of texts, four models: tokens drawn one by one, small kernels launched late; rewards read one by one",
        _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}", troubles=("host", "sync"),
    ),
    "tree_recursion": Expected(
        "trees by recursion in Python, each loss read: small kernels launched late; nothing is marked",
        _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}", troubles=("host", "sync"),
    ),
    "detector_masks": Expected(
        "a detector: boolean masks of each picture wait for the GPU, the running mean is made tensor by tensor, a bar "
        "reads the loss: launched late behind reads", _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}",
        troubles=("sync", "host"),
    ),
    "layer_timers": Expected(
        "hooks that time layers call synchronize() before and behind each: the GPU waits for launches between them",
        _HOST, never=rf"{RANKS}|{_LOADER}|{CLEAN}|\.item\(\) (is|are|reads)", troubles=("sync",),
    ),
    "policy_in_graphs": Expected(
        "a compiled policy in CUDA graphs, 16 moves of a world in numpy a step, each action read: the host holds the "
        "GPU up", rf"{_HOST}|{INPUT}", never=rf"{RANKS}|DataLoader|num_workers|{CLEAN}", troubles=("host", "sync"),
    ),
    "photographs_pageable": Expected(
        "two workers open photographs too slowly; batches of 58 MB are not pinned: the GPU waits for both",
        rf"{INPUT}|TO-I002", never=rf"{RANKS}|{CLEAN}", troubles=("input", "copies"),
    ),
    "host_tables": Expected(
        "embeddings looked up and updated on the host, copied over and back: the GPU waits for host and copies",
        rf"{_HOST}|{_COPIES}", never=rf"{RANKS}|{CLEAN}|DataLoader|num_workers", troubles=("host", "copies"),
    ),
    "streamed_weights": Expected(
        "each layer's weights are copied from pinned memory just before it, on the stream of the kernels: bound by "
        "copies; inference", _COPIES, never=rf"{RANKS}|{_LOADER}|{CLEAN}|{_ALONE}|pin_memory=True",
        troubles=("copies",),
    ),
    "judged_each_step": Expected(
        "each step also judges three batches, whose answers numpy and Python count: the GPU waits for the host",
        rf"{_HOST}|{INPUT}", never=rf"{RANKS}|DataLoader|num_workers|{CLEAN}", troubles=("evaluation", "host"),
    ),
    "collected_emptied": Expected(
        "gc.collect() and empty_cache() behind each step: the host is late, memory is asked of the driver again",
        rf"{_HOST}|{_ALLOCATOR}|gc\.collect|collector", never=rf"{RANKS}|{_LOADER}|{CLEAN}",
        troubles=("garbage", "allocator"),
    ),
    "ragged_lengths": Expected(
        "another length in each step under a limit of memory: the allocator runs out, frees and asks the driver again",
        rf"{_ALLOCATOR}|{_HOST}|{LONG}", never=rf"{RANKS}|{_LOADER}|{CLEAN}", troubles=("allocator",),
    ),
    "clip_accelerated": Expected(
        "CLIP under accelerate: pictures are made small in the main process; loss and accuracy are read",
        rf"{INPUT}|TO-I002", never=rf"{RANKS}|{CLEAN}", troubles=("input", "sync"),
    ),
    "lightning_mean": Expected(
        "Lightning: all weights are copied to the host tensor by tensor in each step, norms are read: the GPU waits",
        rf"{_HOST}|{_COPIES}", never=rf"{RANKS}|{CLEAN}", troubles=("copies", "sync"),
    ),
}  # fmt: skip
