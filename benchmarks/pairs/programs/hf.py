"""Hugging Face's Trainer: a small BERT, accumulation over two batches, evaluation, a callback."""

import sys
import time

import torch
from own import options, tell
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        self.rows = torch.randint(0, 500, (count, 48), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.rows[index], "labels": self.rows[index, 0] % 2}


class Dashboard(TrainerCallback):
    """Draws and sends a figure after each step, on the main process only."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def send_figure(self) -> None:
        time.sleep(self.seconds)

    def on_step_end(self, args, state, control, **_):
        if self.seconds and state.is_world_process_zero:
            self.send_figure()


def main() -> None:
    given = options(eval_each=0, dashboard=0.0, out="/tmp/hf")
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=500, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256
    )
    model = BertForSequenceClassification(config)
    args = TrainingArguments(
        given.out, per_device_train_batch_size=8, gradient_accumulation_steps=2, max_steps=given.steps, use_cpu=True,
        eval_strategy="steps" if given.eval_each else "no", eval_steps=given.eval_each or None, logging_steps=5,
        save_strategy="no", report_to=[], disable_tqdm=True, per_device_eval_batch_size=16, seed=0,
    )  # fmt: skip
    trainer = Trainer(
        model, args, train_dataset=Texts(2000), eval_dataset=Texts(320), callbacks=[Dashboard(given.dashboard)]
    )
    trainer.train()
    tell(trainer.state.global_step, model)


if __name__ == "__main__":
    sys.exit(main())
