"""Lightning: short epochs, whose loader's workers start anew each time and open an index; a callback on one rank."""

import tempfile
import time

import lightning
import torch
from costs import costs, next_step, now
from own import blocks, options, samples, tell
from torch.utils.data import DataLoader


def open_index(seconds: float) -> None:
    time.sleep(seconds)


class Data(lightning.LightningDataModule):
    def __init__(self, given: object) -> None:
        super().__init__()
        self.given = given

    def started(self, _: int) -> None:
        open_index(self.given.index)

    def train_dataloader(self) -> DataLoader:
        rows = samples(32 * self.given.ranks * self.given.epoch, 192)
        workers = {"num_workers": 1, "worker_init_fn": self.started} if self.given.index else {}
        return DataLoader(rows, 32, shuffle=True, **workers)


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = blocks(192, 4, 8)

    def training_step(self, batch, _):
        next_step()
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-4)


class Drift(lightning.Callback):
    """Compares weights with those of an older model, on one rank."""

    def __init__(self, given: object) -> None:
        self.given = given

    def measure_drift(self) -> None:
        time.sleep(self.given.drift)

    def on_train_batch_end(self, trainer, *_):
        if self.given.drift_rank == trainer.global_rank and now(self.given, "drift"):
            with costs("measure_drift"):
                self.measure_drift()


def main() -> None:
    given = options(index=0.0, epoch=8, drift=0.0, drift_rank=1, ranks=2)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=given.ranks, strategy="ddp", max_steps=given.steps, logger=False,
            default_root_dir=folder, enable_progress_bar=False, enable_checkpointing=False, callbacks=[Drift(given)],
        )  # fmt: skip
        module = Module()
        trainer.fit(module, Data(given))
    if trainer.global_rank == 0:
        tell(trainer.global_step, module)


if __name__ == "__main__":
    main()
