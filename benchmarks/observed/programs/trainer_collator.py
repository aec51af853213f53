"""Hugging Face's Trainer: a Llama on documents, evaluation and a checkpoint every 30 steps.

Planted, and left out with --tidy: a collator that tokenizes in Python, in the main process; checkpoints with all
optimizer state every 15 steps instead of one at the end.
"""

import random

import torch
from own import CUDA, TIDY, same_each_time, tell, training_begins
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

WIDTH, LAYERS, LENGTH, BATCH, STEPS, VOCABULARY = (512, 8, 512, 24, 91, 8192) if CUDA else (64, 2, 64, 4, 61, 512)
WORDS = ["the", "of", "gradient", "loss", "rank", "step", "a", "profiler", "kernel", "wait", "stream", "copy"]


class Documents(Dataset):
    """Text, and its tokens where they were made before."""

    def __init__(self, count: int, seed: int) -> None:
        drawn = random.Random(seed)
        self.texts = [" ".join(drawn.choices(WORDS, k=LENGTH) * 16) for _ in range(count)]
        self.tokens = [torch.tensor(tokenize(text)) for text in self.texts] if TIDY else None

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> object:
        return self.tokens[index] if self.tokens else self.texts[index]


def tokenize(text: str) -> list[int]:
    """A hash for each word, letter by letter."""
    tokens = []
    for word in text.split():
        value = 7
        for letter in word:
            value = (value * 31 + ord(letter)) % VOCABULARY
        tokens.append(value)
    return tokens[:LENGTH]


def collate(rows: list) -> dict:
    tokens = torch.stack([row if TIDY else torch.tensor(tokenize(row)) for row in rows])
    return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    same_each_time()
    sizes = {"hidden_size": WIDTH, "intermediate_size": 3 * WIDTH, "num_hidden_layers": LAYERS}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, num_attention_heads=8, num_key_value_heads=8, **sizes))
    arguments = TrainingArguments(
        output_dir="out_trainer", max_steps=STEPS, per_device_train_batch_size=BATCH, bf16=CUDA, use_cpu=not CUDA,
        per_device_eval_batch_size=BATCH, eval_strategy="steps", eval_steps=30, logging_steps=10, report_to=[],
        save_strategy="no" if TIDY else "steps", save_steps=15, save_total_limit=1, disable_tqdm=True,
        ddp_backend=None if CUDA else "gloo", dataloader_num_workers=0,
    )  # fmt: skip
    trainer = Trainer(
        model, arguments, train_dataset=Documents(40 * BATCH, 1), eval_dataset=Documents(4 * BATCH, 2),
        data_collator=collate,
    )  # fmt: skip
    training_begins()
    result = trainer.train()
    tell(trainer.state.global_step, model, f"loss {result.training_loss:.6f}")


if __name__ == "__main__":
    main()
