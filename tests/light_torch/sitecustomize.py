"""On the path of processes that tests start: torch without its compiler, for trainings that compile nothing.

The first optimizer, DistributedDataParallel or profiler of a process loads torch._dynamo and torch._inductor: half of
what starting a rank costs. Here a stand-in fails for whoever wants more than to leave a function alone. See
`environment` in started.py.
"""

import gc
import sys
import types
from importlib.machinery import ModuleSpec

_COMPILER = "torch._dynamo"
_CODE_GENERATOR = "torch._inductor"


def _disable(fn, recursive=True, *, reason=None, wrapping=True):
    return fn


class _LeftOut:
    """Finds the two modules first."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == _CODE_GENERATOR:
            raise AttributeError(f"{name} is left out")  # so that hasattr(torch, "_inductor") is false
        return ModuleSpec(name, cls) if name == _COMPILER else None

    @staticmethod
    def create_module(spec):
        """An empty one."""

    @staticmethod
    def exec_module(module):
        module.disable = _disable
        module.graph_break = lambda: None
        module.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
        module.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)


sys.meta_path.insert(0, _LeftOut)
gc.set_threshold(50_000)  # loading torch allocates so much that the collector takes a tenth of it
