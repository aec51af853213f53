"""The monitor, measured: streams that are generated, jobs that are real, and what it costs."""
