"""A learning-rate finder: before the training it tries rates on a copy of the weights, which it then puts back."""

import copy
import time

import torch
import torch.distributed as dist
from costs import costs, now
from own import RANK, begin, samples, sharded, tell, window
from torch.nn.parallel import DistributedDataParallel as DDP

TRIALS = 12


def plot_curve(seconds: float) -> None:
    time.sleep(seconds)


def shift_colors(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x * 1.01


class Training:
    def __init__(self, given: object) -> None:
        self.given = given
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 20, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            torch.nn.Conv2d(20, 40, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4),
            torch.nn.Flatten(), torch.nn.Linear(640, 8),
        )  # fmt: skip
        self.model = DDP(net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 1e-3, momentum=0.9)
        self.batches = sharded(samples(3072, 3 * 24 * 24), 32)

    def one_step(self) -> float:
        x, y = next(self.batches)
        x = x.view(-1, 3, 24, 24)
        if now(self.given, "shift") and self.given.shift_rank == RANK:
            with costs("shift_colors"):
                x = shift_colors(x, self.given.shift)
        loss = torch.nn.functional.cross_entropy(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def find_rate(self, own: object) -> float:
        before = copy.deepcopy(self.model.state_dict())
        losses = []
        for trial in range(TRIALS):
            rate = 1e-5 * 10 ** (trial / 3)
            self.optimizer.param_groups[0]["lr"] = rate
            losses.append((self.one_step(), rate))
            if now(self.given, "plot") and RANK == 0:
                with costs("plot_curve"):
                    plot_curve(self.given.plot)
            own.step()
        self.model.load_state_dict(before)
        self.optimizer.state.clear()
        self.optimizer.param_groups[0]["lr"] = min(losses)[1] / 10
        return min(losses)[1]


def main() -> None:
    given = begin(shift=0.0, shift_rank=1, plot=0.0)
    training = Training(given)
    with window(given) as own:
        training.find_rate(own)
        for _ in range(given.steps - TRIALS):
            training.one_step()
            own.step()
    tell(given.steps, training.model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
