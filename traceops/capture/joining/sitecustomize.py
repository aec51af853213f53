"""Python runs this as each process of the command starts, and after it the `sitecustomize` that it would have run.

Nothing of traceops is loaded before a process imports torch's optimizers: most processes of a command never do.
"""

import os
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_OPTIMIZERS = "torch.optim.optimizer"


class _Joins(MetaPathFinder):
    """Has the capture join once torch's optimizers are asked for; finds nothing itself."""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != _OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        try:
            from traceops.capture.join import join

            join()  # puts a finder of its own in front, which is asked as if it had been there
        except Exception as error:
            print(f"traceops: nothing is captured in process {os.getpid()}: {error}", file=sys.stderr)
            return None
        return find_spec(name)


def _next_sitecustomize(run: list[Path]) -> None:
    """Run the module of this name that Python would have run without us; `run` has the folders of those that ran. One
    that runs the next one itself, as this does, comes back here: what is next then is neither of us."""
    elsewhere = [folder for folder in sys.path if Path(folder).resolve() not in run]
    spec = PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None or spec.origin is None:
        return
    run.append(Path(spec.origin).resolve().parent)
    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


_ran: list[Path] = sys.__dict__.setdefault("_traceops_sitecustomizes", [])  # outlives this module, which may run twice
if _HERE not in _ran:
    _ran.append(_HERE)
    if os.environ.get("TRACEOPS_CAPTURE"):
        sys.meta_path.insert(0, _Joins())
_next_sitecustomize(_ran)
