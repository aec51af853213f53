"""Programs of the third set whose data, tables or weights are on the host, or whose memory is asked for each step."""

from __future__ import annotations

import gc
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from case import BOTH, CUDA, DEVICE, Case, Loop, around, by_schedule, small
from models import GPT, convolutions, endless, tokens, wide
from second_models import Tower
from torch import nn
from torch.nn import functional
from torch.profiler import profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, Dataset


class Photographs(Dataset):
    """Files of photographs, opened and cut to one size, as PIL does it."""

    def __init__(self) -> None:
        from PIL import Image

        side = small(384, 32)
        self.files = []
        for number in range(8):
            drawn = np.random.default_rng(number).random((side // 8, side // 8, 3)) * 255
            picture = Image.fromarray(drawn.astype(np.uint8)).resize((side, side))
            file = io.BytesIO()
            picture.save(file, "JPEG")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        side = small(224, 16)
        picture = Image.open(io.BytesIO(self.files[index % 8])).convert("RGB")
        picture = picture.rotate(index % 20 - 10).resize((side, side), Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255, index % 100


def photographs(cured: bool, _folder: Path) -> Loop:
    """Two workers open photographs too slowly, and batches of 58 MB are copied from memory that is not pinned."""
    model = convolutions(128, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    many = small(96, 2)
    fed = endless(DataLoader(Photographs(), batch_size=many, num_workers=2, persistent_workers=True))
    kept = [part.to(DEVICE) for part in next(fed)]

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            x, y = kept if cured else [part.to(DEVICE) for part in next(fed)]
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            after()

    return loop


def compressed(loop: Loop, folder: Path) -> None:
    """tensorboard_trace_handler with use_gzip."""
    with profile(
        activities=BOTH, schedule=schedule(skip_first=2, wait=1, warmup=1, active=4, repeat=1),
        on_trace_ready=tensorboard_trace_handler(str(folder), use_gzip=True),
    ) as prof:  # fmt: skip
        loop(9, prof.step)


def host_tables(cured: bool, _folder: Path) -> Loop:
    """Tables of embeddings in the host's memory: looked up there, copied over, gradients copied back, updated there by
    SparseAdam; cured: on the device."""
    rows, width, tables, many = small(200_000, 100), 64, 8, small(8192, 8)
    where = DEVICE if cured else torch.device("cpu")
    bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=True) for _ in range(tables)).to(where)
    top = nn.Sequential(
        nn.Linear(tables * width, small(2048, 16)), nn.ReLU(), nn.Linear(small(2048, 16), small(2048, 16)), nn.ReLU(),
        nn.Linear(small(2048, 16), 1),
    ).to(DEVICE)  # fmt: skip
    optimizers = [torch.optim.SparseAdam(list(bags.parameters()), lr=1e-3), torch.optim.Adam(top.parameters())]
    ids = torch.randint(0, rows, (tables, many, 4), device=where)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            seen = torch.cat([bag(one) for bag, one in zip(bags, ids, strict=True)], 1).to(DEVICE)
            told = top(seen)[:, 0]
            loss = functional.binary_cross_entropy_with_logits(told, torch.ones_like(told))
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            after()

    return loop


def streamed_weights(cured: bool, _folder: Path) -> Loop:
    """Inference of a model whose weights wait in pinned memory; each layer's are copied over just before it, on the
    stream of the kernels; cured: they stay on the device."""
    width, layers, many = small(4096, 32), small(12, 2), small(1024, 4)
    made = [torch.randn(width, width, dtype=torch.bfloat16) * 0.01 for _ in range(layers)]
    weights = [one.to(DEVICE) if cured else one.pin_memory() if CUDA else one for one in made]
    x = torch.randn(many, width, device=DEVICE, dtype=torch.bfloat16)

    def loop(steps: int, after: Callable[[], None]) -> None:
        with torch.inference_mode():
            for _ in range(steps):
                y = x
                for weight in weights:
                    y = y + functional.gelu(functional.linear(y, weight.to(DEVICE, non_blocking=True)))
                after()

    return loop


def confused(cured: bool, _folder: Path) -> Loop:
    """Each step trains one batch and judges three more without gradients, whose answers numpy counts in a table."""
    model = wide(2048, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    x = torch.randn(small(8192, 8), small(2048, 32), device=DEVICE)
    y = torch.randint(0, 10, (small(8192, 8),), device=DEVICE)
    table = np.zeros((10, 10), int)

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            model.train()
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if not cured:
                model.eval()
                with torch.no_grad(), torch.autocast(DEVICE.type, torch.bfloat16):
                    for _ in range(3):
                        guess, true = model(x).argmax(-1).cpu().numpy(), y.cpu().numpy()
                        for a, b in zip(true.tolist(), guess.tolist(), strict=True):
                            table[a, b] += 1
            after()

    return loop


def ragged(cured: bool, _folder: Path) -> Loop:
    """Texts of another length in each step under a limit of memory: the allocator runs out, empties its cache and asks
    the driver again; a batch that does not fit is left out. cured: no limit."""
    tower = Tower(1024, 10, small(512, 16)).to(DEVICE)
    optimizer = torch.optim.AdamW(tower.parameters(), lr=1e-4, fused=CUDA or None)
    drawn = np.random.default_rng(0).integers(small(128, 4), small(1024, 16), 64).tolist()
    many = small(24, 2)
    left_out = [0]

    def one(length: int) -> None:
        x = torch.randn(many, length, small(512, 16), device=DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            loss = tower(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if CUDA and not cured:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        one(max(drawn))
        most = torch.cuda.max_memory_allocated()
        torch.cuda.empty_cache()
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, 1.10 * most / whole))
    at = [0]

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            at[0] += 1
            try:
                one(drawn[at[0] % len(drawn)])
            except torch.OutOfMemoryError:
                left_out[0] += 1
                optimizer.zero_grad(set_to_none=True)
                torch.cuda.empty_cache()
            after()
        if left_out[0]:
            print(f"ragged_lengths: {left_out[0]} batches of {at[0]} left out")

    return loop


def collected(cured: bool, _folder: Path) -> Loop:
    """A GPT that ends each step by del, gc.collect() and empty_cache(), "against running out of memory"."""
    model = GPT(6, 768, 12, again=True).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA or None)
    ids = tokens(24)
    held = [{"row": number, "text": [str(number)]} for number in range(small(300_000, 100))]

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            with torch.autocast(DEVICE.type, torch.bfloat16):
                loss = model(ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            del loss
            if not cured and held:
                gc.collect()
                if CUDA:
                    torch.cuda.empty_cache()
            after()

    return loop


CASES = (
    Case("photographs_pageable", photographs, compressed, cure=True, ahead="cured", steps=8, warm=4),
    Case("host_tables", host_tables, by_schedule(1, 1, 3, with_stack=True), cure=True, steps=8, warm=3),
    Case("streamed_weights", streamed_weights, around(5, "offloaded.json"), cure=True, ahead="cured"),
    Case("judged_each_step", confused, by_schedule(1, 1, 4), cure=True, ahead="cured", steps=8, warm=4),
    Case("collected_emptied", collected, by_schedule(1, 1, 3), cure=True, ahead="cured", steps=8, warm=3),
)
# By itself: it limits the memory of its process.
MEMORY = (Case("ragged_lengths", ragged, by_schedule(12, 1, 5, profile_memory=True), cure=True, steps=16, warm=8),)
