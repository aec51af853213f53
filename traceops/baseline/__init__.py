"""Captures kept over time: the store of baselines, their keys, and the history of each key."""
