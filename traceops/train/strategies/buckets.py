"""Gradient buckets: fixed sets of parameters, launched in one order on every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def make_buckets(parameters: Sequence[nn.Parameter], cap_bytes: float) -> list[list[nn.Parameter]]:
    """Split `parameters` into buckets of one dtype and at most `cap_bytes` (or a single parameter) each.

    Last parameters first: backward reaches them first, so that is about the order buckets get ready in.
    """
    buckets: list[list[nn.Parameter]] = []
    open_bucket: dict[torch.dtype, tuple[list[nn.Parameter], int]] = {}
    for p in reversed(parameters):
        bucket, filled = open_bucket.get(p.dtype, ([], 0))
        size = p.numel() * p.element_size()
        if not bucket or filled + size > cap_bytes:
            bucket, filled = [], 0
            buckets.append(bucket)
        bucket.append(p)
        open_bucket[p.dtype] = (bucket, filled + size)
    return buckets


class LaunchInOrder:
    """Calls ``launch(index)`` for bucket 0, 1, 2, … as soon as it and all before it have their gradients.

    Collectives match by the order they are called in. Gradients may get ready in another order on
    another rank (a branch, an unused parameter), so a bucket that is ready early waits for those before it.
    """

    def __init__(self, buckets: Sequence[Sequence[nn.Parameter]], launch: Callable[[int], None]) -> None:
        self.enabled = True
        self._buckets = buckets
        self._launch = launch
        self._start_over()
        for index, bucket in enumerate(buckets):
            for p in bucket:
                p.register_post_accumulate_grad_hook(self._hook_of(index))  # type: ignore[no-untyped-call]

    def _start_over(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]
        self._next = 0

    def _hook_of(self, index: int) -> Callable[[Tensor], None]:
        def ready(_: Tensor) -> None:
            if not self.enabled:
                return
            self._missing[index] -= 1
            while self._next < len(self._buckets) and not self._missing[self._next]:
                self._launch_next()

        return ready

    def _launch_next(self) -> None:
        self._next += 1
        self._launch(self._next - 1)

    def finish(self) -> None:
        """After backward: launch what still waits for parameters that got no gradient."""
        if self.enabled:
            while self._next < len(self._buckets):
                self._launch_next()
            self._start_over()
