"""DDP as most write it: a trainer class, evaluation on rank 0 (--eval-alone), batches and buckets by option."""

import torch
import torch.distributed as dist
from own import blocks, options, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader


class Trainer:
    def __init__(self, batch: int, depth: int, bucket_mb: float, eval_batches: int) -> None:
        torch.manual_seed(0)
        self.model = DDP(blocks(256, depth, 8), bucket_cap_mb=bucket_mb)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.batches = sharded(samples(4096, 256), batch)
        self.test = DataLoader(samples(64 * eval_batches, 256), 64)

    def train_step(self) -> None:
        x, y = next(self.batches)
        self.optimizer.zero_grad()
        torch.nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()

    @torch.no_grad()
    def accuracy(self) -> float:
        self.model.eval()
        right = sum((self.model.module(x).argmax(1) == y).sum().item() for x, y in self.test)
        self.model.train()
        return right / len(self.test.dataset)


def main() -> None:
    given = options(batches="64,64,64,64", depth=6, bucket_mb=25.0, eval_alone=0, eval_batches=200)
    dist.init_process_group("gloo")
    own_batch = int(given.batches.split(",")[dist.get_rank()])
    trainer = Trainer(own_batch, given.depth, given.bucket_mb, given.eval_batches)
    for step in steps(given, trainer.model, 1):
        trainer.train_step()
        if given.eval_alone and step % given.eval_alone == 0 and dist.get_rank() == 0:
            print("accuracy", trainer.accuracy(), flush=True)


if __name__ == "__main__":
    main()
