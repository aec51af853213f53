"""FSDP2 of a GPT of a few blocks: texts from an IterableDataset, dcp.save each few steps."""

import tempfile
import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from costs import costs, now
from own import RANK, begin, tell, window
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, IterableDataset


class Texts(IterableDataset):
    def __init__(self, given: object) -> None:
        self.given = given

    def fetch_shard(self) -> None:
        time.sleep(self.given.fetch)

    def __iter__(self) -> Iterator[torch.Tensor]:
        generator = torch.Generator().manual_seed(RANK)
        while True:
            if now(self.given, "fetch") and self.given.fetch_rank == RANK:
                with costs("fetch_shard"):
                    self.fetch_shard()
            yield from torch.randint(0, 300, (8, 48), generator=generator)


class Gpt(torch.nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(300, 128), torch.nn.Linear(128, 300)
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(128, 4, 384, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def copy_to_store(seconds: float) -> None:
    time.sleep(seconds)


def main() -> None:
    given = begin(fetch=0.0, fetch_rank=0, save_each=0, store=0.3, depth=3)
    model = Gpt(given.depth)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    batches = iter(DataLoader(Texts(given), 8))
    with tempfile.TemporaryDirectory() as folder, window(given) as own:
        for step in range(1, given.steps + 1):
            tokens = next(batches)
            scores = model(tokens[:, :-1])
            torch.nn.functional.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if now(given, "save_each") and step % now(given, "save_each") == 0:
                with costs("save"):
                    weights, state = get_state_dict(model, optimizer)
                    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=f"{folder}/{step}")
                    copy_to_store(given.store)
            own.step()
    tell(given.steps, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
