"""DDP with a comm hook of its own, which quantizes on the host; each tenth step rank 0 writes images."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP


def pack_into_bytes(seconds: float) -> None:
    time.sleep(seconds)


def hook_of(given: object):
    def quantize(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if now(given, "pack"):
            with costs("pack_into_bytes"):
                pack_into_bytes(given.pack)
        half = bucket.buffer().bfloat16() / dist.get_world_size()
        sent = dist.all_reduce(half, async_op=True).get_future()
        return sent.then(lambda done: bucket.buffer().copy_(done.value()[0]))

    return quantize


def write_images(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    given = begin(pack=0.0, images=0.0, each=4)
    net = torch.nn.Sequential(
        torch.nn.Conv1d(4, 24, 5), torch.nn.ReLU(), torch.nn.Conv1d(24, 24, 5), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(24 * 56, 8),
    )  # fmt: skip
    model = DDP(net)
    model.register_comm_hook(None, hook_of(given))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    batches = sharded(samples(2048, 256), 24)
    for step in steps(given, model, 1):
        x, y = next(batches)
        torch.nn.functional.cross_entropy(model(x.view(-1, 4, 64)), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if now(given, "images") and RANK == 0 and step % given.each == 0:
            with costs("write_images"):
                write_images(given.images)


if __name__ == "__main__":
    main()
