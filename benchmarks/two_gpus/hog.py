"""Keeps one GPU busy with large products until it is ended: python -m benchmarks.two_gpus.hog GPU SECONDS"""

from __future__ import annotations

import sys
import time

import torch


def main() -> None:
    gpu, seconds = int(sys.argv[1]), float(sys.argv[2])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", gpu) if on_gpu else torch.device("cpu")
    size = 8192 if on_gpu else 256
    x = torch.randn(size, size, device=device, dtype=torch.bfloat16 if on_gpu else torch.float32)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(4):
            y = x @ x
        float(y[0, 0])


if __name__ == "__main__":
    main()
