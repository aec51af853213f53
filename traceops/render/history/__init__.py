"""The history of a baseline in each format."""
