"""Lightning: DDP over two machines of one device, pictures from two workers, a log that all ranks share."""

import pytorch_lightning as pl
import torch
from parts import CUDA, RANKS, options, small
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int):
        drawn = torch.Generator().manual_seed(index)
        return torch.rand(3, small(64, 16), small(64, 16), generator=drawn), index % 100


def stage(given: int, made: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(given, made, 3, stride=2, padding=1), nn.BatchNorm2d(made), nn.ReLU(),
        nn.Conv2d(made, made, 3, padding=1), nn.BatchNorm2d(made), nn.ReLU(),
    )  # fmt: skip


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        wide = small(128, 8)
        self.net = nn.Sequential(
            stage(3, wide), stage(wide, 2 * wide), stage(2 * wide, 2 * wide), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
            nn.Linear(2 * wide, 100),
        )  # fmt: skip

    def training_step(self, batch, _index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)


def main() -> None:
    given = options()
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        accelerator="gpu" if CUDA else "cpu", devices=1, num_nodes=RANKS, strategy="ddp", max_steps=given.steps,
        precision="bf16-mixed" if CUDA else "32", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(Pictures(), small(256, 8), num_workers=2))


if __name__ == "__main__":
    main()
