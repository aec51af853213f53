"""All cases, in the order in which they run."""

from __future__ import annotations

import attending
import libraries
import own
import serving
import tuned
from case import CASES

MODULES = [module.__name__ for module in (libraries, serving, attending, own, tuned)]

__all__ = ["CASES", "MODULES"]
