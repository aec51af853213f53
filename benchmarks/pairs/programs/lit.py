"""Lightning: accumulation over two batches, validation, synced logs, its own PyTorchProfiler by option."""

import lightning
import torch
from lightning.pytorch.profilers import PyTorchProfiler
from own import blocks, options, samples, tell
from torch.utils.data import DataLoader


class Lit(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = blocks(384, 5, 8)

    def loss(self, batch):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def training_step(self, batch, _):
        loss = self.loss(batch)
        self.log("loss", loss, sync_dist=True, on_step=True)
        return loss

    def validation_step(self, batch, _):
        self.log("val", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-4)


def main() -> None:
    given = options(val_each=10, val_batches=20, ranks=2)
    own = None
    if given.profile:
        own = PyTorchProfiler(
            dirpath=given.profile, filename="fit", export_to_chrome=True,
            schedule=torch.profiler.schedule(wait=5, warmup=1, active=6, repeat=1),
        )  # fmt: skip
    trainer = lightning.Trainer(
        accelerator="cpu", devices=given.ranks, strategy="ddp", max_steps=given.steps, accumulate_grad_batches=2,
        gradient_clip_val=1.0, val_check_interval=given.val_each, limit_val_batches=given.val_batches, profiler=own,
        enable_progress_bar=False, enable_checkpointing=False, logger=False, num_sanity_val_steps=0,
    )  # fmt: skip
    module = Lit()
    trainer.fit(module, DataLoader(samples(64 * 400, 384), 64, shuffle=True), DataLoader(samples(64 * 200, 384), 64))
    tell(trainer.global_step, module)


if __name__ == "__main__":
    main()
