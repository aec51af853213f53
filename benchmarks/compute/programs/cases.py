"""All cases, in the order in which they run."""

from __future__ import annotations

import answering
import attending
import lean
import libraries
import loops
import own
import serving
import tuned
import zoo
from case import CASES

MODULES = [module.__name__ for module in (libraries, serving, attending, own, zoo, answering, loops, tuned, lean)]

__all__ = ["CASES", "MODULES"]
