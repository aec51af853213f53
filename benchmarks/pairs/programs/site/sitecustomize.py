"""Stands on the PYTHONPATH of ranks: times optimizer steps and collections."""

import atexit
import gc
import json
import os
import sys
import time
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path


class Clock:
    """Ends of optimizer steps, collections; written at the end (PAIRS_CLOCK is the folder)."""

    def __init__(self):
        self.began, self.steps, self.collections, self.since = (time.perf_counter(), [], [], 0.0)

    def step(self, *_):
        if not self.steps:
            atexit.register(self.write)
        self.steps.append(time.perf_counter() - self.began)

    def collect(self, phase, _):
        now = time.perf_counter()
        if phase == "start":
            self.since = now
        else:
            self.collections.append((self.since - self.began, now - self.since))

    def write(self):
        folder = Path(os.environ["PAIRS_CLOCK"])
        folder.mkdir(parents=True, exist_ok=True)
        rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
        told = {"steps": self.steps, "gc": self.collections}
        (folder / f"{rank}.{os.getpid()}.json").write_text(json.dumps(told))


CLOCK = Clock()


class Hooked(MetaPathFinder):
    """Has the optimizer's module call the clock once it is loaded."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch.optim.optimizer":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            module.register_optimizer_step_post_hook(CLOCK.step)

        spec.loader.exec_module = exec_module
        return spec


if "PAIRS_CLOCK" in os.environ:
    sys.meta_path.insert(0, Hooked())
    gc.callbacks.append(CLOCK.collect)
_here = Path(__file__).resolve().parent
_next = PathFinder.find_spec("sitecustomize", [f for f in sys.path if Path(f or ".").resolve() != _here])
if _next is not None and _next.loader is not None:
    _next.loader.exec_module(module_from_spec(_next))
