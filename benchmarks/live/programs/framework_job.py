"""A small training in the way of a framework, whose input comes late on one rank from a moment on.

python framework_job.py plain|accelerate|lightning|ray TRUTH AT SECONDS [RANK]
"""

import json
import os
import sys
import time
from pathlib import Path

import torch


class Samples(torch.utils.data.Dataset):
    """Random ones, which come late from a moment on."""

    def __init__(self, truth, at, rank):
        self.truth, self.at, self.rank, self.begun = Path(truth), at, rank, None

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        now = time.monotonic()
        self.begun = self.begun or now
        if now - self.begun >= self.at and int(os.environ.get("LOCAL_RANK", "0")) == self.rank:
            if not self.truth.exists():
                self.truth.write_text(json.dumps({"fault": "loader", "rank": self.rank, "began_ns": time.time_ns()}))
            time.sleep(0.008)
        return torch.randn(64)


def prepare(seconds=0.025):
    """What the host does before each step."""
    time.sleep(seconds)


def plain(loader, seconds, begun=False):
    """A loop of its own; of several ranks where a launcher has started them. begun: it has set up their group too."""
    model = torch.nn.Linear(64, 64)
    together = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if together and not begun:
        torch.distributed.init_process_group("gloo")
    if together:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    until = time.monotonic() + seconds
    for number, batch in enumerate(loader):
        prepare()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        over = torch.tensor(float(time.monotonic() > until))
        if together and number % 16 == 0:
            torch.distributed.all_reduce(over)
        if over and number % 16 == 0:
            break
    if together and not begun:
        torch.distributed.destroy_process_group()


def accelerated(loader, seconds):
    """As `accelerate launch` starts it."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(64, 64)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001), loader)
    until = time.monotonic() + seconds
    for number, batch in enumerate(loader):
        prepare()
        optimizer.zero_grad()
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        if number % 16 == 0 and bool(accelerator.reduce(torch.tensor(float(time.monotonic() > until)))):
            break
    accelerator.end_training()


def lightning(loader, seconds):
    """With its Trainer, which starts the other ranks itself: each asks for the monitor's records."""
    import lightning as L

    import traceops

    traceops.live()

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(64, 64)

        def training_step(self, batch, number):
            prepare()
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.001)

    trainer = L.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_time={"seconds": int(seconds)}, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Module(), loader)


def train_on_ray(config):
    """What each worker of Ray Train does: it asks for the monitor's records itself."""
    import traceops

    os.chdir(config["folder"])
    torch.set_num_threads(1)
    traceops.live(config["live"])
    loader = torch.utils.data.DataLoader(Samples(config["truth"], config["at"], config["rank"]), batch_size=4)
    plain(loader, config["seconds"], begun=True)


def ray_train(truth, at, seconds, rank):
    """Ray's TorchTrainer with two workers on this machine."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    ray.init(num_cpus=3, include_dashboard=False)
    config = {"truth": truth, "at": at, "seconds": seconds, "rank": rank,
              "live": os.environ["TRACEOPS_LIVE"], "folder": str(Path.cwd())}  # fmt: skip
    TorchTrainer(
        train_on_ray, train_loop_config=config, torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2), run_config=RunConfig(storage_path=str(Path(truth).parent / "ray")),
    ).fit()  # fmt: skip


def main():
    how, truth, at, seconds, *rank = sys.argv[1:]
    if how == "ray":
        return ray_train(truth, float(at), float(seconds), int(*rank or ["0"]))
    torch.set_num_threads(1)
    loader = torch.utils.data.DataLoader(Samples(truth, float(at), int(*rank or ["0"])), batch_size=4)
    {"plain": plain, "accelerate": accelerated, "lightning": lightning}[how](loader, float(seconds))


if __name__ == "__main__":
    main()
