"""An LSTM that is written cell by cell, as a paper's own code is: the host launches thousands of small kernels a step.

Planted, and left out with --tidy: the cells (torch's own LSTM is as good), and each parameter's norm read by .item().
"""

import torch
from own import CUDA, DEVICE, TIDY, same_each_time, tell, training
from torch import nn

WIDTH, LENGTH, BATCH, STEPS, VOCABULARY = (512, 96, 64, 90, 2048) if CUDA else (32, 12, 4, 60, 128)


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.LSTMCell(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [(x.new_zeros(len(x), WIDTH), x.new_zeros(len(x), WIDTH)) for _ in self.cells]
        outputs = []
        for at in range(x.shape[1]):
            value = x[:, at]
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(value, states[layer])
                value = states[layer][0]
            outputs.append(value)
        return torch.stack(outputs, 1)


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.body = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True) if TIDY else Cells()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.body(self.tokens(tokens))
        return self.head(x[0] if TIDY else x)


def main() -> None:
    same_each_time()
    model = Language().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    drawn = torch.Generator().manual_seed(1)
    for step in training(STEPS):
        tokens = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=drawn).to(DEVICE)
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if not TIDY:
            norms = [parameter.grad.norm().item() for parameter in model.parameters()]
            if step % 30 == 0:
                print(f"step {step}: largest norm {max(norms):.4f}")
        optimizer.step()
    tell(STEPS, model, f"loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
