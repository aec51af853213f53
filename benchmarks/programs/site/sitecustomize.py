"""Makes one rank of a program slow without changing the program: PROGRAMS_PLANT=WHERE:RANK:SECONDS.

WHERE: forward, backward, loader, optimizer (sleeps there), compute (multiplies matrices in forward), host (Python in
forward). This folder stands on the PYTHONPATH of the ranks.
"""

import functools
import os
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

_PLACES = {
    "forward": "torch.nn.modules.module", "compute": "torch.nn.modules.module", "host": "torch.nn.modules.module",
    "loader": "torch.utils.data.dataloader", "optimizer": "torch.optim.optimizer", "backward": "torch.autograd",
}  # fmt: skip


def has_parameters(module):
    return next(module.parameters(), None) is not None


def _rank():
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    torch = sys.modules["torch"]
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("LOCAL_RANK", "0"))


class _Plant(MetaPathFinder):
    """Changes the module once it is loaded."""

    def __init__(self, where, rank, seconds):
        self.where, self.rank, self.seconds = where, int(rank), float(seconds)

    def find_spec(self, name, path=None, target=None):
        if name != _PLACES[self.where]:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)  # of whoever else looks for it too
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            getattr(self, f"in_{self.where}")(module)

        spec.loader.exec_module = exec_module
        return spec

    def late(self):
        if _rank() == self.rank:
            time.sleep(self.seconds)

    def before(self, owner, name):
        whole = getattr(owner, name)

        @functools.wraps(whole)
        def later(*args, **kwargs):
            self.late()
            return whole(*args, **kwargs)

        setattr(owner, name, later)

    def outermost(self, module, late):
        depth = 0
        whole = module.Module._call_impl

        @functools.wraps(whole)
        def call(self, *args, **kwargs):
            nonlocal depth
            # Lightning leaves DDP's wrapper in evaluation after its first check; what it wraps trains.
            # Pictures' transforms are modules too, in training and without parameters: a loader's affair.
            if depth == 0 and any(part.training for part in (self, *self.children())) and has_parameters(self):
                late()
            depth += 1
            try:
                return whole(self, *args, **kwargs)
            finally:
                depth -= 1

        module.Module._call_impl = call

    def in_forward(self, module):
        self.outermost(module, self.late)

    def in_host(self, module):
        def late():
            if _rank() == self.rank:
                end = time.perf_counter() + self.seconds
                while time.perf_counter() < end:
                    pass

        self.outermost(module, late)

    def in_compute(self, module):
        left = None

        def late():
            nonlocal left
            if _rank() != self.rank:
                return
            import torch

            if torch.cuda.is_available():
                left = torch.ones(4096, 4096, device="cuda") if left is None else left
                for _ in range(max(1, round(self.seconds / 0.003))):
                    left @ left
                return
            left = torch.ones(256, 256) if left is None else left
            end = time.perf_counter() + self.seconds
            while time.perf_counter() < end:
                left @ left

        self.outermost(module, late)

    def in_loader(self, module):
        for kind in (module._SingleProcessDataLoaderIter, module._MultiProcessingDataLoaderIter):
            self.before(kind, "_next_data")

    def in_optimizer(self, module):
        module.register_optimizer_step_pre_hook(lambda *_: self.late())

    def in_backward(self, module):
        self.before(module, "backward")


def _next_sitecustomize():
    here = Path(__file__).resolve().parent
    spec = PathFinder.find_spec("sitecustomize", [f for f in sys.path if Path(f).resolve() != here])
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        spec.loader.exec_module(module_from_spec(spec))


if os.environ.get("PROGRAMS_PLANT"):
    sys.meta_path.insert(0, _Plant(*os.environ["PROGRAMS_PLANT"].split(":")))
_next_sitecustomize()
