"""Looks at this machine, tests it, and finds settings that work."""
