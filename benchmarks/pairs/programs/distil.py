"""A student learns from a frozen teacher's answers; the teacher runs without gradients in each step."""

import torch
import torch.distributed as dist
from own import begin, blocks, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    given = begin()
    teacher, student = blocks(384, 8, 32).eval(), DDP(blocks(384, 3, 32))
    optimizer = torch.optim.AdamW(student.parameters(), 1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, given.steps)
    batches = sharded(samples(4096, 384), 64)
    for step in steps(given, student):
        x, _ = next(batches)
        with torch.no_grad():
            wanted = teacher(x).softmax(1)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(student(x), wanted)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 10 == 9:
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print("loss", mean.item() / dist.get_world_size(), flush=True)


if __name__ == "__main__":
    main()
