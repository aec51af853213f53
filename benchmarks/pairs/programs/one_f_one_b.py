"""torch.distributed.pipelining, 1F1B of text: layers by stage, a loader, weights saved by a stage."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from costs import CURED, costs, now
from own import RANK, begin, tell, window
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.utils.data import DataLoader, IterableDataset


class Lines(IterableDataset):
    def __init__(self, given: object) -> None:
        self.given = given

    def unpack_archive(self) -> None:
        time.sleep(self.given.unpack)

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(2)
        while True:
            if now(self.given, "unpack"):
                with costs("unpack_archive"):
                    self.unpack_archive()
            yield from torch.randint(0, 200, (16, 24), generator=generator)


def stage_of(ranks: int, depth: int) -> torch.nn.Module:
    first = [torch.nn.Embedding(200, 128)] if RANK == 0 else []
    middle = [torch.nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True) for _ in range(depth)]
    return torch.nn.Sequential(*first, *middle, *([torch.nn.Linear(128, 200)] if ranks - 1 == RANK else []))


def loss_of(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def made(depths: str) -> tuple:
    ranks = dist.get_world_size()
    part = stage_of(ranks, [int(n) for n in depths.split(",")][RANK])
    stage = PipelineStage(part, RANK, ranks, torch.device("cpu"))
    return part, Schedule1F1B(stage, 4, loss_fn=loss_of), torch.optim.AdamW(part.parameters(), 1e-4)


def write_to_share(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    given = begin(RANK, depths="2,2,2", unpack=0.0, write_each=0, write=0.4)
    ranks = dist.get_world_size()
    all_made = {one: made(one) for one in sorted({given.depths, CURED.get("depths", given.depths)})}
    batches = iter(DataLoader(Lines(given), 16))
    labels = torch.Generator().manual_seed(2)
    with tempfile.TemporaryDirectory() as folder, window(given) as own:
        for step in range(1, given.steps + 1):
            part, schedule, optimizer = all_made[now(given, "depths")]
            if RANK == 0:
                schedule.step(next(batches))
            elif ranks - 1 == RANK:
                schedule.step(target=torch.randint(0, 200, (16, 24), generator=labels), losses=[])
            else:
                schedule.step()
            optimizer.step()
            optimizer.zero_grad()
            if RANK == 0 and now(given, "write_each") and step % now(given, "write_each") == 0:
                with costs("write_to_share"):
                    torch.save(part.state_dict(), Path(folder, "stage0.pt"))
                    write_to_share(given.write)
            own.step()
    tell(given.steps, part)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
