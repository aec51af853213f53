"""On the path of processes that tests start: torch without its compiler, for trainings that compile nothing.

Loading torch imports what gives each operator a result of no data, which only the compiler asks for, and the first
optimizer, DistributedDataParallel or profiler of a process loads torch._dynamo and torch._inductor: together more than
half of what starting a rank costs. Here stand-ins fail for whoever wants more than to leave a function alone. And ranks
are forked from who has loaded torch already: forked.py, preloaded.py. See `environment` in started.py.
"""

import atexit
import gc
import importlib
import sys
import types
from importlib.machinery import ModuleSpec

import forked
import preloaded

_COMPILER = "torch._dynamo"
_CODE_GENERATOR = "torch._inductor"
_OPERATORS_WITHOUT_DATA = "torch._meta_registrations"


def _disable(fn, recursive=True, *, reason=None, wrapping=True):
    return fn


class _LeftOut:
    """Finds these modules first."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == _CODE_GENERATOR:
            raise AttributeError(f"{name} is left out")  # so that hasattr(torch, "_inductor") is false
        return ModuleSpec(name, cls) if name in (_COMPILER, _OPERATORS_WITHOUT_DATA) else None

    @staticmethod
    def create_module(spec):
        """An empty one."""

    @staticmethod
    def exec_module(module):
        if module.__name__ == _COMPILER:
            module.disable = _disable
            module.graph_break = lambda: None
            module.utils = types.SimpleNamespace(get_optimize_ddp_mode=lambda: "ddp_optimizer")
            module.trace_rules = types.SimpleNamespace(clear_lru_cache=lambda: None)
        else:
            _let_generators_be_made()


def _let_generators_be_made():
    """What torch._meta_registrations also brings about, from torch 2.12 on."""
    import torch

    if hasattr(torch._C, "_set_generator_metaclass"):
        torch._C._set_generator_metaclass(importlib.import_module("torch._opaque_base").OpaqueBaseMeta)


sys.meta_path.insert(0, _LeftOut)
gc.set_threshold(50_000)  # loading torch allocates so much that the collector takes a tenth of it
atexit.register(gc.freeze)  # and at the end, where all is freed anyway, two tenths
forked.install(forked.itself, preloaded.Preloaded("traceops.doctor.worker").fork)
