"""When two names are of one host: with or without its domain, in capitals or not."""

from __future__ import annotations

LOCAL_HOST = "localhost"  # a name that many hosts bear


def short_host(host: str | None) -> str:
    """Without the domain, which some sources say and some do not; an address as it is. Empty for None."""
    name = (host or "").lower()
    return name if name.replace(".", "").isdigit() else name.partition(".")[0]


def same_host(one: str | None, other: str | None) -> bool:
    """Whether both are named, and alike."""
    return one is not None and other is not None and short_host(one) == short_host(other)
