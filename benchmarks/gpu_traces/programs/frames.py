"""Programs of make.py on transformers, accelerate and Lightning, each with that framework's own profiler."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from case import BOTH, CUDA, DEVICE, Case, Loop, around, looped, nothing, small
from models import GPT, VOCAB, Pictures, convolutions, tokens
from torch.nn import functional
from torch.profiler import profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader


def llama(layers: int = 8, width: int = 512) -> Any:
    """A small Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, heads = small(width, 32), small(8, 2)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=width, intermediate_size=3 * width, num_hidden_layers=small(layers, 2),
        num_attention_heads=heads, num_key_value_heads=heads, max_position_embeddings=1024,
    ))  # fmt: skip


class Texts(torch.utils.data.Dataset):
    """Random tokens."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, VOCAB, (small(256, 16),), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def hf_trainer(cured: bool, folder: Path) -> Loop:
    """HF's Trainer: a collator that takes 30 ms on the host, and a loss that is logged (and so read) in each step."""
    import transformers
    from transformers import Trainer, TrainerCallback, TrainingArguments

    transformers.logging.set_verbosity_error()

    def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        until = time.perf_counter() + (0 if cured else 0.030)
        while time.perf_counter() < until:
            sorted(range(1000), key=str)
        return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

    class Reads(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            loss = super().compute_loss(model, inputs, return_outputs, **more)
            if not cured:
                (loss[0] if return_outputs else loss).item()
            return loss

    model = llama(4)

    def loop(steps: int, after: Callable[[], None]) -> None:
        class Marks(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                after()

        arguments = TrainingArguments(
            output_dir=str(folder.parent.parent / "hf_out"), max_steps=steps, per_device_train_batch_size=small(16, 2),
            logging_steps=1000 if cured else 1, save_strategy="no", report_to=[], disable_tqdm=True, bf16=CUDA,
            use_cpu=not CUDA,
        )  # fmt: skip
        Reads(model=model, args=arguments, train_dataset=Texts(), data_collator=collate, callbacks=[Marks()]).train()

    return loop


def hf_profile(loop: Loop, folder: Path) -> None:
    """A callback that calls prof.step(), as in PEFT's and Hugging Face's guides."""
    with profile(
        activities=BOTH, schedule=schedule(skip_first=3, wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=tensorboard_trace_handler(str(folder)), profile_memory=True, with_stack=True, record_shapes=True,
    ) as prof:  # fmt: skip
        loop(10, prof.step)


def accelerated(_cured: bool, folder: Path) -> Loop:
    """accelerate in bf16, accumulation over two batches, its own ProfileKwargs."""
    from accelerate import Accelerator, ProfileKwargs

    options = ProfileKwargs(
        activities=["cpu", "cuda"] if CUDA else ["cpu"], record_shapes=True, output_trace_dir=str(folder),
        schedule_option={"wait": 1, "warmup": 1, "active": 4, "repeat": 1, "skip_first": 2},
    )  # fmt: skip
    accelerator = Accelerator(
        mixed_precision="bf16", gradient_accumulation_steps=2, kwargs_handlers=[options], cpu=not CUDA
    )
    model = GPT(8, 1024)
    loader = DataLoader([tokens(1)[0].cpu() for _ in range(small(640, 8))], batch_size=small(16, 2), shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loader)

    def batches() -> Any:
        while True:
            yield from loader

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _, ids in zip(range(steps), batches(), strict=False):
            with accelerator.accumulate(model):
                loss = model(ids)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            after()

    loop.profile = accelerator.profile  # type: ignore[attr-defined]
    return loop


def accelerate_profile(loop: Loop, _folder: Path) -> None:
    """accelerator.profile()."""
    with loop.profile() as prof:  # type: ignore[attr-defined]
        loop(9, prof.step)


def lightning_trainer(cured: bool, folder: Path) -> Loop:
    """Lightning: pictures made by the DataLoader in the main process, self.log in each step, no profiler yet."""
    try:
        import pytorch_lightning as pl
    except ImportError:
        import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = convolutions(128, 6)

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            loss = functional.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    profiler: list[Any] = []
    made = Pictures(128, 0 if cured else 2)
    if cured:
        kept = [made[i] for i in range(64)]
        made.__class__ = type("Kept", (Pictures,), {"__getitem__": lambda _self, i: kept[i % 64]})

    def loop(steps: int, after: Callable[[], None]) -> None:
        class Marks(pl.Callback):
            def on_train_batch_end(self, *_: Any, **__: Any) -> None:
                after()

        trainer = pl.Trainer(
            accelerator="gpu" if CUDA else "cpu", devices=1, max_steps=steps, precision="bf16-mixed", logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[Marks()],
            default_root_dir=str(folder.parent), profiler=profiler[0] if profiler else None,
        )  # fmt: skip
        trainer.fit(Module(), DataLoader(made, batch_size=small(48, 2)))

    loop.profiler = profiler  # type: ignore[attr-defined]
    return loop


def lightning_profile(loop: Loop, folder: Path) -> None:
    """PyTorchProfiler with its defaults."""
    try:
        from pytorch_lightning.profilers import PyTorchProfiler
    except ImportError:
        from lightning.pytorch.profilers import PyTorchProfiler

    loop.profiler.append(PyTorchProfiler(dirpath=str(folder), filename="profile"))  # type: ignore[attr-defined]
    loop(10, nothing)


def generation(cured: bool, _folder: Path) -> Loop:
    """generate() of a small Llama: one prompt, 24 new tokens, keys and values kept; cured: 16 prompts at once."""
    model = llama(12, 768).to(DEVICE, torch.bfloat16).eval()
    ids = torch.randint(5, VOCAB, (16 if cured else 1, small(64, 8)), device=DEVICE)
    options = {"max_new_tokens": small(24, 4), "min_new_tokens": small(24, 4), "do_sample": False, "pad_token_id": 0}

    def step(_: int) -> None:
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), **options)

    return looped(step)


CASES = (
    Case("hf_generate", generation, around(2, "generate.json"), cure=True, steps=6, warm=2),
    Case("hf_trainer", hf_trainer, hf_profile, cure=True, steps=14),
)
ACCELERATE = (Case("accelerate", accelerated, accelerate_profile, steps=16),)
LIGHTNING = (Case("lightning", lightning_trainer, lightning_profile, cure=True, steps=14),)
