"""One spelling for PCI bus ids, however a source writes them."""

from __future__ import annotations

import re

_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?", re.IGNORECASE | re.ASCII)


def normal_bus_id(text: str | None) -> str | None:
    """``00000000:3B:00.0``, ``3b:00.0`` and ``0000:3b:00`` as ``0000:3b:00.0``; None for what is no bus id."""
    match = _BUS_ID.fullmatch((text or "").strip())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus.lower()}:{device.lower()}.{(function or '0').lower()}"
