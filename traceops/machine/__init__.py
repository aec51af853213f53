"""Reads what a host is and has: programs, files and variables, without judging any of it."""
