"""GPUs and cloud instances by name: gpus.json, the memory that each GPU has for a program."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import msgspec

from traceops.core.errors import UsageError
from traceops.core.text import meant
from traceops.memory.model import is_size, size_of

_MIB, _GIB = 1 << 20, 1 << 30
_HOPPER = re.compile(r"\bG?H(100|200|800|20)\b")


class Gpu(msgspec.Struct, frozen=True):
    """gib: what the driver reports to torch (total_memory), which is less than the name says; as torch's own messages
    print it, to 1 %. pattern: of the name in capitals, its words separated by single spaces."""

    name: str
    pattern: str
    gib: float


class Hardware(msgspec.Struct, frozen=True):
    """What a name stands for: bytes of a GPU, its name where it is known, how many an instance has, and its price.
    price: of the instance for an hour, in US dollars on demand; None where it is not known."""

    capacity: int
    gpu: str | None = None
    count: int | None = None
    price: float | None = None


class _Table(msgspec.Struct, frozen=True):
    gpus: list[Gpu]
    instances: dict[str, tuple[str, int]]
    prices: dict[str, float]


@cache
def _table() -> _Table:
    return msgspec.json.decode(files("traceops.memory").joinpath("gpus.json").read_bytes(), type=_Table)


def instance_of(text: str) -> Hardware | None:
    """The cloud instance of this name, as p4d.24xlarge or SageMaker's ml.p4d.24xlarge; None where none is known."""
    table = _table()
    for instance, (name, count) in table.instances.items():
        if text.lower().removeprefix("ml.") == instance.lower():
            return msgspec.structs.replace(_named(name), count=count, price=table.prices.get(instance))
    return None


def hardware_of(text: str) -> Hardware:
    """The GPU that is meant: NVIDIA A100-SXM4-80GB, a100-80, 24GB, or an instance such as p4d.24xlarge. Raises
    UsageError, which names what is near."""
    table = _table()
    if (instance := instance_of(text)) is not None:
        return instance
    if is_size(text):
        return Hardware(size_of(text))
    words = " ".join(re.findall(r"[A-Z0-9.]+", text.upper()))
    for gpu in table.gpus:
        if re.search(rf"\b({gpu.pattern})\b", words):
            return _named(gpu.name)
    sizes = [gpu.name for gpu in table.gpus if words and gpu.name.upper().startswith(words.split()[-1] + "-")]
    if sizes:
        raise UsageError(f"--gpu {text}: this GPU comes with different memory; give one of {', '.join(sizes)}")
    known = [gpu.name for gpu in table.gpus]
    raise UsageError(
        f"--gpu {text}: not known{meant(text, known)}. Give its memory, such as --gpu 24GB, a cloud instance such as "
        f"p4d.24xlarge, or one of {', '.join(known)}"
    )


def _named(name: str) -> Hardware:
    gib = next(gpu.gib for gpu in _table().gpus if gpu.name == name)
    return Hardware(round(gib * _GIB), name)


def workspaces_of(gpu: str | None) -> dict[str, int]:
    """Bytes that matrix products take of a GPU: cuBLAS for each thread, cuBLASLt once. Without a name as on Hopper."""
    return {"cublas": 32 * _MIB if gpu is None or _HOPPER.search(gpu.upper()) else 8_519_680, "cublaslt": _MIB}
