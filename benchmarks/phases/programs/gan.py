"""A Wasserstein GAN: several steps of the critic, then one of the generator, which is far larger."""

import torch
from timed import DEVICE, phase, rounds, sizes, wrap
from torch import nn

CRITIC_STEPS, NOISE, BATCH = sizes(4, 6), 72, sizes(104, 288)


def critic_step(critic, generator, optimizer, real) -> None:
    with torch.no_grad():
        fake = generator(torch.randn(BATCH, NOISE, device=DEVICE))
    loss = critic(fake).mean() - critic(real).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for weight in critic.parameters():
            weight.clamp_(-0.01, 0.01)


def generator_step(critic, generator, optimizer) -> None:
    loss = 0.0
    for _ in range(5):
        loss = loss - critic(generator(torch.randn(BATCH, NOISE, device=DEVICE))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def main() -> None:
    width = sizes(368, 2816)
    generator = nn.Sequential(
        nn.Linear(NOISE, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 784)
    )
    generator = wrap(generator)
    critic = wrap(nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(), nn.Linear(256, 1)))
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-4)
    generator_optimizer = torch.optim.RMSprop(generator.parameters(), lr=1e-4)
    for _ in rounds():
        for _ in range(CRITIC_STEPS):
            with phase("critic", critic_step):
                critic_step(critic, generator, critic_optimizer, torch.randn(BATCH, 784, device=DEVICE))
        with phase("generator", generator_step):
            generator_step(critic, generator, generator_optimizer)


main()
