"""HF's Trainer on a random Llama of 12 layers: accumulation over two batches. Nothing is planted."""

import argparse
import os
import tempfile

import torch
import transformers
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

CUDA = torch.cuda.is_available()
WIDTH, LAYERS, HEADS, VOCABULARY, LENGTH, BATCH = (1024, 12, 16, 32000, 1024, 8) if CUDA else (64, 2, 4, 256, 32, 2)


class Tokens(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers.logging.set_verbosity_error()
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=11 * WIDTH // 4, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2, vocab_size=VOCABULARY, max_position_embeddings=LENGTH,
    )  # fmt: skip
    args = TrainingArguments(
        tempfile.mkdtemp(), max_steps=given.steps, per_device_train_batch_size=BATCH, report_to=[],
        gradient_accumulation_steps=2, bf16=CUDA, use_cpu=not CUDA, logging_steps=10, save_strategy="no",
        disable_tqdm=True, dataloader_num_workers=2,
    )  # fmt: skip
    Trainer(LlamaForCausalLM(config), args, train_dataset=Tokens()).train()


if __name__ == "__main__":
    main()
