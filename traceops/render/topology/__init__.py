"""A machine as a figure."""
