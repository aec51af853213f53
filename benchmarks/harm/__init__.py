"""Programs compared byte by byte with and without traceops: it must change nothing that their users see."""
