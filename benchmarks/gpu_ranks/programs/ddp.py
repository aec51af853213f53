"""Programs of train.py under DDP."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from case import CUDA, DEVICE, Case, Loop, by_schedule, small
from models import GPT, tokens
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ROWS = 384  # of a batch: the GPU computes for some tens of ms
LATE_S = 0.060


def few_weights(layers: int = 4) -> GPT:
    """So that a step computes for long and sends little: ranks exchange data over sockets here."""
    torch.manual_seed(0)
    return GPT(layers, 256, 4).to(DEVICE)


def busy(seconds: float) -> None:
    """Python code of the host that takes so long."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sorted(range(500), key=str)


def ddp(
    late: dict[int, float] | None = None,
    rows: dict[int, int] | None = None,
    evaluates: int | None = None,
    accumulate: int = 1,
    zero: bool = False,
    objects: bool = False,
    hook: bool = False,
    bucket_mb: float = 25.0,
    free: bool = False,
) -> Callable[[bool, Path], Loop]:
    """A GPT under DDP. Cured: without its troubles; of `free`, without the exchange of gradients.

    late: seconds of Python code before each step, by rank. rows: of the batch, by rank. evaluates: the rank that
    evaluates three batches in every third step. zero: ZeroRedundancyOptimizer. objects: metrics of all ranks by
    all_gather_object in each step. bucket_mb, hook: of DDP.
    """  # fmt: skip

    def make(cured: bool, _folder: Path) -> Loop:
        slow = 0.0 if cured else (late or {}).get(RANK, 0.0)
        many = ROWS if cured else (rows or {}).get(RANK, ROWS)
        model = DistributedDataParallel(few_weights(), bucket_cap_mb=25.0 if cured else bucket_mb)
        if hook:
            model.register_comm_hook(None, bf16_compress_hook)
        if zero:
            optimizer: Any = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        ids = tokens(many // accumulate, 256)
        at = 0

        def micro(sync: bool) -> torch.Tensor:
            with nullcontext() if sync and not (free and cured) else model.no_sync():
                with torch.autocast(DEVICE.type, torch.bfloat16):
                    loss = model(ids)
                loss.backward()
            return loss

        def loop(steps: int, after: Callable[[], None]) -> None:
            nonlocal at
            for _ in range(steps):
                if slow:
                    with record_function("tokenize"):
                        busy(slow)
                for number in range(accumulate):
                    loss = micro(number == accumulate - 1)
                optimizer.step()
                optimizer.zero_grad()
                if objects and not cured:
                    told: list[Any] = [None] * RANKS
                    dist.all_gather_object(told, {"rank": RANK, "loss": loss.item()})
                at += 1
                if evaluates == RANK and not cured and at % 3 == 0:
                    with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
                        for _ in range(3):
                            model.module(ids).item()
                after()

        return loop

    return make


def by_rank(told: dict[int, dict[str, Any]], other: dict[str, Any]) -> Callable[[Loop, Path], None]:
    """A schedule whose options differ from rank to rank."""
    return by_schedule(**told.get(RANK, other))


def rank_0_alone(loop: Loop, folder: Path) -> None:
    """As many do: only rank 0 has a profiler. The other takes as many steps."""
    if RANK == 0:
        by_schedule(1, 1, 4)(loop, folder)
    else:
        loop(7, lambda: None)


def shifted(loop: Loop, folder: Path) -> None:
    """Rank 1's window begins two steps later."""
    wait_ = 1 if RANK == 0 else 3
    from torch.profiler import profile, schedule, tensorboard_trace_handler

    with profile(
        schedule=schedule(wait=wait_, warmup=1, active=4, repeat=1),
        on_trace_ready=tensorboard_trace_handler(str(folder), worker_name=f"rank{RANK}"),
    ) as prof:
        loop(10, prof.step)


def hf_ddp(cured: bool, folder: Path) -> Loop:
    """HF's Trainer under DDP: a collator of 40 ms on all ranks, and a loss that is logged in each step."""
    import transformers
    from frames import Texts, llama
    from transformers import Trainer, TrainerCallback, TrainingArguments

    transformers.logging.set_verbosity_error()

    def collate(made: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        busy(0.0 if cured else 0.040)
        return {key: torch.stack([row[key] for row in made]) for key in made[0]}

    model = llama(4, 256)

    def loop(steps: int, after: Callable[[], None]) -> None:
        class Marks(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                after()

        arguments = TrainingArguments(
            output_dir=str(folder.parent.parent / "hf_out"), max_steps=steps, per_device_train_batch_size=small(128, 2),
            logging_steps=1000 if cured else 1, save_strategy="no", report_to=[], disable_tqdm=True, bf16=CUDA,
            use_cpu=not CUDA,
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=Texts(), data_collator=collate, callbacks=[Marks()]).train()

    return loop


_STACK = {"with_stack": True, "record_shapes": True, "profile_memory": True}
CASES: tuple[Case, ...] = (
    Case("ddp_healthy", ddp(free=True), by_schedule(1, 1, 4), cure=True),
    Case("ddp_again", ddp(), by_schedule(1, 1, 4)),
    Case("ddp_accumulates", ddp(accumulate=4), by_schedule(1, 1, 3)),
    Case("late_host", ddp(late={1: LATE_S}), by_schedule(1, 1, 4), cure=True),
    Case("late_host_rank_0_traced", ddp(late={1: 2 * LATE_S}), rank_0_alone, cure=True),
    Case("uneven_batch", ddp(rows={1: 2 * ROWS}), by_schedule(1, 1, 4), cure=True),
    Case("rank_0_evaluates", ddp(evaluates=0), by_schedule(1, 1, 6), cure=True, steps=15),
    Case("evaluates_and_late", ddp(evaluates=0, late={1: LATE_S}), by_schedule(1, 1, 6), cure=True, steps=15),
    Case(
        "late_and_uneven", ddp(late={1: LATE_S}, rows={0: ROWS * 3 // 2}), by_schedule(1, 1, 4, with_stack=True),
        cure=True,
    ),
    Case("windows_shifted", ddp(), shifted),
    Case("stack_on_rank_0", ddp(), by_rank({0: _STACK}, {})),
    Case("tiny_buckets", ddp(bucket_mb=0.3), by_schedule(1, 1, 3), cure=True),
    Case("zero_and_objects", ddp(zero=True, objects=True), by_schedule(1, 1, 4), cure=True),
    Case("hook", ddp(hook=True), by_schedule(2, 2, 3, record_shapes=True)),
    Case("hf_ddp", hf_ddp, by_schedule(2, 1, 4), cure=True),
)  # fmt: skip
