"""Programs of the third set on transformers, accelerate and Lightning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from case import BOTH, CUDA, Case, Loop, nothing, small
from frames import Texts
from models import VOCAB, convolutions, endless
from torch.nn import functional
from torch.profiler import profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Captions(Dataset):
    """Pictures, made small by PIL, with words."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        from PIL import Image

        side = small(640, 64)
        made = np.full((side, side, 3), index % 255, np.uint8)
        picture = Image.fromarray(made).resize((small(224, 32),) * 2, Image.Resampling.BICUBIC)
        ids = torch.randint(3, small(1000, 50), (small(64, 8),), generator=torch.Generator().manual_seed(index))
        return {"pixel_values": torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255, "input_ids": ids}


def captions(cured: bool, folder: Path) -> Loop:
    """CLIP under accelerate: pictures are made small in the main process, and loss and accuracy gathered and read."""
    from accelerate import Accelerator, ProfileKwargs
    from transformers import CLIPConfig, CLIPModel

    options = ProfileKwargs(
        activities=["cpu", "cuda"] if CUDA else ["cpu"], with_flops=True, output_trace_dir=str(folder),
        schedule_option={"wait": 1, "warmup": 1, "active": 3, "repeat": 1, "skip_first": 1},
    )  # fmt: skip
    accelerator = Accelerator(mixed_precision="bf16", kwargs_handlers=[options], cpu=not CUDA)
    width, heads, layers = small(512, 32), small(8, 2), small(6, 1)
    shape = {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
    }
    model = CLIPModel(CLIPConfig(
        text_config={**shape, "vocab_size": small(1000, 50), "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0},
        vision_config={**shape, "image_size": small(224, 32), "patch_size": 16}, projection_dim=width,
    ))  # fmt: skip
    loader = DataLoader(Captions(), batch_size=small(48, 2))
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-4), loader)
    fed = endless(loader)
    kept = next(fed)
    seen: list[float] = []

    def loop(steps: int, after: Callable[[], None]) -> None:
        for _ in range(steps):
            batch = kept if cured else next(fed)
            told = model(**batch, return_loss=True)
            accelerator.backward(told.loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if not cured:
                right = told.logits_per_image.argmax(-1) == torch.arange(
                    len(told.logits_per_image), device=told.loss.device
                )
                seen.append(accelerator.gather_for_metrics(right).float().mean().item())
                seen.append(accelerator.gather(told.loss.detach()).mean().item())
            after()

    loop.profile = accelerator.profile  # type: ignore[attr-defined]
    return loop


def accelerates(loop: Loop, _folder: Path) -> None:
    """accelerator.profile()."""
    with loop.profile() as prof:  # type: ignore[attr-defined]
        loop(8, prof.step)


def accumulates(_cured: bool, folder: Path) -> Loop:
    """HF's Trainer on a GPT-2 in bf16: four micro-batches a step, two workers, nothing logged."""
    import transformers
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

    transformers.logging.set_verbosity_error()
    model = GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_embd=small(1024, 32), n_layer=small(8, 1), n_head=small(16, 2), n_positions=512,
    ))  # fmt: skip

    def loop(steps: int, after: Callable[[], None]) -> None:
        class Marks(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                after()

        arguments = TrainingArguments(
            output_dir=str(folder.parent.parent / "hf_third"), max_steps=steps, gradient_accumulation_steps=4,
            per_device_train_batch_size=small(24, 2), dataloader_num_workers=small(2, 0), logging_steps=1000,
            save_strategy="no", report_to=[], disable_tqdm=True, bf16=CUDA, use_cpu=not CUDA, optim="adamw_torch_fused",
        )  # fmt: skip
        Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=[Marks()]).train()

    return loop


def in_trainer(loop: Loop, folder: Path) -> None:
    """prof.step() in on_step_end, the first steps skipped, two recorded."""
    with profile(
        activities=BOTH, schedule=schedule(skip_first=3, wait=1, warmup=1, active=2, repeat=1),
        on_trace_ready=tensorboard_trace_handler(str(folder)),
    ) as prof:  # fmt: skip
        loop(8, prof.step)


def averaged(cured: bool, folder: Path) -> Loop:
    """Lightning; a callback keeps a running mean of all weights in the host's memory, copied over tensor by tensor in
    each step; gradients' norms are logged as numbers."""
    try:
        import pytorch_lightning as pl
    except ImportError:
        import lightning as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = convolutions(256, 10)

        def training_step(self, batch: Any, _index: int) -> torch.Tensor:
            loss = functional.cross_entropy(self.net(batch[0]), batch[1])
            if not cured:
                self.log("loss", loss.item(), prog_bar=True)
            return loss

        def on_before_optimizer_step(self, _optimizer: Any) -> None:
            if not cured:
                norms = [p.grad.norm().item() for p in self.parameters() if p.grad is not None]
                self.log("norm", max(norms))

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    class Mean(pl.Callback):
        def __init__(self) -> None:
            self.kept: dict[str, torch.Tensor] = {}

        def on_train_batch_end(self, _trainer: Any, module: Any, *_: Any, **__: Any) -> None:
            for name, value in () if cured else module.state_dict().items():
                now = value.detach().float().cpu()
                self.kept[name] = self.kept.get(name, now).mul(0.999).add(now, alpha=1e-3)

    profiler: list[Any] = []
    side = small(96, 16)

    def loop(steps: int, after: Callable[[], None]) -> None:
        class Marks(pl.Callback):
            def on_train_batch_end(self, *_: Any, **__: Any) -> None:
                after()

        trainer = pl.Trainer(
            accelerator="gpu" if CUDA else "cpu", devices=1, max_steps=steps, precision="bf16-mixed", logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[Mean(), Marks()], default_root_dir=str(folder.parent),
            profiler=profiler[0] if profiler else None,
        )  # fmt: skip
        made = TensorDataset(torch.rand(small(512, 8), 3, side, side), torch.zeros(small(512, 8)).long())
        trainer.fit(Module(), DataLoader(made, batch_size=small(64, 2), num_workers=small(2, 0), pin_memory=CUDA))

    loop.profiler = profiler  # type: ignore[attr-defined]
    return loop


def lightnings(loop: Loop, folder: Path) -> None:
    """PyTorchProfiler with a schedule."""
    try:
        from pytorch_lightning.profilers import PyTorchProfiler
    except ImportError:
        from lightning.pytorch.profilers import PyTorchProfiler

    loop.profiler.append(  # type: ignore[attr-defined]
        PyTorchProfiler(dirpath=str(folder), filename="perf", schedule=schedule(wait=2, warmup=1, active=3, repeat=1))
    )
    loop(9, nothing)


CASES = (
    Case("clip_accelerated", captions, accelerates, cure=True, steps=8, warm=3),
    Case("hf_accumulates", accumulates, in_trainer, steps=8, warm=3),
    Case("lightning_mean", averaged, lightnings, cure=True, steps=10, warm=4),
)
