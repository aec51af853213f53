"""A GAN: two DDP models and two optimizers that step in turn, a running mean of the generator."""

import copy

import torch
from own import begin, blocks, samples, sharded, steps
from torch.nn.parallel import DistributedDataParallel as DDP


def main() -> None:
    given = begin()
    generator, critic = DDP(blocks(256, 4)), DDP(blocks(256, 4, 1), broadcast_buffers=False)
    mean = copy.deepcopy(generator.module)
    of_generator = torch.optim.Adam(generator.parameters(), 1e-4)
    of_critic = torch.optim.Adam(critic.parameters(), 1e-4)
    batches = sharded(samples(4096, 256), 64, num_workers=1)
    sigmoid = torch.nn.functional.binary_cross_entropy_with_logits
    for _ in steps(given, mean):
        real, _ = next(batches)
        made = generator(torch.randn_like(real))
        of_critic.zero_grad()
        told = critic(torch.cat([real, made.detach()]))
        sigmoid(told, torch.cat([torch.ones(64, 1), torch.zeros(64, 1)])).backward()
        of_critic.step()
        of_generator.zero_grad()
        for parameter in critic.parameters():
            parameter.requires_grad_(False)
        sigmoid(critic.module(made), torch.ones(64, 1)).backward()
        for parameter in critic.parameters():
            parameter.requires_grad_(True)
        of_generator.step()
        with torch.no_grad():
            for kept, now in zip(mean.parameters(), generator.module.parameters(), strict=True):
                kept.lerp_(now, 0.01)


if __name__ == "__main__":
    main()
