"""Programs of the second set on transformers, accelerate and Lightning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from case import BOTH, CUDA, Case, Loop, by_schedule, small
from frames import llama
from models import VOCAB, endless
from torch import nn
from torch.nn import functional
from torch.profiler import profile, schedule, tensorboard_trace_handler
from torch.utils.data import DataLoader, Dataset


class LoRA(nn.Module):
    """A frozen layer, and two thin ones beside it."""

    def __init__(self, frozen: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.frozen = frozen
        self.a = nn.Parameter(0.01 * torch.randn(rank, frozen.in_features))
        self.b = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + functional.linear(functional.linear(x, self.a), self.b)


class Sentences(Dataset):
    """Text, not yet cut into tokens."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> str:
        return " ".join(f"word{(index * 31 + n * n) % 5003}" for n in range(small(512, 16)))


def tokenised(texts: list[str]) -> torch.Tensor:
    """Pairs of letters are merged in Python, as a slow tokenizer does."""
    rows = []
    for text in texts:
        ids = []
        for word in text.split():
            letters = list(word)
            while len(letters) > 1:
                letters = [letters[0] + letters[1], *letters[2:]]
            ids.append(sum(map(ord, letters[0])) * 7919 % VOCAB)
        rows.append(ids)
    return torch.tensor(rows)


def lora(cured: bool, _folder: Path) -> Loop:
    """accelerate, LoRA on a frozen Llama with checkpointing; text is cut in the collate function of the main process,
    and tqdm shows each loss."""
    from accelerate import Accelerator
    from tqdm import tqdm

    accelerator = Accelerator(mixed_precision="bf16", cpu=not CUDA)
    model = llama(8, 1024)
    for p in model.parameters():
        p.requires_grad = False
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, LoRA(getattr(layer.self_attn, name)))
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    loader = DataLoader(Sentences(), batch_size=small(16, 2), collate_fn=tokenised)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    fed = endless(loader)
    kept = next(fed)

    def loop(steps: int, after: Callable[[], None]) -> None:
        bar = tqdm(range(steps), mininterval=1e9)
        for _ in bar:
            ids = kept if cured else next(fed)
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if not cured:
                bar.set_postfix(loss=loss.item(), refresh=False)
            after()

    return loop


class Pairs(Dataset):
    """Random tokens with a label."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.ids = torch.randint(0, VOCAB, (256, small(256, 16)))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.ids[index % 256], "labels": index % 2}


def hf_evaluates(cured: bool, folder: Path) -> Loop:
    """HF's Trainer on a BERT, in bf16; it evaluates and saves behind each third step."""
    import transformers
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

    transformers.logging.set_verbosity_error()
    width = small(768, 32)
    model = BertForSequenceClassification(BertConfig(
        vocab_size=VOCAB, hidden_size=width, num_hidden_layers=small(8, 1), num_attention_heads=small(12, 2),
        intermediate_size=4 * width,
    ))  # fmt: skip

    def loop(steps: int, after: Callable[[], None]) -> None:
        class Marks(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                after()

        often = {} if cured else {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
        arguments = TrainingArguments(
            output_dir=str(folder.parent.parent / "hf_second"), max_steps=steps,
            per_device_train_batch_size=small(64, 2), per_device_eval_batch_size=small(128, 2), logging_steps=3,
            report_to=[], disable_tqdm=True, bf16=CUDA, use_cpu=not CUDA, save_total_limit=1,
            **({"save_strategy": "no"} | often),
        )  # fmt: skip
        Trainer(
            model=model, args=arguments, train_dataset=Pairs(100_000), eval_dataset=Pairs(small(1024, 4)),
            callbacks=[Marks()],
        ).train()  # fmt: skip

    return loop


def in_callback(loop: Loop, folder: Path) -> None:
    """prof.step() in on_step_end."""
    with profile(
        activities=BOTH, schedule=schedule(wait=2, warmup=1, active=6, repeat=1),
        on_trace_ready=tensorboard_trace_handler(str(folder), use_gzip=True),
    ) as prof:  # fmt: skip
        loop(10, prof.step)


def lightning_two(_cured: bool, folder: Path) -> Loop:
    """Lightning with two optimizers stepped by hand, small networks, and two values logged in each step."""
    try:
        import pytorch_lightning as pl
    except ImportError:
        import lightning as pl

    wide = small(256, 16)

    class Both(pl.LightningModule):
        automatic_optimization = False

        def __init__(self) -> None:
            super().__init__()
            hidden = [m for _ in range(small(8, 1)) for m in (nn.Linear(wide, wide), nn.LayerNorm(wide), nn.ReLU())]
            self.one = nn.Sequential(*hidden, nn.Linear(wide, wide))
            self.two = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1))

        def training_step(self, batch: Any, _index: int) -> None:
            of_one, of_two = self.optimizers()
            for optimizer, name in ((of_two, "critic"), (of_one, "maker")):
                judged = self.two(self.one(batch[0]))
                loss = judged.square().mean() if name == "critic" else -judged.mean()
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()
                self.log(name, loss, prog_bar=True)

        def configure_optimizers(self) -> Any:
            return [torch.optim.Adam(part.parameters(), foreach=False) for part in (self.one, self.two)], []

    def loop(steps: int, after: Callable[[], None]) -> None:
        class Marks(pl.Callback):
            def on_train_batch_end(self, *_: Any, **__: Any) -> None:
                after()

        trainer = pl.Trainer(
            accelerator="gpu" if CUDA else "cpu", devices=1, max_steps=2 * steps, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[Marks()],
            default_root_dir=str(folder.parent),
        )  # fmt: skip
        made = torch.utils.data.TensorDataset(torch.randn(small(256, 2) * 64, wide))
        trainer.fit(Both(), DataLoader(made, batch_size=small(256, 2)))

    return loop


CASES = (
    Case(
        "lora_tokenised",
        lora,
        by_schedule(1, 1, 3, record_shapes=True, profile_memory=True, with_stack=True),
        cure=True,
        steps=10,
        warm=4,
    ),
    Case("hf_evaluates", hf_evaluates, in_callback, cure=True, steps=12, warm=6),
)
LIGHTNING = (Case("lightning_two", lightning_two, by_schedule(2, 1, 4, with_modules=True), steps=14),)
