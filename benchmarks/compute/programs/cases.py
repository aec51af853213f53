"""All cases, in the order in which they are defined."""

from __future__ import annotations

import answering  # noqa: F401
import lean  # noqa: F401
import loops  # noqa: F401
import tuned  # noqa: F401
import zoo  # noqa: F401
from case import CASES

__all__ = ["CASES"]
