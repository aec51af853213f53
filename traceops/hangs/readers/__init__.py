"""Reads what a hang left behind: flight-recorder dumps, logs, stacks."""
