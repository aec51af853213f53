"""Lightning's Trainer: automatic optimization with accumulation and validation, or by hand with two optimizers."""

import sys

import lightning
import torch
from common import CUDA, STEPS, blocks, samples, tell
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader


class Automatic(lightning.LightningModule):
    """One optimizer that Lightning steps."""

    def __init__(self) -> None:
        super().__init__()
        self.net = blocks()
        self.rounds = 0

    def training_step(self, batch, _index):
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch, _index):
        self.log("val", cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Manual(Automatic):
    """Two optimizers that the module steps itself, as for a GAN."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.critic = torch.nn.Linear(64, 1)

    def training_step(self, batch, _index):
        first, second = self.optimizers()
        for optimizer, loss in (
            (first, lambda: self.critic(batch[0]).mean() + 0 * self.net(batch[0]).sum()),
            (second, lambda: cross_entropy(self.net(batch[0]), batch[1]) + 0 * self.critic(batch[0]).sum()),
        ):
            optimizer.zero_grad()
            self.manual_backward(loss())
            optimizer.step()
        self.rounds += 1

    def configure_optimizers(self):
        return torch.optim.SGD(self.critic.parameters(), 0.1), torch.optim.AdamW(self.net.parameters())


by_hand = "manual" in sys.argv
trainer = lightning.Trainer(
    accelerator="gpu" if CUDA else "cpu", devices=2, strategy="ddp", max_epochs=1, enable_progress_bar=True,
    logger=False, enable_checkpointing=False, val_check_interval=16,
    **({} if by_hand else {"accumulate_grad_batches": 2}),
)  # fmt: skip
model = Manual() if by_hand else Automatic()
count = STEPS * 16 * (1 if by_hand else 2)
trainer.fit(model, DataLoader(samples(count), batch_size=8), DataLoader(samples(64), batch_size=8))
if trainer.is_global_zero:
    tell(model.rounds if by_hand else trainer.global_step, model)
