from collections.abc import Callable
from typing import Any

def read(file: int, place: Callable[[str, int, str], int], /) -> dict[str, Any] | None: ...
