"""Numbers as a report holds them. A file is from anybody, so what sums and squares cannot hold is not read."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Whole = Annotated[int, Meta(ge=-(2**62), le=2**62)]
Count = Annotated[int, Meta(ge=0, le=2**62)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
NotNegative = Annotated[float, Meta(ge=0, le=1e300)]
