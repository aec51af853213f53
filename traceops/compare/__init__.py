"""Whether one run is slower than another, by how much, how sure that is, and why."""

from traceops.compare.capture import ComparedCapture, read_capture
from traceops.compare.config import CompareConfig, load_config
from traceops.compare.run import compare

Capture = ComparedCapture
"""The name of before: `traceops.capture` is another thing."""

__all__ = ["Capture", "CompareConfig", "ComparedCapture", "compare", "load_config", "read_capture"]
