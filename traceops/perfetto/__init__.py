"""All ranks of a run as one aligned timeline that ui.perfetto.dev opens."""

from traceops.perfetto.timeline import Timeline, write_timeline

__all__ = ["Timeline", "write_timeline"]
