"""Fine-tuning with Hugging Face's Trainer: copy this file and put your model and data in.

    pip install 'traceops-torch[huggingface]'
    traceops run --nproc 2 -- python runners/huggingface.py

The model has random weights and the text is made in code; --model NAME loads a pretrained causal language model.
The callback marks the Trainer's steps, so gradient accumulation is understood.
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from traceops.integrations.huggingface import TraceopsCallback


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences that count up from a number: the next token is always known."""

    def __init__(self, vocabulary: int, length: int = 64) -> None:
        self._vocabulary, self._length = vocabulary, length

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.arange(index, index + self._length) % self._vocabulary
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a pretrained model's name or folder; random weights if not given")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4, help="per rank")
    parser.add_argument("--grad-accum", type=int, default=1)
    parser.add_argument("--out", default="profile/huggingface", help="where the capture goes without traceops run")
    args = parser.parse_args()

    if args.model:
        model = AutoModelForCausalLM.from_pretrained(args.model)
    else:
        model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=2, n_head=2))
    cuda = torch.cuda.is_available()
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir="checkpoints",
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            gradient_accumulation_steps=args.grad_accum,
            bf16=cuda,
            dataloader_num_workers=2,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        ),
        train_dataset=Counting(model.config.vocab_size),
        callbacks=[TraceopsCallback(args.out)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
