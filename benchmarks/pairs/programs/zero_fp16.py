"""DDP with a static graph, gradients sent in half precision, checkpointed blocks and the ZeroRedundancyOptimizer."""

import torch
import torch.distributed as dist
from own import begin, samples, sharded, steps
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Deep(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(384, 384), torch.nn.GELU()) for _ in range(8)
        )
        self.head = torch.nn.Linear(384, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


def main() -> None:
    given = begin()
    model = DDP(Deep(), static_graph=True)
    model.register_comm_hook(None, fp16_compress_hook)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4)
    batches = sharded(samples(2048, 384), 64)
    for step in steps(given, model):
        x, y = next(batches)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if step % 5 == 4:
            dist.barrier()
            if dist.get_rank() == 0:
                print("loss", round(loss.item(), 4), flush=True)


if __name__ == "__main__":
    main()
