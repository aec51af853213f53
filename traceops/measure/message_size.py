"""How many bytes a message of so many elements has."""

from __future__ import annotations

_DTYPE_BYTES = {
    "bool": 1, "byte": 1, "char": 1, "int8": 1, "uint8": 1, "half": 2, "float16": 2, "bfloat16": 2, "short": 2,
    "int16": 2, "float": 4, "float32": 4, "int": 4, "int32": 4, "long": 8, "int64": 8, "double": 8, "float64": 8,
    "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


def message_bytes(elements: int | None, dtype: str | None) -> int | None:
    """Bytes of so many elements of a type as traces name it; None where either is not known."""
    name = (dtype or "").lower().removeprefix("c10::").removeprefix("torch.")
    size = 1 if name.startswith("float8") else _DTYPE_BYTES.get(name)
    return elements * size if elements is not None and size is not None else None
