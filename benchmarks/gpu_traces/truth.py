"""What is true of each trace of run.sh, and what may and may not be said of it: written before any was made.

Patterns that had demanded too much were changed when the traces were read.
right, abstains: patterns of what is printed from the first mark on. never: a pattern of what may stand nowhere. Numbers
are held to what was measured beside the traces (truths.jsonl): a step that is named to 3 % of the recorded one, a step
that a cure would give to 15 % of the cured program's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.field.input import CLEAN, INPUT, STARVES

ALARM = r"✖"
RANKS = r"\b[Rr]anks? [1-9]|ranks have no trace|other ranks"
LATE = rf"{STARVES}|late by|TO-I001"
SYNC = r"TO-I003"
LONG = r"TO-T001"


@dataclass(frozen=True)
class Expected:
    """truth: by construction. troubles: what is planted; of none the program is sound."""

    truth: str
    right: str
    abstains: str = r"Not judged"
    never: str = RANKS
    troubles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.right


def sound(truth: str, never: str = "") -> Expected:
    """Bound by the GPU, nothing planted: no alarm of any kind."""
    return Expected(truth, CLEAN, never="|".join(filter(None, (RANKS, ALARM, rf"{INPUT}|TO-I002|{SYNC}", never))))


_GPT = "a GPT in bf16, bound by the GPU; its host launches a step in well under the step"
EXPECTED: dict[str, Expected] = {
    "tutorial_all_options": sound(f"{_GPT}. Stacks, shapes and memory are recorded, and cost host time only"),
    "tutorial_repeat": sound(f"{_GPT}. Two windows of one process in one folder: not two ranks, no damaged file"),
    "loop_no_marks": sound(f"{_GPT}. Five steps, none marked by the profiler; Optimizer.step marks their ends"),
    "one_iteration": sound(f"{_GPT}. One iteration, no marks: of 'a step' nothing but this window is known"),
    "user_ranges": sound(f"{_GPT}. Five ranges train_step of the user's, no other marks"),
    "middle": sound(f"{_GPT}. Begins behind the first forward pass, and marks no step: 3 whole ones", LONG),
    "micro_steps": sound(
        f"{_GPT}. prof.step() for each of four micro-batches: every fourth has the optimizer and is longer by a little",
        LONG,
    ),
    "checkpointing": sound(f"{_GPT}, with activations computed again; stacks and modules recorded, no wait, 2 steps"),
    "host_bound": Expected(
        "many small layers, an Adam that takes 162 parameters one by one: bound by the host, mostly by the optimizer",
        LATE, never=rf"{RANKS}|{INPUT}|{CLEAN}|TO-I002", troubles=("host", "optimizer"),
    ),
    "host_bound_cuda_only": Expected(
        "the same, recorded without the host's operators: the GPU starves; launches are the runtime's calls",
        LATE, never=rf"{RANKS}|{INPUT}|✔|{SYNC}|TO-I002", troubles=("host",),
    ),
    "item_cpu_only": Expected(
        "losses of four parts read between them; only the host was recorded: of the GPU nothing is known",
        r"TO-V008", r"nothing is known of the GPU", rf"{RANKS}|✔|% of it compute\.|{LATE}", ("sync",),
    ),
    "item_parts": Expected(
        "losses of four parts of a small batch read between them: the GPU waits for the host to begin the next part",
        rf"{SYNC}|{LATE}", never=rf"{RANKS}|{INPUT}|✔|TO-I002", troubles=("sync",),
    ),
    "item_large": Expected(
        "the same with large parts: the GPU computes nearly all the time, so the reads cost next to nothing",
        CLEAN, never=rf"{RANKS}|{INPUT}|{ALARM}|▲|TO-I002", troubles=("sync, free of cost",),
    ),
    "host_bound_norms": Expected(
        "many small layers, Adam one by one, and 162 norms read on the host in each step: both trouble the step",
        rf"{SYNC}|{LATE}", never=rf"{RANKS}|{INPUT}|{CLEAN}|TO-I002", troubles=("sync", "host"),
    ),
    "gc_pause": Expected(
        "many small layers, Adam one by one, and a gc.collect() of a large heap in every fourth step",
        rf"{LATE}|{LONG}", never=rf"{RANKS}|{INPUT}|{CLEAN}|TO-I002", troubles=("host", "pauses"),
    ),
    "empty_cache": Expected(
        "empty_cache() and three synchronize() in each step: memory is asked of the driver again each time",
        rf"TO-M005|{SYNC}|cudaMalloc|{STARVES}", never=rf"{RANKS}|{INPUT}|✔|TO-I002", troubles=("allocator", "sync"),
    ),
    "conv_scaler": Expected(
        "convolutions in fp16, bound by the GPU; GradScaler reads one number in each step, as it must",
        CLEAN, never=rf"{RANKS}|{ALARM}|{INPUT}|TO-I002|{STARVES}",
    ),
    "fp8_products": sound("products of matrices, fp8 and bf16, back to back: no step, no training", "optimizer alone"),
    "two_streams": sound("a GPT and its teacher on two streams, bound by the GPU; kernels may overlap"),
    "embedding_tables": sound("embedding tables with a dense Adam, bound by the GPU's memory, in the optimizer"),
    "loader_main": Expected(
        "pictures made in the main process, 64 a batch: the GPU waits for input",
        INPUT + "|TO-I002", never=rf"{RANKS}|{CLEAN}", troubles=("input",),
    ),
    "loader_workers_item": Expected(
        "two workers that fall behind: the GPU waits for input; loss and accuracy are read too, at little cost",
        INPUT + "|TO-I002", never=rf"{RANKS}|{CLEAN}", troubles=("input", "sync"),
    ),
    "loader_tiny": Expected(
        "small layers that the host launches late, and pictures made in the main process; no step is marked",
        rf"{INPUT}|TO-I002|{LATE}", never=rf"{RANKS}|{CLEAN}", troubles=("input", "host"),
    ),
    "pageable": Expected(
        "64 MiB of pageable memory copied in each step: the copy is exposed, nothing else runs meanwhile",
        r"copie|copy|memcpy|Memcpy", never=rf"{RANKS}|✔|TO-I002", troubles=("copies",),
    ),
    "cpu_adam": Expected(
        "gradients copied to the host, Adam computed there, weights copied back: the GPU waits for that",
        rf"{LATE}|{SYNC}|copie", never=rf"{RANKS}|{CLEAN}|TO-I002", troubles=("host's optimizer", "copies"),
    ),
    "gan": Expected(
        "two small networks and optimizers, pictures made in the main process, three .item() a step",
        rf"{INPUT}|TO-I002|{LATE}|{SYNC}", never=rf"{RANKS}|{CLEAN}", troubles=("input", "sync"),
    ),
    "evaluations": Expected(
        "batches made in the main process; behind each third step ten batches of evaluation and a checkpoint",
        rf"{INPUT}|TO-I002|{LONG}", never=rf"{RANKS}|{CLEAN}", troubles=("input", "evaluation", "checkpoint"),
    ),
    "predictions": Expected(
        "inference: a pageable batch copied in, an answer copied out, in turn with the kernels; no step, no optimizer",
        rf"copie|copy|{SYNC}|{LATE}", never=rf"{RANKS}|✔|optimizer alone", troubles=("copies", "sync"),
    ),
    "stranger": Expected(
        "a GPT while another process computes on the GPU: kernels take longer; of one trace that cannot be told",
        CLEAN, never=rf"{RANKS}|{INPUT}|{LATE}|{SYNC}", troubles=("another process",),
    ),
    "cold_start": Expected(
        "convolutions from their first step on: the first sets up the libraries; pictures made in the main process",
        rf"{LONG}|{INPUT}|TO-I002|typical step", never=RANKS, troubles=("a cold step", "input"),
    ),
    "hf_generate": Expected(
        "generate() of one prompt, token by token: the host launches small kernels late; no step is marked",
        LATE, never=rf"{RANKS}|{INPUT}|{CLEAN}|optimizer alone", troubles=("host",),
    ),
    "hf_trainer": Expected(
        "HF's Trainer: a collator of 30 ms in the main process, the loss read in each step",
        rf"{INPUT}|TO-I002", never=rf"{RANKS}|{CLEAN}", troubles=("input", "sync"),
    ),
    "accelerate": sound("accelerate, a GPT in bf16, bound by the GPU; prof.step() for each micro-batch of two", LONG),
    "lightning": Expected(
        "Lightning: pictures made in the main process",
        rf"{INPUT}|TO-I002", never=rf"{RANKS}|{CLEAN}", troubles=("input",),
    ),
    "compile_reduce_overhead": sound("a compiled GPT in CUDA graphs: the GPU waits for no single launches", STARVES),
    "compile_default": sound("a compiled GPT, bound by the GPU; no step marked"),
    "compile_again": Expected(
        "a small compiled GPT, whose recorded third step has another length: it compiles again, for seconds",
        r"compil", never=rf"{RANKS}|{INPUT}|✔", troubles=("recompilation",),
    ),
}  # fmt: skip


def set_aside(name: str, among: Iterable[str] = EXPECTED) -> bool:
    """Whether it belongs to the half of its set that is looked at last: by a checksum of its name."""
    ordered = sorted(among, key=lambda one: hashlib.sha256(one.encode()).hexdigest())
    return name in ordered[: len(ordered) // 2]
