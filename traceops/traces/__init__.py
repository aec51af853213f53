"""Bytes to columns: which files are traces of which ranks, and what is in them."""
