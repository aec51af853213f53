"""The environment of processes that tests start."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIGHT_TORCH = Path(__file__).with_name("light_torch")
SELDOM_COLLECTED = Path(__file__).with_name("seldom_collected")


def environment(*, compiler: bool = False, **more: str) -> dict[str, str]:
    """With traceops importable, and one thread as ranks have; torch without its compiler, unless `compiler`.

    Without it `traceops`, torch.distributed.run and code that imports torch are forked from a process that has it.
    Each worker starts one (conftest.py, light_torch/preloaded.py). Ranks are forked from torch.distributed.run
    (light_torch/forked.py). One test of each command at least asks for the compiler, and so starts all as users do.
    """
    path = python_path(os.environ.get("PYTHONPATH"), compiler=compiler)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def python_path(*more: str | Path | None, compiler: bool = False) -> str:
    """PYTHONPATH with traceops and `more`, and with torch's compiler left out unless `compiler`."""
    first = SELDOM_COLLECTED if compiler else LIGHT_TORCH
    return os.pathsep.join(str(folder) for folder in (first, ROOT, *more) if folder)
