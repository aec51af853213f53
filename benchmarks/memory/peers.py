"""What others say that the trainings of tests/data/memory/h200.json need: `python -m benchmarks.memory.peers [NAME…]`.

accelerate's `estimate-memory` and DeepSpeed's estimates are formulas of the number of parameters, written here as their
packages have them (accelerate 1.15, deepspeed 0.19.8). torch's MemTracker counts, on the same fake tensors and process
group, what tensors hold. All three are held against the peak of what tensors held, on the rank that held most.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.memory.estimates import DATA, config_of
from traceops.memory.fakes import faked
from traceops.memory.tracker import Tracker
from traceops.train.build import optimizer_spec, strategy_options
from traceops.train.config import TrainConfig, sizes_for
from traceops.train.model import make_model
from traceops.train.strategies import strategy_class

_MIB = 1 << 20


def accelerate(parameters: int, largest: int, config: TrainConfig, world_size: int) -> int:
    """`accelerate estimate-memory`, its column for training with Adam: the largest of its four phases."""
    size = 4 * parameters
    return 4 * size if config.precision == "fp32" else 2 * size


def deepspeed(parameters: int, largest: int, config: TrainConfig, world_size: int) -> int:
    """estimate_zero3_model_states_mem_needs where parameters are sharded, else estimate_zero2_…, without offload.

    Without sharding the second is that of one GPU.
    """
    if config.offload == "cpu":
        return 4 * largest
    if config.strategy in ("pytorch_zero3", "pytorch_zero2", "zero3"):
        return 4 * largest + 18 * parameters // world_size
    shards = world_size if config.strategy == "pytorch_zero1" else 1
    return 2 * parameters + 18 * parameters // shards


def mem_tracker(config: TrainConfig, world_size: int) -> int:
    """The peak of torch.distributed._tools.MemTracker over two steps."""
    sizes = sizes_for(config, "cuda")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
    try:
        phases, counted = Tracker({}), MemTracker()
        with (
            faked(phases),
            FakeTensorMode(allow_non_fake_inputs=True),
            sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]),
        ):
            model = make_model(config, sizes)
            options = strategy_options(config, sizes, world_size, world_size)
            strategy = strategy_class(config.strategy)(model, optimizer_spec(config), torch.device("cpu"), options)
            counted.track_external(strategy.module, strategy.optimizer)
            with counted:
                for _ in range(2):
                    for number in range(1, config.grad_accum + 1):
                        tokens = torch.zeros((sizes.batch_size, sizes.seq_len), dtype=torch.int64)
                        with strategy.micro_step(number == config.grad_accum):
                            strategy.forward_backward(tokens, tokens.clone(), config.grad_accum)
                        counted.reset_mod_stats()
                    strategy.optimizer_step()
                    strategy.zero_grad()
            return sum(int(one["Total"]) for one in counted.get_tracker_snapshot("peak").values())
    finally:
        dist.destroy_process_group()


def _counts(config: TrainConfig) -> tuple[int, int]:
    """Parameters of the model, and of its largest layer."""
    with torch.device("meta"):
        model = make_model(config, sizes_for(config, "cuda"))
    own = [sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules()]
    return sum(p.numel() for p in model.parameters()), max(own)


def main() -> None:
    """A row a training, and of each the median and largest error."""
    formulas: dict[str, Callable[[int, int, TrainConfig, int], int]] = {
        "accelerate": accelerate, "DeepSpeed": deepspeed,
    }  # fmt: skip
    errors: dict[str, list[float]] = {name: [] for name in (*formulas, "MemTracker")}
    runs: list[dict[str, Any]] = json.loads((DATA / "h200.json").read_text(encoding="utf-8"))["runs"]
    for run in runs:
        if sys.argv[1:] and run["name"] not in sys.argv[1:]:
            continue
        config = config_of(run)
        truth = max(allocated for _, allocated, _ in run["ranks"])
        row = f"| {run['name']} | {truth / _MIB:,.0f} |"
        for name in errors:
            try:
                said = (
                    formulas[name](*_counts(config), config, run["world_size"])
                    if name in formulas
                    else mem_tracker(config, run["world_size"])
                )
            except Exception as error:  # of torch's tracker
                row += f" {type(error).__name__}: {str(error)[:80]} |"
                continue
            errors[name].append(said / truth - 1)
            row += f" {said / _MIB:,.0f} ({said / truth - 1:+.0%}) |"
        print(row, flush=True)
    for name, found in errors.items():
        if found:
            shares = [abs(one) for one in found]
            print(f"{name}: {len(found)}, median {statistics.median(shares):.1%}, largest {max(shares):.1%}")


if __name__ == "__main__":
    main()
