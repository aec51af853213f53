"""Runs a module in a process of ours: ``python FILE MODULE [ARGS…]``.

``python -m`` would put the working folder first on ``sys.path``: a queue.py or json.py there, or a folder called torch,
would be executed in the place of the library that is meant.
"""

import sys

if __name__ == "__main__":
    if not getattr(sys.flags, "safe_path", False):
        del sys.path[0]  # the folder of this file

from pathlib import Path


def command_of(module: str) -> list[str]:
    """What starts a Python that runs this module, and finds traceops wherever that is."""
    return [sys.executable, str(Path(__file__).resolve()), module]


if __name__ == "__main__":
    import runpy

    _ROOT = str(Path(__file__).resolve().parents[2])
    if _ROOT not in sys.path:
        sys.path.append(_ROOT)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
