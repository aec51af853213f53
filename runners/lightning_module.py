"""Training with Lightning: copy this file and put your module and data in.

    pip install 'traceops-torch[lightning]'
    traceops run --nproc 2 -- python runners/lightning_module.py

The data are made in code. The callback marks Lightning's steps.
"""

from __future__ import annotations

import argparse
import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from traceops.integrations.lightning import TraceopsCallback


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> torch.Tensor:
        values, labels = batch
        return nn.functional.cross_entropy(self.net(values), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--out", default="profile/lightning", help="where the capture goes without traceops run")
    args = parser.parse_args()

    cuda = torch.cuda.is_available()
    labels = torch.arange(8192) % 10
    values = torch.randn(10, 128, generator=torch.Generator().manual_seed(0))[labels] + torch.randn(8192, 128)
    loader = DataLoader(TensorDataset(values, labels), batch_size=args.batch_size, shuffle=True, num_workers=2)
    trainer = lightning.Trainer(
        max_steps=args.steps,
        accelerator="gpu" if cuda else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        strategy="ddp" if int(os.environ.get("WORLD_SIZE", "1")) > 1 else "auto",
        precision="bf16-mixed" if cuda else "32-true",
        callbacks=[TraceopsCallback(args.out)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
