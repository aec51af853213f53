"""Texts by length: a sampler that sorts anew in each epoch, and validations of other lengths on each rank."""

import time
from collections.abc import Iterator

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, tell, window
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(RANK)
        self.lengths = torch.randint(24, 40, (160,), generator=generator).tolist()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(1, 400, (self.lengths[index],), generator=torch.Generator().manual_seed(index))


class ByLength:
    def __init__(self, texts: Texts, given: object) -> None:
        self.texts, self.given = texts, given

    def measure_texts(self) -> None:
        time.sleep(self.given.measure)

    def __iter__(self) -> Iterator[list[int]]:
        if now(self.given, "measure"):
            with costs("measure_texts"):
                self.measure_texts()
        order = sorted(range(len(self.texts)), key=self.texts.lengths.__getitem__)
        yield from (order[start : start + 16] for start in range(0, len(order), 16))

    def __len__(self) -> int:
        return len(self.texts) // 16


class Reader(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = torch.nn.Embedding(400, 96), torch.nn.Linear(192, 400)
        self.cells = torch.nn.GRU(96, 192, batch_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.words(tokens))[0])


def pad(texts: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)


def loss_of(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def validate(model: DDP, texts: Texts, batches: int) -> torch.Tensor:
    model.eval()
    total = torch.zeros(1)
    for number in range(batches):
        total += loss_of(model.module, pad([texts[(number * 16 + row) % 160] for row in range(16)]))
    model.train()
    dist.all_reduce(total)
    return total


def main() -> None:
    given = begin(measure=0.0, validate="0,0,0", validate_each=10)
    model, texts = DDP(Reader()), Texts()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    loader = DataLoader(texts, batch_sampler=ByLength(texts, given), collate_fn=pad)
    step = 0
    with window(given) as own:
        while step < given.steps:
            for tokens in loader:
                loss_of(model, tokens).backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
                step += 1
                batches = int(now(given, "validate").split(",")[RANK])
                if step % given.validate_each == 5 and now(given, "validate") != "0,0,0":
                    with costs("validate"):
                        validate(model, texts, batches)
                own.step()
                if step == given.steps:
                    break
    tell(given.steps, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
