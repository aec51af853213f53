"""HF's Trainer on a Llama with LoRA by hand and checkpointed activations.

Planted, and left out with --tidy: torch_empty_cache_steps=4, and an evaluation every 20 steps.
"""

import tempfile

import torch
import transformers
from own import CUDA, TIDY, same_each_time, tell, training_begins
from torch import nn
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

WIDTH, LAYERS, LENGTH, BATCH, STEPS, CHECKS = (1024, 10, 1024, 16, 80, 160) if CUDA else (32, 2, 16, 2, 60, 8)


class LoRA(nn.Module):
    def __init__(self, frozen: nn.Linear, rank: int = 8) -> None:
        super().__init__()
        self.frozen = frozen
        self.a = nn.Parameter(0.01 * torch.randn(rank, frozen.in_features))
        self.b = nn.Parameter(torch.zeros(frozen.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + nn.functional.linear(nn.functional.linear(x, self.a), self.b)


class Tokens(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count
        self.rows = torch.randint(0, 8192, (64, LENGTH), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index % 64], "labels": self.rows[index % 64]}


class Begins(TrainerCallback):
    def on_train_begin(self, *_: object, **__: object) -> None:
        training_begins()


def main() -> None:
    transformers.logging.set_verbosity_error()
    same_each_time()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192, hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=LAYERS,
            num_attention_heads=8, num_key_value_heads=8,
        )
    )  # fmt: skip
    model.requires_grad_(False)
    for layer in model.model.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, LoRA(getattr(layer.self_attn, name)))
    planted = {} if TIDY else {"torch_empty_cache_steps": 4, "eval_strategy": "steps", "eval_steps": 20}
    arguments = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=STEPS, per_device_train_batch_size=BATCH,
        per_device_eval_batch_size=BATCH, gradient_checkpointing=True, logging_steps=10, save_strategy="no",
        gradient_checkpointing_kwargs={"use_reentrant": False}, report_to=[], disable_tqdm=True, bf16=CUDA,
        use_cpu=not CUDA, learning_rate=1e-3, dataloader_num_workers=0, **planted,
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Tokens(100_000), eval_dataset=Tokens(CHECKS), callbacks=[Begins()]
    )
    result = trainer.train()
    tell(STEPS, model, f"loss {result.training_loss:.6f}")


if __name__ == "__main__":
    main()
