"""Watches a training while it runs: what its ranks write, what changes, since when, and why (docs/live.md)."""
