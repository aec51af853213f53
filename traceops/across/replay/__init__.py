"""Replays the steps of all ranks on the graph of their collectives, as measured and with one change at a time."""
