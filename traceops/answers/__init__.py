"""What one asks of a run: `traceops show`, the MCP server and notebooks give the same answers, from the same rows."""
