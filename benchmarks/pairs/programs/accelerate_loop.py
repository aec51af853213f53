"""accelerate: prepare(), accumulate(), gathered metrics; a buffer of Python objects; weights saved each few steps."""

import gc
import tempfile
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from costs import costs, now
from own import RANK, blocks, for_ever, options, samples, tell, window
from torch.utils.data import DataLoader


class Episode:
    def __init__(self, before: object) -> None:
        self.before, self.me = before, self


def tidy_buffer(many: int) -> None:
    last = None
    for _ in range(many):
        last = Episode(last)
    gc.collect()


def push_to_bucket(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    given = options(accumulate=2, tidy=0, tidy_rank=1, save_each=0, push=0.4)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=given.accumulate)
    torch.manual_seed(0)
    model = blocks(320, 5, 8)
    loader = DataLoader(samples(8192, 320), 24, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), 1e-4), loader)
    batches, step = for_ever(loader), 0
    with tempfile.TemporaryDirectory() as folder, window(given) as own:
        while step < given.steps:
            with accelerator.accumulate(model):
                x, y = next(batches)
                scores = model(x)
                loss = torch.nn.functional.cross_entropy(scores, y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            accelerator.gather_for_metrics((scores.argmax(1), y))
            if not accelerator.sync_gradients:
                continue
            step += 1
            if now(given, "tidy") and given.tidy_rank == RANK and step % 2 == 0:
                with costs("tidy_buffer"):
                    tidy_buffer(given.tidy)
            if now(given, "save_each") and step % now(given, "save_each") == 0:
                accelerator.wait_for_everyone()
                if accelerator.is_main_process:
                    with costs("push_to_bucket"):
                        accelerator.save(accelerator.unwrap_model(model).state_dict(), Path(folder, "weights.pt"))
                        push_to_bucket(given.push)
                accelerator.wait_for_everyone()
            own.step()
    tell(given.steps, accelerator.unwrap_model(model))
    accelerator.end_training()


if __name__ == "__main__":
    main()
