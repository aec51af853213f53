"""torch.distributed.pipelining, GPipe, convolutions: --depths by stage; rank 0 crops pictures on the host."""

import time

import torch
import torch.distributed as dist
from costs import CURED, costs, now
from own import RANK, begin, tell, window
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


def stage_of(rank: int, ranks: int, depth: int) -> torch.nn.Module:
    first = [torch.nn.Conv2d(3, 16, 3, padding=1)] if rank == 0 else []
    middle = [part for _ in range(depth) for part in (torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU())]
    last = [torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 8)]
    return torch.nn.Sequential(*first, *middle, *(last if rank == ranks - 1 else []))


def pipeline_of(depths: str, micro: int) -> tuple:
    ranks = dist.get_world_size()
    part = stage_of(RANK, ranks, [int(n) for n in depths.split(",")][RANK])
    stage = PipelineStage(part, RANK, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, micro, loss_fn=torch.nn.functional.cross_entropy)
    return part, schedule, torch.optim.SGD(part.parameters(), 1e-3)


def crop(pictures: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return pictures.flip(-1)


def main() -> None:
    given = begin(RANK, depths="3,3,3", micro=4, batch=16, crop=0.0)
    ranks = dist.get_world_size()
    made = {depths: pipeline_of(depths, given.micro) for depths in {given.depths, CURED.get("depths", given.depths)}}
    generator = torch.Generator().manual_seed(4)
    with window(given) as own:
        for _ in range(given.steps):
            part, schedule, optimizer = made[now(given, "depths")]
            if RANK == 0:
                pictures = torch.randn(given.batch, 3, 28, 28, generator=generator)
                if now(given, "crop"):
                    with costs("crop"):
                        pictures = crop(pictures, given.crop)
                schedule.step(pictures)
            elif ranks - 1 == RANK:
                labels = torch.randint(0, 8, (given.batch,), generator=generator)
                schedule.step(target=labels, losses=[])
            else:
                schedule.step()
            optimizer.step()
            optimizer.zero_grad()
            own.step()
    tell(given.steps, part)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
