"""Whether one run is slower than another, by how much, how sure that is, and why."""

from traceops.compare.capture import ComparedCapture, read_capture
from traceops.compare.config import CompareConfig, load_config
from traceops.compare.run import compare

__all__ = ["CompareConfig", "ComparedCapture", "compare", "load_config", "read_capture"]
