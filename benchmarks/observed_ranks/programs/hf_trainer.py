"""HF's Trainer on a random Llama: DDP, accumulation over two batches, the loss logged every five steps."""

import os
import tempfile
import time

import torch
import transformers
from parts import CUDA, RANK, VOCAB, WIDTH, Tokens, options, small
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class Pad:
    """Makes a batch; --slow-pad: rank 1's takes so much longer."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds if RANK == 1 else 0.0

    def __call__(self, rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        self.pad_rows()
        ids = torch.stack(rows)
        return {"input_ids": ids, "labels": ids}

    def pad_rows(self) -> None:
        if self.seconds:
            until = time.perf_counter() + self.seconds
            while time.perf_counter() < until:
                sorted(range(500), key=str)


def main() -> None:
    given = options(slow_pad=0.0, eval_each=0)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=3 * WIDTH, num_hidden_layers=small(6, 2), num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCAB, max_position_embeddings=512,
    )  # fmt: skip
    each = given.eval_each
    args = TrainingArguments(
        tempfile.mkdtemp(), max_steps=given.steps, per_device_train_batch_size=small(32, 2), report_to=[],
        gradient_accumulation_steps=2, bf16=CUDA, use_cpu=not CUDA, logging_steps=5, save_strategy="no",
        disable_tqdm=True, dataloader_num_workers=0 if given.slow_pad else 2, eval_steps=each or None,
        eval_strategy="steps" if each else "no", per_device_eval_batch_size=small(32, 2),
    )  # fmt: skip
    Trainer(
        LlamaForCausalLM(config), args, data_collator=Pad(given.slow_pad), train_dataset=Tokens(),
        eval_dataset=Tokens(small(1024, 48)),
    ).train()  # fmt: skip


if __name__ == "__main__":
    main()
