"""Lightning: a module that logs, a callback on one rank, ModelCheckpoint, a slow transform of batches."""

import tempfile
import time

import lightning
import torch
from costs import costs, next_step
from lightning.pytorch.callbacks import ModelCheckpoint
from own import RANK, blocks, options, samples, tell
from torch.utils.data import DataLoader


class Module(lightning.LightningModule):
    def __init__(self, seconds: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net, self.seconds = blocks(128, 3, 8), seconds

    def mix_up(self) -> None:
        time.sleep(self.seconds)

    def on_after_batch_transfer(self, batch, dataloader_idx):
        if self.seconds:
            with costs("mix_up"):
                self.mix_up()
        return batch

    def training_step(self, batch, _):
        next_step()
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-4)


class Gradients(lightning.Callback):
    """Draws histograms of gradients on one rank, between backward and the optimizer."""

    def __init__(self, seconds: float, rank: int) -> None:
        self.seconds, self.rank = seconds, rank

    def draw_histograms(self) -> None:
        time.sleep(self.seconds)

    def on_before_optimizer_step(self, trainer, module, optimizer):
        if self.seconds and trainer.global_rank == self.rank:
            with costs("draw_histograms"):
                self.draw_histograms()


def main() -> None:
    given = options(mix=0.0, draw=0.0, draw_rank=1, ranks=2)
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=given.ranks, strategy="ddp", max_steps=given.steps, logger=False,
            default_root_dir=folder, enable_progress_bar=False, num_sanity_val_steps=0,
            callbacks=[Gradients(given.draw, given.draw_rank), ModelCheckpoint(folder, every_n_train_steps=30)],
        )  # fmt: skip
        module = Module(given.mix)
        trainer.fit(module, DataLoader(samples(64 * 400, 128), 32, shuffle=True))
    if RANK == 0:
        tell(trainer.global_step, module)


if __name__ == "__main__":
    main()
