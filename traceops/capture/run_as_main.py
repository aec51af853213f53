"""Runs a script or a module in this process as Python would: as ``__main__``, with its own arguments and folder.

Its module stays ``__main__`` when it is done: threads and handlers of the program that go on look there for its
classes, and its objects live until Python ends. `runpy.run_path` and `run_module` take both away.
"""

from __future__ import annotations

import builtins
import io
import pkgutil
import runpy
import sys
from collections.abc import Sequence, Set
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_NO_TEXT = ".pyc"


def run_as_main(words: Sequence[str], loaded: Set[str] | None = None) -> None:
    """Run ``SCRIPT [ARGS…]`` or ``-m MODULE [ARGS…]``. Raises what the program raises, SystemExit among it.

    The script's folder comes first on ``sys.path``, unless Python keeps it safe (``-P``, PYTHONSAFEPATH).
    loaded: modules that Python itself has loaded. Others that the program has of its own are forgotten, so that it
    finds them; None where it is not known.
    """
    if words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        _put_first(str(Path.cwd()), loaded)
        _new_main()
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]  # as Python itself does for -m
        return
    sys.argv = list(words)
    path = str(Path(words[0]).absolute())
    try:
        Path(path).stat()
    except OSError as error:  # in Python's own words
        shown = path if words[0] == path else f"{Path.cwd()}/{words[0]}"
        reason = f"can't open file {shown!r}: [Errno {error.errno}] {error.strerror}"
        print(f"{sys.orig_argv[0]}: {reason}", file=sys.stderr)
        sys.exit(2)
    if pkgutil.get_importer(path) is not None:  # a folder or an archive
        _put_first(path, loaded, safe=False)
        _new_main()
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    _put_first(str(Path(words[0]).resolve().parent), loaded)
    loader = SourcelessFileLoader if path.endswith(_NO_TEXT) else SourceFileLoader
    reader = loader("__main__", path)
    code: Any = _compiled(path) if loader is SourceFileLoader else reader.get_code("__main__")
    names = _new_main()
    names.update(__cached__=None, __file__=path, __loader__=reader)
    exec(code, names)


def _put_first(folder: str, loaded: Set[str] | None, *, safe: bool | None = None) -> None:
    """Have the program's modules found in `folder` first, also those whose names we have loaded for ourselves."""
    if getattr(sys.flags, "safe_path", False) if safe is None else safe:
        return
    sys.path.insert(0, folder)
    ours = {name.partition(".")[0] for name in sys.modules} - {"traceops"} if loaded is not None else set()
    for name in ours - (loaded or set()):
        if any(map(Path.exists, (Path(folder, f"{name}.py"), Path(folder, name, "__init__.py")))):
            for known in [known for known in sys.modules if known.partition(".")[0] == name]:
                del sys.modules[known]


def _new_main() -> dict[str, Any]:
    """Make a module `__main__` as Python does at its start; its names."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    return main.__dict__


def _compiled(path: str) -> CodeType:
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)
