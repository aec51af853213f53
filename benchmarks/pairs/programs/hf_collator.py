"""Hugging Face's Trainer: a small GPT-2, accumulation, a collator that masks on one rank, checkpoints by a callback."""

import tempfile
import time

import torch
from costs import costs, next_step, now
from own import RANK, options, tell
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Lines(torch.utils.data.Dataset):
    def __init__(self) -> None:
        self.rows = torch.randint(0, 300, (4000, 32), generator=torch.Generator().manual_seed(7))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


class Masks:
    def __init__(self, given: object) -> None:
        self.given = given

    def find_spans(self) -> None:
        time.sleep(self.given.mask)

    def __call__(self, rows: list) -> dict:
        if self.given.mask_rank == RANK and now(self.given, "mask"):
            with costs("find_spans"):
                self.find_spans()
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class Copies(TrainerCallback):
    """Copies each checkpoint to a slow disk, on the main process."""

    def __init__(self, given: object) -> None:
        self.given = given

    def copy_to_archive(self) -> None:
        time.sleep(self.given.copy)

    def on_step_end(self, args, state, control, **_):
        next_step()
        if self.given.save_each:
            control.should_save = bool(now(self.given, "copy")) and state.global_step % self.given.save_each == 0

    def on_save(self, args, state, control, **_):
        if RANK == 0:
            with costs("copy_to_archive"):
                self.copy_to_archive()


def main() -> None:
    given = options(mask=0.0, mask_rank=1, save_each=0, copy=0.0, accumulate=1)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=300, n_positions=32, n_embd=64, n_layer=2, n_head=2))
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, per_device_train_batch_size=4, gradient_accumulation_steps=given.accumulate, max_steps=given.steps,
            use_cpu=True, save_strategy="no", save_total_limit=1, logging_steps=10, report_to=[], disable_tqdm=True,
        )  # fmt: skip
        Trainer(model, args, Masks(given), Lines(), callbacks=[Copies(given)]).train()
    tell(given.steps, model)


if __name__ == "__main__":
    main()
