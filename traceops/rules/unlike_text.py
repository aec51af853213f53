"""How TO-T001 names steps and counts them."""

from __future__ import annotations


def steps_text(steps: tuple[int, ...]) -> str:
    """'Steps 10, 12', the first eight."""
    listed = ", ".join(map(str, steps[:8])) + (" …" if len(steps) > 8 else "")
    return f"Step{'s' if len(steps) > 1 else ''} {listed}"


def takes(took: list[float]) -> str:
    """'take 20.1 to 30.4 ms'."""
    return f"takes {took[0]:.1f} ms" if len(took) == 1 else f"take {min(took):.1f} to {max(took):.1f} ms"


def the_only(count: int) -> str:
    """'they are the only ones'."""
    return "it is the only one" if count == 1 else "they are the only ones"


def comes(count: int) -> str:
    """'such steps come'."""
    return "it comes" if count == 1 else "such steps come"
