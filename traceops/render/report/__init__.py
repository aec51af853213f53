"""The report of `traceops analyze` in each format."""
