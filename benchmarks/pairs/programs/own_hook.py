"""DDP with a comm hook of its own, which quantizes on the host; each tenth step rank 0 writes images."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, for_ever, options, samples, tell, window
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


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
    given = options(pack=0.0, images=0.0, each=4)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv1d(4, 24, 5), torch.nn.ReLU(), torch.nn.Conv1d(24, 24, 5), torch.nn.ReLU(),
        torch.nn.Flatten(), torch.nn.Linear(24 * 56, 8),
    )  # fmt: skip
    model = DDP(net)
    model.register_comm_hook(None, hook_of(given))
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)
    data = samples(2048, 256)
    batches = for_ever(DataLoader(data, 24, sampler=DistributedSampler(data)))
    with window(given) as own:
        for step in range(1, given.steps + 1):
            x, y = next(batches)
            torch.nn.functional.cross_entropy(model(x.view(-1, 4, 64)), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if now(given, "images") and RANK == 0 and step % given.each == 0:
                with costs("write_images"):
                    write_images(given.images)
            own.step()
    tell(given.steps, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
