"""A training in which one rank goes wrong: hanging.py FAULT RANK, after a few good steps."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

GOOD_STEPS = 6
FOREVER_S = 600


def all_reduce(size=1024):
    dist.all_reduce(torch.ones(size))


def stop_here():
    os.kill(os.getpid(), signal.SIGSTOP)


def leave(code):
    os._exit(code)


def leave_a_child():
    """End, while a child goes on that holds the connections open: the others see nothing of the end."""
    if os.fork() == 0:
        time.sleep(FOREVER_S)
    os._exit(0)


def evaluate(seconds):
    """Long work between two steps, without a collective."""
    end = time.monotonic() + seconds
    matrix = torch.eye(64)
    while time.monotonic() < end:
        for _ in range(100):
            matrix = matrix @ matrix
        matrix = matrix / matrix.norm()


class Batches(torch.utils.data.Dataset):
    """Batches for the good steps, and one that never comes if `stuck`."""

    def __init__(self, stuck):
        self._stuck = stuck

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if self._stuck and index == GOOD_STEPS:
            time.sleep(FOREVER_S)
        return torch.ones(8)


def go_wrong(fault):
    """What the faulty rank does instead of its next step's collective."""
    if fault == "sleep":  # before a collective
        time.sleep(FOREVER_S)
    elif fault == "collective":
        dist.broadcast(torch.ones(1024), src=dist.get_rank())
    elif fault == "shape":
        all_reduce(512)
    elif fault == "exit-0":
        leave(0)
    elif fault == "exit-0-unseen":
        leave_a_child()
    elif fault == "exit-3":
        leave(3)
    elif fault == "stop":
        stop_here()
    elif fault == "evaluate":
        evaluate(float(sys.argv[3]))
    elif fault == "pause":  # for a shard, say
        time.sleep(float(sys.argv[3]))


def main():
    fault, faulty = sys.argv[1], int(sys.argv[2])
    mine = int(os.environ["RANK"]) == faulty
    if fault == "init" and mine:
        time.sleep(FOREVER_S)
    dist.init_process_group("gloo")
    model = torch.nn.Linear(8, 8)
    if fault == "loader":
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stuck = mine and fault == "loader"
    loader = torch.utils.data.DataLoader(Batches(stuck), batch_size=1, num_workers=int(fault == "loader"))
    for number, batch in enumerate(loader):
        if number == GOOD_STEPS and mine:
            go_wrong(fault)
        optimizer.zero_grad()
        model(batch).sum().backward()
        if not (mine and fault == "skip" and number == GOOD_STEPS):  # its calls are one behind from here on
            all_reduce()
        optimizer.step()
        if number == 2 * GOOD_STEPS:
            break
    if fault == "skip" and mine:
        time.sleep(FOREVER_S)
    if fault == "evaluate-last" and mine:
        evaluate(float(sys.argv[3]))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
