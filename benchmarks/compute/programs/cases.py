"""All cases, in the order in which they run."""

from __future__ import annotations

import answering
import lean
import loops
import tuned
import zoo
from case import CASES

MODULES = [module.__name__ for module in (zoo, answering, loops, tuned, lean)]

__all__ = ["CASES", "MODULES"]
