"""A small transformer on texts whose lengths differ by rank (--lengths); checkpoints by dcp.async_save."""

import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from own import begin, tell, window
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __init__(self, length: int, count: int = 2000) -> None:
        self.length, self.count = length, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(self.length) * (index + 3)) % 211


class Model(torch.nn.Module):
    def __init__(self, width: int, depth: int, padding: int) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.embed = torch.nn.Embedding(211 + padding, width)
        self.layers = torch.nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = torch.nn.Linear(width, 211)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(tokens)))


def main() -> None:
    given = begin(lengths="48,48,48,48", save_each=0, more_rows=0)
    rank = dist.get_rank()
    model = DDP(Model(96, 2, given.more_rows))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batches = iter(DataLoader(Texts(int(given.lengths.split(",")[rank])), 8, num_workers=1))
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    files = dist.new_group(backend="gloo")
    pending = None
    with window(given) as own:
        for step in range(1, given.steps + 1):
            tokens = next(batches)
            scores = model(tokens[:, :-1])
            loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if given.save_each and step % given.save_each == 0:
                if pending is not None:
                    pending.result()
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                pending = dcp.async_save(state, checkpoint_id=Path(folder[0]) / str(step), process_group=files)
            own.step()
    if pending is not None:
        pending.result()
    tell(given.steps, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
