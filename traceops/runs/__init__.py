"""Runs that belong together: which they are, a row of each, how they scale, and sweeps over their settings."""
