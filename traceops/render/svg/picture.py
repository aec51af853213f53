"""A heat map of very many cells as a PNG of one colour, whose strength is a cell's value."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SHADES = 15  # and one for what is not known
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def shaded_png(shades: NDArray[np.uint8], colour: str, strongest: float) -> str:
    """A data URI: a pixel a cell. shades: 0 where nothing is known, else 1 to `SHADES`; strongest: 0 to 1.

    Four bits a pixel with a palette: all entries have the colour, each its own opacity.
    """
    height, width = shades.shape
    padded = np.zeros((height, width + width % 2), dtype=np.uint8)
    padded[:, :width] = shades
    packed = (padded[:, ::2] << 4) | padded[:, 1::2]
    lines = b"".join(b"\0" + line.tobytes() for line in packed)  # filter 0
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    opacity = [0, *(_byte(0.04 + strongest * step / (SHADES - 1)) for step in range(SHADES))]
    png = _SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)),
            _chunk(b"PLTE", bytes((red, green, blue)) * (SHADES + 1)),
            _chunk(b"tRNS", bytes(opacity)),
            _chunk(b"IDAT", zlib.compress(lines, 9)),
            _chunk(b"IEND", b""),
        )
    )
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def shades_of(grid: Sequence[Sequence[float | None]], low: float, high: float) -> NDArray[np.uint8]:
    """The shade of each value between two ends; 0 for None."""
    values = np.array([[np.nan if value is None else value for value in line] for line in grid], dtype=float)
    share = np.clip((values - low) / ((high - low) or 1.0), 0.0, 1.0)
    shaded: NDArray[np.uint8] = np.where(np.isnan(values), 0, 1 + np.round(np.nan_to_num(share) * (SHADES - 1))).astype(
        np.uint8
    )
    return shaded


def _byte(share: float) -> int:
    return min(round(255 * share), 255)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
