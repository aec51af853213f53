from typing import Any

def replay(
    programs: list[Any], collectives: tuple[Any, ...], transfer: Any, /
) -> tuple[bytearray, list[int], list[int], list[int]]: ...
