"""Lightning: short epochs with validation, the best checkpoint, early stopping, a monitor of the learning rate.

Planted, and left out with --tidy: workers that start anew each epoch and open their index first, and a last checkpoint
of all states each epoch.
"""

import time
import warnings

import pytorch_lightning as pl
import torch
from own import CUDA, TIDY, same_each_time, tell, training_begins
from pytorch_lightning.callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint
from pytorch_lightning.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, SIDE, BATCH, EPOCH, EPOCHS = (192, 32, 256, 30, 5) if CUDA else (8, 16, 8, 30, 3)


class Indexed(Dataset):
    """Pictures of a file whose index each worker opens first."""

    def __init__(self, count: int) -> None:
        self.count, self.index = count, None
        self.pictures = torch.randn(512, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(2))

    def open_index(self) -> None:
        time.sleep(0.4 if CUDA else 0.15)
        self.index = list(range(self.count))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[torch.Tensor, int]:
        if self.index is None:
            self.open_index()
        return self.pictures[self.index[at] % 512], at % 10


class Net(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(3, WIDTH, 3, padding=1), nn.ReLU()]
        for _ in range(6 if CUDA else 2):
            layers += [nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10))

    def training_step(self, batch, _index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _index):
        self.log("val_loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), 1e-3)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.7)}


def main() -> None:
    warnings.filterwarnings("ignore")
    same_each_time()
    loaders = [
        DataLoader(
            Indexed(BATCH * steps), BATCH, num_workers=4 if CUDA else 1, pin_memory=CUDA, persistent_workers=TIDY,
            drop_last=True,
        )
        for steps in (EPOCH, 6)
    ]  # fmt: skip
    model = Net()
    kept = ModelCheckpoint("out_lightning", monitor="val_loss", save_top_k=1, save_last=not TIDY)
    trainer = pl.Trainer(
        max_epochs=EPOCHS, accelerator="gpu" if CUDA else "cpu", devices=1, precision="bf16-mixed",
        logger=CSVLogger("out_lightning"), enable_progress_bar=False, log_every_n_steps=5, num_sanity_val_steps=1,
        callbacks=[kept, EarlyStopping("val_loss", patience=20), LearningRateMonitor("step")],
    )  # fmt: skip
    training_begins()
    trainer.fit(model, *loaders)
    tell(trainer.global_step, model)


if __name__ == "__main__":
    main()
