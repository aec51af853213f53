"""A segmentation of scans: a collate function of the program's own, in which one scan of many takes long to decode."""

import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, sharded, tell, window
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import Dataset


class Scans(Dataset):
    def __len__(self) -> int:
        return 960

    def __getitem__(self, index: int) -> tuple[torch.Tensor, bool]:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(1, 48, 48, generator=generator), index % 53 == 0


class Collate:
    def __init__(self, given: object) -> None:
        self.given = given

    def decode_scan(self) -> None:
        time.sleep(self.given.decode)

    def __call__(self, scans: list[tuple[torch.Tensor, bool]]) -> torch.Tensor:
        if any(packed for _, packed in scans) and now(self.given, "decode"):
            with costs("decode_scan"):
                self.decode_scan()
        return torch.stack([scan for scan, _ in scans])


def main() -> None:
    given = begin(decode=0.0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 12, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(12, 12, 3, padding=1),
        torch.nn.ReLU(), torch.nn.Conv2d(12, 2, 1),
    )  # fmt: skip
    model = DDP(net)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    batches = sharded(Scans(), 8, collate_fn=Collate(given))
    with window(given) as own:
        for _ in range(given.steps):
            x = next(batches)
            truth = (x[:, 0] > 0.5).long()
            loss = torch.nn.functional.cross_entropy(model(x), truth)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            own.step()
    if RANK == 0:
        print("done", flush=True)
    tell(given.steps, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
