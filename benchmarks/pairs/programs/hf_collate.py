"""Hugging Face's Trainer with a collate function of its own, evaluation each few steps, and a log."""

import tempfile
import time

import torch
from costs import costs, next_step, now
from own import RANK, options, tell
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments


class Reviews(torch.utils.data.Dataset):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(11)
        self.rows = torch.randint(5, 400, (count, 48), generator=generator)
        self.labels = torch.randint(0, 2, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.rows[index], "labels": self.labels[index]}


def clean_html(seconds: float) -> None:
    time.sleep(seconds)


class Collate:
    def __init__(self, given: object) -> None:
        self.given, self.training = given, True

    def __call__(self, rows: list) -> dict:
        if self.training and self.given.clean_rank == RANK and now(self.given, "clean"):
            with costs("clean_html"):
                clean_html(self.given.clean)
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class Turns(TrainerCallback):
    def __init__(self, given: object, collate: Collate) -> None:
        self.given, self.collate = given, collate

    def on_step_end(self, args, state, control, **_):
        next_step()
        each = now(self.given, "eval_each")
        control.should_evaluate = bool(each) and state.global_step % each == 0
        self.collate.training = not control.should_evaluate

    def on_evaluate(self, args, state, control, **_):
        self.collate.training = True


def main() -> None:
    given = options(clean=0.0, clean_rank=1, eval_each=0, eval_rows=192)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=400, hidden_size=96, num_hidden_layers=3, num_attention_heads=4, intermediate_size=192,
        max_position_embeddings=64, num_labels=2,
    )  # fmt: skip
    model, collate = BertForSequenceClassification(config), Collate(given)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, per_device_train_batch_size=8, per_device_eval_batch_size=8, max_steps=given.steps, use_cpu=True,
            save_strategy="no", logging_steps=10, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        callbacks = [Turns(given, collate)]
        Trainer(model, args, collate, Reviews(4000), Reviews(given.eval_rows), callbacks=callbacks).train()
    tell(given.steps, model)


if __name__ == "__main__":
    main()
