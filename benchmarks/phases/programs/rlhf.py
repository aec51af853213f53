"""RLHF: answers are generated token by token, and scored by a reward model and a reference, then steps."""

import copy

import torch
from timed import DEVICE, phase, plain, rounds, sizes, wrap
from torch import nn
from torch.nn import functional

VOCAB, WIDTH, PROMPT, ANSWER = 512, sizes(88, 480), 16, sizes(18, 44)
BATCH, STEPS = 8, sizes(4, 3)


class Model(nn.Module):
    def __init__(self, layers: int, out: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, out)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


@torch.no_grad()
def generate(policy: nn.Module, prompts: torch.Tensor) -> torch.Tensor:
    tokens = prompts
    for _ in range(ANSWER):
        logits = policy(tokens)[:, -1]
        following = torch.multinomial(torch.softmax(logits, -1), 1)
        tokens = torch.cat([tokens, following], 1)
    return tokens


@torch.no_grad()
def score(reward: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return torch.stack([reward(tokens).mean(dim=(1, 2)) for _ in range(5)]).mean(0)


def main() -> None:
    policy = wrap(Model(2, VOCAB))
    reference = copy.deepcopy(plain(policy))
    reward = Model(4, 1).to(DEVICE)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4)
    for _ in rounds():
        prompts = torch.randint(VOCAB, (BATCH, PROMPT), device=DEVICE)
        with phase("generate", generate):
            tokens = generate(plain(policy), prompts)
        with phase("score", score):
            rewards = score(reward, tokens)
            with torch.no_grad():
                before = torch.log_softmax(reference(tokens), -1)
        for _ in range(STEPS):
            with phase("train"):
                after = torch.log_softmax(policy(tokens), -1)
                gained = (after - before).gather(-1, tokens[..., None]).mean(dim=(1, 2))
                loss = -(gained * rewards).mean() + functional.kl_div(after, before, log_target=True)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()


main()
