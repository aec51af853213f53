"""Reads pickles that hold data only: nothing in them is executed, whatever they ask for."""

from __future__ import annotations

import gc
import io
import os
import pickle
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

from traceops.core.files import open_regular

# What reading damaged or hostile bytes may raise, besides UnpicklingError.
_DAMAGE = (
    EOFError, ValueError, TypeError, AttributeError, LookupError, OverflowError, MemoryError, RecursionError,
    struct.error,
)  # fmt: skip

# What unpickling may take beyond the file's own size, in bytes: a number in a hostile pickle makes Python
# reserve a table of any length.
_SPARE_MEMORY = 2 << 30


class ForbiddenPickle(pickle.UnpicklingError):
    """The pickle asks for a class or a function: it is not a dump of data."""


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise ForbiddenPickle(f"it asks for {module}.{name}; a dump of data needs no such thing")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise ForbiddenPickle("it refers to objects outside itself")


class _PlainSlow(pickle._Unpickler):  # the same, written in Python
    stack: list[Any]
    metastack: list[list[Any]]

    find_class = _Plain.find_class
    persistent_load = _Plain.persistent_load

    def parts(self) -> list[Any]:
        """Everything on the stack at this moment, outermost first."""
        return [item for stack in [*self.metastack, self.stack] for item in stack]


def load_plain(data: bytes) -> Any:
    """The object a pickle holds: dicts, lists, tuples, strings, numbers, None and booleans. Raises ForbiddenPickle for
    one that asks for more, UnpicklingError for one that is damaged or cut off."""
    return _load(io.BytesIO(data), len(data))


def load_plain_file(path: Path) -> Any:
    """The same of a file, which is not held in memory as a whole. Raises OSError too."""
    with open_regular(str(path)) as file:
        return _load(file, os.fstat(file.fileno()).st_size)


def _load(file: IO[bytes], size: int) -> Any:
    collecting = gc.isenabled()
    gc.disable()  # it would look at millions of dicts again and again, none of which is garbage
    try:
        with _bounded_memory(_SPARE_MEMORY + 200 * size):
            return _Plain(file).load()
    except pickle.UnpicklingError:
        raise
    except (EOFError, ValueError, TypeError, AttributeError, LookupError, OverflowError, MemoryError) as error:
        raise pickle.UnpicklingError(str(error) or type(error).__name__) from error
    finally:
        if collecting:
            gc.enable()


def salvage_plain(data: bytes) -> list[Any]:
    """What a pickle that was cut off had built before the cut, outermost first; [] where that is nothing."""
    reader = _PlainSlow(io.BytesIO(data))
    try:
        return [reader.load()]
    except ForbiddenPickle:
        raise
    except (pickle.UnpicklingError, *_DAMAGE):
        return reader.parts() if hasattr(reader, "stack") else []


@contextmanager
def _bounded_memory(spare: int) -> Iterator[None]:
    """Inside the block this process may take at most `spare` bytes more; no limit where that cannot be told."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except OSError:
        yield
        return
    limit = pages * resource.getpagesize() + spare
    if soft != resource.RLIM_INFINITY and soft <= limit:
        yield
        return
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
