"""All ranks of a run as one aligned timeline that ui.perfetto.dev opens."""

from traceops.timeline.write import Timeline, write_timeline

__all__ = ["Timeline", "write_timeline"]
