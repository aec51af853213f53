"""Lightning: a vision transformer, pictures from four workers, mixed precision. Nothing is planted."""

import argparse

import pytorch_lightning as pl
import torch
from gpt import Block
from torch import nn
from torch.utils.data import DataLoader, Dataset

CUDA = torch.cuda.is_available()
SIDE, PATCH, WIDTH, LAYERS, BATCH, WORKERS = (224, 16, 768, 12, 64, 4) if CUDA else (32, 8, 32, 2, 4, 1)


class Pictures(Dataset):
    """Bytes of a few random pictures, again and again: what a decoder would give."""

    def __init__(self) -> None:
        self.pictures = torch.randint(0, 256, (64, 3, SIDE, SIDE), dtype=torch.uint8)

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pictures[index % 64], index % 1000


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(torch.zeros((SIDE // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, WIDTH // 16 if not CUDA else 12) for _ in range(LAYERS)))
        self.last = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1000))

    def training_step(self, batch, _index):
        pictures, kinds = batch
        x = self.cut(pictures.float().div_(255)).flatten(2).transpose(1, 2) + self.places
        loss = nn.functional.cross_entropy(self.last(self.blocks(x).mean(1)).float(), kinds)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-4)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    given = parser.parse_args()
    pl.seed_everything(0, verbose=False)
    trainer = pl.Trainer(
        accelerator="gpu" if CUDA else "cpu", devices=1, max_steps=given.steps, logger=False,
        precision="bf16-mixed" if CUDA else "32", enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Classifier(), DataLoader(Pictures(), BATCH, shuffle=True, num_workers=WORKERS, pin_memory=CUDA))


if __name__ == "__main__":
    main()
