"""The end of a step in which nothing is due."""
