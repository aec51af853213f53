"""Expert parallel: each rank has an expert, tokens go by all_to_all_single; --hot is expert 1's share."""

import torch
import torch.distributed as dist
from own import begin, samples, sharded, steps

WIDTH = 192


class Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.sent, ctx.received = sent, received
        out = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(ctx, grad):
        out = grad.new_empty(sum(ctx.sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), ctx.sent, ctx.received)
        return out, None, None


class Experts(torch.nn.Module):
    def __init__(self, hot: float) -> None:
        super().__init__()
        self.hot = hot
        self.up, self.down = torch.nn.Linear(WIDTH, 6 * WIDTH), torch.nn.Linear(6 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ranks = dist.get_world_size()
        expert = torch.arange(len(x)) % ranks
        expert[: int(self.hot * len(x))] = 1
        order = expert.argsort(stable=True)
        sent = torch.bincount(expert, minlength=ranks)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        inside = Exchange.apply(x[order], sent.tolist(), received.tolist())
        outside = Exchange.apply(self.down(torch.nn.functional.gelu(self.up(inside))), received.tolist(), sent.tolist())
        return x + torch.zeros_like(x).index_copy(0, order, outside)


def main() -> None:
    given = begin(hot=0.0, tokens=192)
    shared = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
    torch.manual_seed(dist.get_rank())
    experts = torch.nn.ModuleList(Experts(given.hot) for _ in range(2))
    optimizer = torch.optim.AdamW([*shared.parameters(), *experts.parameters()], 1e-4)
    batches = sharded(samples(8192, WIDTH), given.tokens)
    for _ in steps(given, shared):
        x, _ = next(batches)
        x = shared[2](experts[1](shared[1](experts[0](shared[0](x)))))
        optimizer.zero_grad()
        x.square().mean().backward()
        for parameter in shared.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()


if __name__ == "__main__":
    main()
